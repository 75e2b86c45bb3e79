# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill by segments, in the simulator: against the oracles, the fused kernel and itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench import sim
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.kernel_figures import figures, limits
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active, settings_apply
from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import fused_cp, kernel_sm100_scan, kernel_sm100_transfer
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.segment_sources import build_scan, transfer_source
from gdnbench_kernels.gdn_prefill.synth import synth
from tests.kernels.guarded_outputs import Outputs, guarded, same, same_outputs
from tests.subset import quick

BATCH: dict[str, Any] = {"seqlens": (1, 64, 65, 0, 300), "heads": (1, 2), "initial_state": True}
"""By 64 tokens: three sequences of one segment, of two, and of five, whose last one is shorter."""


def run(call: Call, segment: int = 64, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    with guarded(OPERATION, call, **settings) as (outputs, session):
        sm100_fused_cp(**call.tensors, **call.scalars, **outputs, segment=segment)
    tokens, launches = len(call.tensors["v"]), sum(len(report.launches) for report in session.reports)
    assert launches == (4 if tokens > segment else min(tokens, 1))
    return outputs


def run_fused(call: Call) -> Outputs:
    with active(), programs_simulated():
        return sm100_fused(**call.tensors, **call.scalars)


def replaced(call: Call, scalars: dict[str, Any] | None = None, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, {**call.scalars, **(scalars or {})}, call.conventions)


def assert_passes(call: Call, segment: int = 64) -> Outputs:
    """Within twice torch's error, all of a tensor and the worst (sequence, head) of it."""
    outputs = run(call, segment)
    results = judge_stages(OPERATION, call, outputs, Bound())
    assert [result.tensor for result in results] == list(outputs)
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
    return outputs


@pytest.fixture(scope="module")
def scan_program() -> Any:
    kernel, examples = build_scan(2)
    return sim.compile(kernel, *examples, arch="sm_100a")


def scan(scan_program: Any, counts: tuple[int, ...], spoilt: tuple[int, ...] = (), **settings: Any) -> None:
    """The scan over sequences of `counts` segments, against the recurrence in fp64. Slots that it may not
    read or write are NaN; `spoilt` are indices of an element of M that is NaN."""
    generator = torch.Generator().manual_seed(0)
    bound = sum(counts) + 1
    firsts, maps = (torch.randn(bound, 2, 128, 128, generator=generator) for _ in range(2))
    maps /= 16  # of norm 2 sqrt(128) / 16, so that the states neither vanish nor grow much
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    if spoilt:
        maps[spoilt] = torch.nan
    for start, stop in pairwise(offsets.tolist()):
        firsts[start], maps[start], maps[stop - 1] = torch.nan, torch.nan, torch.nan
    firsts[-1], maps[-1] = torch.nan, torch.nan
    wanted, sizes = firsts.double(), firsts.double().abs()
    for start, stop in pairwise(offsets.tolist()):
        for slot in range(start + 1, stop - 1):
            m = maps[slot].double()
            wanted[slot + 1] += wanted[slot] @ m
            sizes[slot + 1] += sizes[slot] @ m.abs()
    before = firsts.clone()
    sim.launch(scan_program, offsets, maps, firsts, **settings)
    assert same(firsts.isnan(), wanted.isnan())
    # A step rounds 128 multiply-adds and a sum, each by 2^-24 of what it holds, which `sizes` bounds; the
    # errors of the steps before are in what it multiplies.
    steps = max(counts)
    allowed = steps * 129 * 2.0**-24 * sizes
    assert ((firsts - wanted).abs() <= allowed).logical_or(wanted.isnan()).all()
    unchanged = [
        start + i for start, n in zip(offsets.tolist(), counts, strict=False) for i in range(min(n, 2))
    ]
    assert same(firsts[unchanged], before[unchanged])


def test_the_scan_is_the_recurrence(scan_program: Any) -> None:
    scan(scan_program, (1, 5, 2, 1, 3, 4))


def test_a_map_that_is_not_a_number_stays_in_its_sequence_and_head(scan_program: Any) -> None:
    scan(scan_program, (4, 4), spoilt=(1, 1, 100, 7))


@pytest.mark.parametrize("schedule", quick(["early", "random:1"], 1))
def test_the_scan_under_another_schedule(scan_program: Any, schedule: str) -> None:
    scan(scan_program, (4, 1, 3), schedule=schedule)


@pytest.mark.slow  # the checker follows each access
def test_the_scan_is_free_of_races(scan_program: Any) -> None:
    """M of two steps goes twice through the ring."""
    with active(Settings(check=True)) as session:
        scan(scan_program, (4,))
    assert [finding.message for report in session.reports for finding in report.findings] == []


CUTS = [[0], [1], [64], [65], [0, 0, 0], [1, 1, 1], [300, 0, 64, 1], [0, 129], [5] * 40]


@pytest.mark.parametrize("lengths", CUTS)
def test_no_batch_has_more_segments_than_the_bound(lengths: list[int]) -> None:
    """And with all tokens in one sequence, as many."""
    tokens = sum(lengths)
    assert sum(max(1, -(-length // 64)) for length in lengths) <= segment_bound(tokens, len(lengths), 64)
    alone = len(lengths) - 1 + max(1, -(-tokens // 64))
    assert alone == segment_bound(tokens, len(lengths), 64)


CALLS: dict[str, dict[str, Any]] = {
    "a sequence of many segments": {"seqlens": (500,)},
    "every length": {"seqlens": (1, 63, 64, 65, 127, 129, 500)},
    "empty sequences": {"seqlens": (0, 0, 200, 0)},
    "equal keys, open gates": {"seqlens": (330,), "key_correlation": 1.0, "beta": 1.0, "gate_span": 0.01},
    "equal keys, beta 2": {"seqlens": (330,), "key_correlation": 1.0, "beta": 2.0, "gate_span": 0.06},
    "keys of correlation 0.99, beta to 2": {"seqlens": (330,), "key_correlation": 0.99, "beta": (0.0, 2.0)},
    "equal keys, beta to 2, 20 segments": {
        "seqlens": (1300,),
        "key_correlation": 1.0,
        "beta": (0.0, 2.0),
        "gate_span": 0.06,
    },
    "gates of 1e5 a chunk": {"seqlens": (330, 64), "gate_span": 1e5},
    "gates that hardly close": {"seqlens": (500,), "gate_span": 1e-3},
}


@pytest.mark.slow  # four programs
@pytest.mark.parametrize("segment", [64, 128])
@pytest.mark.parametrize("options", quick(CALLS.values(), ids=CALLS))
def test_outputs(options: dict[str, Any], segment: int) -> None:
    assert_passes(synth(heads=(1, 2), initial_state=True, **options), segment)


@pytest.mark.slow  # four more programs each
@pytest.mark.parametrize(
    ("first", "last"),
    [("bfloat16", "float32"), ("float32", "bfloat16"), (None, "float32"), (None, None), ("bfloat16", None)],
)
def test_states_of_two_dtypes_and_none(first: str | None, last: str | None) -> None:
    given: dict[str, Any] = {} if first is None else {"initial_state": True, "state_dtype": first}
    call = synth(seqlens=(200, 0, 65), heads=(1, 2), **given)
    scalars = {"output_final_state": last is not None, "final_state_dtype": last}
    found = assert_passes(replaced(call, scalars))
    assert ("final_state" in found) == (last is not None)


@pytest.fixture(scope="module")
def usual() -> Outputs:
    return assert_passes(synth(**BATCH))


@pytest.mark.slow
def test_a_sequence_of_one_segment_has_the_bits_of_the_fused_kernel(usual: Outputs) -> None:
    """And so has a longer one up to its first cut."""
    call = synth(**BATCH)
    bounds, fused = call.tensors["cu_seqlens"].tolist(), run_fused(call)
    assert same(usual["o"][: bounds[2] + 64], fused["o"][: bounds[2] + 64])
    assert same(usual["o"][bounds[4] : bounds[4] + 64], fused["o"][bounds[4] : bounds[4] + 64])
    for n in (0, 1, 3):
        assert same(usual["final_state"][n], fused["final_state"][n])
    assert not same(usual["o"], fused["o"])


@pytest.mark.slow
def test_the_second_segment_has_the_state_of_the_first(usual: Outputs) -> None:
    """B of the first segment is the fused kernel's state behind it: two segments have its bits, too."""
    call = synth(**BATCH)
    start, stop = call.tensors["cu_seqlens"][2:4].tolist()
    fused = run_fused(call)
    assert same(usual["o"][start:stop], fused["o"][start:stop])
    assert same(usual["final_state"][2], fused["final_state"][2])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["late", "early", "random:1"])
def test_bits_are_those_of_any_schedule(usual: Outputs, schedule: str) -> None:
    """The default, "late", a second time: a run does not differ from the next."""
    assert same_outputs(run(synth(**BATCH), schedule=schedule), usual)


@pytest.mark.slow
@pytest.mark.parametrize("sms", [1, 3])
def test_bits_are_those_of_any_number_of_sms(usual: Outputs, sms: int) -> None:
    """A CTA of the last launch goes through all segments, or through every third."""
    with settings_apply(sms=sms):
        assert same_outputs(run(synth(**BATCH)), usual)


@pytest.mark.slow
def test_bits_are_those_of_the_other_engine() -> None:
    call = synth(seqlens=(130, 0), heads=(1, 1), initial_state=True)
    assert same_outputs(run(call, engine="interpreter"), run(call))


@pytest.mark.slow
def test_no_race() -> None:
    run(synth(seqlens=(20, 65, 0, 150), heads=(1, 1), initial_state=True), check=True)


@pytest.mark.slow
def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(usual: Outputs) -> None:
    call = synth(**BATCH)
    for n, (start, stop) in enumerate(pairwise(call.tensors["cu_seqlens"].tolist())):
        own = {name: call.tensors[name][start:stop] for name in ("q", "k", "v", "g", "beta")}
        own["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
        own["initial_state"] = call.tensors["initial_state"][n : n + 1]
        alone = run(replaced(call, **own))
        assert same(alone["o"], usual["o"][start:stop])
        assert same(alone["final_state"][0], usual["final_state"][n])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
def test_a_token_that_is_not_a_number_stays_behind_those_of_other_chunks(usual: Outputs, name: str) -> None:
    """Token 130 of the last sequence, in its third segment of five: what is before that is as before."""
    call = synth(**BATCH)
    start, stop = call.tensors["cu_seqlens"][-2:].tolist()
    spoilt = call.tensors[name].clone()
    spoilt[start + 130] = torch.nan
    outputs = run(replaced(call, **{name: spoilt}))
    assert same(outputs["o"][: start + 128], usual["o"][: start + 128])
    assert same(outputs["final_state"][:-1], usual["final_state"][:-1])
    assert outputs["o"][start + 130].isnan().all()
    if name == "q":
        assert same(outputs["o"][start + 131 : stop], usual["o"][start + 131 : stop])
        assert same(outputs["final_state"], usual["final_state"])
    else:
        assert outputs["o"][start + 192 : stop].isnan().all()
        assert outputs["final_state"][-1].isnan().all()


@pytest.mark.slow
def test_a_sequence_of_nan_is_nobody_elses(usual: Outputs) -> None:
    """In all its inputs and its state: tails before it and segments behind it keep their bits."""
    call = synth(**BATCH)
    bounds = call.tensors["cu_seqlens"].tolist()
    for n in (0, 2):
        tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
        for name in ("q", "k", "v", "g", "beta"):
            tensors[name][bounds[n] : bounds[n + 1]] = torch.nan
        tensors["initial_state"][n] = torch.nan
        spoilt = run(replaced(call, **tensors))
        assert spoilt["o"][bounds[n] : bounds[n + 1]].isnan().all()
        assert spoilt["final_state"][n].isnan().all()
        for m in set(range(len(bounds) - 1)) - {n}:
            assert same(spoilt["o"][bounds[m] : bounds[m + 1]], usual["o"][bounds[m] : bounds[m + 1]])
            assert same(spoilt["final_state"][m], usual["final_state"][m])


@pytest.mark.slow
def test_closed_gates_and_lowest() -> None:
    """exp of -inf is 0, and so is that of any number as low, whatever the sums behind it."""
    call = synth(seqlens=(260,), heads=(1, 2), initial_state=True)
    g = call.tensors["g"].clone()
    g[5], g[70], g[100], g[191] = -torch.inf, -3e38, 0.0, -torch.inf
    assert_passes(replaced(call, g=g))


@pytest.mark.slow
def test_a_state_may_be_updated_in_place() -> None:
    """No CTA reads the initial state while another one may write the final state in its place."""
    call = synth(seqlens=(20, 150), heads=(1, 1), initial_state=True)
    wanted = run(call)
    states = call.tensors["initial_state"].clone()
    with active(Settings(check=True)) as session, programs_simulated():
        given = {**call.tensors, "initial_state": states}
        returned = sm100_fused_cp(**given, final_state=states, segment=64)
    assert [finding.message for report in session.reports for finding in report.findings] == []
    assert returned["final_state"] is states
    assert same_outputs(returned, wanted)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("tokens", "value_heads", "sequences", "message"),
    [
        (128, 2**15, 2**12, "N Hv is 2147483648"),
        (2**19, 2**4, 1, r"initial_state of less than 2\^31 elements; it has 2147483648"),
    ],
)
def test_more_ctas_or_states_than_the_kernels_count_are_refused(
    tokens: int, value_heads: int, sequences: int, message: str
) -> None:
    """By tensors of no memory."""
    q, v = meta(tokens, 1, 128), meta(tokens, value_heads, 128)
    gates = meta(tokens, value_heads, dtype=torch.float32)
    bounds = meta(sequences + 1, dtype=torch.int32)
    inputs = {"q": q, "k": q, "v": v, "g": gates, "beta": gates, "cu_seqlens": bounds}
    with active() as session, programs_simulated(), pytest.raises(NotImplementedError, match=message):
        sm100_fused_cp(**inputs, output_final_state=False, segment=64)
    assert session.reports == []


@pytest.mark.parametrize("segment", [0, -64, 32, 96])
def test_segments_are_whole_chunks(segment: int) -> None:
    call = synth(seqlens=(3,), heads=(1, 1))
    with pytest.raises(ValueError, match=f"a segment is a multiple of 64 tokens, not {segment}"):
        sm100_fused_cp(**call.tensors, segment=segment)


@pytest.mark.slow  # four programs
def test_builds_take_what_the_plans_say() -> None:
    for beta_max in (1.0, 2.0):
        found = figures(program(transfer_source(2, 6, "bfloat16", beta_max), "sm_100a"))
        plan = kernel_sm100_transfer.SPLIT_PLAN if beta_max > 1 else kernel_sm100_transfer.PLAN
        assert limits(found) == []
        assert (found.smem, found.threads, found.tmem_columns) == (
            plan.smem_bytes,
            plan.threads,
            plan.tmem_columns,
        )


def test_ctas_of_a_state_are_those_that_are_counted() -> None:
    assert fused_cp.STRIPS * kernel_sm100_scan.ROWS == 128


def test_the_header_says_what_split_takes() -> None:
    plain, split = (
        {buffer.name: buffer.stages for buffer in plan.smem}
        for plan in (kernel_sm100_transfer.PLAN, kernel_sm100_transfer.SPLIT_PLAN)
    )
    assert [name for name in plain if split[name] != plain[name]] == ["s_blocks"]
    smem = kernel_sm100_transfer.SPLIT_PLAN.smem_bytes
    said = f"With `split` there are {split['s_blocks']} stages of s_blocks, {smem} bytes."
    assert said in str(kernel_sm100_transfer.__doc__)
