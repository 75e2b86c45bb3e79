# SPDX-License-Identifier: Apache-2.0
"""The interface through which the scheduler reports a CTA's execution to `--profile`.

The simulator has no clock. It measures time in *steps*. The warps of one round of the scheduler run side by
side from the step at which the round begins. The round takes as many steps as its longest turn has
instructions. Waits and copies then have comparable lengths, in instructions, not in cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.engine_interface import Blocked
from gdnbench.sim.ptx.ir import Instruction


class Recorder(Protocol):
    """The reports of the scheduler and the units about one CTA."""

    def issued(self, warp: int, ins: Instruction) -> None:
        """Warp `warp` handed `ins` to the machine for the first time (not a retry after a wait)."""
        ...

    def turn(self, warp: int, executed: int, blocked: Sequence[Blocked]) -> None:
        """Warp `warp` executed `executed` instructions in this round and then waits for `blocked`."""
        ...

    def round(self) -> None:
        """A round has ended."""
        ...

    def asynchronous(self, operation: AsyncOperation) -> None:
        """`operation` was issued, or has landed if `operation.landed`."""
        ...
