# SPDX-License-Identifier: Apache-2.0
"""kda_decode's compiled kernel in the simulator: against the oracle, itself, and gdn_decode's oracle."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode import contract as gdn
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.kda_decode import cute_steps
from gdnbench_kernels.kda_decode.contract import OPERATION
from gdnbench_kernels.kda_decode.cute import cute, prepare
from gdnbench_kernels.kda_decode.decode_plan import ChannelPlan, candidate_plans, default_plan, default_plans
from gdnbench_kernels.kda_decode.sources import source
from gdnbench_kernels.state_pool import slots_of
from tests.kernels import gdn_decode_calls
from tests.kernels.gdn_decode_calls import Outputs, same, same_outputs, sequence_of, with_gaps, with_tensors
from tests.kernels.kda_decode_calls import CALLS, FRESH_SCHEDULE, OTHERS, arguments, assert_passes, made, run
from tests.subset import quick

BUILDS = (
    "beta to 2, correlated keys",
    "drafted tokens, bounded",
    "raw, beta given",
    "bf16 bias",
    "read slots of their own",
    "fp16 gates",
)
"""Calls that take a compilation each, of forms that others have too."""
MIXED: dict[str, dict[str, Any]] = {
    "fp32": {"padding": 0.25},
    "bf16": {"gate": "bounded", "state_dtype": "bfloat16", "padding": 0.25},
    "drafted": {"steps": 3, "speculative": True, "holes": 0.3},
}
PLANS = {
    "a warp": ChannelPlan(rows=8, warps=1, load="evict_first", store="evict_first"),
    "passes": ChannelPlan(rows=2, warps=2, passes=4, spread=True, load="none", pdl=True),
    "bulk passes": ChannelPlan(rows=4, warps=2, transport="bulk", passes=2, spread=True, resident=3),
    "bulk in": ChannelPlan(rows=2, warps=4, transport="bulk_in", passes=4, resident=2),
}
SHOWN = ["alpha_t", "beta_t", "delta_t"]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in BUILDS else []) for name in CALLS]
)
def test_accurate(name: str) -> None:
    call = made(**CALLS[name])
    assert_passes(call, run(call))


@pytest.fixture(scope="module", params=quick(list(MIXED), 0, 2))
def mixed(request: pytest.FixtureRequest) -> tuple[Call, Outputs]:
    call = made(**MIXED[request.param], seed=1)
    return call, run(call)


Mixed = tuple[Call, Outputs]


@pytest.mark.parametrize("schedule", ["early", FRESH_SCHEDULE])
def test_bits_are_those_of_every_schedule(mixed: Mixed, schedule: str) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, schedule=schedule), outputs)


@pytest.mark.slow  # a build for another architecture
@pytest.mark.parametrize("mixed", list(MIXED), indirect=True)
def test_bits_are_those_of_the_other_architecture(mixed: Mixed) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, {"arch": "sm_90a"}), outputs)


@pytest.mark.parametrize("mixed", quick(list(MIXED), 0), indirect=True)
@pytest.mark.parametrize("plan", quick(list(PLANS), 2))
def test_a_plan_changes_no_bit(mixed: Mixed, plan: str) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, {"plan": PLANS[plan]}, schedule="early"), outputs)


@pytest.mark.slow
def test_chosen_plans_have_the_bits_of_the_plain_one(mixed: Mixed) -> None:
    """A call of a few sequences is always given the first of them."""
    call, _ = mixed
    state_dtype, tokens = str(call.tensors["state"].dtype).removeprefix("torch."), call.tensors["q"].shape[1]
    plain = run(call, {"plan": ChannelPlan()})
    for plan in dict.fromkeys((*default_plans(state_dtype, tokens), *OTHERS)):
        for schedule in ("early", "random:5"):
            assert same_outputs(run(call, {"plan": plan}, schedule=schedule), plain), (plan, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["a warp", "bulk passes"])
def test_bits_are_those_of_the_other_engine(plan: str) -> None:
    """Which also finds what is read and was never written. One sequence: it is slow."""
    call = made(batch=2, heads=(1, 1), padding=0.5)
    options = {"plan": PLANS[plan]}
    assert same_outputs(run(call, options, engine="interpreter"), run(call, options))


def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(mixed: Mixed) -> None:
    call, outputs = mixed
    rows = [int(row) for row in slots_of(call).active[:2]]
    for row in rows:
        found = run(sequence_of(call, row))
        assert same(found["o"], outputs["o"][row : row + 1])
        written = call.tensors["state_indices"][row]
        written = written[written >= 0].long()
        assert same(found["state"][written], outputs["state"][written])


@pytest.mark.slow
def test_equal_channels_are_gdn_decode() -> None:
    """With one gate for all channels, gdn_decode's oracle judges: it knows nothing of channels."""
    call = made(gate="log", beta_form="value", steps=2, padding=0.25)
    one = call.tensors["g"][..., :1]
    own = with_tensors(call, g=one.expand_as(call.tensors["g"]))
    theirs = Call(
        {**call.tensors, "g": one[..., 0]},
        call.scalars,
        {**gdn_decode_calls.made(gate="log").conventions, "qk": call.conventions["qk"]},
    )
    gdn.OPERATION.validate(theirs)
    gdn_decode_calls.assert_passes(theirs, run(own), gdn.OPERATION)


