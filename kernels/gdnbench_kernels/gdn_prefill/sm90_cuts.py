"""How a call is divided among the CTAs of an SM90: by slices of the rows of a state, and by segments of the
sequences. The plan whose expected time is shortest.

A plan depends on shapes alone: T tokens, N sequences, Hv value heads and the number of SMs. Lengths are
values, so sequences are taken to be equally long. The costs are fitted by hand to times of an H200
(results/gdn_prefill). Only the tokens of a segment change bits.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.gdn_prefill.sizes import CHUNK

SLICES = (1, 2)
Cost = tuple[float, float]
"""Microseconds of a chunk of a CTA: where few SMs have one, and what is added where all have."""

CHUNK_US: dict[bool, dict[int, Cost]] = {
    False: {1: (2.6, 0.15), 2: (1.72, 0.08)},
    True: {1: (1.62, 0.62), 2: (0.95, 0.28)},
}
"""By slices; True: with the squares in memory."""
TRANSFER_US: dict[int, Cost] = {1: (0.9, 0.25), 2: (0.5, 0.2)}
"""The same without outputs."""
SQUARE_US = 1.0
"""Of the squares of a chunk and value head, on an SM."""
LAUNCH_US = 5.0
"""Of a launch: until its CTAs have their first chunks, and the last state's way to memory."""
SCAN_US, STEP_US, SCANNED = 2.5, 1.6, 10
"""Of the scan, and of a step for up to SCANNED value heads of all sequences."""


@dataclass(frozen=True, slots=True)
class CutPlan:
    """Slices of the rows of a state, the tokens of a segment if sequences are cut, whether the squares have a
    launch of their own, and the microseconds that the call is expected to take."""

    slices: int
    segment: int | None
    us: float
    prepared: bool = False

    @property
    def label(self) -> str:
        """In words."""
        cut = f", segments of {self.segment}" if self.segment else ""
        squares = ", squares apart" if self.prepared else ""
        return f"sm90: slices {self.slices}{cut}{squares}"


def plan_of(tokens: int, sequences: int, value_heads: int, sms: int) -> CutPlan:
    """The plan of a call of T tokens; sequences, value_heads and sms are at least 1."""
    return min(plans(tokens, sequences, value_heads, sms), key=lambda plan: plan.us)


def plans(tokens: int, sequences: int, value_heads: int, sms: int) -> Iterator[CutPlan]:
    """All that a call can have, those without segments first: of plans that cost the same, the first is
    best."""
    chunks = _ceil(_ceil(tokens, sequences), CHUNK)
    squares = LAUNCH_US + SQUARE_US * _ceil(sequences * chunks * value_heads, sms)
    for prepared in (False, True):
        for slices in SLICES:
            ctas = sequences * value_heads * slices
            us = squares * prepared + _us(CHUNK_US[prepared][slices], ctas, chunks, sms)
            yield CutPlan(slices, None, us, prepared)
    for length in dict.fromkeys(_ceil(chunks, count) for count in range(2, chunks + 1)):
        segment = CHUNK * length
        if segment >= tokens:  # nothing to cut
            continue
        bound = segment_bound(tokens, sequences, segment)
        # B, M and the outputs read the same squares, so these always have a launch of their own.
        for slices in SLICES:
            us = squares + _cut_us(bound, length, sequences, value_heads, slices, sms)
            yield CutPlan(slices, segment, us, prepared=True)


def alternatives(tokens: int, sequences: int, value_heads: int, sms: int) -> list[CutPlan]:
    """The plan of a call, then others that may be as fast: of each number of slices, with and without a
    launch for the squares, the best one that cuts nothing and the best two that do."""
    found: dict[tuple[int, bool, bool], list[CutPlan]] = {}
    for plan in sorted(plans(tokens, sequences, value_heads, sms), key=lambda plan: plan.us):
        kept = found.setdefault((plan.slices, plan.prepared, plan.segment is None), [])
        if len(kept) < 2:
            kept.append(plan)
    few = sorted((plan for kept in found.values() for plan in kept), key=lambda plan: plan.us)
    return [plan for plan in few if plan.us < FAR * few[0].us]


FAR = 1.5
"""Times the expected time of the best plan, from which on others are no alternatives."""


def _cut_us(segments: int, length: int, sequences: int, value_heads: int, slices: int, sms: int) -> float:
    """B and M, the scan, the segments."""
    followed = max(1, segments - sequences)  # of which the first of each sequence has no M
    ctas = (followed + max(0, followed - sequences)) * value_heads * slices
    transfer = _us(TRANSFER_US[slices], ctas, length, sms)
    steps = max(0, _ceil(segments, sequences) - 2)
    scan = SCAN_US + steps * STEP_US * max(1.0, sequences * value_heads / SCANNED)
    return transfer + scan + _us(CHUNK_US[True][slices], segments * value_heads * slices, length, sms)


def _us(cost: Cost, works: int, chunks: int, sms: int) -> float:
    """A launch with so many works of so many chunks."""
    return LAUNCH_US + _ceil(works, sms) * chunks * (cost[0] + cost[1] * min(1.0, works / sms))


def _ceil(count: int, step: int) -> int:
    return -(-count // step)
