# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill by segments on Hopper: the plan, and in the simulator the kernels against the oracle, the fused
kernel and themselves."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench import sim
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import sm90_cp
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm90_cp import sm90, sm90_fused_cp, sm90_prepared
from gdnbench_kernels.gdn_prefill.sm90_cuts import SLICES, CutPlan, plan_of, plans
from gdnbench_kernels.gdn_prefill.sm90_fused import sm90_fused
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import build_scan
from gdnbench_kernels.gdn_prefill.synth import synth
from tests.kernels.guarded_outputs import Outputs, guarded, same, same_outputs
from tests.subset import quick

SMS = 132
BATCH: dict[str, Any] = {"seqlens": (1, 64, 65, 0, 300), "heads": (1, 2), "initial_state": True}
"""By 64 tokens: three sequences of one segment, of two, and of five, whose last one is shorter."""


def run(call: Call, segment: int = 64, slices: int = 2, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    with guarded(OPERATION, call, **settings) as (outputs, _):
        sm90_fused_cp(**call.tensors, **call.scalars, **outputs, segment=segment, slices=slices)
    return outputs


def run_fused(call: Call) -> Outputs:
    with active(), programs_simulated():
        return sm90_fused(**call.tensors, **call.scalars)


def part(call: Call, number: int) -> Call:
    """Sequence `number` of a call alone."""
    start, stop = call.tensors["cu_seqlens"][number : number + 2].tolist()
    tensors = {name: call.tensors[name][start:stop] for name in ("q", "k", "v", "g", "beta")}
    tensors["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    tensors["initial_state"] = call.tensors["initial_state"][number : number + 1]
    return Call(tensors, call.scalars, call.conventions)


@pytest.mark.parametrize(
    ("sequences", "tokens", "value_heads", "cut"),
    [
        (1, 32768, 8, True),
        (8, 2048, 32, False),  # more value heads of sequences than SMs: cuts would only add work
        (4, 2048, 64, False),
        (1, 64, 1, False),  # one chunk cannot be cut
        (1, 1, 1, False),
    ],
)
def test_few_long_sequences_are_cut(sequences: int, tokens: int, value_heads: int, cut: bool) -> None:
    assert (plan_of(sequences * tokens, sequences, value_heads, SMS).segment is not None) == cut


def test_plans_can_be_launched_and_the_cheapest_is_taken() -> None:
    """Segments are whole chunks, at least one and fewer tokens than the call has."""
    for sequences in (1, 2, 7, 300):
        for tokens in (1, 63, 64, 65, 1000, 5000, 100_000):
            for value_heads in (1, 8, 64):
                found = list(plans(tokens, sequences, value_heads, SMS))
                segments = [plan.segment for plan in found if plan.segment is not None]
                assert all(CHUNK <= segment < tokens and segment % CHUNK == 0 for segment in segments)
                assert {plan.slices for plan in found} == set(SLICES)
                assert {plan.prepared for plan in found} == {False, True}
                assert plan_of(tokens, sequences, value_heads, SMS).us == min(plan.us for plan in found)


def test_more_states_than_the_kernels_count_are_refused() -> None:
    """By tensors of no memory: 8192 segments of 16 value heads are 2^31 elements."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q, v, gates = meta(2**19, 1, 128), meta(2**19, 16, 128), meta(2**19, 16, dtype=torch.float32)
    inputs = {"q": q, "k": q, "v": v, "g": gates, "beta": gates, "cu_seqlens": meta(2, dtype=torch.int32)}
    message = r"initial_state of less than 2\^31 elements; it has 2147483648"
    with active() as session, programs_simulated(), pytest.raises(NotImplementedError, match=message):
        sm90_fused_cp(**inputs, output_final_state=False, segment=64)
    assert session.reports == []


@pytest.mark.slow  # compiles a program
def test_the_scan_is_the_recurrence() -> None:
    """Over sequences of several numbers of segments, against fp64. Slots that it may not read or write are
    NaN; a map that is not a number stays in its sequence and head."""
    counts, tokens = (1, 5, 2, 1, 3), 128
    program = sim.compile(*_flat(build_scan(2)), arch="sm_90a")
    generator = torch.Generator().manual_seed(0)
    lengths = [tokens * count - 5 for count in counts]
    lengths[3] = 0  # which is one segment too
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    bound = segment_bound(int(bounds[-1]), len(counts), tokens)
    firsts, maps = (torch.randn(bound, 2, 128, 128, generator=generator) for _ in range(2))
    maps /= 16  # of norm 2 sqrt(128) / 16, so that the states neither vanish nor grow much
    maps[3, 1, 100, 7] = torch.nan
    offsets = torch.tensor([0, *counts]).cumsum(0).tolist()
    for start, stop in pairwise(offsets):
        firsts[start], maps[start], maps[stop - 1] = torch.nan, torch.nan, torch.nan
    wanted, sizes = firsts.double(), firsts.double().abs()
    for start, stop in pairwise(offsets):
        for slot in range(start + 1, stop - 1):
            wanted[slot + 1] += wanted[slot] @ maps[slot].double()
            sizes[slot + 1] += sizes[slot] @ maps[slot].double().abs()
    sim.launch(program, bounds, maps, firsts, tokens)
    assert same(firsts.isnan(), wanted.isnan())
    # A step rounds 128 multiply-adds and a sum, each by 2^-24 of what it holds, which `sizes` bounds; the
    # errors of the steps before are in what it multiplies.
    allowed = max(counts) * 129 * 2.0**-24 * sizes
    assert ((firsts - wanted).abs() <= allowed).logical_or(wanted.isnan()).all()


def _flat(build: Any) -> tuple[Any, ...]:
    kernel, examples = build
    return (kernel, *examples)


@pytest.mark.slow  # compiles three programs
@pytest.mark.parametrize("options", [{}, {"state_dtype": "bfloat16"}, {"beta": (0.0, 2.0)}])
@pytest.mark.parametrize("slices", SLICES)
def test_outputs_are_within_the_bound(options: dict[str, Any], slices: int) -> None:
    """Within twice torch's error, all of a tensor and the worst (sequence, head) of it."""
    call = synth(**BATCH, **options)
    outputs = run(call, slices=slices)
    results = judge_stages(OPERATION, call, outputs, Bound())
    assert [result.tensor for result in results] == list(outputs)
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []


@pytest.mark.slow
def test_a_sequence_has_the_same_bits_alone_with_other_slices_and_under_other_schedules() -> None:
    call = synth(**BATCH)
    whole = run(call)
    assert same_outputs(run(call, slices=1), whole)
    assert same_outputs(run(call, schedule="random:3"), whole)
    start = int(call.tensors["cu_seqlens"][4])
    alone = run(part(call, 4))
    assert same(alone["o"], whole["o"][start:])
    assert same(alone["final_state"], whole["final_state"][4:])


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [64, 128])
def test_a_sequence_of_one_or_two_segments_has_the_bits_of_the_fused_kernel(tokens: int) -> None:
    """No state is rounded between two segments. Another sequence makes the call one that is cut."""
    call = synth(seqlens=(tokens, 130), heads=(1, 1), initial_state=True)
    cut, fused = run(call), run_fused(call)
    assert same(cut["o"][:tokens], fused["o"][:tokens])
    assert same(cut["final_state"][:1], fused["final_state"][:1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"beta": (0.0, 2.0)}])
