"""Which of this operation's SM100 kernels a call should use: the one whose predicted time is shortest.

Nothing here has been measured. The costs are those that `gdnbench time --on sim --machine b200` predicts
(docs/prefill.md), fitted by hand to calls of 2,048 to 16,384 tokens with 8 and 32 value heads. A plan depends
on shapes alone: T tokens, N sequences, Hv value heads and the number of SMs. Lengths are values, so sequences
are taken to be equally long.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.gdn_prefill.sizes import CHUNK

FOUR, FUSED, SPLIT = "sm100", "sm100_fused", "sm100_fused_cp"
COARSE = 4
"""Chunks by which segments grow beyond 16: the table's kernel is compiled for each length."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """A kernel, the tokens of a segment if it has segments, and the microseconds that it is expected to
    take."""

    kernel: str
    segment: int | None
    us: float


def plan_of(tokens: int, sequences: int, value_heads: int, sms: int) -> PrefillPlan:
    """The plan of a call of T tokens; sequences, value_heads and sms are at least 1."""
    return min(plans(tokens, sequences, value_heads, sms), key=lambda plan: plan.us)


def plans(tokens: int, sequences: int, value_heads: int, sms: int) -> Iterator[PrefillPlan]:
    """All that a call can have, the fused kernel first: of plans that cost the same, the first is best."""
    works = sequences * value_heads
    chunks = _ceil(_ceil(tokens, sequences), CHUNK)
    yield PrefillPlan(FUSED, None, 6.5 + _ceil(works, sms) * chunks * _chunk_us(works, sms))
    # Two CTAs a state and two CTAs an SM; the other kernels are bound by memory.
    rounds = _ceil(works, sms)
    yield PrefillPlan(FOUR, None, 12.9 + 1.3 * rounds * chunks + 6.03e-4 * tokens * value_heads)
    for count in range(2, chunks + 1):
        length = _ceil(chunks, count)
        length = length if length <= 16 else COARSE * _ceil(length, COARSE)
        segment = CHUNK * length
        if segment >= tokens:  # nothing to split
            continue
        us = _split_us(segment_bound(tokens, sequences, segment), length, sequences, value_heads, sms)
        yield PrefillPlan(SPLIT, segment, us)


def _split_us(segments: int, length: int, sequences: int, value_heads: int, sms: int) -> float:
    """The table, B and M of all segments but a sequence's last, the scan, the segments."""
    rows = max(1, segments - sequences)  # of B; a sequence's first segment has no M
    works = segments * value_heads
    of_transfer = rows * value_heads
    busy = min(1.0, of_transfer / sms)
    chunk = 2.1 if rows > sequences else 1.55  # of B and M, or of B alone
    chunk += 1.05 * min(0.2, max(0.0, busy - 0.7))  # which HBM slows down
    transfer = 6.3 + chunk * length * _ceil(of_transfer, sms)
    steps = max(0, _ceil(segments, sequences) - 2)
    scan = 4 + 1.2 * steps * max(1.0, sequences * value_heads / 9)
    return 2.7 + transfer + scan + 8.1 + _ceil(works, sms) * length * _chunk_us(works, sms)


def _chunk_us(works: int, sms: int) -> float:
    """A chunk of the fused kernel, which shares HBM with those of the other SMs."""
    return 1.6 + 0.3 * min(1.0, works / sms)


def _ceil(count: int, step: int) -> int:
    return -(-count // step)
