"""`gdnbench replay`: run recorded calls again, through any kernel, and judge what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from gdnbench.cli.exploring import EXPLORE, conclude, refuse_with, typed
from gdnbench.cli.git_bisect import OPTION, status, with_git_statuses
from gdnbench.cli.judging import HEATMAP, factors, finish, tolerance
from gdnbench.cli.replay_shapes import (
    SCHEDULE_HELP,
    SHAPE_HELP,
    SHAPES,
    SHAPES_HELP,
    check_repeated,
    explore_store,
    repeated,
)
from gdnbench.cli.rules import RULE, tensor_rules
from gdnbench.cli.spreading import SCHEDULER, WORKERS, is_spread
from gdnbench.cli.time import BUSY, CACHE, CLOCK, FORM, print_times, replay_timer, timing_options
from gdnbench.cli.tracing import LIMIT, OF, TRACE, trace_to
from gdnbench.errors import BadInputError
from gdnbench.record_numbers import record_numbers
from gdnbench.store.address import Address
from gdnbench.store.recover import open_store

if TYPE_CHECKING:
    from gdnbench.cli.console import Bar
    from gdnbench.report.report import ReplayReport
    from gdnbench.sim.explore import Exploration
    from gdnbench.store.reader import Store
    from gdnbench.timing.options import TimingOptions


@with_git_statuses
def replay(
    store: Annotated[str, typer.Argument(help="A store: folder, .zip or URL.")],
    records: Annotated[str | None, typer.Argument(help="Which records, like 0,3-5; all if left out.")] = None,
    kernel: Annotated[
        str, typer.Option(help="reference, torch, hf, package.module:function or FILE.py:function.")
    ] = "torch",
    against: Annotated[str, typer.Option(help="reference, recorded, or another kernel.")] = "reference",
    on: Annotated[str, typer.Option(help="cpu, cuda, or sim: a simulated SM100.")] = "cpu",
    op: Annotated[str | None, typer.Option(help="Only records of this operation.")] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(help="Pass at k times torch's error; TENSOR=K for one tensor; may repeat. Default 2."),
    ] = None,
    tol: Annotated[str | None, typer.Option(help="Pass at this difference instead: ABS or ABS,REL.")] = None,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Pass only when every bit is equal.")] = False,
    rule: Annotated[list[str] | None, typer.Option(help=RULE)] = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="Judge what the kernel shows between inputs and outputs, too.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help=f"With --on sim. {CHECK}")] = False,
    accept: Annotated[Path | None, typer.Option(help=ACCEPT)] = None,
    write_accept: Annotated[Path | None, typer.Option(help=WRITE_ACCEPT)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=VERBOSE)] = False,
    trace: Annotated[Path | None, typer.Option(help=f"With --on sim. {TRACE}")] = None,
    of: Annotated[str | None, typer.Option(help=OF)] = None,
    trace_limit: Annotated[int | None, typer.Option(min=1, help=LIMIT)] = None,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE_HELP)] = None,
    shape: Annotated[int | None, typer.Option(metavar="SEED", help=SHAPE_HELP)] = None,
    explore: Annotated[int | None, typer.Option(min=1, metavar="N", help=f"With --on sim. {EXPLORE}")] = None,
    shapes: Annotated[int | None, typer.Option(min=0, help=SHAPES_HELP)] = None,
    isolate: Annotated[
        bool | None,
        typer.Option(help="In a process of its own. Default: for functions of yours, and on cuda."),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds until a record counts as hung.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, metavar="N", help=WORKERS)] = None,
    scheduler: Annotated[str | None, typer.Option(metavar="ADDRESS", help=SCHEDULER)] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write outputs and results into a run store, for diff and report.")
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Time the kernel on records that pass, against the other kernel.")
    ] = False,
    cache: Annotated[str | None, typer.Option(help=f"With --time. {CACHE}")] = None,
    form: Annotated[str | None, typer.Option(help=f"With --time. {FORM}")] = None,
    clock: Annotated[str | None, typer.Option(help=f"With --time. {CLOCK}")] = None,
    busy: Annotated[bool, typer.Option("--busy", help=f"With --time. {BUSY}")] = False,
    heatmap: Annotated[bool, typer.Option("--heatmap", help=HEATMAP)] = False,
    git_bisect: Annotated[
        bool, typer.Option(OPTION, help="Exit status for `git bisect run`: 125 where there is no verdict.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One object instead of a table.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit XML file.")] = None,
) -> None:
    """Replay recorded calls through a kernel and judge its outputs.

    Exit status: 0 all pass; 1 a mismatch, crash, hang or check error; 3 something could not run here.
    """
    accepted = read_accepted(accept, write_accept, check=check)
    _check(on, time, cache or form or clock or busy, trace, explore, shapes)
    check_repeated(on, schedule, shape, isolate)
    # What `replay` in Python takes, and decides about each record.
    factor, by_tensor = factors(k)
    judging: dict[str, Any] = {
        "k": factor,
        "k_by_tensor": by_tensor,
        "tol": tolerance(tol),
        "bitwise": bitwise,
    }
    if explore is not None:
        refuse_with(
            "--explore",
            schedule=schedule,
            shape=shape,
            against=None if against == "reference" else against,
            rule=rule or None,
            isolate=isolate,
            timeout=timeout,
            workers=workers,
            scheduler=scheduler,
            save=save,
            time=time,
            git_bisect=git_bisect,
            junit=junit,
            trace=trace,
            heatmap=heatmap,
        )
        words: list[object] = ["--kernel", kernel, "--on", on]
        words += ["--accept", accept] if accept is not None else []
        words += [word for one in k or () for word in ("--k", one)]
        words += ["--tol", tol] if tol is not None else []
        words += ["--bitwise"] * bitwise + ["--stages"] * stages + ["--check"] * check
        counts = explore, SHAPES if shapes is None else shapes
        found = _explore(store, records, op, kernel, judging, counts, words, stages=stages, check=check)
        conclude(found, accepted, write_accept, json=json, verbose=verbose)
    options = judging | {
        "kernel": kernel,
        "against": against,
        "on": on,
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
    alone: dict[str, object] = {"time": time, "trace": trace, "of": of, "trace_limit": trace_limit}
    alone |= {"schedule": schedule, "shape": shape}
    if is_spread(workers, scheduler, **alone):
        with progress("replay") as advance:
            report = _spread(store, records, workers, scheduler, options, advance)
    else:
        times = timing_options(on, cache or "cold", form, busy=busy, clock=clock or "auto") if time else None
        with ExitStack() as stack:
            advance = stack.enter_context(progress("replay"))
            options["trace"] = stack.enter_context(trace_to(trace, of, trace_limit, advance.say))
            report = _here(store, records, schedule, shape, times, options, advance)
    if time and not json:
        print_times(report)
    print_unused(accepted)
    if write_accept is not None:
        write_template(write_accept, (one for record in report.records for one in record.findings or ()))
    code = status(report) if git_bisect else report.exit_code
    finish(report, json, junit, code, show_accepted=verbose, heatmap=heatmap)


def _check(
    on: str, time: bool, timing: object, trace: Path | None, explore: int | None, shapes: int | None
) -> None:
    """BadInputError for options that do not go together; `timing`: one of those that say how to time."""
    if not time and timing:
        raise BadInputError("--cache, --form, --clock and --busy say how to time: give --time too")
    if trace is not None and on != "sim":
        raise BadInputError(f"--trace is written by the simulator: --on sim, not {on}")
    if time and on == "sim":
        raise BadInputError("--time: the simulator has no clock; `gdnbench time --on sim` counts instead")
    if shapes is not None and explore is None:
        raise BadInputError("--shapes says what --explore N tries beside the records: give --explore too")
    if explore is not None and on != "sim":
        raise BadInputError(f"--explore tries schedules of the simulator: --on sim, not {on}")


def _numbers(store: Store, records: str | None) -> list[int] | None:
    return None if records is None else record_numbers(records, len(store.records))


def _explore(
    store: Address,
    records: str | None,
    op: str | None,
    kernel: str,
    judging: Mapping[str, Any],
    counts: tuple[int, int],
    words: Sequence[object],
    *,
    stages: bool,
    check: bool,
) -> Exploration:
    """`counts`: of schedules and of smaller calls; `words`: of a command that repeats one of the runs."""
    from gdnbench.judge.rule import make_rule
    from gdnbench.replay.replay import select

    def command(number: int, seed: int | None, under: str) -> str:
        made = [] if seed is None else ["--shape", seed]
        return typed("replay", store, number, *words, "--schedule", under, *made)

    rule = make_rule(**judging)
    with open_store(store) as opened:
        numbers = select(opened, _numbers(opened, records), op)
        return explore_store(opened, numbers, kernel, rule, *counts, command, stages=stages, check=check)


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


def _here(
    store: Address,
    records: str | None,
    schedule: str | None,
    shape: int | None,
    times: TimingOptions | None,
    options: Mapping[str, Any],
    advance: Bar,
) -> ReplayReport:
    """In this process, timed with `times`; `schedule` and `shape` repeat a run of `--explore`."""
    from gdnbench.replay.replay import replay as replay_records

    options = dict(options)
    with ExitStack() as stack:
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
