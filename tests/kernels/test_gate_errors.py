# SPDX-License-Identifier: Apache-2.0
"""The leeway of approximate instructions: its bounds hold for an H200's functions and for the worst that the
PTX ISA allows and are not far above; right kernels of Kimi Delta Attention that use them pass, and faults of
those kernels fail."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.judge.record import judge_call
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench_kernels import gate_errors
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION as GDN
from gdnbench_kernels.kda_decode.contract import OPERATION as DECODE
from gdnbench_kernels.kda_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.kernels.approximate_functions import H200, WORST, Functions
from tests.kernels.approximate_kda import Kernel
from tests.seeds import drawn, fresh

FUNCTIONS = {"an H200's": H200, "the worst allowed": WORST}
SEEDS = [drawn("approximate"), fresh(drawn("approximate, fresh"))]
OF_ROUNDING = 2.0**-24


def numbers(low: float, high: float, seed: int = 0) -> Tensor:
    """Arguments in float32, even over the range and dense near 0."""
    generator = torch.Generator().manual_seed(seed)
    even = low + (high - low) * torch.rand(20000, generator=generator)
    return torch.cat([even, even * 2.0**-8]).float()


def checked(found: Tensor, exact: Tensor, bound: Tensor | float, least: float) -> None:
    """`found` is within `bound` of `exact`, and comes as close to it as `least` of it."""
    shares = ((found.double() - exact).abs() / bound).nan_to_num(0.0)
    assert float(shares.max()) <= 1.0
    assert float(shares.max()) >= least


# An H200 errs by less than the ISA allows, and the parts of a bound have their largest errors at different
# arguments. A bound ten times as large as needed would fail here.
@pytest.mark.parametrize(("functions", "least"), [(H200, 0.3), (WORST, 0.5)], ids=list(FUNCTIONS))
class TestBounds:
    def test_softplus(self, functions: Functions, least: float) -> None:
        x, bias = numbers(-30, 30), numbers(-8, 1, seed=1)
        exact = torch.logaddexp(x.double() + bias.double(), torch.zeros(1, dtype=torch.float64))
        checked(functions.softplus(x + bias), exact, gate_errors.softplus_error(exact), least)

    def test_raw_gates(self, functions: Functions, least: float) -> None:
        x, log_rate = numbers(-20, 20), numbers(-1, 3, seed=1)
        rate = log_rate.double().exp()
        exact = rate * torch.logaddexp(x.double(), torch.zeros(1, dtype=torch.float64))
        bound = gate_errors.raw_gate_error(exact, log_rate.double())
        checked(functions.exp(log_rate) * functions.softplus(x), exact, bound, least)

    def test_step_sizes(self, functions: Functions, least: float) -> None:
        b = numbers(-40, 40)
        exact = b.double().sigmoid()
        checked(functions.sigmoid(b), exact, exact * gate_errors.sigmoid_error(exact), least)

    def test_bounded_gates(self, functions: Functions, least: float) -> None:
        x, bias, log_rate = numbers(-6, 6), numbers(-8, 1, seed=1), numbers(-1, 3, seed=2)
        exact = 5 * (log_rate.double().exp() * (x.double() + bias.double())).sigmoid()
        bound = gate_errors.bounded_gate_error(exact, -5.0, log_rate.double())
        found = 5 * functions.sigmoid(functions.exp(log_rate) * (x + bias))
        kept = exact > 1e-30  # ftz below, where alpha is 1 all the same
        checked(found[kept], exact[kept], bound[kept], 0.2)

    def test_norms(self, functions: Functions, least: float) -> None:
        x = torch.randn(2000, 128, generator=torch.Generator().manual_seed(0))
        exact = x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
        checked(functions.normalise(x), exact, exact.abs() * gate_errors.norm_error(128), least)

    def test_exponentials(self, functions: Functions, least: float) -> None:
        g = -numbers(0, 60).abs()
        exact = g.double().exp()
        checked(functions.exp(g), exact, exact * gate_errors.decay_error(g.double().abs()), least)


GATES: dict[str, dict[str, Any]] = {
    "raw": {"gate": "raw", "beta_form": "logit", "qk": "raw", "gate_span": (0.05, 200.0)},
    "raw, slow": {"gate": "raw", "beta_form": "logit", "qk": "raw", "gate_span": (1e-4, 1.0)},
    "bounded": {"gate": "bounded", "beta_form": "logit", "qk": "raw", "gate_span": (0.05, 200.0)},
    "log, beta to 2": {"qk": "raw", "beta": (0.0, 2.0), "gate_span": (0.05, 200.0)},
    "raw, beta to 2, bf16 bias": {
        "gate": "raw",
        "beta_form": "logit",
        "beta": (0.0, 2.0),
        "dt_bias_dtype": "bfloat16",
    },
}
FP32 = {"dtype": "float32", "state_dtype": "float32"}
DTYPES: dict[str, dict[str, Any]] = {
    "served": {"state_dtype": "float32"},
    "bf16 states": {"state_dtype": "bfloat16"},
    "fp32 activations": FP32,
}


def decode_call(seed: int, **options: Any) -> Call:
    return DECODE.synth(batch=4, heads=(2, 4), head_dim=(64, 32), seed=seed, **options)


def prefill_call(seed: int, **options: Any) -> Call:
    return PREFILL.synth(
        seqlens=(21, 3), heads=(1, 2), head_dim=(64, 32), initial_state=True, seed=seed, **options
    )


OPERATIONS: dict[str, tuple[Any, Callable[..., Call], Callable[[Kernel, Call], dict[str, Tensor]]]] = {
    "kda_decode": (DECODE, decode_call, Kernel.decode),
    "kda_prefill": (PREFILL, prefill_call, Kernel.prefill),
}


def failures(op: str, kernel: Kernel, seed: int, **options: Any) -> list[str]:
    """The outputs that the judge fails, with the first reason."""
    operation, made, run = OPERATIONS[op]
    call = made(seed, **options)
    results = judge_call(operation, call, run(kernel, call), Bound(), {})
    return [f"{one.tensor}: {one.reasons[0]}" for one in results if not one.passed]


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=list(FUNCTIONS))
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("gates", GATES.values(), ids=list(GATES))
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_right_kernel_of_approximate_functions_passes(
    op: str, gates: dict[str, Any], dtypes: dict[str, Any], functions: Functions, seed: int
) -> None:
    assert failures(op, Kernel(functions), seed, **gates, **dtypes) == []


@pytest.mark.parametrize("op", OPERATIONS)
def test_without_the_leeway_it_would_fail(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, made, run = OPERATIONS[op]
    monkeypatch.setitem(OPERATIONS, op, (replace(operation, leeway=lambda call, output: None), made, run))
    assert failures(op, Kernel(H200), 0, **GATES["raw"], **FP32)


RAW, BOUNDED = GATES["raw"], GATES["bounded"]


def fast_gates(call: Call, seed: int) -> Call:
    """The call with x + dt_bias in [4, 9) and rates of 0.1: softplus is almost linear there, and the decays
    are not small."""
    g, bias = call.tensors["g"], call.tensors["dt_bias"]
    x = 4 + 5 * torch.rand(g.shape, generator=torch.Generator().manual_seed(seed))
    changed = {"g": (x - bias).to(g.dtype), "A_log": torch.full_like(call.tensors["A_log"], math.log(0.1))}
    return Call({**call.tensors, **changed}, call.scalars, call.conventions)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_softplus_that_is_linear_above_5_fails(op: str, seed: int) -> None:
    operation, made, run = OPERATIONS[op]
    call = fast_gates(made(seed, **RAW, **FP32), seed)
    for linear_above, passes in ((20.0, True), (5.0, False)):
        results = judge_call(operation, call, run(Kernel(H200, linear_above=linear_above), call), Bound(), {})
        assert all(one.passed for one in results) is passes


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "raw gates 1e-3 too large": ({"gate_factor": 1.001}, RAW),
    "bounded gates 1e-3 too large": ({"gate_factor": 1.001}, BOUNDED),
    "lower_bound of -4.9": ({"bound_factor": 0.98}, BOUNDED),
    "beta 0.5 % too large": ({"beta_factor": 1.005}, RAW),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("fault", "gates"), FAULTS.values(), ids=list(FAULTS))
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_fault_of_that_kernel_fails(
    op: str, fault: dict[str, Any], gates: dict[str, Any], seed: int
) -> None:
    assert failures(op, replace(Kernel(H200), **fault), seed, **gates, **FP32)


def judged_sums(kernel: Kernel, call: Call) -> TensorResult:
    """The verdict on g_cu, summed in float32 in chunks of 16 tokens from the kernel's gates."""
    g = kernel.gate_factor * kernel.gate(call.tensors, call.conventions, call.scalars)
    bounds = call.tensors["cu_seqlens"].tolist()
    sequences = [g[start:stop] for start, stop in pairwise(bounds)]
    sums = torch.cat([chunk.cumsum(0) for one in sequences for chunk in one.split(16)])
    (result,) = judge_stages(PREFILL, call, {"g_cu": sums}, Bound())
    return result


