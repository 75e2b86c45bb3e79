# SPDX-License-Identifier: Apache-2.0
"""The plans of gdn_prefill: what they choose from shapes, and that `sm100_auto` does what was chosen."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.gdn_prefill import auto
from gdnbench_kernels.gdn_prefill.auto import sm100_auto
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.prefill_plan import FUSED, SPLIT, PrefillPlan, plan_of, plans
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.synth import synth
from tests.subset import quick

SMS = 148


@pytest.mark.parametrize(
    ("sequences", "tokens", "value_heads", "kernel"),
    [
        (1, 32768, 8, SPLIT),
        (1, 8192, 32, SPLIT),
        (8, 2048, 32, FUSED),  # more works than SMs: a split would only add some
        (64, 512, 64, FUSED),
        (1, 64, 1, FUSED),  # one chunk cannot be split
        (1, 1, 1, FUSED),
    ],
)
def test_few_long_sequences_are_split(sequences: int, tokens: int, value_heads: int, kernel: str) -> None:
    assert plan_of(sequences * tokens, sequences, value_heads, SMS).kernel == kernel


def test_plans_can_be_launched_and_the_cheapest_is_taken() -> None:
    """Segments are whole chunks, at least one and fewer tokens than the call has."""
    for sequences in (1, 2, 7, 300):
        for tokens in (1, 63, 64, 65, 1000, 5000, 100_000):
            for value_heads in (1, 8, 64):
                found = list(plans(tokens, sequences, value_heads, SMS))
                segments = [plan.segment for plan in found if plan.segment is not None]
                assert all(CHUNK <= segment < tokens and segment % CHUNK == 0 for segment in segments)
                assert plan_of(tokens, sequences, value_heads, SMS).us == min(plan.us for plan in found)


@pytest.mark.parametrize(
    ("sequences", "value_heads", "cut"),
    [
        (8, 32, True),  # 256 works, 40 of 148 SMs idle in the second round
        (5, 32, True),  # 160 works, 136 idle
        (148, 32, False),  # all rounds are full
        (4, 32, False),  # nor is there a full one
        (64, 4, True),
    ],
)
def test_works_of_a_round_that_leaves_sms_idle_are_cut(sequences: int, value_heads: int, cut: bool) -> None:
    plan = plan_of(sequences * 2048, sequences, value_heads, SMS)
    assert plan.kernel == FUSED
    assert (plan.cut is not None) == cut


def test_first_parts_take_no_more_rounds_than_a_whole_work() -> None:
    """Those of one CTA have together no more chunks than a work: the second launch has the others, one a
    CTA."""
    for works in range(2, 700, 13):
        for chunks in (2, 9, 32):
            for plan in plans(works * chunks * CHUNK, works, 1, SMS):
                if plan.cut is not None:
                    parts = -(-SMS // (SMS - works % SMS))
                    assert plan.cut >= CHUNK
                    assert plan.cut % CHUNK == 0
                    assert parts * plan.cut <= chunks * CHUNK
                    assert works > SMS


def test_a_sequence_with_an_sm_for_each_segment_takes_less_time_split() -> None:
    """512 chunks on 148 SMs: B and M of 20 segments and then the segments themselves take 2 x 26 chunks one
    after the other, whatever the cost of a chunk."""
    one = plan_of(32768, 1, 1, SMS)
    assert one.kernel == SPLIT
    assert one.us < 0.5 * next(plan for plan in plans(32768, 1, 1, SMS) if plan.kernel == FUSED).us


@pytest.mark.parametrize("segment", quick([None, 64], 0))
def test_a_call_has_the_bits_of_the_chosen_kernel(
    monkeypatch: pytest.MonkeyPatch, segment: int | None
) -> None:
    call = synth(seqlens=(130, 0, 64), heads=(1, 2), initial_state=True)
    kernel = sm100_fused if segment is None else partial(sm100_fused_cp, segment=segment)
    if segment is not None:
        monkeypatch.setattr(auto, "plan_of", lambda *shapes: PrefillPlan(SPLIT, segment, 0.0))
    with active(), programs_simulated():
        found = sm100_auto(**call.tensors, **call.scalars)
        expected = kernel(**call.tensors, **call.scalars)
    assert found.keys() == expected.keys() == {"o", "final_state"}
    assert all(torch.equal(found[name], expected[name]) for name in found)
