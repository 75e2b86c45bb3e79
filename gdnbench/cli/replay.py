# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay`: run recorded calls again, through any kernel, and judge what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.checking import (
    ACCEPT,
    CHECK,
    DELAYS,
    DELAYS_DUMP,
    KEEP_GOING,
    VERBOSE,
    WRITE_ACCEPT,
    WRITE_BASELINE,
    check_delays,
    print_unused,
    read_accepted,
    write_baseline,
    write_delays,
    write_template,
)
from gdnbench.cli.console import progress
from gdnbench.cli.debugging import PDB, TB, Debugger, check_debugged, check_traceback
from gdnbench.cli.distribution import SCHEDULER, WORKERS, is_distributed
from gdnbench.cli.git_bisect import OPTION, status, with_git_statuses
from gdnbench.cli.judging import HEATMAP, factors, finish, tolerance
from gdnbench.cli.record_options import (
    JUDGE_PANEL,
    KERNEL_PANEL,
    KERNELS,
    OUTPUT_PANEL,
    PROCESS_PANEL,
    SIM_PANEL,
    TIME_PANEL,
    AgainstOption,
    BitwiseOption,
    FactorsOption,
    IsolateOption,
    JsonOption,
    KernelEnvOption,
    MachineOption,
    OpOption,
    RecordsArgument,
    SmsOption,
    StagesOption,
    StoreArgument,
    TimeoutOption,
    TolOption,
    check_on_simulator,
)
from gdnbench.cli.replay_precision import PRECISION_HELP, check_precision, run_precision
from gdnbench.cli.replay_repeat import SCHEDULE_HELP, SHAPE_HELP, check_repeated, repeated
from gdnbench.cli.rules import RULE, tensor_rules
from gdnbench.cli.stores import open_store
from gdnbench.cli.time import CACHE, CLOCK, FORM, SECONDS, STRICT, print_times, replay_timer, timing_options
from gdnbench.errors import BadInputError
from gdnbench.record_numbers import record_numbers
from gdnbench.store.address import Address

if TYPE_CHECKING:
    from gdnbench.cli.console import Bar
    from gdnbench.report.report import ReplayReport
    from gdnbench.sim.delays import Launched
    from gdnbench.store.reader import Store
    from gdnbench.timing.options import TimingOptions


TIME = (
    "Also time the kernel, and the kernel of --against, on records that pass. With --on sim --machine h200,"
    " b200 or b300 times are predicted."
)


