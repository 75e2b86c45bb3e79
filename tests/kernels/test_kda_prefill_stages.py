# SPDX-License-Identifier: Apache-2.0
"""Stages of kda_prefill: formulas and roundings of the same-dtype kernel, chunk by chunk against numpy, and
the limits of the inverse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench_kernels.chunks import gather_chunks
from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_prefill.chunked import ChunkedPrefill, invert, published_stages
from gdnbench_kernels.kda_prefill import stage_rules
from gdnbench_kernels.kda_prefill.chunked import inputs_of
from gdnbench_kernels.kda_prefill.contract import OPERATION
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.kda_prefill.steps import EXACT_STEPS, TORCH_STEPS
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import EXACT
from gdnbench_kernels.run import run_kernel, run_step

Array = NDArray[np.float64]

ROUNDOFF = 2**-8  # bf16
# An exponent below 8 in fp32 differs from fp64's by its own rounding and that of g_cu, both under 2^-21 here;
# a sum of 16 or 32 products in fp32 by at most 32 * 2^-24 of the sum of their sizes.
SUMS = 64 * 2**-24


def bf16(x: Array) -> Array:
    """Rounded to bf16 as ml_dtypes does it, from fp32 as a kernel holds it."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def assert_stored(found: Array, exact: Array, terms: Array | float = 0.0, share: float = 1.0) -> None:
    """`found` is `exact` rounded once to bf16; `terms` bounds the sizes summed up to get it.

    `share` of the elements must be so. It is less than 1 where an operand of `exact` was itself rounded to
    bf16 from a value whose last fp32 bit is uncertain: of 16 or 32 operands one in a thousand (32 * 2^-24 /
    2^-8, and as much again for the exponential) then goes to the other neighbour, which a few elements
    notice.
    """
    allowed = ROUNDOFF * np.abs(exact) + SUMS * (np.abs(exact) + terms)
    excess = np.abs(found - exact) - allowed
    worst = np.unravel_index(excess.argmax(), exact.shape)
    assert (excess <= 0).mean() >= share, (worst, found[worst], exact[worst], (excess <= 0).mean())


def decayed(x: Array, k: Array, g_cu: Array, rounded: bool) -> tuple[Array, Array]:
    """sum_c x_i[c] exp(g_cu[i, c] - g_cu[j, c]) k_j[c] for i >= j, by pairs of rows, and the same of the
    sizes of the terms. `rounded`: the product of x_i and the exponential is stored in bf16 first."""
    n = len(x)
    sums, sizes = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            row = x[i] * np.exp(g_cu[i] - g_cu[j])
            row = bf16(row) if rounded else row
            sums[i, j], sizes[i, j] = row @ k[j], np.abs(row) @ np.abs(k[j])
    return sums, sizes


@pytest.fixture(scope="module")
def call() -> Call:
    # H 2, Hv 4, three chunks of which two are not full, a sequence without tokens between them.
    options: dict[str, Any] = {"seqlens": (20, 0, 5), "head_dim": (32, 16), "key_correlation": 0.5}
    return OPERATION.synth(**options, heads=(2, 4), initial_state=True, gate_span=(0.1, 30.0), seed=3)


@pytest.fixture(scope="module")
def stages(call: Call) -> dict[str, Tensor]:
    filled: dict[str, Tensor] = {}
    run_kernel(OPERATION, "torch", call, filled)
    return filled


CHUNKS = [(0, 0, 16, 0), (1, 16, 20, 0), (2, 20, 25, 2)]  # chunk, first token, end, sequence


def of(call: Call, name: str, start: int, stop: int, head: int) -> Array:
    """Rows of one chunk of one value head; value heads 0, 1 use key head 0, and 2, 3 use key head 1."""
    column = head // 2 if name in ("q", "k") else head
    return call.tensors[name][start:stop, column].double().numpy()


