# SPDX-License-Identifier: Apache-2.0
"""Faults after which a launch can go on (`keep_going`): which, how, and the record of them.

What follows such a fault is what the hardware most likely does. It is not what a correct kernel does, and not
always what the hardware does: an access that the GPU's memory unit detects ends the launch there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdnbench.sim.errors import FaultKind, KernelFault, Place

GOES_ON = {
    FaultKind.OUT_OF_BOUNDS: "the lanes outside load 0 and store nothing",
    FaultKind.UNINITIALISED: "the bits that are there are used",
    FaultKind.TMEM_ACCESS: "the columns are accessed with what they contain, in lanes of the warp",
    FaultKind.TMEM_ALLOCATION: "the allocation is changed as far as it exists",
    FaultKind.TMEM_LEAK: "the CTA ends",
}
"""How a launch goes on after a fault of each kind. No other kind can be skipped."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A fault after which the launch went on: the first of its kind at its instruction."""

    kind: FaultKind
    message: str
    place: Place | None
    thread: str | None

    @property
    def text(self) -> str:
        """What happened, and how the launch went on."""
        return f"{self.message}; keep_going: {GOES_ON[self.kind]}"


@dataclass(slots=True)
class SkippedFaults:
    """The skipped faults of a launch, with how often each occurred."""

    found: dict[tuple[FaultKind, Place | None], tuple[Skipped, int]] = field(default_factory=dict)

    def add(self, fault: Skipped, count: int = 1) -> None:
        """Count a fault; of equal kind and place the first stays."""
        key = fault.kind, fault.place
        first, before = self.found.get(key, (fault, 0))
        self.found[key] = first, before + count

    def merge(self, other: SkippedFaults) -> None:
        """Add the faults of other CTAs of the launch."""
        for fault, count in other:
            self.add(fault, count)

    def __iter__(self) -> Iterator[tuple[Skipped, int]]:
        return iter(self.found.values())


def refuse_to_skip(fault: KernelFault) -> None:
    """Let a fault say that `keep_going` cannot go on after it."""
    first, *rest = fault.message.split("\n")
    fault.message = "\n".join([f"{first} (keep_going does not go on after this)", *rest])
