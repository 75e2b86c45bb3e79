# SPDX-License-Identifier: Apache-2.0
"""A product of a pair of CTAs, loaded by TMA: its shadow is the product in double of the bf16 operands.

64-bit sums of K = 128 products of numbers below 4: 128 * 16 * 128 * 2^-53 < 1e-10 apart. The f32 sums of the
kernel itself are off by more than 1e-6.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from gdnbench.sim import Fp64Shadows
from tests.sim.clusters import pair_kernels


def test_a_product_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    shapes = ((pair_kernels.M, pair_kernels.K), (pair_kernels.N, pair_kernels.K))
    a, b = (rng.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    monkeypatch.setattr(pair_kernels, "operands", lambda: (a, b, exact))
    shadows = Fp64Shadows()
    observed = shadows.on_launch_begin("k", (2, 1, 1), ())
    c, _, _ = pair_kernels.run(pair_kernels.PAIR_GEMM, observed=observed)
    numbers, shadowed = shadows.numbers(torch.from_numpy(c))
    assert bool(shadowed.all())
    assert np.abs(numbers.numpy() - exact).max() < 1e-10
    assert np.abs(c - exact).max() > 1e-6
