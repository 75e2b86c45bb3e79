# SPDX-License-Identifier: Apache-2.0
"""`--pdb` and `--tb`: what becomes of an exception of a user's kernel."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gdnbench.cli.console import print_note
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.error_frames import Frame

TB = "Traceback of a kernel that fails: short (its own line), long (every line) or none."
PDB = "Debug a kernel that raises: in this process, at its own line. Needs a terminal."
TRACEBACKS = ("short", "long", "none")


def check_traceback(tb: str) -> None:
    """BadInputError if there is no such length of tracebacks."""
    if tb not in TRACEBACKS:
        raise BadInputError(f"--tb {tb!r} is none of {', '.join(TRACEBACKS)}")


def check_debugged(*, isolate: bool | None, json: bool, **elsewhere: object) -> None:
    """BadInputError for what `--pdb` does not go with: options that run the kernel in another process, those
    `elsewhere` by name, None if not given; JSON on the debugger's stdout; and no terminal."""
    other = [f"--{name}" for name, value in elsewhere.items() if value is not None]
    other = ["--isolate"] * (isolate is True) + other
    if other:
        raise BadInputError(
            f"--pdb debugs in this process, and {other[0]} runs the kernel in another: omit it"
        )
    if json:
        raise BadInputError("--pdb and --json both write to stdout: omit one")
    if not sys.stdin.isatty():
        raise BadInputError("--pdb reads from a terminal, and stdin is none; --tb long prints the traceback")


class Debugger:
    """Starts pdb at the kernel's own line for each exception; once for those of the same line."""

    def __init__(self) -> None:
        self._seen: set[tuple[type[BaseException], Frame]] = set()

    def __call__(self, error: BaseException) -> None:
        import pdb

        from gdnbench.error_frames import frame_of_error, post_mortem_depth

        frame = frame_of_error(error)
        if frame is None or frame.is_harness or not frame.function:
            return  # such as a syntax error: nothing of the kernel ran
        if (type(error), frame) in self._seen:
            return
        self._seen.add((type(error), frame))
        print_note(f"{type(error).__name__} at {frame.place}; c or q leaves the debugger and goes on")
        debugger = pdb.Pdb()
        debugger.reset()
        depth = post_mortem_depth(error.__traceback__)
        if depth:
            debugger.cmdqueue.append(f"up {depth}")
        debugger.interaction(None, error.__traceback__)
