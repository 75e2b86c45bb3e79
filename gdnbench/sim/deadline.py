# SPDX-License-Identifier: Apache-2.0
"""The time limit of a launch while its PTX is read and compiled; while it runs, `machine.bounds` has it."""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from types import TracebackType

from gdnbench.sim.errors import FaultKind, KernelFault


class TimeLimit:
    """In a `with` block of this limit, `check_time` raises once `seconds` have passed since it was made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self._tokens: list[Token[TimeLimit | None]] = []

    def __enter__(self) -> TimeLimit:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())


_current: ContextVar[TimeLimit | None] = ContextVar("gdnbench_sim_time_limit", default=None)


def check_time() -> None:
    """Raises KernelFault if the limit of the enclosing block is over. Every loop over the text, the
    instructions or the blocks of a kernel calls it: a text may be made so that one of them takes days."""
    limit = _current.get()
    if limit is not None and time.monotonic() > limit.end:
        raise KernelFault(FaultKind.LIMIT, f"{too_long(limit.seconds)}; the PTX was still read or compiled")


def too_long(seconds: float) -> str:
    """What a fault says of a launch that takes longer than its limit."""
    return f"more than {seconds:g} s; if the kernel ends at all, raise timeout (gdnbench sim --timeout)"
