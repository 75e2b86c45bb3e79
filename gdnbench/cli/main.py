"""The command line: one thin file a command. stdout is the result, stderr everything else."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from gdnbench.cli.capture import capture
from gdnbench.cli.diff import diff
from gdnbench.cli.doctor import doctor
from gdnbench.cli.ls import ls
from gdnbench.cli.replay import replay
from gdnbench.cli.show import show
from gdnbench.cli.synth import synth
from gdnbench.cli.verify import verify
from gdnbench.errors import GdnbenchError
from gdnbench.version import __version__

P = ParamSpec("P")

app = typer.Typer(
    help="Capture, replay and diff Gated DeltaNet and DeepSeek-V4 attention kernels.",
    epilog="Exit status: 0 pass, 1 mismatch or regression, 2 usage or bad input, 3 cannot run here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def reader_may_leave(command: Callable[P, None]) -> Callable[P, None]:
    """`command`, for which a reader of stdout that went away (`gdnbench ls | head`) is no failure."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered goes nowhere, quietly.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return guarded


FOREIGN_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}  # the operation's own options

app.command()(capture)
for command in (ls, show, replay, diff, verify):
    app.command()(reader_may_leave(command))
app.command(context_settings=FOREIGN_WORDS)(reader_may_leave(synth))
app.command()(reader_may_leave(doctor))


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"gdnbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Say which."
    ),
) -> None:
    """Runs before every command; holds the options of `gdnbench` itself."""


def run() -> None:
    """The console script: turns the errors a user can meet into one line and an exit status."""
    try:
        app()
    except GdnbenchError as error:
        print(f"gdnbench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("gdnbench: interrupted; what was finished is kept", file=sys.stderr)
        sys.exit(130)