def test_stage_shapes_and_dtypes(call: Call, stages: dict[str, Tensor]) -> None:
    sizes = {"T": 25, "UB": 4, "Hv": 4, "C": 16, "V": 16, "K": 32, "UB*C": 64}  # UB = 2 + ceil(23 / 16)
    assert list(stages) == [stage.tensor.name for stage in OPERATION.stages]
    for stage in OPERATION.stages:
        tensor = stages[stage.tensor.name]
        assert tuple(tensor.shape) == tuple(sizes[axis] for axis in stage.tensor.axes)
        assert tensor.dtype == (torch.float32 if stage.rounded_to == "float32" else torch.bfloat16)


@pytest.mark.parametrize("head", range(4))
@pytest.mark.parametrize(("chunk", "start", "stop", "sequence"), CHUNKS)
def test_stages_follow_from_one_another(
    call: Call, stages: dict[str, Tensor], chunk: int, start: int, stop: int, sequence: int, head: int
) -> None:
    """Each stage is judged on the stored stages before it, so that errors do not add up."""
    n = stop - start
    q, k, v = (of(call, name, start, stop, head) for name in ("q", "k", "v"))
    beta = of(call, "beta", start, stop, head)
    rows = slice(16 * chunk, 16 * chunk + n)
    g_cu = stages["g_cu"][start:stop, head].double().numpy()
    a, ai, p = (stages[name][chunk, head, :n, :n].double().numpy() for name in ("A", "Ai", "P"))
    u, w, v_new = (stages[name][rows, head].double().numpy() for name in ("U", "W", "V_new"))
    h = stages["h"][chunk, head].double().numpy()

    # Sequential fp32 sum of at most 16 terms.
    np.testing.assert_allclose(
        g_cu, np.cumsum(of(call, "g", start, stop, head), axis=0), rtol=16 * 2**-24, atol=0
    )
    # One of 32 decayed products may have gone to the other neighbour, 2^-7 of it: see `assert_stored`.
    sums, sizes = decayed(k, k, g_cu, rounded=True)
    assert_stored(a, np.tril(beta[:, None] * sums, -1), sizes, share=0.95)
    inverse = np.linalg.inv(np.eye(n) + a)
    assert_stored(
        ai, inverse, 16 * 2**-53 / SUMS * (np.abs(inverse) @ (np.eye(n) + np.abs(a)) @ np.abs(inverse))
    )
    assert not np.triu(a).any()
    assert not np.triu(ai, 1).any()
    ai_beta, keys = bf16(ai * beta), bf16(k * np.exp(g_cu))
    assert_stored(u, ai_beta @ v, np.abs(ai_beta) @ np.abs(v))
    assert_stored(w, ai_beta @ keys, np.abs(ai_beta) @ np.abs(keys), share=0.98)
    assert_stored(v_new, u - w @ h.T, np.abs(u) + np.abs(w) @ np.abs(h).T)
    sums, sizes = decayed(q, k, g_cu, rounded=True)
    assert_stored(p, sums, sizes, share=0.95)


@pytest.mark.parametrize("head", range(4))
def test_state_before_each_chunk(call: Call, stages: dict[str, Tensor], head: int) -> None:
    h = stages["h"][:3, head].double().numpy()
    first = call.tensors["initial_state"][:, head].double().numpy()
    np.testing.assert_array_equal(h[0], bf16(first[0]))
    np.testing.assert_array_equal(h[2], bf16(first[2]))
    k, g_cu = of(call, "k", 0, 16, head), stages["g_cu"][:16, head].double().numpy()
    keys = bf16(k * np.exp(g_cu[-1] - g_cu))
    v_new = stages["V_new"][:16, head].double().numpy()
    exact = first[0] * np.exp(g_cu[-1]) + v_new.T @ keys
    assert_stored(h[1], exact, np.abs(v_new).T @ np.abs(keys), share=0.98)


