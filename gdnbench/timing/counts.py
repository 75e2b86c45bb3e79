# SPDX-License-Identifier: Apache-2.0
"""Counts of what a kernel executed on the simulator, which has no clock: instructions and bytes.

The counts are exact and say nothing about time: the simulator runs warps in an order of its own and models no
cache, no latency and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gdnbench.sim import LaunchReport


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a call, its launches summed. `bytes_moved` are bytes by path, in the simulator's names for them."""

    launches: int
    ctas: int
    warp_instructions: int
    tensor_core_macs: int
    bytes_moved: Mapping[str, int]

    @classmethod
    def of_launches(cls, launches: Sequence[LaunchReport]) -> Counts:
        """Sums of `launches`, which were profiled."""
        moved: Counter[str] = Counter()
        for launch in launches:
            moved.update(launch.traffic or {})
        return cls(
            len(launches),
            sum(launch.ctas for launch in launches),
            sum(launch.warp_instructions for launch in launches),
            sum(launch.mma_macs for launch in launches),
            dict(moved),
        )

    @property
    def global_read(self) -> int:
        """Bytes asked of global memory, each as often as it was asked for: there is no cache."""
        return sum(count for path, count in self.bytes_moved.items() if path.startswith("global to "))

    @property
    def global_written(self) -> int:
        return sum(count for path, count in self.bytes_moved.items() if path.endswith(" to global"))


@contextmanager
def counted() -> Iterator[None]:
    """While simulated launches are profiled: without that they count no bytes."""
    from gdnbench.sim import Settings, active

    with active(Settings(profile=True)):
        yield
