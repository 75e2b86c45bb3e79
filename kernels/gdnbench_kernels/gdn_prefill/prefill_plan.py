"""Which of this operation's SM100 kernels a call should use: the one whose predicted time is shortest.

Nothing here has been measured. The costs are those that `gdnbench time --on sim --machine b200` predicts
(docs/prefill.md), fitted by hand to calls of 2,048 to 32,768 tokens with 8 to 64 value heads. A plan depends
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
LAUNCH_US, WORK_US, CHUNK_US = 6.8, 1.27, 1.64
"""Of the fused kernel: until its first chunk and behind its last one, for each work, and for each chunk."""
CUT_US = 1.2
"""What two launches of the fused kernel take besides twice `LAUNCH_US`."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """A kernel, the tokens of a segment if it has segments, the microseconds that it is expected to take, and
    the tokens behind which `sm100_fused` cuts its last works, if it does."""

    kernel: str
    segment: int | None
    us: float
    cut: int | None = None


def plan_of(tokens: int, sequences: int, value_heads: int, sms: int) -> PrefillPlan:
    """The plan of a call of T tokens; sequences, value_heads and sms are at least 1."""
    return min(plans(tokens, sequences, value_heads, sms), key=lambda plan: plan.us)


def plans(tokens: int, sequences: int, value_heads: int, sms: int) -> Iterator[PrefillPlan]:
    """All that a call can have, the fused kernel first: of plans that cost the same, the first is best."""
    works = sequences * value_heads
    chunks = _ceil(_ceil(tokens, sequences), CHUNK)
    rounds = _ceil(works, sms)
    yield PrefillPlan(FUSED, None, LAUNCH_US + rounds * _work_us(chunks))
    cut = _cut(chunks, works, sms)
    if cut:
        us = 2 * LAUNCH_US + CUT_US + (rounds - 1) * _work_us(chunks) + _work_us(chunks - cut)
        yield PrefillPlan(FUSED, None, us, cut * CHUNK)
    # Two CTAs a state and two CTAs an SM; the other kernels are bound by memory.
    yield PrefillPlan(FOUR, None, 13.5 + 1.28 * rounds * chunks + 4.4e-4 * tokens * value_heads)
    for count in range(2, chunks + 1):
        length = _ceil(chunks, count)
        length = length if length <= 16 else COARSE * _ceil(length, COARSE)
        segment = CHUNK * length
        if segment >= tokens:  # nothing to split
            continue
        us = _split_us(segment_bound(tokens, sequences, segment), length, sequences, value_heads, sms)
        yield PrefillPlan(SPLIT, segment, us)


def _cut(chunks: int, works: int, sms: int) -> int:
    """Behind how many chunks the last works should be cut (fused_rounds.py): so many that the first parts of
    a CTA take no longer than a whole work. 0 if no part is that short, or if all rounds are full."""
    left = works % sms
    if works < sms or not left:
        return 0
    parts = _ceil(sms, sms - left)
    return max(0, int((_work_us(chunks) / parts - WORK_US) / CHUNK_US))


def _split_us(segments: int, length: int, sequences: int, value_heads: int, sms: int) -> float:
    """The table, B and M of all segments but a sequence's last, the scan, the segments."""
    rows = max(1, segments - sequences)  # of B; a sequence's first segment has no M
    chunk = 2.08 if rows > sequences else 1.46  # of B and M, or of B alone
    transfer = 6 + chunk * length * _ceil(rows * value_heads, sms)
    steps = max(0, _ceil(segments, sequences) - 2)
    scan = 2.5 + 1.23 * steps * max(1.0, sequences * value_heads / 8.2)
    # Their chunks take a little longer than those of whole sequences.
    last = LAUNCH_US + _ceil(segments * value_heads, sms) * (WORK_US + 1.7 * length)
    return 2.6 + transfer + scan + last


def _work_us(chunks: int) -> float:
    return WORK_US + CHUNK_US * chunks


def _ceil(count: int, step: int) -> int:
    return -(-count // step)
