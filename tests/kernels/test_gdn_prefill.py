# SPDX-License-Identifier: Apache-2.0
"""Numerics of gdn_prefill: oracles against plain numpy, other kernels against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

Measure = Callable[[Tensor, Tensor], float]

# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}
# Roundings between input and output in the three-kernel design: A, Ai, Ai beta, Ai beta exp(g), U, W, h,
# V_new, scaled V_new, P, O. Their errors are independent, so they add as a root of squares where no stage
# amplifies: random keys at beta <= 1 leave the inverse near the identity.
ROUNDINGS = 11
# fp64 against fp64: sums of up to 128 terms over up to 130 dependent tokens, 128 * 130 * 2^-53 = 1.8e-12.
EXACT = 2e-12

AWKWARD: dict[str, dict[str, Any]] = {
    "defaults": {"seqlens": (1, 63, 65)},
    "grouped heads, K > V": {"seqlens": (0, 5, 0, 70, 1, 0), "heads": (2, 6), "head_dim": (64, 32)},
    "K < V, initial state": {"seqlens": (64, 3), "heads": (1, 3), "head_dim": (8, 24), "initial_state": True},
    "every other convention": {
        "seqlens": (66, 2),
        "head_dim": (24, 16),
        "initial_state": True,
        "gate": "linear",
        "state_layout": "KV",
        "qk": "raw",
        "offsets_dtype": "int64",
    },
    "beta to 2, bf16 state": {
        "seqlens": (67,),
        "head_dim": (16, 16),
        "beta": (0.0, 2.0),
        "initial_state": True,
        "state_dtype": "bfloat16",
    },
    "fp32": {"seqlens": (33, 40), "head_dim": (16, 8), "dtype": "float32"},
    "fp16": {"seqlens": (33, 40), "head_dim": (16, 8), "dtype": "float16"},
    "no tokens": {"seqlens": (0, 0), "initial_state": True},
    "no sequences": {"seqlens": ()},
}


def made(**options: Any) -> Call:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    return call


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def sequence_of(call: Call, n: int) -> Call:
    """Sequence n alone."""
    start, stop = call.tensors["cu_seqlens"][n : n + 2].tolist()
    tensors = {name: call.tensors[name][start:stop] for name in ("q", "k", "v", "g", "beta")}
    tensors["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    if "initial_state" in call.tensors:
        tensors["initial_state"] = call.tensors["initial_state"][n : n + 1]
    return Call(tensors, call.scalars, call.conventions)


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", ["reference", "reference_staged"])
@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_oracles_match_the_recurrence_written_out(kernel: str, options: dict[str, Any], naive: Any) -> None:
    options = {"head_dim": (12, 8)} | options
    call = made(**options)
    plain = naive(call)
    bounds = call.tensors["cu_seqlens"].tolist()
    (_, value_heads, value_dim), key_dim = call.tensors["v"].shape, call.tensors["k"].shape[2]
    layout = call.conventions["state_layout"]
    o = np.zeros(call.tensors["v"].shape)
    final = np.zeros((len(bounds) - 1, value_heads, value_dim, key_dim))
    if "initial_state" in call.tensors:
        given = plain.array("initial_state")
        final[:] = given.swapaxes(-1, -2) if layout == "KV" else given
    for n in range(len(bounds) - 1):
        for token in range(bounds[n], bounds[n + 1]):
            for head in range(value_heads):
                o[token, head] = plain.step(final[n, head], (token,), head)

    found = run_kernel(OPERATION, kernel, call)
    if layout == "KV":
        final = final.swapaxes(-1, -2)
    assert found["o"].dtype == found["final_state"].dtype == torch.float64
    np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=EXACT * np.abs(o).max(initial=1))
    np.testing.assert_allclose(
        found["final_state"].numpy(), final, rtol=0, atol=EXACT * np.abs(final).max(initial=1)
    )


@pytest.mark.parametrize("correlation", [0.0, 0.9, 1.0])
def test_chunked_and_token_by_token_oracles_agree(correlation: float, relative_error: Measure) -> None:
    call = made(seqlens=(300, 1, 129), key_correlation=correlation, beta=(0.5, 1.0), initial_state=True)
    by_token, chunked = (run_kernel(OPERATION, name, call) for name in ("reference", "reference_staged"))
    # 300 tokens of 128 terms, and Ai with entries up to 1: 300 * 128 * 2^-53 = 4e-12.
    for name, expected in by_token.items():
        assert relative_error(chunked[name], expected) < 4e-12, name


@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_torch_kernel_errs_by_its_roundings(options: dict[str, Any], relative_error: Measure) -> None:
    call = made(**options)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "torch"))
    roundoff = ROUNDOFF[options.get("dtype", "bfloat16")]
    # fp32 sums of 128 terms add at most 128 * 2^-24 of each of three products.
    bound = math.sqrt(ROUNDINGS) * roundoff + 3 * 128 * 2**-24
    promised = OPERATION.outputs(call)
    for name, tensor in expected.items():
        assert (tuple(found[name].shape), found[name].dtype) == promised[name]
        assert relative_error(found[name], tensor) < bound, name
    assert all(before[name].equal(call.tensors[name]) for name in before)


@pytest.mark.parametrize(
    "options",
    [
        {"key_correlation": 0.99, "beta": 1.0, "gate_span": 0.064},
        {"key_correlation": 1.0, "beta": 1.0, "gate_span": 0.064},
        {"key_correlation": 0.9, "beta": 0.835, "gate_span": 0.064},
        {"gate_span": 1e5},
        {"gate_span": (1e-3, 1e5), "key_correlation": 0.95},
        {"gate_span": 0.0, "key_correlation": 1.0, "beta": (0.0, 1.0)},
    ],
    ids=str,
)
def test_torch_kernel_on_hard_inputs(options: dict[str, Any], relative_error: Measure) -> None:
    call = made(seqlens=(200, 64), initial_state=True, **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "torch"))
    # The exact inverse of A rounded to bf16 errs by 1.2e-2 in U for identical keys and beta 1, the worst case
    # here (docs/operations.md); W errs as much, and V_new is made of both.
    for name, tensor in expected.items():
        assert found[name].isfinite().all()
        assert relative_error(found[name], tensor) < 2 * 1.2e-2, name


def test_closed_gates_forget_and_stay_finite(relative_error: Measure) -> None:
    """alpha = 0 is -inf in log space, where the chunked form would subtract -inf from -inf."""
    call = made(seqlens=(70,), gate="linear", initial_state=True, head_dim=(16, 16))
    g = call.tensors["g"].clone()
    g[[0, 10, 11, 66]] = 0
    call = with_tensors(call, g=g)
    OPERATION.validate(call)
    expected = run_kernel(OPERATION, "reference", call)
    for kernel, bound in (("torch", math.sqrt(ROUNDINGS) * 2**-8), ("reference_staged", 1e-12)):
        found = run_kernel(OPERATION, kernel, call)
        assert relative_error(found["o"], expected["o"]) < bound
        assert relative_error(found["final_state"], expected["final_state"]) < bound


@pytest.mark.parametrize("options", [{"qk": "raw"}, {"initial_state": True}, {"dtype": "float32"}], ids=str)
def test_transformers_agrees_with_the_oracle(options: dict[str, Any], relative_error: Measure) -> None:
    pytest.importorskip("transformers")
    call = made(seqlens=(1, 0, 63, 65), state_layout="KV", **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "hf"))
    # transformers computes in fp32 and rounds o once: 3 products of 128 terms, and o's own rounding.
    sums = 3 * 128 * 2**-24
    assert relative_error(found["o"], expected["o"]) < ROUNDOFF[options.get("dtype", "bfloat16")] + sums
    assert relative_error(found["final_state"], expected["final_state"]) < sums


def test_transformers_refuses_another_scale() -> None:
    pytest.importorskip("transformers")
    call = made(seqlens=(3,), state_layout="KV")
    other = Call(call.tensors, {**call.scalars, "scale": 0.5}, call.conventions)
    with pytest.raises(
        NotImplementedError, match=wording("kernels.hf-scale", wanted="0.0883883476", given="0.5")
    ):
        run_kernel(OPERATION, "hf", other)


def test_missing_transformers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.models.qwen3_next.modeling_qwen3_next", None)
    with pytest.raises(ImportError, match=wording("kernels.hf-missing")):
        run_kernel(OPERATION, "hf", made(seqlens=(3,), state_layout="KV"))


@pytest.mark.parametrize("kernel", ["reference", "reference_staged", "torch", "hf"])
def test_nan_stays_in_its_sequence(kernel: str) -> None:
    """The sequence before and the one after hold the very bits that they have without the NaN."""
    if kernel == "hf":
        pytest.importorskip("transformers")
    options: dict[str, Any] = {"seqlens": (70, 40, 65), "initial_state": True, "state_layout": "KV"}
    clean, poisoned = (
        run_kernel(OPERATION, kernel, made(**options, nan_at=nan)) for nan in ((), (70, 71, 109))
    )
    for rows in (slice(0, 70), slice(110, 175)):
        assert clean["o"][rows].equal(poisoned["o"][rows])
    assert poisoned["o"][70:110].isnan().all()
    for n in (0, 2):
        assert clean["final_state"][n].equal(poisoned["final_state"][n])
    assert poisoned["final_state"][1].isnan().all()


def test_infinity_reaches_only_what_depends_on_it() -> None:
    call = made(seqlens=(5, 5), head_dim=(8, 4))
    v = call.tensors["v"].clone()
    v[3, 1, 2] = torch.inf
    o = run_kernel(OPERATION, "reference", with_tensors(call, v=v))["o"]
    touched = ~o.isfinite()
    assert touched[3:5, 1, 2].all()
    assert int(touched.sum()) == 2


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_a_sequence_alone_is_as_in_a_batch(kernel: str, relative_error: Measure) -> None:
    call = made(seqlens=(65, 1, 0, 130), initial_state=True)
    together = run_kernel(OPERATION, kernel, call)
    bounds = call.tensors["cu_seqlens"].tolist()
    # Only the order of sums may differ. In fp32 that can flip a rounding to bf16 here and there.
    bound = EXACT if kernel == "reference" else math.sqrt(ROUNDINGS) * 2**-8
    for n in range(4):
        alone = run_kernel(OPERATION, kernel, sequence_of(call, n))
        assert relative_error(together["o"][bounds[n] : bounds[n + 1]], alone["o"]) < bound
        assert relative_error(together["final_state"][n : n + 1], alone["final_state"]) < bound


def test_many_sequences_go_in_several_passes(
    monkeypatch: pytest.MonkeyPatch, relative_error: Measure
) -> None:
    call = made(seqlens=(3, 9, 0, 4, 9, 1), head_dim=(8, 8), initial_state=True)
    expected = run_kernel(OPERATION, "reference", call)
    two_states = 2 * 4 * 8 * 8 * 8
    monkeypatch.setattr("gdnbench_kernels.delta_prefill.recurrence.STATE_BYTES_AT_ONCE", two_states)
    found = run_kernel(OPERATION, "reference", call)
    for name, tensor in expected.items():
        assert relative_error(found[name], tensor) < EXACT


def test_chunks_go_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    call = made(seqlens=(70, 0, 150), head_dim=(8, 8))
    expected = run_kernel(OPERATION, "torch", call)
    monkeypatch.setattr("gdnbench_kernels.delta_prefill.chunked.CHUNKS_AT_ONCE", 2)
    found = run_kernel(OPERATION, "torch", call)
    # Each chunk and head is a product of its own; the sums inside are the same.
    assert all(found[name].equal(tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_a_resumed_prefill_is_the_long_one(cut: int, relative_error: Measure) -> None:
    call = made(seqlens=(130,), dtype="float32", head_dim=(16, 8), initial_state=True)
    whole = run_kernel(OPERATION, "reference", call)
    parts = []
    state = call.tensors["initial_state"].double()
    for rows in (slice(0, cut), slice(cut, 130)):
        tensors = {name: call.tensors[name][rows] for name in ("q", "k", "v", "g", "beta")}
        tensors |= {"cu_seqlens": torch.tensor([0, rows.stop - rows.start]), "initial_state": state}
        part = run_kernel(OPERATION, "reference", Call(tensors, call.scalars, call.conventions))
        parts.append(part["o"])
        state = part["final_state"]
    assert relative_error(torch.cat(parts), whole["o"]) < EXACT
    assert relative_error(state, whole["final_state"]) < EXACT


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16", None])
@pytest.mark.parametrize("first", ["float32", "bfloat16", None])
def test_final_state_dtype(asked: str | None, first: str | None) -> None:
    call = made(
        seqlens=(5,), head_dim=(8, 8), initial_state=first is not None, state_dtype=first or "float32"
    )
    call = Call(call.tensors, {**call.scalars, "final_state_dtype": asked}, call.conventions)
    OPERATION.validate(call)
    expected = getattr(torch, asked or first or "float32")
    assert run_kernel(OPERATION, "torch", call)["final_state"].dtype == expected
    assert OPERATION.outputs(call)["final_state"] == ((1, 4, 8, 8), expected)


@pytest.mark.parametrize("kernel", ["reference", "reference_staged", "torch", "hf"])
def test_no_final_state_unless_asked_for(kernel: str) -> None:
    if kernel == "hf":
        pytest.importorskip("transformers")
    call = made(seqlens=(5,), head_dim=(8, 8))
    call = Call(call.tensors, {**call.scalars, "output_final_state": False}, call.conventions)
    assert set(run_kernel(OPERATION, kernel, call)) == {"o"} == set(OPERATION.outputs(call))


def test_scale_multiplies_the_output(relative_error: Measure) -> None:
    call = made(seqlens=(9,), head_dim=(16, 8))
    by_default = run_kernel(OPERATION, "reference", call)["o"]
    given = Call(call.tensors, {**call.scalars, "scale": 3.0}, call.conventions)
    # K ** -0.5 is 1 / 4.
    assert relative_error(run_kernel(OPERATION, "reference", given)["o"], by_default * 12) < 1e-15