@pytest.mark.parametrize("name", quick(["q", "k", "v", "g", "beta", "state"], 3))
def test_what_is_no_number_stays_in_its_sequence(mixed: Mixed, name: str) -> None:
    call, outputs = mixed
    reads = call.tensors["state_indices"][:, 0]
    row = int((reads >= 0).nonzero()[0])
    tensor = call.tensors[name].clone()
    tensor[int(reads[row]) if name == "state" else row] = torch.nan
    if name == "state" and "num_accepted" in call.tensors:
        tensor[call.tensors["state_indices"][row].long().clamp(0)] = torch.nan
    found = run(with_tensors(call, **{name: tensor}))
    assert found["o"][row].isnan().all()
    others = torch.arange(len(reads)) != row
    assert same(found["o"][others], outputs["o"][others])


@pytest.mark.slow
def test_a_closed_gate_clears_its_column_and_no_other() -> None:
    """g of -inf and of -1e4, the other channels at 0: without an update the state keeps all other columns."""
    call = made(gate="log", beta_form="value", beta=0.0, gate_span=0.0, batch=2)
    g = call.tensors["g"].clone()
    g[..., 5], g[..., 77] = -torch.inf, -1e4
    found = run(with_tensors(call, g=g))["state"]
    slots = call.tensors["state_indices"].flatten().long()
    wanted = call.tensors["state"][slots].clone()
    wanted[..., 5] = wanted[..., 77] = 0.0
    # A product with 0 keeps the sign of what it clears.
    assert torch.equal(found[slots], wanted)


