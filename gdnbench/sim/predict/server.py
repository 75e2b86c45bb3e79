# SPDX-License-Identifier: Apache-2.0
"""A unit of an SM that serves one request after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Server:
    """`free`: the cycle from which on the unit is free; `used` cycles so far."""

    free: float = 0.0
    used: float = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """When a request that comes at `at` has been served."""
        start = at if at > self.free else self.free
        self.free = start + cycles
        self.used += cycles
        return self.free
