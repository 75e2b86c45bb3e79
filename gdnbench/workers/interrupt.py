# SPDX-License-Identifier: Apache-2.0
"""Records Ctrl-C, so that it is not lost.

Python raises KeyboardInterrupt at the instruction that happens to run. In a finaliser or in a callback of the
garbage collector Python prints the exception and drops it. Dask registers such a callback, which runs with
every full collection. Without a record of the signal, a command that waits for hours would keep waiting.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether SIGINT was received while `handle` was installed."""

    def __init__(self) -> None:
        self._received = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT: records the signal and raises KeyboardInterrupt, as Python's own does."""
        self._received = True
        signal.default_int_handler(number, frame)

    def raise_if_received(self) -> None:
        """KeyboardInterrupt if SIGINT was received, even if it was raised before."""
        if self._received:
            raise KeyboardInterrupt


@contextmanager
def recorded_interrupt() -> Iterator[Interrupt]:
    """Records SIGINT inside the `with` block. Records nothing where the program has a handler of its own, or
    outside the main thread, which alone may install handlers."""
    interrupt = Interrupt()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
