# SPDX-License-Identifier: Apache-2.0
"""What stores left in shared memory, to tell whether two stores that nothing orders wrote the same bits.

A reduction of Triton stores each partial result by all lanes and warps that have it, and its conversion of a
small tensor's layout stores each matrix by all warps that have it. The stores are a data race, since they are
weak and no barrier orders them. But the PTX ISA defines what such a race leaves if both stores have the same
size ("Limitations on Mixed-size Data-races": the axioms describe it), and a read that is ordered after both
returns what one of them wrote ("Coherence Order", "Causality"). If both wrote the same bits, the read returns
these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.ptx.literals import width_of

STORES = ("st", "stmatrix")


class StoredValues:
    """By cell, the value that the last store left in `memory`: uint8[bytes], in cells of `cell_bytes` bytes.

    Stores are reported after they are made, and compiled code reports several of one warp at once. So the
    value of a store may be that of a later store of the same warp. For two warps that is right: the last
    store of each is what the other's races with, and a read in between is a pair of its own. For two lanes of
    one warp it is not, so their stores are not compared.
    """

    def __init__(self, memory: npt.NDArray[np.uint8], cell_bytes: int) -> None:
        self._memory = memory.view(f"u{cell_bytes}")
        self._last = np.zeros_like(self._memory)

    def record(self, cells: Cells) -> None:
        """A store to the cells has been made."""
        self._last[cells] = self._memory[cells]

    def are_equal(self, before: Event, now: Event, cells: Cells) -> bool:
        """Whether `now`, whose store to the cells has been made and is not recorded yet, left the bits that
        `before` left there. Both must be weak stores, by two warps, of elements of one size: alignment makes
        elements that overlap the same then."""
        if before.warp == now.warp or not (_is_weak_store(before) and _is_weak_store(now)):
            return False
        one, other = before.ins, now.ins
        if one.op != other.op or width_of(one.types[-1]) != width_of(other.types[-1]):
            return False
        return bool((self._last[cells] == self._memory[cells]).all())


def _is_weak_store(event: Event) -> bool:
    return event.ins.op in STORES and not event.strong
