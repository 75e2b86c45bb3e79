# SPDX-License-Identifier: Apache-2.0
"""Numerics of kda_prefill: oracles against a plain loop, flash-linear-attention's and gdn_prefill, other
kernels against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION as GDN
from gdnbench_kernels.kda_prefill.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.kernels.fla_kda import fla_recurrence
from tests.messages import wording

Array = NDArray[np.float64]
Measure = Callable[[Tensor, Tensor], float]

# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}
# Roundings between input and output of the chunked form: the decayed row of A, A, Ai, Ai beta, decayed keys
# of W, U, W, h, V_new, decayed keys of the state, decayed row of P, P, decayed queries, O. Their errors are
# independent, so they add as a root of squares where no stage amplifies: random keys at beta <= 1 leave the
# inverse near the identity.
ROUNDINGS = 14
# fp64 against fp64: sums of up to 128 terms over up to 130 dependent tokens, 128 * 130 * 2^-53 = 1.8e-12.
EXACT = 2e-12

CONVENTIONS: dict[str, Any] = {
    "gate": "raw",
    "beta_form": "logit",
    "state_layout": "KV",
    "qk": "raw",
    "offsets_dtype": "int64",
}
AWKWARD: dict[str, dict[str, Any]] = {
    "defaults": {"seqlens": (1, 16, 40)},
    "grouped heads, K > V": {"seqlens": (0, 5, 0, 35, 1, 0), "heads": (2, 6), "head_dim": (32, 16)},
    "K < V, initial state": {"seqlens": (16, 3), "heads": (1, 3), "head_dim": (8, 24), "initial_state": True},
    "raw, logit, every other convention": {"seqlens": (34, 2), "initial_state": True, **CONVENTIONS},
    "bounded": {
        "seqlens": (34, 2),
        "gate": "bounded",
        "gate_span": (1.0, 300.0),
        "dt_bias_dtype": "bfloat16",
    },
    "beta to 2, bf16 state": {
        "seqlens": (35,),
        "beta": (0.0, 2.0),
        "beta_form": "logit",
        "initial_state": True,
        "state_dtype": "bfloat16",
    },
    "fp32": {"seqlens": (33, 20), "dtype": "float32"},
    "fp16": {"seqlens": (33, 20), "dtype": "float16"},
    "gates of -5 and far below": {"seqlens": (40,), "gate_span": (300.0, 1e4), "initial_state": True},
    "closed gates": {"seqlens": (40,), "closed_gates": 0.1, "initial_state": True},
    "one gate of -1e30": {"seqlens": (40,), "gate_spike": 1e30, "gate_span": 1.0, "initial_state": True},
    "no tokens": {"seqlens": (0, 0), "initial_state": True},
    "no sequences": {"seqlens": ()},
}


def made(**options: Any) -> Call:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    return call


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def with_scalars(call: Call, **scalars: Any) -> Call:
    return Call(call.tensors, {**call.scalars, **scalars}, call.conventions)


def array(call: Call, name: str) -> Array:
    return call.tensors[name].double().numpy()


def written_gates(call: Call) -> tuple[Array, Array]:
    """alpha [T, Hv, K] and beta [T, Hv], from the formulas of the issue that asked for the operation."""
    x, beta = array(call, "g"), array(call, "beta")
    _, heads, channels = x.shape
    rate = np.exp(array(call, "A_log") if "A_log" in call.tensors else np.zeros(heads))
    bias = array(call, "dt_bias") if "dt_bias" in call.tensors else np.zeros((heads, channels))
    form = call.conventions["gate"]
    with np.errstate(over="ignore", divide="ignore"):
        if form == "log":
            g = x
        elif form == "raw":
            g = -rate[None, :, None] * np.log(1 + np.exp(x + bias))
        else:
            g = float(call.scalars["lower_bound"] or 0) / (1 + np.exp(-rate[None, :, None] * (x + bias)))
        if call.conventions["beta_form"] == "logit":
            beta = float(call.scalars["beta_max"] or 0) / (1 + np.exp(-beta))
        return np.exp(g), beta


def written_out(call: Call) -> tuple[Array, Array]:
    """o and final_state by a loop over tokens and heads, in the call's layout."""
    q, k, v = array(call, "q"), array(call, "k"), array(call, "v")
    if call.conventions["qk"] == "raw":
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    alpha, beta = written_gates(call)
    bounds = call.tensors["cu_seqlens"].tolist()
    (_, heads, value_dim), key_dim = v.shape, k.shape[2]
    group = heads // k.shape[1]
    kv = call.conventions["state_layout"] == "KV"
    final = np.zeros((len(bounds) - 1, heads, value_dim, key_dim))
    if "initial_state" in call.tensors:
        given = array(call, "initial_state")
        final[:] = given.swapaxes(-1, -2) if kv else given
    o = np.zeros(v.shape)
    for n in range(len(bounds) - 1):
        for t in range(bounds[n], bounds[n + 1]):
            for h in range(heads):
                state = final[n, h] * alpha[t, h][None, :]
                update = beta[t, h] * (v[t, h] - state @ k[t, h // group])
                final[n, h] = state + np.outer(update, k[t, h // group])
                o[t, h] = key_dim**-0.5 * final[n, h] @ q[t, h // group]
    return o, final.swapaxes(-1, -2) if kv else final


@pytest.mark.parametrize("chunk_size", [16, 64])
@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_oracles_match_the_recurrence_written_out(options: dict[str, Any], chunk_size: int) -> None:
    call = with_scalars(made(**{"head_dim": (12, 8)} | options), chunk_size=chunk_size)
    wanted = dict(zip(("o", "final_state"), written_out(call), strict=True))
    # The differences of g_cu lose what the sums gain on them: 2^-53 of sums up to 40 * 1e4 * 2 / 64.
    # A gate of -1e30 counts as -2^14.
    lowest = {"gates of -5 and far below": 1.3e4, "one gate of -1e30": 2**14}
    atol = EXACT + max(
        (size * 2**-53 for name, size in lowest.items() if AWKWARD[name] is options), default=0
    )
    for kernel in ("reference", "reference_staged"):
        found = run_kernel(OPERATION, kernel, call)
        for name, expected in wanted.items():
            assert found[name].dtype == torch.float64
            largest = np.abs(expected).max(initial=1)
            np.testing.assert_allclose(found[name].numpy(), expected, rtol=0, atol=atol * largest)


@pytest.mark.parametrize("drop", [("A_log",), ("dt_bias",), ("A_log", "dt_bias")])
def test_absent_parts_of_a_gate_are_0(drop: tuple[str, ...]) -> None:
    call = made(seqlens=(20,), head_dim=(12, 8), gate="bounded")
    call = Call({n: t for n, t in call.tensors.items() if n not in drop}, call.scalars, call.conventions)
    OPERATION.validate(call)
    found = run_kernel(OPERATION, "reference", call)
    for name, expected in zip(("o", "final_state"), written_out(call), strict=True):
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=0, atol=EXACT)


def test_the_oracle_is_flash_linear_attentions(relative_error: Measure) -> None:
    naive = fla_recurrence()
    call = made(
        seqlens=(50,), heads=(2, 4), head_dim=(16, 8), dtype="float32", initial_state=True, state_layout="KV"
    )
    given = {name: call.tensors[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta")}
    o, state = naive(**given, initial_state=call.tensors["initial_state"], output_final_state=True)
    found = run_kernel(OPERATION, "reference", call)
    # Theirs is in fp32: two sums of 16 terms a token, over 50 dependent tokens.
    bound = 50 * 2 * 16 * 2**-24
    assert relative_error(o[0], found["o"]) < bound
    assert relative_error(state, found["final_state"]) < bound


SPECIAL: dict[str, dict[str, Any]] = {
    "ragged": {"seqlens": (0, 1, 63, 65, 130), "heads": (1, 2)},
    "slow gates, similar keys, beta to 2": {
        "seqlens": (100,),
        "gate_span": 0.06,
        "key_correlation": 0.9,
        "beta": (0.0, 2.0),
    },
    "fast gates": {"seqlens": (70,), "gate_span": 3000.0},
}


def as_channels(call: Call) -> Call:
    """A call of gdn_prefill as one of kda_prefill: every channel of a head has its gate."""
    g = call.tensors["g"].unsqueeze(-1).expand(*call.tensors["g"].shape, call.tensors["k"].shape[2])
    wide = Call({**call.tensors, "g": g.contiguous()}, {**call.scalars, "chunk_size": 64}, call.conventions)
    OPERATION.validate(wide)
    return wide


@pytest.mark.parametrize("options", SPECIAL.values(), ids=SPECIAL)
def test_gdn_is_the_case_of_equal_channels(options: dict[str, Any], relative_error: Measure) -> None:
    """Both oracles give the outputs, states and stages of gdn_prefill's."""
    scalar = GDN.synth(**{"head_dim": (24, 16), "initial_state": True} | options)
    channels = as_channels(scalar)
    for kernel in ("reference", "reference_staged"):
        ours: dict[str, Tensor] = {}
        theirs: dict[str, Tensor] = {}
        shown = (theirs, ours) if kernel == "reference_staged" else (None, None)
        expected = run_kernel(GDN, kernel, scalar, shown[0])
        found = run_kernel(OPERATION, kernel, channels, shown[1])
        expected, found = {**expected, **theirs}, {**found, **ours}
        if theirs:
            assert {"g_cu", "A", "Ai", "U", "W", "h", "V_new", "P", "o", "final_state"} == expected.keys()
            expected["g_cu"] = expected["g_cu"].unsqueeze(-1).expand_as(found["g_cu"])
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name].isnan(), tensor.isnan()), name
            assert relative_error(found[name].nan_to_num(), tensor.nan_to_num()) < EXACT, name


def test_unequal_channels_are_not_gdn(relative_error: Measure) -> None:
    """A kernel that takes one gate for all channels of a head, their mean, is far off."""
    scalar = GDN.synth(seqlens=(40,), head_dim=(24, 16), heads=(1, 1))
    channels = as_channels(scalar)
    g = channels.tensors["g"] * torch.linspace(0, 2, 24)
    found = run_kernel(OPERATION, "reference", with_tensors(channels, g=g))
    assert relative_error(found["o"], run_kernel(GDN, "reference", scalar)["o"]) > 0.01


@pytest.mark.parametrize("chunk_size", [16, 64])
@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_torch_kernel_errs_by_its_roundings(
    options: dict[str, Any], chunk_size: int, relative_error: Measure
) -> None:
    call = with_scalars(made(**options), chunk_size=chunk_size)
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
        {"gate_span": 1e5},
        {"gate_span": (1e-3, 1e5), "key_correlation": 0.95, "gate_span_of": "head"},
        {"gate_span": (1e-3, 1e5), "key_correlation": 0.95},
        {"gate_span": 0.0, "key_correlation": 1.0, "beta": (0.0, 1.0)},
    ],
    ids=str,
)
def test_torch_kernel_on_hard_inputs(options: dict[str, Any], relative_error: Measure) -> None:
    call = made(seqlens=(100, 16), initial_state=True, **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "torch"))
    # As for gdn_prefill, whose chunks have 64 tokens: A in bf16 costs U at most 1.2e-2 (docs/operations.md).
    for name, tensor in expected.items():
        assert found[name].isfinite().all()
        assert relative_error(found[name], tensor) < 2 * 1.2e-2, name


@pytest.mark.parametrize("options", [{"qk": "raw"}, {"initial_state": True}, {"dtype": "float32"}], ids=str)
def test_transformers_agrees_with_the_oracle(options: dict[str, Any], relative_error: Measure) -> None:
    pytest.importorskip("transformers")
    call = made(seqlens=(1, 0, 15, 33), state_layout="KV", **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "hf"))
    # transformers computes in fp32 and rounds o once: 3 products of 128 terms, and o's own rounding.
    sums = 3 * 128 * 2**-24
    assert relative_error(found["o"], expected["o"]) < ROUNDOFF[options.get("dtype", "bfloat16")] + sums
    assert relative_error(found["final_state"], expected["final_state"]) < sums


