# SPDX-License-Identifier: Apache-2.0
"""kda_prefill in one kernel, in the simulator: against the oracle, and against itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.kernel_figures import figures, limits, problems
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Session, Settings, active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.kda_prefill import fused_plan, kernel_sm100_fused
from gdnbench_kernels.kda_prefill.contract import OPERATION
from gdnbench_kernels.kda_prefill.fused import sm100_fused
from gdnbench_kernels.kda_prefill.kernel_sm100_fused import PLAN, SPLIT_PLAN
from gdnbench_kernels.kda_prefill.sources import fused_source
from gdnbench_kernels.kda_prefill.synth import synth
from gdnbench_kernels.plan import KernelPlan
from tests.kernels.guarded_outputs import Outputs, guarded, same, same_outputs
from tests.subset import quick

BATCH: dict[str, Any] = {"seqlens": (1, 63, 64, 0, 129), "heads": (1, 2), "initial_state": True}
BUDGET = Path(__file__).with_name("kda_prefill_fused_budget.json")


@contextmanager
def simulator(**settings: Any) -> Iterator[Session]:
    with active(Settings(**settings)) as session, programs_simulated():
        yield session


def run(call: Call, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    scalars = {name: value for name, value in call.scalars.items() if name != "chunk_size"}
    with guarded(OPERATION, call, **settings) as (outputs, _):
        returned = sm100_fused(**call.tensors, **scalars, **outputs)
    assert all(returned[name] is outputs[name] for name in outputs)
    return outputs


def replaced(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def assert_passes(call: Call) -> Outputs:
    """Within twice torch's error, all of a tensor and the worst (sequence, head) of it."""
    outputs = run(call)
    results = judge_stages(OPERATION, call, outputs, Bound())
    assert [result.tensor for result in results] == list(outputs)
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
    return outputs


@pytest.fixture(scope="module")
def usual() -> Outputs:
    return run(synth(**BATCH))


CALLS: dict[str, dict[str, Any]] = {
    "gates of -5 a token": {"seqlens": (130,), "gate_span": 320.0},
    "gates of 1e5 in 64 tokens": {"seqlens": (100,), "gate_span": 1e5},
    "spans by channel, closed gates": {"seqlens": (129,), "gate_span": (0.06, 1e5), "closed_gates": 0.1},
    "one gate of 100 in a channel's 64": {"seqlens": (129,), "gate_span": 0.06, "gate_spike": 100.0},
    "keys of correlation 0.99": {"seqlens": (129,), "key_correlation": 0.99, "beta": 1.0, "gate_span": 0.06},
    # With Ai beta as one bf16 number this draw is 1.2 times the limit, with two 0.7 times.
    "equal keys": {"seqlens": (129,), "key_correlation": 1.0, "beta": 1.0, "gate_span": 0.06, "seed": 12},
    "gates that hardly close": {"seqlens": (500,), "gate_span": 1e-3},
    "every length": {"seqlens": (1, 63, 64, 65, 127, 129, 0, 16)},
}


@pytest.mark.parametrize("options", quick(CALLS.values(), 0, 2, 4, ids=CALLS))
def test_outputs(options: dict[str, Any]) -> None:
    assert_passes(synth(heads=(1, 2), initial_state=True, **options))


@pytest.mark.slow  # a program of its own
def test_beta_to_2() -> None:
    made = {"key_correlation": 0.9, "gate_span": 0.06, "beta": (0.0, 2.0)}
    assert_passes(synth(seqlens=(129,), heads=(1, 2), initial_state=True, **made))


def test_closed_and_lowest_gates_are_exact() -> None:
    """Every decay is 0 or 1: what a closed gate cuts off has no effect at all."""
    call = synth(seqlens=(130,), heads=(1, 2), initial_state=True, gate_span=0.06)
    g = call.tensors["g"].zero_()
    g[40], g[70] = -torch.inf, -3e38
    found = assert_passes(call)
    other = {name: call.tensors[name].clone() for name in ("k", "v")}
    for tensor in other.values():
        tensor[:40] = tensor[:40].flip(0)
    again = run(replaced(call, **other, initial_state=call.tensors["initial_state"] + 1))
    assert same(found["o"][40:], again["o"][40:])
    assert same(found["final_state"], again["final_state"])


@pytest.mark.parametrize("schedule", quick(["late", "early", "random:1", "random:2"], 1))
def test_bits_are_those_of_any_schedule(usual: Outputs, schedule: str) -> None:
    """The default, "late", a second time: a run does not differ from the next."""
    assert same_outputs(run(synth(**BATCH), schedule=schedule), usual)


@pytest.mark.slow
def test_bits_are_those_of_the_other_engine() -> None:
    call = synth(seqlens=(65, 0), heads=(1, 2), initial_state=True)
    assert same_outputs(run(call, engine="interpreter"), run(call))


