# SPDX-License-Identifier: Apache-2.0
"""Numerics and refusals of kda_decode: the oracle against a plain loop, flash-linear-attention's and that of
gdn_decode; other kernels against the oracle; conversions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn_decode.contract import OPERATION as GDN
from gdnbench_kernels.kda_decode.contract import OPERATION
from gdnbench_kernels.kda_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.kernels.fla_kda import fla_recurrence

Array = NDArray[np.float64]
Measure = Callable[[Tensor, Tensor], float]

ROUNDOFF = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}
# fp32 sums of at most 128 terms, twice a token (S k and S q), over at most 4 tokens.
SUMS = 2 * 4 * 128 * 2**-24
# fp64 sums of at most 128 terms, twice a token, over at most 6 tokens.
EXACT = 2 * 6 * 128 * 2**-53

AWKWARD: dict[str, dict[str, Any]] = {
    "plain": {"batch": 3},
    "grouped heads, K > V": {"batch": 2, "heads": (2, 6), "head_dim": (24, 16)},
    "padding, slots apart": {"batch": 6, "padding": 0.5, "slots": 40, "slot_gap": 24, "head_dim": (8, 24)},
    "drafts": {"batch": 4, "steps": 3, "speculative": True, "padding": 0.25, "head_dim": (16, 8)},
    "raw, logit, every other convention": {
        "batch": 3,
        "steps": 2,
        "speculative": True,
        "head_dim": (24, 16),
        "gate": "raw",
        "beta_form": "logit",
        "state_layout": "KV",
        "qk": "raw",
        "offsets_dtype": "int64",
    },
    "raw, beta to 2, bf16 state": {
        "batch": 3,
        "gate": "raw",
        "beta_form": "logit",
        "beta": (0.0, 2.0),
        "state_dtype": "bfloat16",
        "dt_bias_dtype": "bfloat16",
        "head_dim": (16, 8),
    },
    "bounded, -5 a token": {
        "batch": 3,
        "steps": 3,
        "gate": "bounded",
        "gate_span": 640.0,
        "head_dim": (16, 8),
    },
    "bounded at -1, logit": {
        "batch": 3,
        "gate": "bounded",
        "lower_bound": -1.0,
        "beta_form": "logit",
        "head_dim": (16, 8),
    },
    "far past -5": {"batch": 3, "steps": 2, "gate_span": (1.0, 5e4), "head_dim": (16, 8)},
    "fp16": {"batch": 3, "state_dtype": "float16", "dtype": "float16", "head_dim": (16, 8)},
    "fp32": {"batch": 3, "dtype": "float32", "head_dim": (16, 8)},
    "reads other slots, holes": {
        "batch": 4,
        "steps": 3,
        "read_indices": "own",
        "holes": 0.5,
        "padding": 0.25,
        "head_dim": (8, 24),
    },
    "all padding": {"batch": 3, "padding": 1.0, "head_dim": (8, 8)},
    "no sequences": {"batch": 0, "head_dim": (8, 8)},
}


def made(**options: Any) -> Call:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    return call


def changed(call: Call, tensors: dict[str, Tensor] | None = None, **scalars: Any) -> Call:
    return Call({**call.tensors, **(tensors or {})}, {**call.scalars, **scalars}, call.conventions)


def log_decay(call: Call) -> Array:
    """g [B, S, Hv, K], element by element as arXiv 2510.26692 and the served bound define it."""
    x = call.tensors["g"].double().numpy()
    form = call.conventions["gate"]
    if form == "log":
        return x
    x = x + call.tensors["dt_bias"].double().numpy()
    rate = np.exp(call.tensors["A_log"].double().numpy())[:, None]
    if form == "raw":
        with np.errstate(over="ignore"):
            return -rate * np.where(x > 40, x, np.log1p(np.exp(x)))
    with np.errstate(over="ignore"):
        return float(call.scalars["lower_bound"]) / (1 + np.exp(-rate * x))


def written_out(call: Call) -> tuple[Array, Array]:
    """o, NaN in padding, and the pool as [slots, Hv, V, K], one head of one token after another."""
    q, k, v, beta, pool = (call.tensors[name].double().numpy() for name in ("q", "k", "v", "beta", "state"))
    if call.conventions["qk"] == "raw":
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    if call.conventions["beta_form"] == "logit":
        with np.errstate(over="ignore"):
            beta = float(call.scalars["beta_max"]) / (1 + np.exp(-beta))
    alpha = np.exp(log_decay(call))
    pool = (pool.swapaxes(-1, -2) if call.conventions["state_layout"] == "KV" else pool).copy()
    before, o = pool.copy(), np.full(v.shape, np.nan)
    scale = call.scalars["scale"]
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    group = v.shape[2] // k.shape[2]
    for row, slots in enumerate(call.tensors["state_indices"].tolist()):
        read = slots[int(call.tensors["num_accepted"][row]) - 1 if "num_accepted" in call.tensors else 0]
        if "read_indices" in call.tensors:
            read = int(call.tensors["read_indices"][row])
        if read == -1:
            continue
        for head in range(v.shape[2]):
            state = before[read, head].copy()
            for token, slot in enumerate(slots):
                key, query = k[row, token, head // group], q[row, token, head // group]
                for channel in range(len(key)):
                    state[:, channel] *= alpha[row, token, head, channel]
                update = beta[row, token, head] * (v[row, token, head] - state @ key)
                state += np.outer(update, key)
                o[row, token, head] = scale * (state @ query)
                if slot != -1:
                    pool[slot, head] = state
    return o, pool


@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_the_oracle_is_the_recurrence_written_out(options: dict[str, Any]) -> None:
    call = made(**{"head_dim": (12, 8)} | options)
    o, pool = written_out(call)
    before = call.tensors["state"].clone()
    found = run_kernel(OPERATION, "reference", call)
    state = found["state"].mT if call.conventions["state_layout"] == "KV" else found["state"]
    np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=EXACT * np.nanmax(np.abs(o), initial=1))
    np.testing.assert_allclose(state.numpy(), pool, rtol=0, atol=EXACT * np.abs(pool).max(initial=1))
    assert call.tensors["state"].equal(before)


@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_torchs_kernel_errs_by_its_roundings(options: dict[str, Any], relative_error: Measure) -> None:
    call = made(**options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "torch"))
    active = ~expected["o"].isnan()
    assert found["o"].dtype == call.tensors["v"].dtype
    assert found["state"].dtype == call.tensors["state"].dtype
    o_bound = ROUNDOFF[options.get("dtype", "bfloat16")] + SUMS
    state_bound = ROUNDOFF[options.get("state_dtype", "float32")] + SUMS
    assert relative_error(found["o"][active], expected["o"][active]) < o_bound
    assert relative_error(found["state"], expected["state"]) < state_bound


def test_the_oracle_is_flash_linear_attentions(relative_error: Measure) -> None:
    call = made(batch=2, steps=6, heads=(2, 4), head_dim=(16, 8), dtype="float32", state_layout="KV")
    read = call.tensors["state_indices"][:, 0].long()
    given = {name: call.tensors[name] for name in ("q", "k", "v", "g", "beta")}
    o, state = fla_recurrence()(**given, initial_state=call.tensors["state"][read], output_final_state=True)
    found = run_kernel(OPERATION, "reference", call)
    # Theirs is in fp32: two sums of 16 terms a token, over 6 dependent tokens.
    bound = 6 * 2 * 16 * 2**-24
    assert relative_error(o, found["o"]) < bound
    assert relative_error(state, found["state"][call.tensors["state_indices"][:, -1].long()]) < bound


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_with_equal_channels_it_is_gdn_decode(kernel: str) -> None:
    """Bit for bit: the operations have one recurrence."""
    options: dict[str, Any] = {"batch": 4, "steps": 3, "speculative": True, "padding": 0.25, "heads": (2, 4)}
    call = GDN.synth(**options, head_dim=(16, 8), slots=20, gate_span=(0.1, 300.0))
    g = call.tensors["g"].unsqueeze(-1).expand(*call.tensors["g"].shape, 16).contiguous()
    same = Call({**call.tensors, "g": g}, call.scalars, call.conventions)
    OPERATION.validate(same)
    expected, found = run_kernel(GDN, kernel, call), run_kernel(OPERATION, kernel, same)
    for name, tensor in expected.items():
        assert torch.equal(tensor.nan_to_num(7.0), found[name].nan_to_num(7.0)), name


def test_raw_gates_with_equal_channels_are_those_of_gdn_decode() -> None:
    call = GDN.synth(batch=3, steps=2, gate="raw", heads=(2, 4), head_dim=(16, 8), beta=(0.0, 2.0))
    tensors = dict(call.tensors)
    tensors["g"] = tensors["g"].unsqueeze(-1).expand(*tensors["g"].shape, 16).contiguous()
    tensors["dt_bias"] = tensors["dt_bias"].unsqueeze(-1).expand(4, 16).contiguous()
    same = Call(tensors, call.scalars, {**call.conventions, "beta_form": "logit"})
    OPERATION.validate(same)
    expected, found = run_kernel(GDN, "reference", call), run_kernel(OPERATION, "reference", same)
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_decode_continues_a_prefill() -> None:
    """The prefill oracle over 6 tokens, and over 2 followed by decode calls of 3 and 1, in fp64."""
    whole = PREFILL.synth(seqlens=(6,), head_dim=(16, 8), dtype="float32", initial_state=True)
    expected = run_kernel(PREFILL, "reference", whole)
    rows = {name: whole.tensors[name] for name in ("q", "k", "v", "g", "beta")}
    head = {name: tensor[:2] for name, tensor in rows.items()}
    head |= {"cu_seqlens": torch.tensor([0, 2]), "initial_state": whole.tensors["initial_state"]}
    first = run_kernel(PREFILL, "reference", Call(head, whole.scalars, whole.conventions))
    outs, state = [first["o"]], first["final_state"]
    known = {name: whole.scalars.get(name) for name in ("scale", "beta_max")}
    for start, stop in ((2, 5), (5, 6)):
        tensors = {name: tensor[start:stop].unsqueeze(0) for name, tensor in rows.items()}
        tensors |= {"state": state, "state_indices": torch.zeros(1, stop - start, dtype=torch.int32)}
        step = run_kernel(OPERATION, "reference", Call(tensors, known, whole.conventions))
        outs.append(step["o"][0])
        state = step["state"]
    assert (torch.cat(outs) - expected["o"]).abs().max() < EXACT * float(expected["o"].abs().max())
    assert (state - expected["final_state"]).abs().max() < EXACT * float(state.abs().max())


def test_a_gate_of_minus_infinity_closes_its_channel_alone() -> None:
    call = made(batch=1, heads=(1, 1), head_dim=(8, 8), dtype="float32")
    g = call.tensors["g"].clone()
    g[..., 3] = -torch.inf
    call = changed(call, {"g": g})
    OPERATION.validate(call)
    o, pool = written_out(call)
    for kernel in ("reference", "torch"):
        found = run_kernel(OPERATION, kernel, call)
        np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=SUMS * np.abs(o).max())
        np.testing.assert_allclose(found["state"].numpy(), pool, rtol=0, atol=SUMS * np.abs(pool).max())


@pytest.mark.parametrize("kernel", ["reference", "torch", "hf"])
def test_nan_stays_in_its_sequence(kernel: str) -> None:
    if kernel == "hf":
        pytest.importorskip("transformers")
    options: dict[str, Any] = {"batch": 3, "slots": 5, "heads": (1, 2), "state_layout": "KV"}
    clean, poisoned = (run_kernel(OPERATION, kernel, made(**options, nan_at=nan)) for nan in ((), (1,)))
    slot = int(made(**options).tensors["state_indices"][1, 0])
    others = [i for i in range(5) if i != slot]
    assert clean["o"][[0, 2]].equal(poisoned["o"][[0, 2]])
    assert poisoned["o"][1].isnan().all()
    assert clean["state"][others].equal(poisoned["state"][others])
    assert poisoned["state"][slot].isnan().all()


@pytest.mark.parametrize(
    "options",
    [{"qk": "raw"}, {"padding": 0.5, "slots": 9}, {"heads": (1, 4)}, {"state_dtype": "bfloat16"}],
    ids=str,
)
def test_transformers_agrees_with_the_oracle(options: dict[str, Any], relative_error: Measure) -> None:
    pytest.importorskip("transformers")
    call = made(batch=4, state_layout="KV", **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "hf"))
    active = ~expected["o"].isnan()
    assert relative_error(found["o"][active], expected["o"][active]) < ROUNDOFF["bfloat16"] + SUMS
    state_bound = ROUNDOFF[options.get("state_dtype", "float32")] + SUMS
    assert relative_error(found["state"], expected["state"]) < state_bound


@pytest.mark.parametrize("gate", ["raw", "bounded"])
def test_inputs_of_gates_become_gates_and_step_sizes(gate: str) -> None:
    call = made(batch=3, steps=2, gate=gate, beta_form="logit", beta=(0.1, 1.9), gate_span=(0.1, 300.0))
    converted = OPERATION.convert(call, {"gate": "log", "beta_form": "value"})
    OPERATION.validate(converted)
    assert not {"A_log", "dt_bias"} & converted.tensors.keys()
    assert "lower_bound" not in converted.scalars
    g, beta = converted.tensors["g"], converted.tensors["beta"]
    assert g.dtype == beta.dtype == torch.float32
    exact = log_decay(call)
    # fp32: with A_log < 3 and |x| < 40 some 8 roundings, each of which exp multiplies by up to 40.
    np.testing.assert_allclose(g.double().numpy(), exact, rtol=8 * 40 * 2**-24, atol=2**-126)
    wanted = 2 / (1 + np.exp(-call.tensors["beta"].double().numpy()))
    np.testing.assert_allclose(beta.double().numpy(), wanted, rtol=8 * 2**-24)


def test_the_gates_that_synth_makes_are_those_asked_for() -> None:
    """Raw and bounded inputs in fp32 give the log gates that the same seed makes, within their bound."""
    options: dict[str, Any] = {"batch": 4, "steps": 8, "head_dim": (16, 8), "gate_span": (1.0, 300.0)}
    wanted = made(**options).tensors["g"]
    raw = made(**options, gate="raw", gate_dtype="float32")
    bounded = made(**options, gate="bounded", gate_dtype="float32")
    # x = log(-g / rate) + ... is off by 2^-24 |x|, |x| < 30, which moves g by as much of itself.
    np.testing.assert_allclose(log_decay(raw), wanted.double().numpy(), rtol=64 * 2**-24)
    inside = (wanted > -4.9).numpy()
    assert inside.mean() > 0.5
    assert (~inside).any()
    np.testing.assert_allclose(log_decay(bounded)[inside], wanted.double().numpy()[inside], rtol=2**-14)
    assert (log_decay(bounded) >= -5).all()


LOG: dict[str, Any] = {"batch": 2, "head_dim": (8, 8)}
REFUSED: dict[str, tuple[Call, str]] = {
    "raw without A_log": (
        Call(
            {name: x for name, x in made(**LOG, gate="raw").tensors.items() if name != "A_log"},
            {},
            made(**LOG, gate="raw").conventions,
        ),
        "tensor A_log is missing; with gate raw its axes are [Hv]",
    ),
    "log with dt_bias": (
        changed(made(**LOG), {"dt_bias": torch.zeros(4, 8)}),
        "tensor dt_bias belongs to gate raw and bounded, not to log; leave it out",
    ),
    "bounded without a bound": (
        changed(made(**LOG, gate="bounded"), lower_bound=None),
        "scalar lower_bound is None; with gate bounded it must be below 0",
    ),
    "bounded by 1": (
        changed(made(**LOG, gate="bounded"), lower_bound=1.0),
        "scalar lower_bound is 1.0; with gate bounded it must be below 0",
    ),
    "raw with a bound": (
        changed(made(**LOG, gate="raw"), lower_bound=-5.0),
        "scalar lower_bound belongs to gate bounded, not to raw; leave it out",
    ),
    "a gate of a head": (
        changed(made(**LOG), {"g": torch.zeros(2, 1, 4)}),
        "g has shape [2, 1, 4], rank 3; its axes are [B, S, Hv, K]",
    ),
    "growth": (changed(made(**LOG), {"g": torch.full((2, 1, 4, 8), 0.5)}), "g[0, 0, 0, 0] is 0.5"),
    "beta of 3": (changed(made(**LOG), {"beta": torch.full((2, 1, 4), 3.0)}), "beta[0, 0, 0] is 3"),
    "beta_max of 3": (changed(made(**LOG), beta_max=3.0), "scalar beta_max is 3.0; it must be 1 or 2"),
    "a slot outside": (
        changed(made(**LOG), {"state_indices": torch.tensor([[0], [99]], dtype=torch.int32)}),
        "state_indices[1, 0] is 99",
    ),
    "one slot twice": (
        changed(made(**LOG), {"state_indices": torch.tensor([[1], [1]], dtype=torch.int32)}),
        "two sequences would race for that slot",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_a_call_that_breaks_the_contract_is_refused(call: Call, message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)) as refused:
        OPERATION.validate(call)
    assert str(refused.value).startswith("kda_decode: ")


@pytest.mark.parametrize(("name", "value"), [("gate", "raw"), ("gate", "bounded"), ("beta_form", "logit")])
def test_gates_cannot_become_their_inputs(name: str, value: str) -> None:
    with pytest.raises(ContractError, match=f"convention {name} cannot go from"):
        OPERATION.convert(made(**LOG), {name: value})