SUMS = {name: GATES[name] for name in ("raw", "raw, slow", "bounded", "raw, beta to 2, bf16 bias")}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("functions", FUNCTIONS.values(), ids=list(FUNCTIONS))
@pytest.mark.parametrize("gates", SUMS.values(), ids=list(SUMS))
def test_sums_of_gates_of_approximate_functions_pass(
    gates: dict[str, Any], functions: Functions, seed: int
) -> None:
    assert judged_sums(Kernel(functions), prefill_call(seed, **gates)).reasons == ()


def test_sums_of_gates_need_the_leeway(monkeypatch: pytest.MonkeyPatch) -> None:
    call = prefill_call(0, **SUMS["raw, slow"])
    assert judged_sums(Kernel(H200), call).passed
    monkeypatch.setattr(
        sys.modules[__name__], "PREFILL", replace(PREFILL, stage_leeway=lambda call, stage, exact: None)
    )
    assert not judged_sums(Kernel(H200), call).passed


class Coarse(Functions):
    def softplus(self, x: Tensor, linear_above: float = 20.0) -> Tensor:
        """log(1 + exp(x)) with the sum rounded to 2^-19."""
        return ((1 + x.exp()) * 2.0**19).round().mul(2.0**-19).log()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gates", SUMS.values(), ids=list(SUMS))
def test_sums_of_wrong_gates_fail(gates: dict[str, Any], seed: int) -> None:
    call = prefill_call(seed, **gates)
    assert not judged_sums(Kernel(H200, gate_factor=1.0001), call).passed
    if gates["gate"] == "raw":
        assert not judged_sums(Kernel(Coarse(H200.ex2, H200.lg2, H200.rcp, H200.sqrt)), call).passed


@pytest.mark.parametrize("op", [DECODE, GDN], ids=["kda_decode", "gdn_decode"])
def test_the_leeway_of_a_state_is_a_few_units_of_fp32(op: Any) -> None:
    call = op.synth(batch=2, heads=(1, 2), gate="raw", qk="raw", seed=0)
    leeway, state = op.leeway(call, "state"), run_kernel(op, "reference", call)["state"]
    slots = call.tensors["state_indices"][:, 0].long()
    # Softplus errs by some 5 units of 2^-24 where it is small, exp(A_log) is 9 in the root mean square over
    # [1, 16), and the factor of independent errors is 4 / sqrt(3): 104 units; other terms have some 30.
    share = float(leeway[slots].square().mean().sqrt() / state[slots].square().mean().sqrt())
    assert OF_ROUNDING < share < 150 * OF_ROUNDING
