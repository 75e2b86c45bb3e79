# SPDX-License-Identifier: Apache-2.0
"""A unit of an SM that serves one request after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Server:
    """`free`: the cycle from which on the unit is free; `used` cycles so far. After a time without requests
    it serves at once what it could have served in that time, at most `credit` cycles of it: others have the
    rest of a unit that is shared, and its rate is an average."""

    free: float = 0.0
    used: float = 0.0
    credit: float = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """When a request that comes at `at` has been served."""
        start = self.free if self.free > at - self.credit else at - self.credit
        self.free = start + cycles
        self.used += cycles
        return self.free if self.free > at else at