def test_transformers_refuses_a_closed_gate() -> None:
    """It would give NaN to all tokens and channels of the chunk."""
    pytest.importorskip("transformers")
    call = made(seqlens=(20,), heads=(1, 2), state_layout="KV")
    call.tensors["g"][7, 1, 5] = -torch.inf
    with pytest.raises(NotImplementedError, match=wording("kernels.hf-closed", place="g[7, 1, 5]")):
        run_kernel(OPERATION, "hf", call)


@pytest.mark.parametrize("kernel", ["reference", "reference_staged", "torch", "hf"])
def test_nan_stays_in_its_sequence(kernel: str) -> None:
    """The sequence before and the one after hold the very bits that they have without the NaN."""
    if kernel == "hf":
        pytest.importorskip("transformers")
    options: dict[str, Any] = {"seqlens": (20, 18, 17), "initial_state": True, "state_layout": "KV"}
    clean, poisoned = (
        run_kernel(OPERATION, kernel, made(**options, nan_at=nan)) for nan in ((), (20, 21, 37))
    )
    for rows in (slice(0, 20), slice(38, 55)):
        assert clean["o"][rows].equal(poisoned["o"][rows])
    assert poisoned["o"][20:38].isnan().all()
    for n in (0, 2):
        assert clean["final_state"][n].equal(poisoned["final_state"][n])
    assert poisoned["final_state"][1].isnan().all()


