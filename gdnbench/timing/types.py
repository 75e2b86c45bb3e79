# SPDX-License-Identifier: Apache-2.0
"""The types that the parts of timing exchange: requests for rounds, and the conditions of the machine.

A *launch* is one call of a kernel on one set of buffers. A *round* is many launches timed as one, on one
*placement*: sets of buffers that lie at addresses of their own. A *block* is one round of every kernel under
comparison, on one placement, in an order that changes from block to block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

RESOLUTION: Mapping[str, float] = {
    "events": 0.5e-6,  # as CUDA's reference gives it for elapsed times
    "cupti": 0.5e-6,  # not documented: taken for no finer than events of the same device
    "perf_counter": 0.1e-6,  # of Windows's counter of 10 MHz; Linux's steps by a nanosecond
}
"""Seconds that a reading may be late, by the clock's name."""
COARSEST = max(RESOLUTION.values())
"""Of a clock that nobody named."""


class Cache(StrEnum):
    """What a launch finds in the last level of cache."""

    COLD = "cold"  # none of its bytes: at least 512 MB were touched since its buffers were
    WARM = "warm"  # all of them that fit: the same buffers as the launch before


class Form(StrEnum):
    """How launches reach the device."""

    GRAPH = "graph"  # a round is one CUDA graph: gaps between launches are the device's alone
    PLAIN = "plain"  # one after another from the host, whose cost counts where the device waits for it


@dataclass(frozen=True, slots=True)
class Mode:
    cache: Cache = Cache.COLD
    form: Form = Form.GRAPH


class Subject(Protocol):
    """A kernel on a record's call, ready to be timed in one mode."""

    @property
    def name(self) -> str: ...

    @property
    def placements(self) -> int:
        """How many placements there are; those of subjects under comparison are the same memory."""

    @property
    def launches(self) -> int:
        """Of a round."""

    def round(self, placement: int) -> float:
        """Seconds a launch, of one round. Restores in-place state and makes the cache what the mode says
        first, outside the time. Raises what the kernel raises."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The device at one moment; None or empty where this machine does not say."""

    clock: int | None = None  # MHz, of the multiprocessors
    memory_clock: int | None = None  # MHz
    temperature: int | None = None  # degrees Celsius
    power: float | None = None  # watts
    throttled: tuple[str, ...] = ()  # reasons that slow the clocks down, by NVML's names
    others: tuple[int, ...] = ()  # other processes that use the device


class Watch(Protocol):
    """Looks at the device between rounds."""

    @property
    def source(self) -> str:
        """Who looks, or "unknown: " and why nobody does."""

    def now(self) -> Conditions: ...

    def close(self) -> None: ...
