# SPDX-License-Identifier: Apache-2.0
"""A pair of CTAs: two of a cluster whose ranks differ in the last bit alone (PTX ISA 9.7.16.5.1).

tcgen05.alloc and tcgen05.dealloc with .cta_group::2 are executed by a warp of each CTA of the pair together
(table 46). So the first of the two waits for the other: the n-th call of one CTA meets the n-th of its peer.
Both get the same columns, since the instructions that work on a pair name the tensor memory of both by one
address.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gdnbench.sim.machine.engine_interface import Wait


@dataclass(slots=True, eq=False)
class PairCall:
    """A tcgen05.alloc or .dealloc of the CTA of `rank`. `peer` is the call that it has met. `first`: the
    column that tcgen05.alloc gives both, -1 until then."""

    rank: int
    address: int  # of tcgen05.dealloc
    columns: int
    peer: PairCall | None = None
    first: int = -1


@dataclass(slots=True)
class PairWait(Wait):
    """A wait that keeps the call."""

    call: PairCall = field(kw_only=True)


class Meeting:
    """The calls of one instruction in a pair that have met no call of the other CTA yet, by CTA."""

    def __init__(self) -> None:
        self._alone: tuple[deque[PairCall], deque[PairCall]] = (deque(), deque())

    def enter(self, call: PairCall) -> None:
        """A warp executes the instruction."""
        waiting = self._alone[~call.rank & 1]
        if not waiting:
            self._alone[call.rank & 1].append(call)
            return
        call.peer = waiting.popleft()
        call.peer.peer = call


@dataclass(slots=True, eq=False)
class CtaPair:
    """What the two CTAs share."""

    allocations: Meeting = field(default_factory=Meeting)
    deallocations: Meeting = field(default_factory=Meeting)
