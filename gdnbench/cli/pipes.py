# SPDX-License-Identifier: Apache-2.0
"""A stdout that somebody else closes."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

from gdnbench.cli.progress import waiting

P = ParamSpec("P")


def reader_may_leave(command: Callable[P, None]) -> Callable[P, None]:
    """`command`, for which a reader of stdout that went away (`gdnbench ls | head`) is no failure. Until it
    prints, or shows a progress of its own, a terminal shows how long it has run."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with waiting(command.__name__):
                command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_stdout()

    return guarded


def open_closed_streams() -> None:
    """A stream that was closed ahead of the program (`gdnbench ls run.zarr >&-`) is /dev/null from here on:
    with its number free, the next file that is opened would be the stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the program ends)


def leave_stdout() -> None:
    """What is still buffered goes nowhere, quietly: whatever stdout is, it may not take it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
