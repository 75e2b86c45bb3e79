# SPDX-License-Identifier: Apache-2.0
"""torch's `_scaled_mm` with scales of blocks on a virtual GPU, against NumPy.

Scales lie as cuBLAS documents ("1D Block Scaling Factors Layout"): row r and column c of a tile of 128 x 4 at
byte (r % 32) 16 + (r / 32) 4 + c, tiles along a row first.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.virtual import VirtualGpu
from tests.messages import wording

M, N, K = 130, 64, 160


def tiles(codes: np.ndarray) -> np.ndarray:
    """Scale codes [rows, columns] as flat tiles, padded with other codes."""
    rows, columns = codes.shape
    across, down = -(-columns // 4), -(-rows // 128)
    flat = np.full(across * down * 512, 0x31, np.uint8)
    for r, c in np.ndindex(rows, columns):
        tile = r // 128 * across + c // 4
        flat[512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = codes[r, c]
    return flat


def cuda(codes: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(codes.copy()).view(dtype).cuda()


def operands(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of the elements, codes of the scales, and the exact values of both, of few bits each."""
    rng = np.random.default_rng(seed)
    block = 32 if kind == "mxfp8" else 16
    values = rng.choice([-3.0, -1, 0, 0.5, 1, 2], (rows, K))
    scales = rng.choice([0.5, 1.0, 4.0], (rows, K // block))
    if kind == "mxfp8":
        data = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        return data, scales.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8), values, scales
    codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    data = codes[:, ::2] | codes[:, 1::2] << 4
    return data, scales.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), values, scales


TYPES = {
    "mxfp8": (torch.float8_e4m3fn, torch.float8_e8m0fnu),
    "nvfp4": (torch.float4_e2m1fn_x2, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("kind", TYPES)
def test_products_are_exact(gpu: VirtualGpu, kind: str) -> None:
    element, scale = TYPES[kind]
    sides = [operands(kind, rows, seed) for rows, seed in ((M, 1), (N, 2))]
    a, b = (cuda(data, element) for data, *_ in sides)
    scale_a, scale_b = (cuda(tiles(codes), scale) for _, codes, *_ in sides)
    got = torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.float32)
    left, right = (values * np.repeat(scales, K // scales.shape[1], axis=1) for *_, values, scales in sides)
    assert got.is_cuda
    np.testing.assert_array_equal(got.cpu().numpy(), (left @ right.T).astype(np.float32))


def test_too_few_scales(gpu: VirtualGpu) -> None:
    data, codes, *_ = operands("mxfp8", M, 1)
    a, scales = cuda(data, torch.float8_e4m3fn), cuda(tiles(codes)[:-512], torch.float8_e8m0fnu)
    with pytest.raises(ValueError, match=wording("sim.virtual.scaled-mm-scales")):
        torch._scaled_mm(a, a.t(), scales, scales, out_dtype=torch.float32)


def test_types_that_no_gpu_multiplies(gpu: VirtualGpu) -> None:
    data, codes, *_ = operands("nvfp4", M, 1)
    a, scales = cuda(data, torch.float4_e2m1fn_x2), cuda(tiles(codes), torch.float8_e8m0fnu)
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.scaled-mm-types")):
        torch._scaled_mm(a, a.t(), scales, scales, out_dtype=torch.float32)
