# SPDX-License-Identifier: Apache-2.0
"""The command line: one thin file a command. stdout is the result, stderr everything else.

A command's module is imported when the command is used, see `registry`; what needs torch is imported when the
command runs: importing it takes longer than listing most stores.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import typer

from gdnbench.cli.completion import COMPLETING as COMPLETING
from gdnbench.cli.groups import HELP_NAMES, CommandGroup
from gdnbench.cli.pipes import leave_stdout, open_closed_streams
from gdnbench.cli.registry import COMMANDS
from gdnbench.cli.statuses import INTERRUPTED, NO_VERDICT
from gdnbench.errors import EXPECTED_ERRORS, Exit, exit_code_of
from gdnbench.missing import how_to_install, missing_package
from gdnbench.printable import printable
from gdnbench.version import __version__

# Of click, which some releases of typer bring along under a name of their own.
UsageError: type[Exception] = typer.BadParameter.__mro__[2]


class Commands(CommandGroup):
    """`gdnbench` itself."""

    headings: ClassVar = COMMANDS


app = typer.Typer(
    cls=Commands,
    help="Capture, replay and diff Gated DeltaNet and DeepSeek-V4 attention kernels.",
    epilog="Exit status: 0 pass, 1 mismatch or regression, 2 bad input, 3 cannot run here.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": HELP_NAMES, "max_content_width": 100},
)


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"gdnbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Runs before every command; holds the options of `gdnbench` itself."""


@functools.cache
def _command_tree() -> Callable[..., Any]:
    """The commands and their options. typer takes 0.1 s to read the signatures, at each call of `app`."""
    return typer.main.get_command(app)


def console_main() -> None:
    """The console script: turns the errors a user can meet into one line and an exit status."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold bytes that its encoding has not
            stream.reconfigure(errors="backslashreplace")
    if COMPLETING in os.environ:  # typer would import rich, to take markup out of help that has none
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as Python documents it
    try:
        # Not standalone: typer would draw a box of five lines around a usage error.
        status = _command_tree()(standalone_mode=False, complete_var=COMPLETING)
    except EXPECTED_ERRORS as error:
        _end(str(error), exit_code_of(error))
    except UsageError as error:
        _end(_usage(error), NO_VERDICT if "--git-bisect" in sys.argv else Exit.BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        _end(how_to_install(package), Exit.CANNOT_RUN)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        _end(f"{place}{error.strerror or error}", Exit.BAD_INPUT)
    except MemoryError:
        _end("out of memory", Exit.CANNOT_RUN)
    if status == INTERRUPTED:  # what typer makes of an interrupt
        _end("interrupted; what was finished is kept", INTERRUPTED)
    sys.exit(status or Exit.PASS)


MOVED = {
    ("time", "--busy"): "omit it; disturbed blocks count with a warning, and --strict refuses them",
    ("replay", "--busy"): "omit it; disturbed blocks count with a warning, and --strict refuses them",
    ("replay", "--explore"): "gdnbench explore STORE --schedules N",
    ("replay", "--shapes"): "gdnbench explore STORE --shapes N",
    ("replay", "--trace"): "gdnbench trace STORE OUT",
    ("replay", "--of"): "gdnbench trace STORE OUT --select CONDITIONS",
    ("replay", "--trace-limit"): "gdnbench trace STORE OUT --limit MIB",
    ("sim", "--of"): "gdnbench sim FUNCTION --trace OUT --select CONDITIONS",
}
"""Options of earlier releases, by command, and what to type now."""


def _usage(error: Exception) -> str:
    """What is wrong with the command line, and the help to read. typer lists choices one a line."""
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]  # see UsageError
    context = getattr(error, "ctx", None)
    moved = MOVED.get((getattr(context, "info_name", ""), getattr(error, "option_name", "")))
    if moved is not None:
        return f"{error.option_name} has moved: {moved}"  # type: ignore[attr-defined]  # of NoSuchOption
    if context is None:
        return message
    return f"{message.rstrip('.')}; see {context.command_path} --help"


def _end(message: str, status: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        leave_stdout()
    if message:
        lines = (printable(" ".join(line.split())) for line in message.splitlines())
        print(f"gdnbench: {'; '.join(filter(None, lines))}", file=sys.stderr)
    sys.exit(status)
