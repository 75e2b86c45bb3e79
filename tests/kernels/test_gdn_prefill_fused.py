# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill in one kernel, in the simulator: against the oracles, and against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.kernel_figures import figures, limits
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Session, Settings, active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import fused_plan, kernel_sm100_fused
from gdnbench_kernels.gdn_prefill.cases import cases
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.gate_scan import Gate
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import PLAN, SPLIT_PLAN
from gdnbench_kernels.gdn_prefill.sources import StateDtype, fused_source
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.plan import KernelPlan
from tests.kernels.guarded_outputs import Outputs, guarded, same, same_outputs
from tests.subset import quick

BATCH: dict[str, Any] = {"seqlens": (1, 63, 64, 65, 0, 129), "heads": (1, 2), "initial_state": True}


@contextmanager
def simulator(**settings: Any) -> Iterator[Session]:
    with active(Settings(**settings)) as session, programs_simulated():
        yield session


def run(call: Call, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    with guarded(OPERATION, call, **settings) as (outputs, _):
        returned = sm100_fused(**call.tensors, **call.scalars, **outputs)
    assert returned.keys() == outputs.keys()
    assert all(returned[name] is outputs[name] for name in outputs)
    return outputs


def assert_passes(call: Call) -> Outputs:
    """Within twice torch's error, all of a tensor and the worst (sequence, head) of it."""
    outputs = run(call)
    results = judge_stages(OPERATION, call, outputs, Bound())
    assert [result.tensor for result in results] == list(outputs)
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
    return outputs


QUICK = {case.name: case.options for case in cases() if case.quick and not case.refused}


@pytest.mark.slow
@pytest.mark.parametrize("options", quick(QUICK.values(), 1, ids=QUICK))
def test_quick_cases_of_the_grid(options: dict[str, Any]) -> None:
    assert_passes(synth(**options))


CALLS: dict[str, dict[str, Any]] = {
    "every length": {"seqlens": (1, 63, 64, 65, 127, 129, 500)},
    "keys of correlation 0.99": {"seqlens": (200,), "key_correlation": 0.99, "beta": 1.0},
    "equal keys, open gates": {"seqlens": (129,), "key_correlation": 1.0, "beta": 1.0, "gate_span": 0.01},
    "gates of 1e5 a chunk": {"seqlens": (150, 64), "gate_span": 1e5},
    "gates that hardly close": {"seqlens": (500,), "gate_span": 1e-3},
    "no sequence but empty ones around it": {"seqlens": (0, 0, 70, 0)},
}


@pytest.mark.every(2)
@pytest.mark.parametrize("options", quick(CALLS.values(), *range(1, len(CALLS)), ids=CALLS))
def test_outputs(options: dict[str, Any]) -> None:
    assert_passes(synth(heads=(1, 2), initial_state=True, **options))


@pytest.mark.slow
def test_257_sequences() -> None:
    """Most of them empty, among them the first and the last."""
    lengths = [0] * 257
    lengths[1:256:24] = torch.arange(11).mul(31).remainder(75).tolist()
    call = synth(seqlens=tuple(lengths), heads=(1, 2), initial_state=True)
    outputs = assert_passes(call)
    empty = call.tensors["cu_seqlens"].diff() == 0
    assert same(outputs["final_state"][empty], call.tensors["initial_state"][empty])


@pytest.mark.slow  # two more programs
@pytest.mark.parametrize(("first", "last"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_states_of_two_dtypes(first: str, last: str) -> None:
    call = OPERATION.synth(seqlens=(70, 0, 3), heads=(1, 2), initial_state=True, state_dtype=first, seed=5)
    found = assert_passes(replaced(call, {"final_state_dtype": last}))
    assert found["final_state"].dtype == getattr(torch, last)


@pytest.mark.slow  # a program of its own
def test_a_sequence_without_tokens_or_initial_state_ends_with_zeros() -> None:
    outputs = assert_passes(synth(seqlens=(0, 65), heads=(1, 2)))
    assert same(outputs["final_state"][0], torch.zeros(2, 128, 128))


def replaced(call: Call, scalars: dict[str, Any] | None = None, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, {**call.scalars, **(scalars or {})}, call.conventions)


@pytest.fixture(scope="module")
def usual() -> Outputs:
    return run(synth(**BATCH))


@pytest.mark.slow  # two more programs
def test_neither_other_heads_nor_a_final_state_change_a_bit() -> None:
    """Of three value heads of each key head the first two, alone with it."""
    call = synth(seqlens=(63, 0, 129), heads=(2, 6), initial_state=True)
    all_heads = assert_passes(replaced(call, scalars={"output_final_state": False}))
    assert all_heads.keys() == {"o"}
    for head in range(2):
        own, of_them = slice(head, head + 1), slice(3 * head, 3 * head + 2)
        tensors = {name: call.tensors[name][:, own] for name in ("q", "k")}
        tensors |= {name: call.tensors[name][:, of_them] for name in ("v", "g", "beta", "initial_state")}
        outputs = run(replaced(call, **tensors))
        assert same(outputs["o"], all_heads["o"][:, of_them])
        assert same(outputs["final_state"][1], tensors["initial_state"][1])


def test_the_scale_is_the_callers(usual: Outputs) -> None:
    """Powers of two change no digit."""
    outputs = run(replaced(synth(**BATCH), scalars={"scale": 2 * 128**-0.5}))
    assert same_outputs(outputs, {**usual, "o": 2 * usual["o"]})


def test_no_tokens() -> None:
    call = synth(seqlens=(0, 0), heads=(1, 2), initial_state=True)
    assert same(run(call)["final_state"], call.tensors["initial_state"])


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", quick(["late", "early", "random:1", "random:2"], 1, 2))
def test_bits_are_those_of_any_schedule(usual: Outputs, schedule: str) -> None:
    """The default, "late", a second time: a run does not differ from the next."""
    assert same_outputs(run(synth(**BATCH), schedule=schedule), usual)


@pytest.mark.parametrize("schedule", quick(["late", "random:1"], 1))
def test_bits_are_those_of_the_other_engine(schedule: str) -> None:
    call = synth(seqlens=(65, 0), heads=(1, 2), initial_state=True)
    assert same_outputs(run(call, engine="interpreter", schedule=schedule), run(call))


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
@pytest.mark.parametrize("value", quick([torch.nan, torch.inf], 0))
def test_what_a_neighbour_holds_is_nobody_elses(usual: Outputs, value: float) -> None:
    """Each sequence is spoilt in every input: the others keep their bits, tails before it too."""
    call = synth(**BATCH)
    bounds = call.tensors["cu_seqlens"].tolist()
    for n in (0, 2, 3, 5):
        tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
        for name in ("q", "k", "v", "g", "beta"):
            tensors[name][bounds[n] : bounds[n + 1]] = torch.nan if name == "g" else value
        tensors["initial_state"][n] = value
        spoilt = run(replaced(call, **tensors))
        assert spoilt["o"][bounds[n] : bounds[n + 1]].isnan().all()
        assert spoilt["final_state"][n].isnan().all()
        for m in set(range(len(bounds) - 1)) - {n}:
            assert same(spoilt["o"][bounds[m] : bounds[m + 1]], usual["o"][bounds[m] : bounds[m + 1]])
            assert same(spoilt["final_state"][m], usual["final_state"][m])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", quick(["q", "k", "v", "g", "beta"], 1, 3))
def test_a_token_that_is_not_a_number_stays_behind_those_of_other_chunks(usual: Outputs, name: str) -> None:
    """Token 70 of the last sequence, in its second chunk of three: what is not after it is as before."""
    call = synth(**BATCH)
    start, stop = call.tensors["cu_seqlens"][-2:].tolist()
    spoilt = call.tensors[name].clone()
    spoilt[start + 70] = torch.nan
    outputs = run(replaced(call, **{name: spoilt}))
    assert same(outputs["o"][: start + 64], usual["o"][: start + 64])
    assert same(outputs["final_state"][:-1], usual["final_state"][:-1])
    assert outputs["o"][start + 70].isnan().all()
    if name == "q":
        assert same(outputs["o"][start + 71 : stop], usual["o"][start + 71 : stop])
        assert same(outputs["final_state"], usual["final_state"])
    else:
        assert outputs["final_state"][-1].isnan().all()


def test_closed_gates_and_lowest() -> None:
    """exp of -inf is 0, and so is that of any number as low, whatever the sums behind it."""
    call = synth(seqlens=(130,), heads=(1, 2), initial_state=True)
    g = call.tensors["g"].clone()
    g[5], g[70], g[100] = -torch.inf, -3e38, 0.0
    assert_passes(replaced(call, g=g))


def test_a_state_may_be_updated_in_place(usual: Outputs) -> None:
    call = synth(**BATCH)
    states = call.tensors["initial_state"].clone()
    with simulator():
        returned = sm100_fused(**{**call.tensors, "initial_state": states}, final_state=states)
    assert returned["final_state"] is states
    assert same(states, usual["final_state"])
    assert same(returned["o"], usual["o"])


def test_strided_and_unaligned_tensors_are_taken(usual: Outputs) -> None:
    call = synth(**BATCH)

    def shifted(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)

    o = torch.full((len(usual["o"]), 2, 256), 7.0, dtype=torch.bfloat16)[..., 64:192]
    final = shifted(torch.zeros_like(usual["final_state"]))
    with simulator():
        sm100_fused(**{name: shifted(x) for name, x in call.tensors.items()}, o=o, final_state=final)
    assert same(o.contiguous(), usual["o"])
    assert same(final, usual["final_state"])


def test_gates_and_steps_of_16_bits_are_widened() -> None:
    call = synth(seqlens=(70,), heads=(1, 2), initial_state=True)
    narrow = {name: call.tensors[name].to(torch.bfloat16) for name in ("g", "beta")}
    wide = {name: tensor.float() for name, tensor in narrow.items()}
    assert same_outputs(run(replaced(call, **narrow)), run(replaced(call, **wide)))


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "K and V": ({"head_dim": (64, 128)}, {}, "take K = V = 128, not K = 64 and V = 128"),
    "dtype of q": ({"dtype": "float16"}, {}, "take . as bfloat16, not as float16"),
    "dtype of a state": ({"initial_state": True, "state_dtype": "float16"}, {}, "not as float16"),
    "dtype of the final state": ({}, {"final_state_dtype": "float16"}, "not as float16"),
    "offsets": ({"offsets_dtype": "int64"}, {}, "take cu_seqlens as int32, not as int64"),
    "chunk size": ({}, {"chunk_size": 32}, "take chunks of 64 tokens, not of 32"),
}


@pytest.mark.parametrize(("made", "passed", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("tokens", [0, 3])
def test_refused_by_name(made: dict[str, Any], passed: dict[str, Any], message: str, tokens: int) -> None:
    call = synth(**{"seqlens": (tokens,), "heads": (1, 1), **made})
    with simulator() as session, pytest.raises(NotImplementedError, match=message):
        sm100_fused(**call.tensors, **{**call.scalars, **passed})
    assert session.reports == []


def test_more_ctas_than_a_launch_has_are_refused() -> None:
    """2^31 of them, by tensors of no memory."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q, v, gates = meta(1, 1, 128), meta(1, 2**15, 128), meta(1, 2**15, dtype=torch.float32)
    inputs = {"q": q, "k": q, "v": v, "g": gates, "beta": gates}
    bounds = meta(2**16 + 1, dtype=torch.int32)
    with simulator() as session, pytest.raises(NotImplementedError, match="N Hv is 2147483648"):
        sm100_fused(**inputs, cu_seqlens=bounds, output_final_state=False)
    assert session.reports == []


@pytest.mark.parametrize(
    ("heads", "states", "beta_max", "plan"),
    quick(
        [
            ((1, 2), ("float32", "float32"), 1.0, PLAN),
            ((2, 6), ("float32", None), 1.0, PLAN),
            ((1, 2), ("bfloat16", "bfloat16"), 1.0, PLAN),
            ((1, 2), (None, "float32"), 1.0, PLAN),
            ((1, 2), (None, "float32"), 2.0, SPLIT_PLAN),
        ],
        0,
    ),
)
def test_builds_take_what_the_plan_says(
    heads: tuple[int, int],
    states: tuple[StateDtype | None, StateDtype | None],
    beta_max: float,
    plan: KernelPlan,
) -> None:
    found = figures(program(fused_source(*heads, *states, beta_max), "sm_100a"))
    assert limits(found) == []
    assert (found.smem, found.threads, found.tmem_columns) == (
        plan.smem_bytes,
        plan.threads,
        plan.tmem_columns,
    )


def test_registers_are_those_there_are() -> None:
    """Of an SM, 64 K, by warpgroup; and launched with what all threads can have."""
    groups = dict(zip(("STATE", "INVERT", "LOAD"), kernel_sm100_fused.ChunkFused.registers, strict=True))
    warps = {**PLAN.warps, "LOAD": sum(PLAN.warps[name] for name in ("LOAD", "MMA", "GATE", "STORE"))}
    assert sum(32 * warps[name] * registers for name, registers in groups.items()) == 1 << 16
    assert all(warps[name] % 4 == 0 and registers % 8 == 0 for name, registers in groups.items())


def steps(ptx: str, *names: str) -> list[str]:
    """Instructions of these names, in the order of the text; runs of one count once."""
    found = (name for line in ptx.splitlines() for name in names if line.strip().startswith(name))
    return [name for name, _ in groupby(found)]


def test_what_threads_and_the_async_proxy_share_is_fenced() -> None:
    """The simulator knows one proxy: in PTX, a fence stands between what threads write for products or TMA,
    or read where TMA writes next, and the arrival that lets them."""
    _, state, invert, others = program(fused_source(1, 2, "float32", "float32", 1.0)).ptx.split("setmaxnreg")
    load, store, fence, arrive = "ldmatrix", "stmatrix", "fence.proxy.async", "mbarrier.arrive.shared"
    handed = [fence, arrive]
    h, o, v, x, vs = ([how, *handed] for how in (store, store, load, store, store))
    # The two halves of h: the first of a work; behind its fence and arrival there is also V_new, of the chunk
    # before. Of o's parts the first is stored before Vs; one fence and arrival are for both.
    halves = [*h, *h]
    # The arrivals for what is read from tensor memory or for gates stand behind others, but for the last o's.
    last = [store, arrive, *o]
    assert steps(state, load, store, fence, arrive) == [*halves, *v, *x, *vs, *o, *halves, *last]
    # P, then Ai beta behind the inverse: one fence for both, behind which squares are full.
    squares = steps(invert, load, store, fence, arrive)
    assert squares[0] == store
    assert squares[-4:] == [load, store, *handed]
    assert squares.count(fence) == 1
    zeros = "st.shared.v4"  # of K and of V
    assert steps(others, zeros, fence) == 2 * [zeros, fence]


def test_rows_of_gates_begin_as_the_scan_has_them() -> None:
    assert [fused_plan.Row[row.name] for row in Gate] == list(Gate)


def test_pipelines_and_buffers_are_in_the_plans_order() -> None:
    """Those of M, which the fused kernel does not compute, aside."""
    for plan in (PLAN, SPLIT_PLAN):
        assert [pipe.name for pipe in plan.pipelines] == _without_map(fused_plan.Pipelines)
        tiles = [f"s_{name}" for name in _without_map(fused_plan.Shared)]
        assert [buffer.name for buffer in plan.smem[: len(tiles)]] == tiles


def _without_map(holder: type) -> list[str]:
    names = [field.name for field in fields(holder)]
    return [name for name in names if not name.startswith("map_")]


def test_the_header_says_what_split_takes() -> None:
    keys, blocks = (
        next(buffer.stages for buffer in SPLIT_PLAN.smem if buffer.name == name)
        for name in ("s_k", "s_blocks")
    )
    said = f"{keys} stages of s_k and {blocks} of s_blocks, {SPLIT_PLAN.smem_bytes} bytes."
    assert f"With `split` there are {said}" in str(kernel_sm100_fused.__doc__)
