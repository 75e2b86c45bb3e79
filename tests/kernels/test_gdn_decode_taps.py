# SPDX-License-Identifier: Apache-2.0
"""Builds of gdn_decode's compiled kernel that show its stages: they leave its bits and show what it makes."""

from __future__ import annotations

import re
from typing import Any

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
from gdnbench_kernels.gdn_decode import cute_steps
from gdnbench_kernels.gdn_decode.contract import OPERATION, slots_of
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.gdn_decode.sources import Tap, source
from gdnbench_kernels.gdn_decode.steps import torch_steps
from tests.kernels.gdn_decode_calls import (
    CALLS,
    Outputs,
    arguments,
    made,
    run,
    same,
    same_outputs,
    with_tensors,
)
from tests.subset import quick

SHOWN = ["alpha_t", "beta_t", "delta_t"]
PLANS: dict[str, DecodePlan] = {
    "registers, rows apart": DecodePlan(rows=4, warps=1, spread=True),
    "bulk_in, two passes": DecodePlan(rows=2, warps=1, transport="bulk_in", passes=2),
    "bulk": DecodePlan(rows=2, warps=2, transport="bulk"),
}


def shown(call: Call, plan: DecodePlan | None = None, **settings: Any) -> tuple[Outputs, dict[str, Tensor]]:
    stages: dict[str, Tensor] = {}
    outputs = run(call, {"stages": stages, **({} if plan is None else {"plan": plan})}, **settings)
    assert list(stages) == SHOWN
    return outputs, stages


def failing(call: Call, stages: dict[str, Tensor]) -> list[str]:
    return [one.tensor for one in judge_stages(OPERATION, call, stages, Bound()) if not one.passed]


@pytest.mark.parametrize("name", quick(["log gates", "raw, bf16 state", "drafted tokens"], 1))
def test_what_is_shown_is_right_and_changes_no_bit(name: str) -> None:
    call = made(**CALLS[name])
    outputs, stages = shown(call)
    assert same_outputs(outputs, run(call))
    assert failing(call, stages) == []
    padding = torch.ones(len(call.tensors["v"]), dtype=torch.bool)
    padding[slots_of(call).active] = False
    assert bool(stages["delta_t"][padding].isnan().all())
    assert not bool(stages["delta_t"][~padding].isnan().any())


@pytest.mark.slow  # each plan compiles two builds of its own
@pytest.mark.parametrize("plan", PLANS)
def test_every_way_to_move_rows_shows_the_same(plan: str) -> None:
    call = made(**{**CALLS["drafted tokens"], "steps": 2})
    outputs, stages = shown(call, PLANS[plan], schedule="random:1")
    assert same_outputs(outputs, run(call, {"plan": PLANS[plan]}))
    _, others = shown(call)
    assert all(same(stages[name], others[name]) for name in SHOWN)


def test_a_beta_an_ulp_beside_one_that_torch_rounds_right_passes() -> None:
    """Of this seed one beta of eight has an error of 0.6 ulp, and torch's is the nearest float."""
    call = made(**CALLS["raw, bf16 state"], seed=530756)
    _, stages = shown(call)
    assert failing(call, stages) == []


def test_an_update_may_be_as_far_off_as_its_beta() -> None:
    """A beta of this seed is 2.4 of 2^-24 off, torch's is the nearest float, and delta_t has its error."""
    call = made(**CALLS["raw, bf16 state"], seed=214128)
    _, stages = shown(call)
    assert failing(call, stages) == []


def test_an_update_further_off_than_any_beta_shows() -> None:
    """16 of 2^-24, where 9 are allowed beside rounding and twice the error of torch, of about one each."""
    call = made(**CALLS["raw, bf16 state"], seed=214128)
    _, stages = shown(call)
    off = stages["delta_t"].double() * (1 + 16 * 2.0**-24)
    assert failing(call, {**stages, "delta_t": off.float()}) == ["delta_t"]


@pytest.mark.slow
def test_a_beta_that_came_with_8_bits_shows() -> None:
    call = made(gate="log", qk="normalised", beta=(0.3, 0.9))
    rounded = call.tensors["beta"].bfloat16().float()
    _, stages = shown(with_tensors(call, beta=rounded))
    assert same(stages["beta_t"], rounded)
    assert failing(call, stages)[0] == "beta_t"


def step(function: Any, call: Call, **more: Any) -> Outputs:
    state = call.tensors["state"].clone()
    with active(Settings()), programs_simulated():
        found: Outputs = function(**{**arguments(call), **more, "state": state})
    return found


@pytest.mark.slow
def test_steps_one_after_another_are_the_kernel() -> None:
    call = made(**CALLS["drafted tokens"])
    gates = step(cute_steps.gates, call)
    found = step(cute_steps.update, call, stages=gates)
    outputs, stages = shown(call)
    assert all(same(gates[each], stages[each]) for each in gates)
    assert same(found["delta_t"], stages["delta_t"])
    assert same(found["state"], outputs["state"])
    active_rows = slots_of(call).active
    assert same(found["o"][active_rows], outputs["o"][active_rows])


@pytest.mark.slow
def test_a_step_takes_the_gates_that_it_is_given() -> None:
    """Others than the call's: torch's step in fp32 on the same ones says what comes of them."""
    call = made(batch=3, steps=2, qk="normalised")
    generator = torch.Generator().manual_seed(1)
    shape = call.tensors["beta"].shape
    gates = {name: torch.rand(shape, generator=generator) for name in ("alpha_t", "beta_t")}
    found = step(cute_steps.update, call, stages=gates)
    operands = {"q_t": call.tensors["q"].float(), "k_t": call.tensors["k"].float()}
    given = {**arguments(call), "state": call.tensors["state"].clone()}
    wanted = torch_steps.update(stages={**gates, **operands}, **given)
    for name in ("delta_t", "state"):
        # Sums of 128 products in fp32 in another order, twice a token, of terms as large as the largest.
        allowed = 2 * 2 * 128 * 2**-24 * float(wanted[name].abs().max())
        assert float((found[name] - wanted[name]).abs().max()) < allowed, name


def test_a_tap_adds_stores_and_no_arithmetic() -> None:
    """And nothing of it is in the build that is served: by instructions counted in the text of each."""
    plan = DecodePlan(rows=2, warps=1, transport="registers")

    def counts(tap: Tap | None) -> dict[str, int]:
        text = program(
            source(2, 2, "float32", "raw", "raw", "bfloat16", "bfloat16", "float32", "first", plan, tap),
            "sm_90a",
        ).ptx
        names = ("st.global", "fma.rn.f32", "mul.rn.f32", "add.rn.f32", "ex2", "rcp")
        return {name: len(re.findall(rf"\b{re.escape(name)}\b", text)) for name in names}

    served, dump = counts(None), counts("dump")
    # Two gates; and delta_t of 2 rows of 2 tokens.
    assert dump.pop("st.global") - served.pop("st.global") == 2 + 2 * 2
    assert dump == served
    assert min(served["fma.rn.f32"], served["mul.rn.f32"]) > 0
