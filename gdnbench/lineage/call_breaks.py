# SPDX-License-Identifier: Apache-2.0
"""Breaks that show within one call: two of its sequences write one slot."""

from __future__ import annotations

import numpy as np

from gdnbench.lineage.finding import Break, Finding
from gdnbench.lineage.table import Access, Chain, access_of
from gdnbench.store.access_log import AccessKind


def call_breaks(chain: Chain) -> list[Finding]:
    """The breaks of each call of the chain, in order."""
    writes = chain.rows[(chain.rows["kind"] == AccessKind.WRITE) & (chain.rows["slot"] >= 0)]
    # Quickly past the calls whose writes go to slots of their own.
    order = np.lexsort((writes["sequence"], writes["slot"], writes["step"]))
    writes = writes[order]
    one, other = writes[:-1], writes[1:]
    shared = (one["step"] == other["step"]) & (one["slot"] == other["slot"])
    shared &= one["sequence"] != other["sequence"]
    found: list[Finding] = []
    for step in np.unique(one["step"][shared]).tolist():
        first, last = np.searchsorted(writes["step"], (step, step + 1))
        of_call = [access_of(row) for row in writes[first:last]]
        found += breaks_of_call(of_call, chain.layer, chain.name)
    return found


def breaks_of_call(writes: list[Access], layer: str, chain: str) -> list[Finding]:
    """Breaks among the writes of one call, which have slots.

    Sequences that nobody claims are accused only if nobody claims any sequence of the call. They may be
    padding still, which an engine has write a slot that nobody uses: if the slot is 0, all write one slot, or
    they stand together at an end of the batch.
    """
    by_slot: dict[int, dict[int, Access]] = {}
    for write in writes:
        by_slot.setdefault(write.slot, {})[write.sequence] = write
    claims = any(write.request >= 0 or write.is_padding for write in writes)
    sequences = sorted({write.sequence for write in writes})
    found = []
    for slot, of_sequence in by_slot.items():
        live = [write for write in of_sequence.values() if not write.is_padding]
        padding = [write for write in of_sequence.values() if write.is_padding]
        if live and padding and live[0].request >= 0:
            found.append(Finding(Break.PADDING, layer, chain, padding[0], live[0], live[0], padding[0]))
        if len(live) > 1:
            unclaimed = [write.sequence for write in live if write.request < 0]
            ends = sequences[: len(live)], sequences[-len(live) :]
            if not unclaimed or not (claims or slot == 0 or sorted(unclaimed) in ends):
                twice = Finding(Break.WRITTEN_TWICE, layer, chain, live[1], live[0], live[0], live[1])
                found.append(twice)
    return found
