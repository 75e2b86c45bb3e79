# SPDX-License-Identifier: Apache-2.0
"""Errors of right kernels fall to those of double arithmetic, errors of wrong formulas stay.

Each kernel is CUDA C++ with a right form and a wrong one of a bug that others had. The reference is NumPy in
double. A right kernel's error must fall below 1e-12 of the largest number: sums of at most 64 terms, with
numbers up to 2^6 times larger in between, are 64 * 64 * 2^-53 = 5e-13 off. A wrong one keeps nine tenths of
its error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.judge.precision import Cause, Precision, precision_of
from gdnbench.sim import Fp64Shadows
from tests.sim.cuda_kernels import run, use_nvrtc

RIGHT = 1e-12

# Newton-Schulz of a unit lower triangular 16 x 16 matrix: X = X (2 - A X) from X = 2 - A is exact after three
# more rounds, since the strict part is nilpotent; vLLM #53864 had one round less.
INVERSE = r"""
extern "C" __global__ void inverse(const float *a, float *out, int rounds) {
  __shared__ float A[256], X[256], R[256];
  int t = threadIdx.x, i = t / 16, j = t % 16;
  A[t] = a[t];
  X[t] = (i == j ? 2.f : 0.f) - a[t];
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    float sum = i == j ? 2.f : 0.f;
    for (int k = 0; k < 16; ++k) sum -= A[i * 16 + k] * X[k * 16 + j];
    R[t] = sum;
    __syncthreads();
    sum = 0.f;
    for (int k = 0; k < 16; ++k) sum += X[i * 16 + k] * R[k * 16 + j];
    __syncthreads();
    X[t] = sum;
    __syncthreads();
  }
  out[t] = X[t];
}
"""

# A state S[d] = sum over tokens of exp(g_end - g_t) v_t[d] of a chunk of 64 that has n tokens. The bug reads
# g_end past the chunk's last token, where the sum of gates goes on.
STATE = r"""
extern "C" __global__ void state(const float *g, const float *v, float *out, int n, int end) {
  int d = threadIdx.x;
  float last = 0.f, sum = 0.f, total = 0.f;
  for (int t = 0; t <= end; ++t) last += g[t];
  for (int t = 0; t < n; ++t) {
    sum += g[t];
    total += __expf(last - sum) * v[t * 32 + d];
  }
  out[d] = total;
}
"""

# Scores of value heads with the key heads that they share; the bug takes head % keys for head / group.
HEADS = r"""
#include <cuda_bf16.h>
extern "C" __global__ void scores(const float *q, const float *k, float *out, int keys, int wrong) {
  int head = threadIdx.x, group = 32 / keys;
  int key = wrong ? head % keys : head / group;
  float sum = 0.f;
  for (int i = 0; i < 16; ++i) {
    __nv_bfloat16 x = __float2bfloat16(q[head * 16 + i] * 0.25f), y = __float2bfloat16(k[key * 16 + i] * 3.f);
    sum = fmaf(__bfloat162float(x), __bfloat162float(y), sum);
  }
  out[head] = tanhf(sum * 0.125f) + sum;
}
"""


@pytest.fixture(autouse=True)
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvrtc(monkeypatch)


@dataclass(frozen=True)
class Case:
    """A kernel: its output, and what it is to be."""

    out: torch.Tensor
    exact: np.ndarray


def judged(source: str, entry: str, block: int, arguments: list[object], case: Case) -> Precision:
    shadows = Fp64Shadows()
    with sim.active() as around, sim.active(replace(around.settings, watch=shadows)):
        run(source, entry, block, *arguments, engine="interpreter", check=False)
    fp64, shadowed = shadows.numbers(case.out)
    assert shadows.losses() == []
    exact = torch.from_numpy(case.exact)
    return precision_of("out", False, case.out.double(), fp64, shadowed, exact)


def random(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_right(found: Precision) -> None:
    assert found.cause is Cause.ROUNDING
    assert found.fp64_error <= RIGHT * found.size < found.error


def assert_wrong(found: Precision) -> None:
    assert found.cause is Cause.FORMULA
    assert found.fp64_error > 0.9 * found.error


@pytest.mark.parametrize(("rounds", "right"), [(3, True), (2, False)])
def test_rounds_of_newton_schulz(rounds: int, right: bool) -> None:
    a = (0.4 * random(16, 16)).tril(-1) + torch.eye(16)
    out = torch.zeros(16, 16)
    exact = np.linalg.inv(a.double().numpy())
    found = judged(INVERSE, "inverse", 256, [a, out, rounds], Case(out, exact))
    (assert_right if right else assert_wrong)(found)


@pytest.mark.parametrize(("end", "right"), [(49, True), (63, False)])
def test_the_decay_at_the_end_of_a_chunk(end: int, right: bool) -> None:
    g, v, out = -random(64).abs() / 8, random(64, 32, seed=4), torch.zeros(32)
    sums = np.cumsum(g.double().numpy())[:50]
    exact = np.exp(sums[-1] - sums) @ v.double().numpy()[:50]
    found = judged(STATE, "state", 32, [g, v, out, 50, end], Case(out, exact))
    (assert_right if right else assert_wrong)(found)


@pytest.mark.parametrize(("wrong", "right"), [(0, True), (1, False)])
def test_the_map_of_heads(wrong: int, right: bool) -> None:
    q, k, out = random(32, 16), random(8, 16, seed=5), torch.zeros(32)
    keys = np.repeat(k.double().numpy(), 4, axis=0)
    scores = (q.double().numpy() * 0.25 * keys * 3).sum(axis=1)
    found = judged(HEADS, "scores", 32, [q, k, out, 8, wrong], Case(out, np.tanh(scores * 0.125) + scores))
    if right:
        # tanhf is a rational function of its own in fp32, good to some units of 2^-24; see the next test.
        assert found.cause is Cause.APPROXIMATION
        assert found.fp64_error < 2.0**-22 < found.error
    else:
        assert_wrong(found)