def test_oracle_stages_satisfy_the_formulas(call: Call) -> None:
    stages: dict[str, Tensor] = {}
    run_kernel(OPERATION, "reference_staged", call, stages)
    assert {tensor.dtype for tensor in stages.values()} == {torch.float64}
    q, k, v, beta = (of(call, name, 0, 16, 3) for name in ("q", "k", "v", "beta"))
    g_cu = np.cumsum(of(call, "g", 0, 16, 3), axis=0)
    a = np.tril(beta[:, None] * decayed(k, k, g_cu, rounded=False)[0], -1)
    ai = np.linalg.inv(np.eye(16) + a)
    first = call.tensors["initial_state"][0, 3].double().numpy()
    u, w = (ai * beta) @ v, (ai * beta) @ (np.exp(g_cu) * k)
    v_new = u - w @ first.T
    after = first * np.exp(g_cu[-1]) + v_new.T @ (k * np.exp(g_cu[-1] - g_cu))
    p = decayed(q, k, g_cu, rounded=False)[0]
    expected = {"g_cu": g_cu, "A": a, "Ai": ai, "U": u, "W": w, "V_new": v_new, "P": p}
    for name, array in expected.items():
        found = stages[name][:16, 3] if name in ("g_cu", "U", "W", "V_new") else stages[name][0, 3]
        # fp64 sums of at most 32 terms over a 16-row substitution.
        np.testing.assert_allclose(found.numpy(), array, rtol=0, atol=16 * 32 * 2**-53 * np.abs(array).max())
    np.testing.assert_allclose(stages["h"][0, 3].numpy(), first)
    np.testing.assert_allclose(stages["h"][1, 3].numpy(), after, atol=16 * 32 * 2**-53 * np.abs(after).max())


