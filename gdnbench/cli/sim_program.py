# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim -- PROGRAM`: an unmodified program on a machine with one virtual GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from gdnbench.cli.checking import print_unused, write_template
from gdnbench.cli.console import print_json, print_lines, print_note, progress, table
from gdnbench.cli.exploring import refuse_with, typed
from gdnbench.cli.orders import conclude_orders
from gdnbench.cli.progress import hide
from gdnbench.cli.sim_sms import SmsRuns, run_with_sms, wanted_sms_and_engines
from gdnbench.cli.tracing import trace_to
from gdnbench.errors import BadInputError, Exit

if TYPE_CHECKING:
    from gdnbench.sim import Accepted
    from gdnbench.sim.virtual import ExploredLaunch, KernelRow, Log, LoggedLaunch, ProgramRun, Request

MACHINE = (
    "GPU: b200 (sm_100a, 148 SMs), b300 (sm_103a, 148 SMs), h200 or h100 (sm_90a, 132 SMs). Default: b200 for"
    " a program; else the one that the kernel is compiled for."
)
SMS = (
    "Number of SMs of the GPU, e.g. 4. A persistent kernel then takes more tiles per CTA. With --explore also"
    " several, e.g. 1,2,148: the bits must be equal on all."
)
LAUNCH = (
    "For a program: apply --check, --explore, --profile, --schedule and --trace to these launches alone:"
    " numbers in their process, from 0 on, and parts of kernel names, e.g. 3,5-9,chunk_fwd. Default: all."
)
NOTHING_LAUNCHED = "gdnbench: the program launched no kernel on the virtual GPU"
NO_PROCESS = (
    "gdnbench: no process had a virtual GPU: none imported torch, cutlass, triton or cuda-python, or called"
    " libcuda, or gdnbench is not installed in the Python that runs the program"
)
NAME_WIDTH = 72  # of the table; CuTe DSL puts the types of all arguments into a name
HEADERS = ("kernel", "launches", "grid", "warp instructions", "seconds", "errors", "review")


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The command line of a program, and the options that it goes with, as typed. `settings` are fields of
    `gdnbench.sim.Settings`."""

    command: Sequence[str]
    machine: str | None
    sms: int | None
    settings: Mapping[str, Any]
    launch: str | None = None
    explore: int | None = None
    orders: bool = False
    vary: Sequence[str] = ()
    trace: Path | None = None
    select: str | None = None
    trace_limit: int | None = None


def is_program(function: str) -> bool:
    """Whether the first argument names a program to run and no kernel: FILE.py:function has a colon, and the
    only kernel of a FILE.ptx or FILE.cu needs no name."""
    return ":" not in function and not function.endswith((".py", ".ptx", ".cu"))


def refuse_nested(environment: Mapping[str, str]) -> None:
    """BadInputError in a process that has the virtual GPU of another `gdnbench sim -- PROGRAM`, whose log
    would say nothing of what this one launches."""
    from gdnbench.sim.virtual import REQUEST_VARIABLE

    if REQUEST_VARIABLE in environment:
        raise BadInputError(
            "gdnbench sim was started by a program under `gdnbench sim --`: simulate the inner program alone,"
            f" or have the outer one start it without {REQUEST_VARIABLE} in its environment"
        )


def refuse_for_program(**options: object) -> None:
    """BadInputError for an option, by name, that only a function has."""
    for name, value in options.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(f"{option} goes with FILE.py:function, not with a program")


def run_command(
    options: ProgramOptions,
    accepted: Accepted | None,
    template: Path | None,
    *,
    json: bool,
    verbose: bool,
) -> NoReturn:
    """Run the program, print what it launched, and exit."""
    from gdnbench.sim import Settings
    from gdnbench.sim.explore import schedules
    from gdnbench.sim.virtual import LaunchChoice, Request, run_program

    late = options.settings["schedule"] == "late"
    counts, engines = wanted_sms_and_engines(options.vary)
    for engine in (options.settings["engine"], *engines):
        Settings(**{**options.settings, "engine": engine})  # refuses bad values before the program runs
    if options.explore is None and options.vary:
        raise BadInputError("--vary runs a program or its launches again: give --explore too")
    if options.explore is not None:
        profile = options.settings["profile"]
        given = None if late else options.settings["schedule"]
        refuse_with("--explore", schedule=given, trace=options.trace, profile=profile)
    if options.launch is not None:
        if options.orders:
            raise BadInputError("--explore all checks every launch: it does not go with --launch")
        LaunchChoice.parse(options.launch)
        looks = options.settings["check"] or options.settings["profile"] or not late
        if options.explore is None and options.trace is None and not looks:
            raise BadInputError(
                "--launch chooses launches for --check, --explore, --profile, --schedule or --trace: give one"
            )
    request = Request(
        options.machine or "b200",
        options.sms,
        options.settings,
        launches=options.launch,
        explore=() if options.explore is None else schedules(options.explore),
        engines=engines,
    )
    with ExitStack() as stack:
        tracing = stack.enter_context(
            trace_to(options.trace, options.select, options.trace_limit, lambda events: None)
        )
        if tracing is not None:
            from gdnbench.trace.program_trace import MODULE

            absolute = replace(tracing, path=str(Path(tracing.path).absolute()))
            request = replace(request, attach={MODULE: absolute.as_json()})
        folder = None
        if options.orders:
            from gdnbench.sim.protocol import MODULE as ORDERS

            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gdnbench-orders-"))
            request = replace(request, attach={**request.attach, ORDERS: folder})
        hide()
        done = run_program(options.command, request)
        if folder is not None:
            _conclude_orders(done, Path(folder), json=json, verbose=verbose)
    others = None
    if counts:
        with progress("sim, other numbers of SMs") as advance:
            others = run_with_sms(options.command, request, done, counts, advance)
    _conclude(options, request, done, others, accepted, template, json=json, verbose=verbose)


def _conclude_orders(done: ProgramRun, folder: Path, *, json: bool, verbose: bool) -> NoReturn:
    from gdnbench.sim.protocol import read_orders

    failed = {"program": f"it ended with status {done.status}"} if done.status else {}
    failed |= {f"refused {number}": text for number, text in enumerate(done.log.refusals)}
    faults = [finding for finding in done.log.findings if finding.fails]
    failed |= {f"fault {number}": str(finding) for number, finding in enumerate(faults)}
    conclude_orders({"": read_orders(folder)}, failed, faulty=bool(faults), json=json, verbose=verbose)


def _conclude(
    options: ProgramOptions,
    request: Request,
    done: ProgramRun,
    others: SmsRuns | None,
    accepted: Accepted | None,
    template: Path | None,
    *,
    json: bool,
    verbose: bool,
) -> NoReturn:
    if accepted is not None:
        done = replace(done, log=_accepting(done.log, accepted))
        others = None if others is None else others.accepting(lambda log: _accepting(log, accepted))
        print_unused(accepted)
    logs = [done.log, *(() if others is None else others.logs)]
    if template is not None:
        write_template(template, (finding for log in logs for finding in log.findings))
    status = _status(done) or (Exit.PASS if others is None else others.status)
    if json:
        print_json(_as_json(done, others, status))
    else:
        _print(done, verbose=verbose)
        _print_explored(options, request, done.log, verbose=verbose)
        if others is not None:
            print_lines(others.text(verbose=verbose))
    if done.status:
        print_note(f"gdnbench: the program ended with status {done.status}")
    if options.launch is not None and done.log.launches and not _chosen(options.launch, done.log):
        print_note(f"gdnbench: --launch {options.launch}: the program made no such launch")
        status = status or Exit.BAD_INPUT
    raise typer.Exit(status)


def _chosen(launches: str, log: Log) -> bool:
    """Whether the program made a launch that `--launch` chooses."""
    from gdnbench.sim.virtual import LaunchChoice

    choice = LaunchChoice.parse(launches)
    return any(choice.includes(launch.number, launch.entry) for launch in log.launches)


def _accepting(log: Log, accepted: Accepted) -> Log:
    """The log with the findings that `accepted` accepts marked."""
    launches = tuple(replace(one, findings=tuple(accepted.apply(one.findings))) for one in log.launches)
    explored = tuple(
        one.accepting(tuple(accepted.apply(some.finding for some in one.findings))) for one in log.explored
    )
    return replace(log, launches=launches, explored=explored)


def _status(done: ProgramRun) -> int:
    return done.status or _status_of_log(done.log)


def _status_of_log(log: Log) -> int:
    """The exit status of a program that itself ended with 0."""
    if log.failed:
        return Exit.MISMATCH
    not_explored = any(launch.refused for launch in log.explored)
    unknown = log.refusals or log.problems or log.incomplete or not_explored
    return Exit.CANNOT_RUN if unknown else Exit.PASS


def simulated_status(log: Log, status: int) -> int:
    """Print on stderr, for a command that does more with a program than to simulate it, what went wrong on
    its virtual GPU. The exit status: `status` if that is not 0."""
    from gdnbench.sim.virtual import findings_text, kernel_rows

    rows = kernel_rows(log.launches)
    if rows:
        launches = sum(row.launches for row in rows)
        instructions = sum(row.instructions for row in rows)
        print_note(
            f"gdnbench: simulated {launches} launch{'es' if launches > 1 else ''} of {len(rows)}"
            f" kernel{'s' if len(rows) > 1 else ''}, {instructions:,} warp instructions"
        )
    else:
        print_note(NOTHING_LAUNCHED if log.gpus else NO_PROCESS)
    for line in "\n".join(findings_text(log.launches)).splitlines():
        print_note(line)
    for text in log.refusals:
        print_note(f"refused: {text}")
    for text in log.problems:
        print_note(f"no virtual GPU: {text}")
    for text in log.incomplete:
        print_note(text)
    return status or _status_of_log(log)


def _print(done: ProgramRun, *, verbose: bool) -> None:
    from gdnbench.sim.virtual import findings_text, kernel_rows

    launches = done.log.launches
    for launch in launches:
        if launch.text:
            print_lines(launch.text)
    if launches:
        right = ("launches", "warp instructions", "seconds", "errors", "review")
        print(table(HEADERS, [_cells(row) for row in kernel_rows(launches)], right=right))
    else:
        print_note(NOTHING_LAUNCHED if done.log.gpus else NO_PROCESS)
    for text in findings_text(launches, verbose=verbose):
        print_lines(text)
    for text in done.log.refusals:
        print_lines(f"refused: {text}")
    for text in done.log.problems:
        print_lines(f"no virtual GPU: {text}")
    for text in done.log.incomplete:
        print_lines(text)


def _print_explored(options: ProgramOptions, request: Request, log: Log, *, verbose: bool) -> None:
    from gdnbench.sim.virtual import explored_summary, explored_text, run_names

    if not request.explore or not log.launches:
        return
    for first, text in explored_text(log.explored, verbose=verbose):
        print_lines(text)
        print_lines(f"  repeat: {_repeat(options, first)}")
    for reason in dict.fromkeys(launch.refused for launch in log.explored if launch.refused):
        print_lines(f"not explored: {reason}")
    runs = run_names(request.explore, options.settings["engine"], request.engines)
    print_lines(explored_summary(log.explored, runs))


def _repeat(options: ProgramOptions, launch: ExploredLaunch) -> str:
    """The command that runs the launch as the first run that made a difference did."""
    from gdnbench.sim.virtual import schedule_and_engine

    other = [one for one in launch.findings if one.is_fault or one.finding.fails]
    under = launch.schedules[0]
    if launch.difference is not None:
        under = launch.difference.schedule
    elif other:
        under = other[0].under[0]
    settings = options.settings
    schedule, other_engine = schedule_and_engine(under)
    engine = other_engine or settings["engine"]
    words = ["--machine", options.machine] if options.machine is not None else []
    words += ["--sms", str(options.sms)] if options.sms is not None else []
    words += ["--engine", engine] if engine != "compiled" else []
    words += ["--mma", settings["mma"]] if settings["mma"] != "hardware" else []
    words += ["--check"] * settings["check"] + ["--keep-going"] * settings.get("keep_going", False)
    return typed("sim", *words, "--schedule", schedule, "--launch", launch.number, "--", *options.command)


def _cells(row: KernelRow) -> list[object]:
    grid = "x".join(map(str, row.grids[0])) + (f" and {len(row.grids) - 1} more" if row.grids[1:] else "")
    errors = f"{row.errors or ''}" + (" (stopped)" if row.stopped else "")
    name = row.kernel if len(row.kernel) <= NAME_WIDTH else f"{row.kernel[: NAME_WIDTH - 3]}..."
    return [
        name,
        row.launches,
        grid,
        f"{row.instructions:,}",
        f"{row.seconds:.2f}",
        errors,
        row.review or "",
    ]


def _as_json(done: ProgramRun, others: SmsRuns | None, status: int) -> dict[str, Any]:
    return {
        "ok": status == Exit.PASS,
        "program_status": done.status,
        "launches": [_launch_json(launch) for launch in done.log.launches],
        "explored": [launch.as_json() for launch in done.log.explored],
        "sms": [] if others is None else others.as_json(),
        "refused": list(done.log.refusals),
        "problems": [*done.log.problems, *done.log.incomplete],
    }


def _launch_json(launch: LoggedLaunch) -> dict[str, Any]:
    return {
        "number": launch.number,
        "entry": launch.entry,
        "grid": list(launch.grid),
        "warp_instructions": launch.instructions,
        "seconds": launch.seconds,
        "finished": launch.finished,
        "origin": launch.origin,
        "findings": [finding.as_json() for finding in launch.findings],
    }
