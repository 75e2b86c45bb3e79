# SPDX-License-Identifier: Apache-2.0
"""`gdnbench trace`: replay recorded calls on the simulator and write what its instructions compute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gdnbench.cli.checking import (
    ACCEPT,
    CHECK,
    VERBOSE,
    WRITE_ACCEPT,
    print_unused,
    read_accepted,
    write_template,
)
from gdnbench.cli.console import progress
from gdnbench.cli.judging import HEATMAP, factors, finish, tolerance
from gdnbench.cli.record_options import (
    JUDGE_PANEL,
    OUTPUT_PANEL,
    SIM_PANEL,
    AgainstOption,
    BitwiseOption,
    FactorsOption,
    IsolateOption,
    JsonOption,
    KernelEnvOption,
    MachineOption,
    OpOption,
    RecordsArgument,
    SimulatedKernelOption,
    SmsOption,
    StagesOption,
    StoreArgument,
    TimeoutOption,
    TolOption,
)
from gdnbench.cli.replay import replay_in_process
from gdnbench.cli.replay_repeat import SCHEDULE_HELP, SHAPE_HELP, check_repeated
from gdnbench.cli.rules import RULE, tensor_rules
from gdnbench.cli.tracing import LIMIT, SELECT, trace_to


def trace(
    store: StoreArgument,
    out: Annotated[Path, typer.Argument(help="The value trace to write: a new folder.")],
    kernel: SimulatedKernelOption,
    records: RecordsArgument = None,
    select: Annotated[str | None, typer.Option(help=SELECT)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=LIMIT)] = None,
    against: AgainstOption = "reference",
    kernel_env: KernelEnvOption = None,
    op: OpOption = None,
    k: FactorsOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    rule: Annotated[list[str] | None, typer.Option(help=RULE, rich_help_panel=JUDGE_PANEL)] = None,
    stages: StagesOption = False,
    machine: MachineOption = None,
    sms: SmsOption = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK, rich_help_panel=SIM_PANEL)] = False,
    accept: Annotated[Path | None, typer.Option(help=ACCEPT, rich_help_panel=SIM_PANEL)] = None,
    write_accept: Annotated[Path | None, typer.Option(help=WRITE_ACCEPT, rich_help_panel=SIM_PANEL)] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=VERBOSE, rich_help_panel=SIM_PANEL)
    ] = False,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE_HELP, rich_help_panel=SIM_PANEL)] = None,
    shape: Annotated[
        int | None, typer.Option(metavar="SEED", help=SHAPE_HELP, rich_help_panel=SIM_PANEL)
    ] = None,
    isolate: IsolateOption = None,
    timeout: TimeoutOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write outputs and results into a new run store.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    heatmap: Annotated[bool, typer.Option("--heatmap", help=HEATMAP, rich_help_panel=OUTPUT_PANEL)] = False,
    junit: Annotated[
        Path | None, typer.Option(help="Also write a JUnit XML file.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay records on the simulator and write what chosen instructions compute into a value trace.

    `gdnbench diff A B` of two traces names the first difference. The outputs are judged as in `gdnbench
    replay`.

    Exit status: 0 all pass; 1 a mismatch, crash, hang or check error; 3 something could not run here.
    """
    accepted = read_accepted(accept, write_accept, check=check)
    check_repeated("sim", schedule, shape, isolate)
    factor, by_tensor = factors(k)
    options: dict[str, Any] = {
        "k": factor,
        "k_by_tensor": by_tensor,
        "tol": tolerance(tol),
        "bitwise": bitwise,
        "kernel": kernel,
        "against": against,
        "on": "sim",
        "op": op,
        "rules": tensor_rules(rule),
        "stages": stages,
        "check": check,
        "accepted": accepted,
        "isolate": isolate,
        "timeout": timeout,
        "save": save,
        "grids": heatmap,
    }
    with progress("trace") as advance, trace_to(out, select, limit, advance.say) as request:
        options["trace"] = request
        report = replay_in_process(store, records, schedule, shape, None, options, advance)
    print_unused(accepted)
    if write_accept is not None:
        write_template(write_accept, (one for record in report.records for one in record.findings or ()))
    finish(report, json, junit, report.exit_code, verbose=verbose, heatmap=heatmap)
