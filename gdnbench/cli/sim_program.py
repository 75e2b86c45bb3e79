"""`gdnbench sim -- PROGRAM`: an unmodified program on a machine with one virtual GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from gdnbench.cli.checking import print_unused, write_template
from gdnbench.cli.console import print_json, print_lines, print_note, table
from gdnbench.errors import BadInputError, Exit

if TYPE_CHECKING:
    from gdnbench.sim import Accepted
    from gdnbench.sim.virtual import KernelRow, LoggedLaunch, ProgramRun

MACHINE = (
    "For a program: the GPU that it sees, b200 (sm_100a, 148 SMs), h200 or h100 (sm_90a, 132 SMs)."
    " Default: b200."
)
SMS = "For a program: how many SMs the GPU has, e.g. 4. A persistent kernel then takes more tiles per CTA."
NAME_WIDTH = 72  # of the table; CuTe DSL puts the types of all arguments into a name
HEADERS = ("kernel", "launches", "grid", "warp instructions", "seconds", "errors", "review")


def is_program(function: str) -> bool:
    """Whether the first argument names a program to run and no kernel: FILE.py:function has a colon, and the
    only kernel of a FILE.ptx or FILE.cu needs no name."""
    return ":" not in function and not function.endswith((".py", ".ptx", ".cu"))


def refuse_for_program(**options: object) -> None:
    """BadInputError for an option, by name, that only a function has."""
    for name, value in options.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(f"{option} goes with FILE.py:function, not with a program")


def run(
    command: Sequence[str],
    machine: str,
    sms: int | None,
    settings: Mapping[str, Any],
    accepted: Accepted | None,
    template: Path | None,
    *,
    json: bool,
    verbose: bool,
) -> NoReturn:
    """Run the program, print what it launched, and exit."""
    from gdnbench.sim.virtual import Request, run_program

    done = run_program(command, Request(machine, sms, settings))
    launches = done.log.launches
    if accepted is not None:
        launches = tuple(
            replace(launch, findings=tuple(accepted.apply(launch.findings))) for launch in launches
        )
        done = replace(done, log=replace(done.log, launches=launches))
        print_unused(accepted)
    if template is not None:
        write_template(template, (finding for launch in launches for finding in launch.findings))
    status = _status(done)
    if json:
        print_json(_as_json(done, status))
    else:
        _print(done, verbose=verbose)
    if done.status:
        print_note(f"gdnbench: the program ended with status {done.status}")
    raise typer.Exit(status)


def _status(done: ProgramRun) -> int:
    if done.status:
        return done.status
    if done.failed:
        return Exit.MISMATCH
    return Exit.CANNOT_RUN if done.log.refusals or done.log.problems else Exit.PASS


def _print(done: ProgramRun, *, verbose: bool) -> None:
    from gdnbench.sim.virtual import findings_text, kernel_rows

    launches = done.log.launches
    for launch in launches:
        if launch.text:
            print_lines(launch.text)
    if launches:
        right = ("launches", "warp instructions", "seconds", "errors", "review")
        print(table(HEADERS, [_cells(row) for row in kernel_rows(launches)], right=right))
    elif done.log.gpus:
        print_note("gdnbench: the program launched no kernel on the virtual GPU")
    else:
        print_note(
            "gdnbench: no process had a virtual GPU: none imported torch, cutlass, triton or cuda-python, or"
            " gdnbench is not installed in the Python that runs the program"
        )
    for text in findings_text(launches, verbose=verbose):
        print_lines(text)
    for text in done.log.refusals:
        print_lines(f"refused: {text}")
    for text in done.log.problems:
        print_lines(f"no virtual GPU: {text}")


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


def _as_json(done: ProgramRun, status: int) -> dict[str, Any]:
    return {
        "ok": status == Exit.PASS,
        "program_status": done.status,
        "launches": [_launch_json(launch) for launch in done.log.launches],
        "refused": list(done.log.refusals),
        "problems": list(done.log.problems),
    }


def _launch_json(launch: LoggedLaunch) -> dict[str, Any]:
    return {
        "entry": launch.entry,
        "grid": list(launch.grid),
        "warp_instructions": launch.instructions,
        "seconds": launch.seconds,
        "finished": launch.finished,
        "origin": launch.origin,
        "findings": [finding.as_json() for finding in launch.findings],
    }
