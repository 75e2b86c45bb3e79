"""The cache layouts: the bytes of a latent row, their values, packing and unpacking.

    per_token_scale   cache [blocks, block_size, 512] e4m3 (or its bytes), inv_scale [blocks * block_size]
                      value = e4m3 * inv_scale[slot]
    fp8_ds_mla        cache [blocks, block_size, 584] bytes. A page is not rows of 584 bytes: first come 576
                      bytes of data per token (448 e4m3, then 64 bfloat16), then 8 bytes of scales per token
                      (7 ue8m0, one for 64 e4m3 values each, and a zero). value = e4m3 * 2^(scale - 127).
                      Pages are a multiple of 576 bytes apart.
    bfloat16          cache [blocks, block_size, 512] bfloat16: not quantised, as in transformers

Slot = block * block_size + offset. All functions run on the device of their tensors.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, NOPE_DIM, ROPE_DIM

E4M3_MAX = 448.0
DATA_BYTES = NOPE_DIM + 2 * ROPE_DIM
"""Bytes of a token in `fp8_ds_mla`, without its scales."""
SCALE_BYTES = 8
ROW_BYTES = DATA_BYTES + SCALE_BYTES
SCALE_BIAS = 127
NAN_SCALE = 255
NAN_CODE = 0x7F
LEAST_AMAX = 1e-4
"""Lower bound of a group's largest magnitude for its scale, so that no scale is 0."""


class CacheLayout(StrEnum):
    PER_TOKEN_SCALE = "per_token_scale"
    FP8_DS_MLA = "fp8_ds_mla"
    BFLOAT16 = "bfloat16"

    @property
    def row_size(self) -> int:
        """Extent of the cache's last axis."""
        return ROW_BYTES if self is CacheLayout.FP8_DS_MLA else HEAD_DIM


SERVED = (CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA)
"""The layouts that the compiled kernels read."""