@with_git_statuses
def replay(
    store: StoreArgument,
    records: RecordsArgument = None,
    kernel: Annotated[
        str, typer.Option(help=f"Kernel to run: {KERNELS}", rich_help_panel=KERNEL_PANEL)
    ] = "torch",
    against: AgainstOption = "reference",
    on: Annotated[
        str,
        typer.Option(help="Device: cpu, cuda, or sim, a simulated GPU.", rich_help_panel=KERNEL_PANEL),
    ] = "cpu",
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
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help=KEEP_GOING, rich_help_panel=SIM_PANEL)
    ] = False,
    accept: Annotated[
        Path | None, typer.Option("--accept", "--baseline", help=ACCEPT, rich_help_panel=SIM_PANEL)
    ] = None,
    write_accept: Annotated[Path | None, typer.Option(help=WRITE_ACCEPT, rich_help_panel=SIM_PANEL)] = None,
    new_baseline: Annotated[
        Path | None,
        typer.Option("--write-baseline", help=WRITE_BASELINE, rich_help_panel=SIM_PANEL),
    ] = None,
    delays: Annotated[Path | None, typer.Option(help=DELAYS, rich_help_panel=SIM_PANEL)] = None,
    delays_dump: Annotated[Path | None, typer.Option(help=DELAYS_DUMP, rich_help_panel=SIM_PANEL)] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=VERBOSE, rich_help_panel=SIM_PANEL)
    ] = False,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE_HELP, rich_help_panel=SIM_PANEL)] = None,
    shape: Annotated[
        int | None, typer.Option(metavar="SEED", help=SHAPE_HELP, rich_help_panel=SIM_PANEL)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="fp64", help=PRECISION_HELP, rich_help_panel=SIM_PANEL)
    ] = None,
    isolate: IsolateOption = None,
    timeout: TimeoutOption = None,
    workers: Annotated[
        int | None, typer.Option(min=0, metavar="N", help=WORKERS, rich_help_panel=PROCESS_PANEL)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help=SCHEDULER, rich_help_panel=PROCESS_PANEL)
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time",
            help=TIME,
            rich_help_panel=TIME_PANEL,
        ),
    ] = False,
    cache: Annotated[
        str | None, typer.Option(help=f"With --time. {CACHE}", rich_help_panel=TIME_PANEL)
    ] = None,
    form: Annotated[str | None, typer.Option(help=f"With --time. {FORM}", rich_help_panel=TIME_PANEL)] = None,
    clock: Annotated[
        str | None, typer.Option(help=f"With --time. {CLOCK}", rich_help_panel=TIME_PANEL)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help=f"With --time. {SECONDS}", rich_help_panel=TIME_PANEL)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help=f"With --time. {STRICT}", rich_help_panel=TIME_PANEL)
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write outputs and results into a new run store, for diff and report.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    heatmap: Annotated[bool, typer.Option("--heatmap", help=HEATMAP, rich_help_panel=OUTPUT_PANEL)] = False,
    junit: Annotated[
        Path | None,
        typer.Option(help="Also write a JUnit XML file, e.g. results.xml.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    git_bisect: Annotated[
        bool,
        typer.Option(
            OPTION,
            help="Exit as `git bisect run` expects: 125 without a verdict.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    json: JsonOption = False,
    tb: Annotated[str, typer.Option(help=TB, rich_help_panel=OUTPUT_PANEL)] = "short",
    pdb: Annotated[bool, typer.Option("--pdb", help=PDB, rich_help_panel=PROCESS_PANEL)] = False,
) -> None:
    """Replay recorded calls through a kernel and judge its outputs.

    Exit status: 0 all pass; 1 a mismatch, crash, hang or check error; 3 something could not run here.
    """
    others = {
        "--against": against != "reference",
        "--k, --tol, --bitwise, --rule": k or tol or bitwise or rule,
        "--check": check,
        "--schedule, --shape": schedule or shape,
        "--isolate, --timeout": isolate or timeout,
        "--workers, --scheduler": workers is not None or scheduler,
        "--time": time,
        "--save": save,
        "--heatmap": heatmap,
        "--junit": junit,
        "--git-bisect": git_bisect,
        "--pdb": pdb,
    }
    check_precision(precision, on, others)
    accepted = read_accepted(accept, write_accept, new_baseline, check=check)
    launched = check_delays(delays, delays_dump, check=check, time=time)
    if launched is not None and (isolate or workers is not None or scheduler is not None):
        raise BadInputError("--delays runs in this process: omit --isolate, --workers and --scheduler")
    _check(on, time, cache or form or clock or strict or seconds is not None)
    check_on_simulator(on, machine, sms)
    check_traceback(tb)
    if pdb:
        check_debugged(isolate=isolate, json=json, timeout=timeout, workers=workers, scheduler=scheduler)
    if precision is not None:
        run_precision(store, records, op, kernel, stages=stages, keep_going=keep_going, json=json)
    predict = time and on == "sim"
    check_repeated(on, schedule, shape, isolate)
    # What `replay` in Python takes, and decides about each record.
    factor, by_tensor = factors(k)
    judging: dict[str, Any] = {
        "k": factor,
        "k_by_tensor": by_tensor,
        "tol": tolerance(tol),
        "bitwise": bitwise,
    }
    options = judging | {
        "kernel": kernel,
        "against": against,
        "on": on,
        "op": op,
        "rules": tensor_rules(rule),
        "stages": stages,
        "check": check,
        "keep_going": keep_going,
        "accepted": accepted,
        "isolate": False if pdb or launched is not None else isolate,
        "timeout": timeout,
        "save": save,
        "grids": heatmap,
        "predict": predict,
    }
    measured = time and not predict
    if pdb:
        options["debug"] = Debugger()
    if is_distributed(workers, scheduler, time=measured, schedule=schedule, shape=shape):
        with progress("replay") as advance:
            report = _spread(store, records, workers, scheduler, options, advance)
    else:
        how = (on, cache or "cold", form)
        times = (
            timing_options(*how, 30.0 if seconds is None else seconds, strict=strict, clock=clock or "auto")
            if measured
            else None
        )
        with progress("replay", shown=not pdb) as advance:
            report = replay_in_process(store, records, schedule, shape, times, options, advance, launched)
    if time and not json:
        print_times(report)
    print_unused(accepted)
    if write_accept is not None:
        write_template(write_accept, (one for record in report.records for one in record.findings or ()))
    if delays is not None and launched is not None:
        found = (one for record in report.records for one in record.findings or ())
        write_delays(delays, found, launched, machine)
    if new_baseline is not None:
        write_baseline(new_baseline, (record.findings or () for record in report.records))
    code = status(report) if git_bisect else report.exit_code
    finish(report, json, junit, code, verbose=verbose, heatmap=heatmap, tb=tb)


def _check(on: str, time: bool, timing: object) -> None:
    """BadInputError for options that do not go together; `timing`: one of those that say how to time."""
    if not time and timing:
        raise BadInputError(
            "--cache, --form, --clock, --seconds and --strict say how to time: give --time too"
        )
    if on == "sim" and timing:
        raise BadInputError(
            "--cache, --form, --clock, --seconds and --strict say how to measure, and --on sim predicts:"
            " omit them"
        )


def _numbers(store: Store, records: str | None) -> list[int] | None:
    return None if records is None else record_numbers(records, len(store.records))


def _spread(
    store: Address,
    records: str | None,
    workers: int | None,
    scheduler: str | None,
    options: Mapping[str, Any],
    advance: Bar,
) -> ReplayReport:
    from gdnbench.distributed.replay import replay_distributed

    with open_store(store) as opened:
        numbers = _numbers(opened, records)
    return replay_distributed(
        store,
        workers=workers,
        scheduler=scheduler,
        records=numbers,
        progress=lambda done, total, _: advance(done, total),
        **options,
    )


def replay_in_process(
    store: Address,
    records: str | None,
    schedule: str | None,
    shape: int | None,
    times: TimingOptions | None,
    options: Mapping[str, Any],
    advance: Bar,
    launched: Launched | None = None,
) -> ReplayReport:
    """In this process, timed with `times`; `schedule` and `shape` repeat a run of `gdnbench explore`.
    `launched` is called with each launch before it runs."""
    from gdnbench.replay.replay import replay as replay_records

    options = dict(options)
    with ExitStack() as stack:
        if launched is not None:
            from gdnbench.sim import settings_apply

            around = stack.enter_context(settings_apply())
            stack.enter_context(settings_apply(replace(around.settings, before=launched)))
        opened = stack.enter_context(open_store(store))
        if times is not None:
            timer = replay_timer(opened, options["kernel"], options["against"], options["on"], times)
            options["time"] = stack.enter_context(timer)
        numbers: Sequence[int] | None = _numbers(opened, records)
        if schedule is not None or shape is not None:
            opened, numbers = stack.enter_context(repeated(opened, numbers, schedule, shape))
            options["isolate"] = False
        return replay_records(
            opened, records=numbers, progress=lambda done, total, _: advance(done, total), **options
        )
