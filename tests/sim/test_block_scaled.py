# SPDX-License-Identifier: Apache-2.0
"""A whole kernel with a block-scaled product, from global memory and back, against fp64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gdnbench.sim.run import run_ptx
from tests.sim.blackwell.block_scales import B_AT, N
from tests.sim.kernels.block_scaled import SCALES_AT, block_scaled

M, K = 128, 32


def elements(image: np.ndarray, start: int, rows: int) -> np.ndarray:
    """e4m3 codes [rows, K]: 16 bytes of every row, the other 16 4,096 bytes on."""
    halves = [image[at : at + 16 * rows].reshape(rows, 16) for at in (start, start + 4096)]
    return np.concatenate(halves, axis=1).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def power(values: np.ndarray, smallest: int) -> np.ndarray:
    """2^exponent of floating-point numbers; subnormals have the smallest exponent."""
    return np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, smallest))


@pytest.mark.parametrize("schedule", ["late", "early"])
def test_the_product_is_within_its_bound(schedule: str) -> None:
    """Both engines give equal bits. A fused sum cuts each of its 32 products and C at 2^-25 of the largest
    nominal power of two, and the sum at 2^-23 of itself."""
    results = []
    for engine in ("interpreter", "compiled"):
        kernel, text, buffers = block_scaled()
        image, fill, out = buffers
        run_ptx(text, kernel.name, (1, 1, 1), (kernel.block, 1, 1), buffers, engine=engine, schedule=schedule)
        results.append(out[:, :N].copy())
    np.testing.assert_array_equal(*results)
    data = image.view(np.uint8).reshape(-1)
    a, b = elements(data, 0, M), elements(data, B_AT, N)
    # Byte 16 (r % 32) + 4 (r / 32) has the first scale of row r (CUTLASS `sm100_blockscaled_layout.hpp`).
    row = np.arange(M)
    scales = np.ldexp(1.0, data[SCALES_AT + row % 32 * 16 + row // 32 * 4].astype(int) - 127)
    scale = np.outer(scales, scales[:N])
    c = fill[:, :N].copy().view(np.float32).astype(np.float64)
    want = a @ b.T * scale + c
    largest = (power(a, -6)[:, None] * power(b, -6)[None]).max(axis=2) * scale
    bound = (K + 1) * 2.0**-25 * np.maximum(largest, power(c, -126)) + 2.0**-23 * np.abs(want)
    got = results[0].view(np.float32).astype(np.float64)
    assert (np.abs(got - want) <= bound).all(), np.abs((got - want) / bound).max()
    assert (got != c).any(axis=1).all()


def test_each_cta_of_a_cluster_reads_its_own_shared_memory() -> None:
    """Both CTAs compute the same product. That they write one result twice is a race, and the only one."""
    kernel, text, buffers = block_scaled()
    ran = run_ptx(text, kernel.name, (2, 1, 1), (kernel.block, 1, 1), buffers, cluster=(2, 1, 1), check=True)
    assert ran.found is not None
    assert {one.memory for one in ran.found} == {"global"}