@pytest.mark.parametrize("kernel", ["torch", "reference_staged"])
def test_steps_one_after_another_are_the_kernel(call: Call, kernel: str) -> None:
    stages: dict[str, Tensor] = {}
    whole = run_kernel(OPERATION, kernel, call, stages)
    made: dict[str, Tensor] = {}
    for step in TORCH_STEPS if kernel == "torch" else EXACT_STEPS:
        made |= run_step(OPERATION, step, call, {name: made[name] for name in step.takes})
    assert made.keys() == {**stages, **whole}.keys()
    for name, expected in {**stages, **whole}.items():
        torch.testing.assert_close(made[name], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("chunk_size", [1, 16, 64, 100])
def test_chunk_size_does_not_change_the_oracle(call: Call, chunk_size: int, relative_error: Any) -> None:
    expected = run_kernel(OPERATION, "reference", call)
    other = Call(call.tensors, {**call.scalars, "chunk_size": chunk_size}, call.conventions)
    found = run_kernel(OPERATION, "reference_staged", other)
    assert relative_error(found["o"], expected["o"]) < 2e-12  # as in test_kda_prefill


class Design(ChunkedPrefill):
    """The oracle's chunked form, with operands of A in one dtype, A and Ai in another, and Ai beta and U in
    bf16."""

    def __init__(self, call: Call, operands: torch.dtype, stored: torch.dtype) -> None:
        params = from_call(KdaPrefillParams, {**call.tensors, **call.scalars, **call.conventions})
        super().__init__(inputs_of(params), EXACT)
        self.operands, self.stored = operands, stored

    def form_a(self) -> None:
        """k_i exp(g_cu[i]) times k_j exp(-g_cu[j]), both rounded: the form of kernels that multiply matrices,
        for gates that sum to more than -88."""
        g_cu, rows = self.stages["g_cu"], self.plan.part(0, self.plan.total)
        assert float(g_cu.min()) > -88
        beta = gather_chunks(self.inputs.beta.double(), *rows)
        left, right = ((self.k * (sign * g_cu).exp()).to(self.operands).double() for sign in (1, -1))
        a = (beta.unsqueeze(-1) * (left @ right.mT)).tril(-1)
        self.stages["A"] = a.to(self.stored).double()

    def invert(self) -> None:
        self.stages["Ai"] = invert(self.stages["A"], EXACT).to(self.stored).double()

    def form_uw(self) -> None:
        rows = self.plan.part(0, self.plan.total)
        beta, v = (gather_chunks(x.double(), *rows) for x in (self.inputs.beta, self.inputs.v))
        ai_beta = (invert(self.stages["A"], EXACT) * beta.unsqueeze(-2)).bfloat16().double()
        self.stages["U"] = (ai_beta @ v).bfloat16().double()

    def shown(self) -> dict[str, Tensor]:
        self.sum_gates()
        self.form_a()
        self.invert()
        self.form_uw()
        found = published_stages(self, ("g_cu", "A", "Ai", "U"))
        return {**found, "g_cu": found["g_cu"].float(), "U": found["U"].bfloat16()}


def failing(call: Call, found: dict[str, Tensor]) -> list[str]:
    """The stages of `found` that are not within their bounds and limits."""
    return [one.tensor for one in judge_stages(OPERATION, call, found, Bound()) if not one.passed]


HARD = [
    {"key_correlation": correlation, "gate_span": span, "beta": beta}
    for correlation in (0.0, 0.9, 1.0)
    for span in (0.06, (0.1, 100.0))
    for beta in (1.0, (0.0, 1.0), 2.0)
]


@pytest.mark.every(3)
@pytest.mark.parametrize("chunk_size", [16, 64])
@pytest.mark.parametrize("options", HARD, ids=str)
def test_a_kernel_with_decayed_keys_in_bf16_and_a_in_fp16_keeps_its_limits(
    options: dict[str, Any], chunk_size: int
) -> None:
    """Chunks of 64 tokens, of which gates of a wide span leave no exp(-g_cu), only with slow gates."""
    if chunk_size == 64 and options["gate_span"] != 0.06:
        options = {**options, "gate_span": (0.1, 20.0)}
    call = OPERATION.synth(seqlens=(64, 2, 9), heads=(1, 2), seed=3, **options)
    call = stage_rules.with_rounded_sums(
        Call(call.tensors, {**call.scalars, "chunk_size": chunk_size}, call.conventions)
    )
    assert failing(call, Design(call, torch.bfloat16, torch.float16).shown()) == []


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_a_kernel_with_a_in_bf16_is_beyond_its_limits(beta: float) -> None:
    call = OPERATION.synth(seqlens=(64,), heads=(1, 2), key_correlation=1.0, gate_span=0.06, beta=beta)
    call = stage_rules.with_rounded_sums(call)
    assert "Ai" in failing(call, Design(call, torch.bfloat16, torch.bfloat16).shown())


def test_an_exponent_that_is_off_by_one_token_is_beyond_the_limit_of_a() -> None:
    """Alike keys and slow gates, where A is hardly decayed: 1e-2 of it is the token too much."""
    call = OPERATION.synth(seqlens=(64,), heads=(1, 2), key_correlation=0.9, gate_span=2.0)
    call = stage_rules.with_rounded_sums(call)
    design = Design(call, torch.float64, torch.float64)
    design.sum_gates()
    right = design.stages["g_cu"]
    design.stages["g_cu"] = torch.cat([right[:, :, 1:], right[:, :, -1:]], dim=2)
    design.form_a()
    assert failing(call, published_stages(design, ("A",))) == ["A"]


def test_a_leeway_of_a_is_that_of_two_rounded_operands() -> None:
    """Errors of a product of rounded rows have the deviation that the leeway assumes, or less: a rounding to
    bf16 is off by u / sqrt(3) where a significand is 1, and by half of that near 2."""
    call = OPERATION.synth(seqlens=(320,), heads=(1, 1), gate_span=(0.1, 100.0), beta=1.0)
    call = stage_rules.with_rounded_sums(call)
    exact: dict[str, Tensor] = {}
    run_kernel(OPERATION, "reference_staged", call, exact)
    leeway = stage_rules.stage_leeway(call, "A", exact)
    assert leeway is not None
    design = Design(call, torch.bfloat16, torch.float64)
    design.sum_gates()
    design.form_a()
    found = published_stages(design, ("A",))["A"]
    below = leeway > 0
    errors = ((found - exact["A"])[below] / (leeway[below] / stage_rules.DEVIATIONS)).double()
    assert below.sum() == 20 * 120
    assert 0.5 < float(errors.square().mean().sqrt()) < 1.0
    assert float(errors.abs().max()) < stage_rules.DEVIATIONS
