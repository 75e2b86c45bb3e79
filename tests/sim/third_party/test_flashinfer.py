# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's Gated DeltaNet decode, its tcgen05 (tf32) commit of speculated tokens, and its Kimi Delta
Attention prefill, against float64."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from tests.messages import wording
from tests.sim.third_party.apart import Apart, apart

D = 128
NULL_SLOT = -1

# One sum in float32 of 128 terms, in any order, relative to the sum of their absolute values: 128 roundings
# of 2^-24, 16 more on the way to a term, and approximate exponentials, logarithms and roots, each within
# 2^-22: three behind a term, and two in the gate's exponent, whose error counts as often as the exponent is
# large (below 4.5 for these inputs: exp(a_log) softplus(a + dt_bias)). (128 + 16) 2^-24 + 12 2^-22.
F32 = 192 * 2.0**-24
# A float32 operand of a tf32 product loses 13 bits, at most 2^-10 relative, two operands a product.
TF32 = 2 * 2.0**-10 + 2.0**-20
BF16 = 2.0**-8


@pytest.fixture(scope="module")
def flashinfer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    yield from apart("flashinfer", "flashinfer_cases", tmp_path_factory.mktemp("flashinfer"))


def _normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_gdn_decode(flashinfer: Apart) -> None:
    batch, heads, value_heads, scale = 2, 2, 4, D**-0.5
    bf16 = torch.bfloat16
    given = {
        "state": _normal(1, batch * value_heads, D, D),
        "a_log": 0.3 * _normal(2, value_heads),
        "a": _normal(3, batch, 1, value_heads).to(bf16),
        "dt_bias": 0.3 * _normal(4, value_heads),
        "q": _normal(5, batch, 1, heads, D).to(bf16),
        "k": _normal(6, batch, 1, heads, D).to(bf16),
        "v": _normal(7, batch, 1, value_heads, D).to(bf16),
        "b": _normal(8, batch, 1, value_heads).to(bf16),
        "out": torch.full((batch, 1, value_heads, D), torch.nan, dtype=bf16),
    }
    ran = flashinfer.run("decode", {**given, "scale": scale})

    exact = {name: tensor.double() for name, tensor in given.items()}
    state = exact["state"].view(batch, value_heads, D, D)
    rate = exact["a_log"].exp() * torch.nn.functional.softplus(exact["a"][:, 0] + exact["dt_bias"])
    assert rate.max() < 4.5
    gate = (-rate).exp()[..., None, None]
    beta = exact["b"][:, 0].sigmoid()[..., None]
    q, k = (_unit(exact[name][:, 0]).repeat_interleave(value_heads // heads, 1) for name in "qk")
    v = exact["v"][:, 0]
    update = beta * (v - (gate * state @ k[..., None])[..., 0])
    after = gate * state + update[..., None] * k[..., None, :]
    out = (after @ q[..., None])[..., 0] * scale

    # Errors grow with the sums of absolute values that the results are made of.
    update_size = beta * (v.abs() + (gate * state.abs() @ k.abs()[..., None])[..., 0])
    size = gate * state.abs() + update_size[..., None] * k.abs()[..., None, :]
    out_size = (size @ q.abs()[..., None])[..., 0] * scale
    error = (ran.tensors["state"].double().view_as(after) - after).abs()
    assert (error <= F32 * size).all()
    out_error = (ran.tensors["out"].double()[:, 0] - out).abs()
    # A sum over the state, whose terms are sums themselves; then one rounding to bf16.
    summed = 2 * F32 * out_size
    assert (out_error <= summed + BF16 * (out.abs() + summed)).all()


@pytest.mark.slow  # a large kernel
def test_tcgen05_fold(flashinfer: Apart) -> None:
    """Four sequences commit 3, 8 and 0 tokens in two layers; one has no slot. Rejected tokens are NaN."""
    layers, slots, heads, value_heads, length = 2, 5, 1, 2, 8
    flat = layers * slots
    accepted = [3, 8, 0, 5]
    chosen = [4, 0, 2, NULL_SLOT]
    state = _normal(1, flat, value_heads, D, D)
    rawv = _normal(2, flat, value_heads, length, D).to(torch.bfloat16)
    rawk = _normal(3, flat, heads, length, D).to(torch.bfloat16)
    log_g = -_normal(4, flat, value_heads, length).abs()
    beta = torch.sigmoid(_normal(5, flat, value_heads, length))
    for slot, count in zip(chosen, accepted, strict=True):
        for layer in range(layers if slot != NULL_SLOT else 0):
            for tensor in (rawv, rawk):
                tensor[layer * slots + slot, :, count:] = torch.nan
            for tensor in (log_g, beta):
                tensor[layer * slots + slot, :, count:] = torch.nan
    given = {
        "state": state.clone(),
        "rawv": rawv,
        "rawk": rawk,
        "log_g": log_g,
        "beta": beta,
        "slots": torch.tensor(chosen, dtype=torch.int32),
        "accepted": torch.tensor(accepted, dtype=torch.int32),
        "layers": layers,
    }
    left = flashinfer.run("fold", given).tensors["state"]

    untouched = torch.ones(flat, dtype=torch.bool)
    for slot, count in zip(chosen, accepted, strict=True):
        if slot == NULL_SLOT or count == 0:
            continue
        for layer in range(layers):
            place = layer * slots + slot
            untouched[place] = False
            for head in range(value_heads):
                tokens = (rawv[place, head, :count], rawk[place, 0, :count])
                gates = (log_g[place, head, :count], beta[place, head, :count])
                expected, bound = _folded(state[place, head], *tokens, *gates)
                assert ((left[place, head].double() - expected).abs() <= bound).all()
    assert torch.equal(left[untouched], state[untouched])


@pytest.mark.slow  # the interpreter; the compiled engine runs it in the next test
def test_tcgen05_fold_in_both_engines(flashinfer: Apart) -> None:
    """The kernel shuffles what tcgen05.ld loads and has no tcgen05.wait::ld: the PTX ISA orders that."""
    layers, slots, value_heads, length = 1, 2, 1, 8
    given = {
        "state": _normal(11, layers * slots, value_heads, D, D),
        "rawv": _normal(12, layers * slots, value_heads, length, D).to(torch.bfloat16),
        "rawk": _normal(13, layers * slots, 1, length, D).to(torch.bfloat16),
        "log_g": -_normal(14, layers * slots, value_heads, length).abs(),
        "beta": torch.sigmoid(_normal(15, layers * slots, value_heads, length)),
        "slots": torch.tensor([1, NULL_SLOT], dtype=torch.int32),
        "accepted": torch.tensor([5, 8], dtype=torch.int32),
        "layers": layers,
    }
    ran = {name: flashinfer.run("fold", {**given, "engine": name}) for name in ("compiled", "interpreter")}
    fast, slow = (outcome.tensors["state"] for outcome in ran.values())
    assert not torch.equal(fast, given["state"])
    assert torch.equal(fast, slow)
    assert re.search(wording("sim.interpreter.register-before-wait"), ran["interpreter"].report)


@pytest.mark.slow  # its two kernels have 14,000 lines of PTX
def test_kda_prefill(flashinfer: Apart) -> None:
    """Two chunks of 64 tokens, the second not full, on two multiprocessors for four tiles."""
    tokens, heads, lower_bound = 100, 2, -5.0
    q, k, v, g = (_normal(seed, 1, tokens, heads, D).to(torch.bfloat16) for seed in range(20, 24))
    given = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": _normal(24, 1, tokens, heads).to(torch.bfloat16),
        "dt_bias": 0.1 * _normal(25, heads, D),
        "a_log": 0.1 * _normal(26, heads),
        "out": torch.full_like(v, torch.nan),
        "state": torch.full((1, heads, D, D), torch.nan),
        "lower_bound": lower_bound,
        "sms": 2,
    }
    ran = flashinfer.run("kda_prefill", given)
    exact = {
        name: tensor.double()[0] for name, tensor in given.items() if name in ("q", "k", "v", "g", "beta")
    }
    rate = given["a_log"].double().exp()[:, None] * (exact["g"] + given["dt_bias"].double())
    gate = (lower_bound * rate.sigmoid()).exp()
    state = torch.zeros(heads, D, D, dtype=torch.float64)  # [K, V]
    out = torch.zeros(tokens, heads, D, dtype=torch.float64)
    for token in range(tokens):
        query, key = _unit(exact["q"][token]), _unit(exact["k"][token])
        state = gate[token][..., None] * state
        new = exact["v"][token] - (key[:, None] @ state)[:, 0]
        state = state + key[..., None] * (exact["beta"][token].sigmoid()[:, None] * new)[:, None]
        out[token] = D**-0.5 * (query[:, None] @ state)[:, 0]
    # Between its kernels it keeps gated q and k, two of k, and the inverse and q k products of a chunk in
    # bf16, and rounds its result: seven independent roundings behind an element, each within BF16 / 2 of it,
    # of which a norm sees about their root of squares.
    bound = 7**0.5 * BF16 / 2
    for name, expected in (("out", out[None]), ("state", state.mT[None])):
        assert (ran.tensors[name].double() - expected).norm() <= bound * expected.norm()
    # The first kernel takes one tile after another; the second halves its tiles only if they are too few.
    assert ran.report == "[(1, 1, 2), (1, 2, 1)]"


@pytest.mark.slow  # each compiles for half a minute
@pytest.mark.parametrize(
    ("mode", "grids"), [("engine", "[(1, 1, 1), (2, 2, 1)]"), ("decomp", "[(2, 2, 1), (2, 4, 1)]")]
)
def test_kda_tcgen05(mode: str, grids: str, flashinfer: Apart) -> None:
    """By the package's own comparison, with its tolerances for bf16. Tokens times heads are a multiple of 8:
    its copy of beta reads past the end otherwise."""
    lengths, heads = [20, 36], 2
    out = torch.full((1, sum(lengths), heads, D), torch.nan, dtype=torch.bfloat16)
    state = torch.full((len(lengths), heads, D, D), torch.nan)
    tensors = {"out": out, "state": state, "out_wanted": out.clone(), "state_wanted": state.clone()}
    ran = flashinfer.run("kda_packed", {"mode": mode, "lengths": lengths, "heads": heads, **tensors})
    for name in ("out", "state"):
        torch.testing.assert_close(
            ran.tensors[name], ran.tensors[f"{name}_wanted"], rtol=1e-2, atol=1e-2, check_dtype=False
        )
    assert ran.report == grids


def _unit(k: torch.Tensor) -> torch.Tensor:
    return k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def _folded(
    state: torch.Tensor, v: torch.Tensor, k: torch.Tensor, log_g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after the tokens in float64, and how far the kernel may be from it.

    The kernel forms S0 k in tf32 and runs the recurrence on the coefficients of the keys in float32. `wrong`
    carries the error of those coefficients the way the recurrence carries the coefficients: prediction errors
    times beta.
    """
    first, k = state.double(), _unit(k.double())
    state = first.clone()
    wrong: list[torch.Tensor] = []
    size = state.abs()
    decay = torch.ones((), dtype=torch.float64)
    for step in range(len(k)):
        gate = log_g[step].double().exp()
        decay = decay * gate
        state = gate * state
        size = gate * size
        wrong = [gate * error for error in wrong]
        update = beta[step].double() * (v[step].double() - state @ k[step])
        prediction = TF32 * decay * (first.abs() @ k[step].abs())
        prediction += sum((error * (k[j] @ k[step]).abs() for j, error in enumerate(wrong)), torch.zeros(D))
        update_size = beta[step].double() * (v[step].double().abs() + size @ k[step].abs())
        wrong.append(beta[step].double() * prediction + F32 * update_size)
        state = state + update[:, None] * k[step]
        size = size + update_size[:, None] * k[step].abs()
    error = sum((error[:, None] * k[j].abs() for j, error in enumerate(wrong)), F32 * size)
    return state, error
