# SPDX-License-Identifier: Apache-2.0
"""Errors that a signal handler of the program raised, which Python runs wherever the main thread just is."""

from __future__ import annotations

import functools
import signal
from types import CodeType, TracebackType


def raised_by_handler(error: BaseException) -> bool:
    """Whether the error came through a handler that is put up now, as a time limit's does (`signal.alarm`).
    It is meant for the program, whatever of ours it met."""
    passed = _codes(error.__traceback__)
    return bool(passed) and not passed.isdisjoint(_handlers())


def _codes(traceback: TracebackType | None) -> set[CodeType]:
    found = set()
    while traceback is not None:
        found.add(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return found


def _handlers() -> set[CodeType]:
    """Of functions, methods, partials of them, and of objects that can be called."""
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for one in (handler, type(handler).__dict__.get("__call__")):
            code = getattr(getattr(one, "__func__", one), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found
