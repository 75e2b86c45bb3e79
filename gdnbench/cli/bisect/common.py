# SPDX-License-Identifier: Apache-2.0
"""What the axes' commands share: options, the session, and how what was found is printed.

A command's parameters are what its session keeps: plain JSON but for paths, so that `--resume` calls the
command again with them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.console import print_json, print_line, progress
from gdnbench.cli.pipes import leave_stdout
from gdnbench.cli.record_options import KERNEL_ENV, MACHINE, SMS
from gdnbench.errors import EXPECTED_ERRORS, BadInputError, Exit
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.bisect.session import Session

SHOWN = ("json",)
"""Arguments that say how an answer is printed and not what is asked."""
STATE_HELP = "Folder that keeps bisections and cached verdicts. Default: .gdnbench/bisect."

KernelOption = Annotated[
    str, typer.Option(help="A listed kernel, package.module:function or FILE.py:function.")
]
OnOption = Annotated[str, typer.Option(help="Device: cpu, cuda, or sim, a simulated GPU.")]
FactorOption = Annotated[
    float | None, typer.Option("--k", help="Accept errors up to K times torch's error. Default: 2.")
]
TolOption = Annotated[
    str | None, typer.Option(help="Accept differences up to ABS or ABS,REL instead of --k, e.g. 1e-3,1e-2.")
]
BitwiseOption = Annotated[bool, typer.Option("--bitwise", help="Accept only equal bits.")]
KernelEnvOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help=KERNEL_ENV)]
MachineOption = Annotated[str | None, typer.Option(help=MACHINE)]
SmsOption = Annotated[int | None, typer.Option(min=1, metavar="N", help=SMS)]
StateOption = Annotated[Path | None, typer.Option(help=STATE_HELP)]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Ignore cached verdicts and replay again.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@contextmanager
def begun(axis: str, arguments: Mapping[str, Any], state: Path | None, fresh: bool) -> Iterator[Session]:
    """The session of an axis, which is interrupted, has failed or is finished when this ends. What is asked
    and answered goes to stderr. Inside the block the kernel's packages and its virtual GPU are those of the
    options; they are not options with a callback, which `--resume` would not call."""
    from gdnbench.bisect.session import STATE, RunningError, Session
    from gdnbench.replay.kernel_packages import kernel_packages
    from gdnbench.replay.simulated import replay_gpu

    check_numbers(arguments)
    kept = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    shown = {name: kept.pop(name) for name in SHOWN if name in kept}
    session = Session.begin(state or STATE, axis, kept, print_progress, fresh, shown)
    folder = arguments.get("kernel_env")
    try:
        with (
            progress(f"bisect {axis}"),
            kernel_packages(None if folder is None else Path(folder)),
            replay_gpu(arguments.get("machine"), arguments.get("sms")),
        ):
            yield session
    except RunningError:  # what is on disk is the other one's
        raise
    except EXPECTED_ERRORS as error:
        session.fail(error)
        raise


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """BadInputError for a number that is not finite, or a time in which nothing can be done."""
    for name, value in arguments.items():
        text = name in ("tol", "tolerance") and value is not None
        numbers = map(float, value.split(",")) if text else [value] if isinstance(value, float) else []
        if not all(map(math.isfinite, numbers)):
            raise BadInputError(f"--{name} {value} is not finite; give a number")
        if name in ("timeout", "budget") and value is not None and value <= 0:
            raise BadInputError(f"--{name} {value:g} is no time; give seconds above 0")


def print_progress(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def finish(
    session: Session, found: Mapping[str, Any], lines: Sequence[str], exit_code: Exit, json: bool
) -> None:
    """Prints what came of it, keeps it, and ends the command. The last of `lines` is the answer. What could
    not be printed is not done: going on with it prints it again."""
    try:
        if json:
            print_json(found)
        else:
            for line in lines:
                print_line(line)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has what it wants; the status is what was found all the same
        leave_stdout()
    else:
        session.finish({**found, "lines": list(lines), "exit": int(exit_code)})
    raise typer.Exit(exit_code)
