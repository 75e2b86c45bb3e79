# SPDX-License-Identifier: Apache-2.0
"""The bounds of a launch: warp instructions, seconds and CTAs. A kernel that never ends becomes a fault.
The seconds begin with the launch: those in which its PTX is read and compiled count (`sim.deadline`).

The counts belong to the launch, not to a CTA: CTAs in several threads or forked processes add to one sum. So
whether a launch reaches its bound depends on the kernel alone; which CTA the fault names may depend on the
number of threads.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gdnbench.sim.deadline import too_long
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import Dim3

# The largest launch that is served is a prefill. One of 2,048 tokens and 32 heads executes 9.8 million warp
# instructions (README, "Speed"). 262,144 tokens and 64 heads are 256 times as many, 2.5e9; the default is 40
# times that. A loop that never ends reaches it within ten minutes at 177 million instructions a second.
MAX_INSTRUCTIONS = 10**11

# That prefill takes 6.9 s, so that the largest takes 0.5 h, and 4.7 h with the checker, which is 9.5 times as
# slow. On one core instead of two it takes 9.3 h. The default is a day.
TIMEOUT = 24 * 3600.0

# The start of a CTA takes as long as this many instructions or more. A grid of more CTAs than the bound on
# instructions then allows, 24 million by default, is refused before it runs. Served grids have a CTA for
# each chunk or tile and head: 262,144 tokens of 64 heads in chunks of 64 are 262,144. Below FEW_CTAS a grid
# is never refused: a small bound on instructions is meant for what the CTAs execute.
CTA_INSTRUCTIONS = 4096
FEW_CTAS = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a launch that gives none itself."""

    max_instructions: int = MAX_INSTRUCTIONS
    timeout: float = TIMEOUT


_default: ContextVar[Bounds] = ContextVar("gdnbench_sim_bounds", default=Bounds())  # noqa: B039  # frozen


def default_bounds() -> Bounds:
    """Those of the enclosing `bounded` block."""
    return _default.get()


@contextmanager
def bounded(bounds: Bounds) -> Iterator[None]:
    """In this block launches have these bounds if they give none themselves."""
    token = _default.set(bounds)
    try:
        yield
    finally:
        _default.reset(token)


def check_grid(grid: Dim3, max_instructions: int) -> None:
    """Raises KernelFault if the grid has more CTAs than the bound on instructions allows."""
    ctas = grid[0] * grid[1] * grid[2]
    most = max(max_instructions // CTA_INSTRUCTIONS, FEW_CTAS)
    if ctas > most:
        raise KernelFault(
            FaultKind.LIMIT,
            f"grid {grid} has {ctas:,} CTAs, and max_instructions {max_instructions:,} allows {most:,}; "
            "to run more, raise max_instructions (gdnbench sim --max-instructions)",
        )


class Meter:
    """Counts what a launch has executed since it began, and compares it with the bounds. After `share`,
    forked processes count together, each in the slot that it chooses with `use_slot`; they end when the
    process that forked them has. `end` is when the seconds are over, by the monotonic clock; None: `timeout`
    from now on."""

    def __init__(
        self, max_instructions: int = MAX_INSTRUCTIONS, timeout: float = TIMEOUT, end: float | None = None
    ) -> None:
        self.max_instructions = max_instructions
        self.timeout = timeout
        self._end = time.monotonic() + timeout if end is None else end
        self._counts = memoryview(bytearray(8)).cast("q")
        self._slot = 0
        self._parent: int | None = None
        self._lock = threading.Lock()

    def share(self, processes: int) -> None:
        """Count in memory that processes forked from now on share. This process keeps slot 0, they have slots
        1 to `processes`."""
        counts = memoryview(mmap.mmap(-1, 8 * (processes + 1))).cast("q")
        counts[0] = sum(self._counts)
        self._counts = counts

    def use_slot(self, slot: int, parent: int) -> None:
        """Count in this slot from now on, in a process that `parent` forked."""
        self._slot, self._parent = slot, parent

    def spend(self, instructions: int) -> None:
        """Count warp instructions that were executed. Raises KernelFault if the launch is beyond a bound.
        Ends a process whose parent was killed: nobody would read its results."""
        if self._parent is not None and os.getppid() != self._parent:
            os._exit(1)
        with self._lock:
            self._counts[self._slot] += instructions
        if sum(self._counts) > self.max_instructions:
            raise KernelFault(
                FaultKind.LIMIT,
                f"more than {self.max_instructions:,} warp instructions; if the kernel ends at all, "
                "raise max_instructions (gdnbench sim --max-instructions)",
            )
        if time.monotonic() > self._end:
            raise KernelFault(FaultKind.LIMIT, too_long(self.timeout))
