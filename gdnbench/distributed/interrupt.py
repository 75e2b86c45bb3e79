"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt at the instruction that happens to run. Where that is in a finaliser or in a
callback of the garbage collector, of which Dask has one that runs with every full collection, it is printed
and dropped, and a command that waits for hours would go on waiting.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C came while this was installed."""

    def __init__(self) -> None:
        self._came = False

    def raised(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT: Python's own, noted."""
        self._came = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        """KeyboardInterrupt if one came, be it that it was raised already."""
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def kept_interrupt() -> Iterator[Interrupt]:
    """Ctrl-C is noted in here. Not where somebody else handles it, nor outside the main thread, which alone
    may install handlers."""
    interrupt = Interrupt()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.raised)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
