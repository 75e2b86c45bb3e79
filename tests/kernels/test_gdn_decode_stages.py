# SPDX-License-Identifier: Apache-2.0
"""Stages of gdn_decode: the oracle's and torch's against plain fp64 numpy, and what they are judged by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION, slots_of
from gdnbench_kernels.gdn_decode.steps import torch_steps
from gdnbench_kernels.run import run_kernel

Array = NDArray[np.float64]

STAGES = ["alpha_t", "beta_t", "q_t", "k_t", "delta_t"]
HEADS, K, V = (2, 4), 24, 16

CALLS: dict[str, dict[str, Any]] = {
    "given gates": {"batch": 3},
    "raw gates, raw q and k": {"batch": 3, "gate": "raw", "qk": "raw", "dt_bias_dtype": "bfloat16"},
    "drafts, raw": {
        "batch": 5,
        "steps": 4,
        "speculative": True,
        "padding": 0.3,
        "holes": 0.4,
        "gate": "raw",
        "qk": "raw",
        "beta": (0.0, 2.0),
    },
    "alpha, states transposed": {"batch": 2, "steps": 2, "gate": "linear", "state_layout": "KV"},
    "one slot read by all": {"batch": 3, "steps": 3, "read_indices": "shared", "state_dtype": "bfloat16"},
}


def made(name: str) -> Call:
    call = OPERATION.synth(heads=HEADS, head_dim=(K, V), seed=7, **CALLS[name])
    OPERATION.validate(call)
    return call


def of(call: Call, name: str) -> Array:
    found: Array = call.tensors[name].double().numpy()
    return found


def unit(x: Array) -> Array:
    norm: Array = np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return x / norm


def formulas(call: Call) -> dict[str, Array]:
    """Every stage in fp64, token by token, NaN for padding sequences; and `sizes` [B, S, Hv, V], the sums of
    |terms| that delta_t is made of."""
    forms = call.conventions
    beta_max = float(call.scalars.get("beta_max") or 1.0)
    g, beta, q, k, v = (of(call, name) for name in ("g", "beta", "q", "k", "v"))
    if forms["gate"] == "raw":
        g = -np.exp(of(call, "A_log")) * np.log1p(np.exp(g + of(call, "dt_bias")))
        beta = beta_max / (1 + np.exp(-beta))
    alpha = g if forms["gate"] == "linear" else np.exp(g)
    if forms["qk"] == "raw":
        q, k = unit(q), unit(k)
    states = of(call, "state")
    if forms["state_layout"] == "KV":
        states = states.swapaxes(-1, -2)
    delta, sizes = np.full(v.shape, np.nan), np.full(v.shape, np.nan)
    plan = slots_of(call)
    for sequence, slot in zip(plan.active.tolist(), plan.read.tolist(), strict=True):
        for head in range(v.shape[2]):
            state = states[slot, head].copy()
            for token in range(v.shape[1]):
                key, value = k[sequence, token, head // (HEADS[1] // HEADS[0])], v[sequence, token, head]
                state *= alpha[sequence, token, head]
                b = beta[sequence, token, head]
                delta[sequence, token, head] = b * (value - state @ key)
                sizes[sequence, token, head] = b * (np.abs(value) + np.abs(state) @ np.abs(key))
                state += np.outer(delta[sequence, token, head], key)
    return {"alpha_t": alpha, "beta_t": beta, "q_t": q, "k_t": k, "delta_t": delta, "sizes": sizes}


def shown(kernel: str, call: Call) -> dict[str, Tensor]:
    filled: dict[str, Tensor] = {}
    run_kernel(OPERATION, kernel, call, filled)
    return filled


def allowed(roundoff: float, exact: Array, sizes: Array | None, tokens: int, span: float) -> Array:
    """What arithmetic of that unit roundoff may be off, to first order.

    A function of inputs, 8 roundings: those of exp, softplus and the product in its exponent, which of a gate
    of up to `span` moves exp by `span` times as much; of sigmoid, of a norm. delta_t has a sum of K products
    on the state, which S tokens have each scaled and added to: 2 K roundings a token of the largest sum of
    sizes.
    """
    terms = np.abs(exact) if sizes is None else np.full(exact.shape, np.nanmax(sizes))
    return (8 * (1 + span) + 2 * K * tokens) * roundoff * terms + np.finfo(np.float64).tiny


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("kernel", "roundoff"), [("reference_staged", 2**-53), ("torch", 2**-24)])
def test_stages_are_what_the_formulas_say(kernel: str, roundoff: float, name: str) -> None:
    call = made(name)
    found, exact = shown(kernel, call), formulas(call)
    assert list(found) == STAGES
    span = float(-np.log(exact["alpha_t"].min()))
    assert math.isfinite(span)
    active = slots_of(call).active
    for stage in STAGES:
        x, y = found[stage].double().numpy()[active], exact[stage][active]
        assert x.shape == y.shape
        sizes = exact["sizes"][active] if stage == "delta_t" else None
        excess = np.abs(x - y) - allowed(roundoff, y, sizes, call.tensors["v"].shape[1], span)
        assert excess.max() <= 0, (stage, excess.max())


@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_who_owns_them(name: str) -> None:
    call = made(name)
    batch, tokens = call.tensors["v"].shape[:2]
    sizes = {"B": batch, "S": tokens, "H": HEADS[0], "Hv": HEADS[1], "K": K, "V": V}
    active = slots_of(call).active.tolist()
    for stage in OPERATION.stages:
        tensor = shown("torch", call)[stage.tensor.name]
        assert tensor.dtype == torch.float32
        assert tuple(tensor.shape) == tuple(sizes[axis] for axis in stage.tensor.axes)
        partition = OPERATION.partition(call, stage.tensor.name)
        assert [region.sequence for region in partition.regions] == active
        assert (partition.head_axis, partition.token_axis) == (2, 1)


def test_steps_one_after_another_are_the_kernel() -> None:
    """Bit by bit; and the pool that a step is given is the one it writes to."""
    call = made("drafts, raw")
    given = {**call.tensors, **call.scalars, **call.conventions, "state": call.tensors["state"].clone()}
    stages = {**torch_steps.gates(**given), **torch_steps.normalise(**given)}
    found = torch_steps.update(stages=stages, **given)
    assert found["state"] is given["state"]
    whole = {**shown("torch", call), **run_kernel(OPERATION, "torch", call)}
    for name, tensor in {**stages, **found}.items():
        assert torch.equal(tensor.nan_to_num(99.0), whole[name].nan_to_num(99.0)), name


def wrong(call: Call, filled: dict[str, Tensor]) -> dict[str, str]:
    """Reasons by stage."""
    results = judge_stages(OPERATION, call, filled, Bound())
    assert [result.tensor for result in results] == STAGES
    return {result.tensor: result.reasons[0] for result in results if not result.passed}


@pytest.mark.parametrize("name", CALLS)
def test_a_beta_of_8_bits_is_the_stage_that_fails(name: str) -> None:
    call = made(name)
    filled = shown("torch", call)
    assert wrong(call, filled) == {}
    filled["beta_t"] = filled["beta_t"].bfloat16().float()
    assert list(wrong(call, filled)) == ["beta_t"]
    filled["beta_t"] = filled["beta_t"].bfloat16()  # kept as it is, not widened: it is asked to be fp32
    assert list(wrong(call, filled)) == ["beta_t"]


def test_one_wrong_update_of_a_drafted_token_is_placed() -> None:
    call = made("drafts, raw")
    sequence = int(slots_of(call).active[-1])
    filled = shown("torch", call)
    filled["delta_t"][sequence, 3, 1, 5] += 0.01
    assert list(wrong(call, filled)) == ["delta_t"]
    (result,) = [one for one in judge_stages(OPERATION, call, filled, Bound()) if not one.passed]
    assert result.worst is not None
    at = result.worst.at
    assert (at.sequence, at.token, at.head, at.dims) == (sequence, 3, 1, (("V", 5),))


def test_sequences_that_are_skipped_are_held_to_nothing() -> None:
    call = made("drafts, raw")
    active = slots_of(call).active
    padding = torch.ones(len(call.tensors["v"]), dtype=torch.bool)
    padding[active] = False
    assert bool(padding.any())
    assert not bool(padding.all())
    for value in (torch.nan, 1e30):
        filled = shown("torch", call)
        for tensor in filled.values():
            tensor[padding] = value
        assert wrong(call, filled) == {}


def test_a_nan_excuses_no_token_that_came_before_it() -> None:
    call = made("drafts, raw")
    sequence = int(slots_of(call).active[0])
    v = call.tensors["v"].clone()
    v[sequence, 2] = torch.nan
    call = Call({**call.tensors, "v": v}, call.scalars, call.conventions)
    filled = shown("torch", call)
    assert bool(filled["delta_t"][sequence, 2:].isnan().all())
    assert not bool(filled["delta_t"][sequence, :2].isnan().any())
    assert wrong(call, filled) == {}
    filled["delta_t"][sequence, 1] = torch.nan
    assert list(wrong(call, filled)) == ["delta_t"]