def page_stride(block_size: int) -> int:
    """Bytes from page to page of an `fp8_ds_mla` cache."""
    return -(-block_size * ROW_BYTES // DATA_BYTES) * DATA_BYTES


def page_parts(layout: str | None) -> tuple[int, int] | None:
    """Elements of a row in each of the parts that a page holds for all its rows, one after another; None
    where rows follow one another."""
    return (DATA_BYTES, SCALE_BYTES) if layout == CacheLayout.FP8_DS_MLA else None


def empty_ds_mla(blocks: int, block_size: int, device: torch.device | str = "cpu") -> Tensor:
    """An `fp8_ds_mla` cache of zeros, uint8 [blocks, block_size, 584] with the padding between pages."""
    stride = page_stride(block_size)
    memory = torch.zeros(blocks * stride, dtype=torch.uint8, device=device)
    return memory.as_strided((blocks, block_size, ROW_BYTES), (stride, ROW_BYTES, 1))


def pack_per_token_scale(rows: Tensor, scale_dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Pack `rows` [blocks, block_size, 512] as (cache e4m3 [blocks, block_size, 512], inv_scale [slots]).

    inv_scale is a row's largest magnitude / 448, rounded to `scale_dtype`; for a row of zeros it is 1. Codes
    are value / inv_scale, rounded to nearest even and saturated. A row with a NaN or an infinity has no
    scale: its scale and codes are NaN.
    """
    rows = rows.float()
    amax = rows.abs().amax(-1)
    inv_scale = _over_448(amax).to(scale_dtype)
    inv_scale = torch.where(inv_scale == 0, torch.ones_like(inv_scale), inv_scale)
    inv_scale = torch.where(amax.isfinite(), inv_scale, torch.nan)
    # Saturate: with a scale that was rounded down a code may exceed the range, and e4m3 has no infinity.
    codes = (rows / inv_scale.float().unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX)
    return codes.to(torch.float8_e4m3fn), inv_scale.flatten()


def pack_ds_mla(rows: Tensor) -> Tensor:
    """Pack `rows` [blocks, block_size, 512] as uint8 [blocks, block_size, 584] with padded pages.

    A scale is 2^ceil(log2(max(amax, 1e-4) / 448)). Codes are value / scale, rounded to nearest even; the last
    64 features are rounded to bfloat16. A group of 64 with a NaN or an infinity has no scale: it gets scale
    255 and codes 0x7F, which are NaN. Padding is zero.
    """
    blocks, block_size, _ = rows.shape
    nope = rows[..., :NOPE_DIM].float().reshape(blocks, block_size, GROUPS, GROUP)
    amax = nope.abs().amax(-1)
    finite = amax.isfinite()
    # frexp is exact, log2 is not: x = m 2^e, m in [1/2, 1), so ceil(log2 x) is e, or e - 1 if m = 1/2.
    mantissa, exponent = torch.frexp(_over_448(amax.clamp(min=LEAST_AMAX).double()))
    exponent = (exponent - (mantissa == 0.5).to(exponent.dtype)).where(finite, 0)
    codes = (nope.double() * power_of_two(-exponent).unsqueeze(-1)).float().to(torch.float8_e4m3fn)
    codes = codes.view(torch.uint8).where(finite.unsqueeze(-1), NAN_CODE)
    cache = empty_ds_mla(blocks, block_size, rows.device)
    data, scales = ds_mla_parts(cache)
    data[..., :NOPE_DIM] = codes.flatten(-2)
    data[..., NOPE_DIM:] = rows[..., NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
    scales[..., :GROUPS] = (exponent + SCALE_BIAS).where(finite, NAN_SCALE).to(torch.uint8)
    return cache


def _over_448(x: Tensor) -> Tensor:
    """x / 448, with a tensor as divisor: on CUDA torch divides by a number through its rounded reciprocal."""
    return x / torch.full_like(x, E4M3_MAX)


def ds_mla_parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the data [blocks, block_size, 576] and the scales [blocks, block_size, 8] of a cache."""
    blocks, block_size, _ = cache.shape
    page, offset = cache.stride(0), cache.storage_offset()
    data = cache.as_strided((blocks, block_size, DATA_BYTES), (page, DATA_BYTES, 1), offset)
    scales = cache.as_strided(
        (blocks, block_size, SCALE_BYTES), (page, SCALE_BYTES, 1), offset + block_size * DATA_BYTES
    )
    return data, scales


def read_rows(
    cache: Tensor, inv_scale: Tensor | None, slots: Tensor, layout: str, dtype: torch.dtype
) -> Tensor:
    """The latent rows at `slots` [...], as `dtype` [..., 512], each value rounded once.

    Only the requested rows are read.
    """
    slots = slots.long()
    block_size = cache.shape[1]
    block, offset = slots // block_size, slots % block_size
    if layout == CacheLayout.BFLOAT16:
        return cache[block, offset].to(dtype)
    if layout == CacheLayout.PER_TOKEN_SCALE:
        assert inv_scale is not None
        codes = cache.view(torch.uint8)[block, offset].view(torch.float8_e4m3fn).double()
        return (codes * inv_scale[slots].double().unsqueeze(-1)).to(dtype)
    data, scales = (part[block, offset] for part in ds_mla_parts(cache))
    nope = data[..., :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).double()
    grouped = nope.reshape(*slots.shape, GROUPS, GROUP) * _powers(scales[..., :GROUPS]).unsqueeze(-1)
    rope = data[..., NOPE_DIM:].contiguous().view(torch.bfloat16)
    return torch.cat([grouped.flatten(-2).to(dtype), rope.to(dtype)], dim=-1)


def unpack(cache: Tensor, inv_scale: Tensor | None, layout: str, dtype: torch.dtype) -> Tensor:
    """All rows of a cache, as `dtype` [blocks, block_size, 512]."""
    slots = torch.arange(cache.shape[0] * cache.shape[1], device=cache.device)
    return read_rows(cache, inv_scale, slots.view(cache.shape[:2]), layout, dtype)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in fp64, exact, for integers in [-1022, 1023]; torch.ldexp would multiply by a power in
    fp32."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _powers(scales: Tensor) -> Tensor:
    """2^(scale - 127) in fp64; 255 is NaN."""
    return power_of_two(scales.long() - SCALE_BIAS).masked_fill(scales == NAN_SCALE, torch.nan)