@pytest.mark.parametrize("segment", [None, 64])
def test_squares_apart_change_no_bit(segment: int | None, options: dict[str, Any]) -> None:
    """Of a whole sequence or a segment, with either number of slices."""
    call = synth(**BATCH, **options)
    wanted = run_fused(call) if segment is None else run(call, segment)
    for slices in SLICES:
        with active(), programs_simulated():
            found = sm90_prepared(**call.tensors, **call.scalars, segment=segment, slices=slices)
        assert same_outputs(found, wanted)


@pytest.mark.slow
def test_not_a_number_stays_in_its_sequence() -> None:
    call = synth(seqlens=(130, 200, 65), heads=(1, 1), initial_state=True, nan_at=(140,))
    clean = synth(seqlens=(130, 200, 65), heads=(1, 1), initial_state=True)
    found, wanted = run(call), run(clean)
    for rows in (slice(0, 130), slice(330, 395)):
        assert same(found["o"][rows], wanted["o"][rows])
    assert found["final_state"][1].isnan().any()
    assert same(found["final_state"][[0, 2]], wanted["final_state"][[0, 2]])


@pytest.mark.slow
def test_a_state_may_be_updated_in_place() -> None:
    """No CTA reads the initial state while another one may write the final state in its place. A segment has
    so many chunks that every ring is reused."""
    call = synth(seqlens=(20, 650), heads=(1, 1), initial_state=True)
    wanted = run(call, segment=320)
    states = call.tensors["initial_state"].clone()
    with active(Settings(check=True)) as session, programs_simulated():
        given = {**call.tensors, "initial_state": states}
        returned = sm90_fused_cp(**given, final_state=states, segment=320)
    assert [finding.message for report in session.reports for finding in report.findings] == []
    assert returned["final_state"] is states
    assert same_outputs(returned, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("segment", quick([None, 64]))
def test_a_call_has_the_bits_of_the_chosen_plan(monkeypatch: pytest.MonkeyPatch, segment: int | None) -> None:
    call = synth(seqlens=(130, 0, 64), heads=(1, 1), initial_state=True)
    monkeypatch.setattr(sm90_cp, "plan_of", lambda *shapes: CutPlan(1, segment, 0.0))
    kernel: Any = sm90_fused if segment is None else partial(sm90_fused_cp, segment=segment)
    with active(), programs_simulated():
        assert same_outputs(
            sm90(**call.tensors, **call.scalars), kernel(**call.tensors, **call.scalars, slices=1)
        )