def unaligned(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def tokens_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("moved", quick([unaligned, tokens_first], 1))
def test_gates_may_lie_anywhere(moved: Any) -> None:
    call = made(batch=3, steps=2, heads=(1, 2))
    views = {name: moved(call.tensors[name]) for name in ("g", "beta")}
    views["dt_bias"] = unaligned(call.tensors["dt_bias"])
    assert same_outputs(run(with_tensors(call, **views)), run(call))


def test_views_of_one_tensor_are_taken_as_they_are() -> None:
    """As serving frameworks pack q, k and v, and g beside them."""
    call = made(batch=3)
    names = ("q", "k", "v", "g")
    widths = [call.tensors[name].shape[2] for name in names]
    packed = torch.cat([call.tensors[name] for name in names], 2)
    views = dict(zip(names, packed.split(widths, 2), strict=True))
    assert not views["g"].is_contiguous()
    assert same_outputs(run(with_tensors(call, **views)), run(call))


@pytest.mark.slow  # compilations of its own
def test_without_a_rate_or_a_bias() -> None:
    """Both are optional with bounded gates, the bias with raw ones: zeros in their place change no bit."""
    for gate, names in (("bounded", ("A_log", "dt_bias")), ("raw", ("dt_bias",))):
        call = made(gate=gate, batch=2)
        zeros = with_tensors(call, **{name: torch.zeros_like(call.tensors[name]) for name in names})
        rest = {name: tensor for name, tensor in call.tensors.items() if name not in names}
        without = replace(call, tensors=rest)
        OPERATION.validate(without)
        assert same_outputs(run(without), run(zeros))


@pytest.mark.slow
def test_a_prepared_call_is_a_launch_each_time() -> None:
    call = made(batch=2)
    states = [with_gaps(call.tensors["state"]) for _ in range(2)]
    o = torch.empty_like(call.tensors["v"])
    with active(), programs_simulated():
        for _ in range(2):
            cute(**{**arguments(call), "state": states[0]})
        launch = prepare(**{**arguments(call), "state": states[1]}, o=o)
        assert same(states[1], call.tensors["state"])
        launch()
        launch()
    assert same(*states)


def shown(call: Call, plan: ChannelPlan | None = None) -> tuple[Outputs, dict[str, Tensor]]:
    stages: dict[str, Tensor] = {}
    outputs = run(call, {"stages": stages, **({} if plan is None else {"plan": plan})})
    assert list(stages) == SHOWN
    return outputs, stages


@pytest.mark.parametrize("name", quick(["log gates", "bounded, bf16 state", "drafted tokens"], 1))
def test_stages_are_right_and_taps_change_no_bit(name: str) -> None:
    call = made(**CALLS[name])
    outputs, stages = shown(call)
    assert same_outputs(outputs, run(call))
    failing = [one.tensor for one in judge_stages(OPERATION, call, stages, Bound()) if not one.passed]
    assert failing == []
    rolled = {**stages, "alpha_t": stages["alpha_t"].roll(1, -1)}
    failing = [one.tensor for one in judge_stages(OPERATION, call, rolled, Bound()) if not one.passed]
    assert "alpha_t" in failing


@pytest.mark.slow  # compilations of its own
def test_steps_one_after_another_are_the_kernel() -> None:
    call = made(**CALLS["drafted tokens"])

    def step(function: Any, **more: Any) -> Outputs:
        state = call.tensors["state"].clone()
        with active(Settings()), programs_simulated():
            found: Outputs = function(**{**arguments(call), **more, "state": state})
        return found

    gates = step(cute_steps.gates)
    found = step(cute_steps.update, stages=gates)
    outputs, stages = shown(call)
    assert all(same(gates[each], stages[each]) for each in gates)
    assert same(found["delta_t"], stages["delta_t"])
    assert same(found["state"], outputs["state"])
    halved = step(cute_steps.update, stages={**gates, "alpha_t": gates["alpha_t"] / 2})
    assert not same(halved["state"], outputs["state"])


FORMS = ("float32", "bounded", "logit", "raw", "bfloat16", "bfloat16", True, "float32", "first")


@pytest.mark.slow  # compilations of its own
def test_a_tap_adds_stores_and_no_arithmetic() -> None:
    plan = ChannelPlan(rows=2, warps=1, transport="registers")

    def counts(tap: Any) -> dict[str, int]:
        text = program(source(2, 2, *FORMS, plan, tap), "sm_90a").ptx
        names = ("fma.rn.f32", "mul.rn.f32", "add.rn.f32", "ex2", "rcp")
        return {name: len(re.findall(rf"\b{re.escape(name)}\b", text)) for name in names}

    served = counts(None)
    assert counts("dump") == served
    assert min(served["fma.rn.f32"], served["mul.rn.f32"]) > 0


@pytest.mark.parametrize("transport", quick(["registers", "bulk_in", "bulk"]))
def test_loads_and_arithmetic_are_as_the_simulator_has_them(transport: Any) -> None:
    """ptxas fuses `mul.f32` and what adds to it, and moves `ld.global.nc` before `griddepcontrol.wait`."""
    text = program(source(2, 2, *FORMS, ChannelPlan(transport=transport, pdl=True)), "sm_90a").ptx
    assert re.search(r"\bfma\.rn\.f32\b", text)
    assert re.findall(r"\b(?:mul|add|sub)\.(?:ftz\.)?f32\b", text) == []
    assert ".nc" not in text
    reads = [one.start() for one in re.finditer(r"\b(?:ld\.global|cp\.async\.(?:cg|ca|bulk))\b", text)]
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents") < reads[0]


def test_candidates_are_plans_that_differ() -> None:
    for batch in (1, 16, 64, 256):
        for state_dtype in ("float32", "bfloat16"):
            found = candidate_plans(batch, 32, state_dtype, 1)
            assert found[0] == default_plan(batch, 32, state_dtype, 1, 132)
            assert 2 < len(set(found)) == len(found) <= 12


def test_a_plan_of_a_gate_per_channel_is_not_gdn_decodes() -> None:
    """Its tokens take 512 bytes more in the shared memory of a warp."""
    plain, channels = DecodePlan(), ChannelPlan()
    assert channels != plain
    assert channels.shared_bytes(3, "float32") - plain.shared_bytes(3, "float32") == 3 * 4 * 512


REFUSED = made(batch=2, slots=4, gate="bounded")


def refused() -> dict[str, tuple[dict[str, Any], type[Exception], str]]:
    """Changes of that call, and what is said of them."""
    tensors = REFUSED.tensors
    return {
        "a gate per head": ({"g": tensors["g"][..., 0]}, ValueError, r"g has shape \[2, 1, 2\]"),
        "linear": ({"gate": "linear"}, ValueError, "it is log or raw or bounded"),
        "another beta": ({"beta_form": "b"}, ValueError, "it is value or logit"),
        "no bound": ({"lower_bound": None}, ValueError, "lower_bound is missing with gate bounded"),
        "a bound above 0": ({"lower_bound": 1.0}, ValueError, "it must be negative"),
        "an infinite bound": ({"lower_bound": -np.inf}, ValueError, "lower_bound must be finite"),
        "a bound of raw": ({"gate": "raw"}, ValueError, "lower_bound is given with gate raw"),
        "raw without rate": (
            {"gate": "raw", "lower_bound": None, "A_log": None},
            ValueError,
            "A_log is missing with gate raw",
        ),
        "log with a bias": (
            {"gate": "log", "lower_bound": None, "A_log": None},
            ValueError,
            "dt_bias is given with gate log",
        ),
        "a bias per head": ({"dt_bias": tensors["dt_bias"][:, 0]}, ValueError, r"dt_bias has shape \[2\]"),
        "half-precision state": ({"state": tensors["state"].half()}, NotImplementedError, "state as float32"),
        "float v": ({"v": tensors["v"].float()}, NotImplementedError, "v as bfloat16"),
        "o is v": ({"o": tensors["v"]}, ValueError, "o shares memory with v"),
    }


@pytest.mark.parametrize("what", refused())
def test_what_the_kernel_is_not_written_for_is_refused(what: str) -> None:
    changed, error, message = refused()[what]
    with pytest.raises(error, match=message):
        cute(**{**arguments(REFUSED), **changed})