def test_a_later_token_changes_no_bit_of_an_earlier_one() -> None:
    """fla#1240: rows of a chunk were scaled relative to a later row, so that its gate reached earlier
    outputs."""
    call = made(seqlens=(40,), heads=(1, 2), gate_span=(1.0, 320.0))
    for kernel in ("reference", "reference_staged", "torch"):
        for place in (5, 16, 23, 39):
            tensors = {name: call.tensors[name].clone() for name in ("q", "k", "v", "g", "beta")}
            for tensor in tensors.values():
                tensor[place:] = tensor[place:].flip(0) * 0.5
            found, changed = (
                run_kernel(OPERATION, kernel, one)["o"] for one in (call, with_tensors(call, **tensors))
            )
            assert found[:place].equal(changed[:place]), (kernel, place)
            assert not found[place:].equal(changed[place:])


@pytest.mark.parametrize("cut", [1, 15, 16, 40])
def test_a_resumed_prefill_is_the_long_one(cut: int, relative_error: Measure) -> None:
    call = made(seqlens=(50,), dtype="float32", head_dim=(16, 8), initial_state=True)
    whole = run_kernel(OPERATION, "reference", call)
    parts = []
    state = call.tensors["initial_state"].double()
    for rows in (slice(0, cut), slice(cut, 50)):
        tensors = {name: call.tensors[name][rows] for name in ("q", "k", "v", "g", "beta")}
        tensors |= {"cu_seqlens": torch.tensor([0, rows.stop - rows.start]), "initial_state": state}
        part = run_kernel(OPERATION, "reference", Call(tensors, call.scalars, call.conventions))
        parts.append(part["o"])
        state = part["final_state"]
    assert relative_error(torch.cat(parts), whole["o"]) < EXACT
    assert relative_error(state, whole["final_state"]) < EXACT


def test_chunks_go_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    call = made(seqlens=(70, 0, 50), head_dim=(8, 8))
    expected = run_kernel(OPERATION, "torch", call)
    monkeypatch.setattr("gdnbench_kernels.delta_prefill.chunked.CHUNKS_AT_ONCE", 2)
    found = run_kernel(OPERATION, "torch", call)
    # Each chunk and head is a product of its own; the sums inside are the same.
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
