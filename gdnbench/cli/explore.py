"""`gdnbench explore`: simulate recorded calls under many schedules and compare the bits of their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.checking import ACCEPT, CHECK, VERBOSE, WRITE_ACCEPT, read_accepted
from gdnbench.cli.console import progress
from gdnbench.cli.exploring import conclude, typed
from gdnbench.cli.judging import factors, tolerance
from gdnbench.cli.record_options import (
    JUDGE_PANEL,
    OUTPUT_PANEL,
    SIM_PANEL,
    BitwiseOption,
    FactorsOption,
    JsonOption,
    KernelEnvOption,
    MachineOption,
    OpOption,
    RecordsArgument,
    SimulatedKernelOption,
    SmsOption,
    StagesOption,
    StoreArgument,
    TolOption,
)
from gdnbench.record_numbers import record_numbers
from gdnbench.store.recover import open_store


def explore(
    store: StoreArgument,
    kernel: SimulatedKernelOption,
    records: RecordsArgument = None,
    schedules: Annotated[
        int,
        typer.Option(
            min=1, help="Number of schedules: late, early, then random ones.", rich_help_panel=SIM_PANEL
        ),
    ] = 8,
    shapes: Annotated[
        int,
        typer.Option(
            min=0, help="Number of smaller calls to make of each record, and run.", rich_help_panel=SIM_PANEL
        ),
    ] = 3,
    kernel_env: KernelEnvOption = None,
    op: OpOption = None,
    k: FactorsOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    stages: StagesOption = False,
    machine: MachineOption = None,
    sms: SmsOption = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK, rich_help_panel=SIM_PANEL)] = False,
    accept: Annotated[Path | None, typer.Option(help=ACCEPT, rich_help_panel=JUDGE_PANEL)] = None,
    write_accept: Annotated[
        Path | None, typer.Option(help=WRITE_ACCEPT, rich_help_panel=OUTPUT_PANEL)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=VERBOSE, rich_help_panel=OUTPUT_PANEL)
    ] = False,
    json: JsonOption = False,
) -> None:
    """Simulate records, and smaller calls made of them, under many schedules and compare the output bits.

      gdnbench explore run.zarr 3 --kernel sm100 --schedules 20 --check

    Each difference is printed with the command that repeats its run.

    Exit status: 0 all bits are equal and all outputs pass; 1 a difference, mismatch or check error; 3
    something could not run here.
    """
    from gdnbench.judge.rule import make_rule
    from gdnbench.replay.explore import explore_records
    from gdnbench.replay.replay import select
    from gdnbench.sim.explore import fresh_seed
    from gdnbench.sim.explore import schedules as make_schedules

    accepted = read_accepted(accept, write_accept, check=check)
    factor, by_tensor = factors(k)
    rule = make_rule(k=factor, k_by_tensor=by_tensor, tol=tolerance(tol), bitwise=bitwise)
    words: list[object] = ["--kernel", kernel, "--on", "sim"]
    words += ["--kernel-env", kernel_env] if kernel_env is not None else []
    words += ["--machine", machine] if machine is not None else []
    words += ["--sms", sms] if sms is not None else []
    words += ["--accept", accept] if accept is not None else []
    words += [word for one in k or () for word in ("--k", one)]
    words += ["--tol", tol] if tol is not None else []
    words += ["--bitwise"] * bitwise + ["--stages"] * stages + ["--check"] * check

    def command(number: int, seed: int | None, under: str) -> str:
        made = [] if seed is None else ["--shape", seed]
        return typed("replay", store, number, *words, "--schedule", under, *made)

    with open_store(store) as opened, progress("explore") as advance:
        chosen = None if records is None else record_numbers(records, len(opened.records))
        found = explore_records(
            opened,
            select(opened, chosen, op),
            kernel=kernel,
            schedules=make_schedules(schedules),
            seeds=[fresh_seed() for _ in range(shapes)],
            rule=rule,
            command=command,
            stages=stages,
            check=check,
            progress=advance,
        )
    conclude(found, accepted, write_accept, json=json, verbose=verbose)
