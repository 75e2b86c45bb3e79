# SPDX-License-Identifier: Apache-2.0
"""A unit of an SM that serves one request after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Server:
    """`free`: the cycle at which the unit becomes free. `used`: the cycles for which it has been busy. After
    an idle time the unit serves at once what it could have served in that time, at most `credit` cycles:
    such a unit is shared by SMs, and its rate here is this SM's average."""

    free: float = 0.0
    used: float = 0.0
    credit: float = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """The cycle in which a request that comes at `at` and takes `cycles` has been served."""
        start = self.free if self.free > at - self.credit else at - self.credit
        self.free = start + cycles
        self.used += cycles
        return self.free if self.free > at else at