def test_the_race_checker_finds_nothing() -> None:
    """Three chunks use each stage of each pipeline twice; the last is short."""
    call = synth(seqlens=(129,), heads=(1, 2), initial_state=True)
    run(call, check=True)


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
    """A sequence is spoilt in every input: the others keep their bits, tails before it too."""
    call = synth(**BATCH)
    bounds = call.tensors["cu_seqlens"].tolist()
    for n in (0, 2, 4):
        tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
        for name in ("q", "k", "v", "g", "beta"):
            tensors[name][bounds[n] : bounds[n + 1]] = value
        tensors["initial_state"][n] = value
        spoilt = run(replaced(call, **tensors))
        assert spoilt["o"][bounds[n] : bounds[n + 1]].isnan().all()
        assert spoilt["final_state"][n].isnan().all()
        for m in set(range(len(bounds) - 1)) - {n}:
            assert same(spoilt["o"][bounds[m] : bounds[m + 1]], usual["o"][bounds[m] : bounds[m + 1]])
            assert same(spoilt["final_state"][m], usual["final_state"][m])


def test_no_tokens() -> None:
    call = synth(seqlens=(0, 0), heads=(1, 2), initial_state=True)
    assert same(run(call)["final_state"], call.tensors["initial_state"])


def test_the_chunk_size_of_the_call_does_not_matter(usual: Outputs) -> None:
    assert "chunk_size" not in sm100_fused.__signature__.parameters  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "K and V": ({"head_dim": (64, 128)}, "take K = V = 128, not K = 64 and V = 128"),
    "dtype of q": ({"dtype": "float16"}, "take . as bfloat16, not as float16"),
    "dtype of a state": ({"initial_state": True, "state_dtype": "float16"}, "not as float16"),
    "offsets": ({"offsets_dtype": "int64"}, "take cu_seqlens as int32, not as int64"),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(made: dict[str, Any], message: str) -> None:
    call = synth(**{"seqlens": (3,), "heads": (1, 1), **made})
    scalars = {name: value for name, value in call.scalars.items() if name != "chunk_size"}
    with simulator() as session, pytest.raises(NotImplementedError, match=message):
        sm100_fused(**call.tensors, **scalars)
    assert session.reports == []


def test_gates_have_a_channel() -> None:
    call = synth(seqlens=(3,), heads=(1, 1))
    with pytest.raises(ValueError, match=r"g has shape \[3, 1\]; it must be \[3, 1, 128\]"):
        run(replaced(call, g=call.tensors["g"][..., 0].contiguous()))


@pytest.mark.slow  # compiles the builds that a capture of 16 and 32 heads needs
def test_within_the_budget() -> None:
    budget = json.loads(BUDGET.read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("kda_prefill", "sm100_fused", "sm_100a")
    options = budget["options"]
    arguments = [
        options[name] for name in ("heads", "value_heads", "initial_state", "final_state", "beta_max")
    ]
    assert problems([figures(program(fused_source(*arguments), "sm_100a"))], budget) == []


@pytest.mark.parametrize(("beta_max", "plan"), quick([(1.0, PLAN), (2.0, SPLIT_PLAN)], 0))
def test_builds_take_what_the_plan_says(beta_max: float, plan: KernelPlan) -> None:
    found = figures(program(fused_source(1, 2, "float32", "float32", beta_max), "sm_100a"))
    assert limits(found) == []
    assert (found.smem, found.threads, found.tmem_columns) == (
        plan.smem_bytes,
        plan.threads,
        plan.tmem_columns,
    )


def test_registers_are_those_that_the_launch_has() -> None:
    """96 for each of 640 threads, the most that 65,536 allow in steps of 8; by warpgroup after setmaxnreg."""
    groups = {
        "STATE": kernel_sm100_fused.STATE_REGISTERS,
        "SCALE": kernel_sm100_fused.SCALE_REGISTERS,
        "INVERT": kernel_sm100_fused.INVERT_REGISTERS,
        "LOAD": kernel_sm100_fused.OTHER_REGISTERS,
    }
    warps = {**PLAN.warps, "LOAD": sum(PLAN.warps[name] for name in ("LOAD", "SCORES", "MMA", "STORE"))}
    launched = 65536 // PLAN.threads // 8 * 8
    assert sum(32 * warps[name] * registers for name, registers in groups.items()) == launched * PLAN.threads
    assert all(warps[name] % 4 == 0 and registers % 8 == 0 for name, registers in groups.items())


def test_pipelines_and_buffers_are_in_the_plans_order() -> None:
    for plan in (PLAN, SPLIT_PLAN):
        assert [pipe.name for pipe in plan.pipelines] == [
            field.name for field in fields(fused_plan.Pipelines)
        ]
        tiles = [f"s_{field.name}" for field in fields(fused_plan.Shared)]
        assert [buffer.name for buffer in plan.smem[: len(tiles)]] == tiles


def test_the_header_has_the_plans_tables() -> None:
    header = str(kernel_sm100_fused.__doc__)
    assert PLAN.tables() in header
    keys, blocks = (SPLIT_PLAN.buffer(name).stages for name in ("s_k", "s_blocks"))
    assert (keys, blocks) == (1, 2)
    said = f"1 stage of s_k and 2 of s_blocks, {SPLIT_PLAN.smem_bytes} bytes."
    assert f"With `split` there is {said}" in header


@pytest.mark.parametrize("size", fused_plan.LEVELS)
def test_a_pair_of_tokens_belongs_to_one_level(size: int) -> None:
    """i ^ j has its highest bit where the halves of the smallest block with both differ."""
    for i in range(64):
        for j in range(i):
            block = i // (2 * size) == j // (2 * size)
            halves = i % (2 * size) >= size > j % (2 * size)
            assert (block and halves) == (size <= i ^ j < 2 * size)
