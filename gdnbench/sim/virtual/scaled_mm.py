# SPDX-License-Identifier: Apache-2.0
"""Products that only torch's CUDA build has: `_scaled_mm` with scales of blocks, MXFP8 and NVFP4; `mm` and
others with a result of another dtype.

A scaled product is computed in fp64 and rounded once. On a GPU it is cuBLAS's, whose sums are not documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.virtual.refusals import refusal

# Elements of a scale, by the types of elements and scales.
_BLOCKS = {
    (torch.float8_e4m3fn, torch.float8_e8m0fnu): 32,
    (torch.float8_e5m2, torch.float8_e8m0fnu): 32,
    (torch.float4_e2m1fn_x2, torch.float8_e4m3fn): 16,
}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Scales lie in tiles of 128 rows by 4, of which 32 rows follow one another (cuBLAS, "1D block scaling").
_TILE_ROWS, _TILE_COLUMNS = 128, 4


def has_block_scales(arguments: Mapping[str, Any]) -> bool:
    """Whether these arguments of `_scaled_mm` scale blocks: torch has others on the CPU."""
    return arguments["scale_a"].dtype in {scale for _, scale in _BLOCKS}


def scaled_mm(arguments: Mapping[str, Any]) -> Tensor:
    """`_scaled_mm` of CPU tensors: self [M, K], mat2 [K, N]; scales as flat tiles."""
    a, b = arguments["self"], arguments["mat2"].t()
    out = arguments.get("out_dtype") or a.dtype
    if arguments.get("scale_result") is not None:
        raise refusal("torch's _scaled_mm with scales of blocks and a scale of the result")
    left = _scaled(a, arguments["scale_a"])
    result = left @ _scaled(b, arguments["scale_b"]).t()
    if arguments.get("bias") is not None:
        result = result + arguments["bias"].double()
    return result.to(out)


def _scaled(matrix: Tensor, scales: Tensor) -> Tensor:
    """Rows times their scales, in fp64."""
    block = _BLOCKS.get((matrix.dtype, scales.dtype))
    if block is None:
        raise refusal(f"torch's _scaled_mm of {matrix.dtype} with scales of blocks in {scales.dtype}")
    numbers = _numbers(matrix)
    rows, columns = numbers.shape[0], -(-numbers.shape[1] // block)
    across, down = -(-columns // _TILE_COLUMNS), -(-rows // _TILE_ROWS)
    size = across * down * _TILE_ROWS * _TILE_COLUMNS
    if scales.numel() != size:
        raise ValueError(
            f"_scaled_mm of {tuple(numbers.shape)} takes {size} scales in tiles of {_TILE_ROWS} x "
            f"{_TILE_COLUMNS}, not {scales.numel()}"
        )
    tiles = scales.reshape(down, across, 32, _TILE_ROWS // 32, _TILE_COLUMNS).permute(0, 3, 2, 1, 4)
    of_rows = tiles.reshape(down * _TILE_ROWS, across * _TILE_COLUMNS)[:rows, :columns].to(torch.float64)
    return numbers * of_rows.repeat_interleave(block, dim=1)[:, : numbers.shape[1]]


def _numbers(matrix: Tensor) -> Tensor:
    if matrix.dtype is not torch.float4_e2m1fn_x2:
        return matrix.to(torch.float64)
    codes = matrix.contiguous().view(torch.uint8)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(codes.shape[0], -1).long()
    table = torch.tensor((*_E2M1, *(-number for number in _E2M1)), dtype=torch.float64)
    return table[nibbles]


def product_in(dtype: torch.dtype, name: str, arguments: dict[str, Any]) -> Tensor:
    """`mm` and others with `out_dtype`, of CPU tensors: torch takes float32 for halves, whose sums these
    are."""
    operands = {key: one.to(dtype) if isinstance(one, Tensor) else one for key, one in arguments.items()}
    result: Tensor = getattr(torch.ops.aten, name).default(**operands)
    return result


RESULTS_OF_OTHER_DTYPES = frozenset(
    getattr(torch.ops.aten, name).dtype
    for name in ("mm", "bmm", "addmm", "baddbmm")
    if "dtype" in getattr(torch.ops.aten, name).overloads()
)
