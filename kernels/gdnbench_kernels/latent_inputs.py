# SPDX-License-Identifier: Apache-2.0
"""Synthetic pools of latent rows, for the calls that swa_decode and v4_decode make."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import ContractError
from gdnbench_kernels.latent_pool import WINDOW, PoolNames
from gdnbench_kernels.swa_decode.layouts import (
    NAN_CODE,
    NAN_SCALE,
    CacheLayout,
    ds_mla_parts,
    pack_ds_mla,
    pack_per_token_scale,
)
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM

STALE = 0x7F00_0000
"""What entries past a row's length hold, about: slots of no cache, so that to follow one is an error."""


def check_ranges(
    holes: float, spread: float, scale_range: float, magnitude: float, spare_pages: int, scale: float | None
) -> None:
    """Raises ContractError for an option of synth that is out of range."""
    if not 1e-30 <= magnitude <= 1e30:
        raise ContractError(f"magnitude is {magnitude:g}; it must lie in [1e-30, 1e30]")
    if not 0 <= holes <= 1:
        raise ContractError(f"holes is {holes:g}; it is a share, in [0, 1]")
    if not 0 <= spread < float("inf"):
        raise ContractError(f"spread is {spread:g}; it is a difference of scores, finite and not negative")
    if not 1 <= scale_range < float("inf"):
        raise ContractError(f"scale_range is {scale_range:g}; it is a ratio, finite and at least 1")
    if spare_pages < 0:
        raise ContractError(f"spare_pages is {spare_pages}; it must not be negative")
    if spread and scale == 0:
        raise ContractError("scale is 0, which leaves scores no spread; leave out one of the two")


def scale_dtype_of(name: str) -> torch.dtype:
    """The dtype of scales by its name. Raises ContractError for another one."""
    if name not in ("float32", "bfloat16"):
        raise ContractError(f"scale_dtype is {name!r}; it is float32 or bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16


def attended_slot(indices: Tensor, counts: Tensor, request: int, option: str) -> int:
    """The last slot that a row attends to. Raises ContractError, which names `option`, if there is none."""
    if not 0 <= request < len(indices) or not bool(counts[request].any()):
        raise ContractError(f"{option} names request {request}; there is none that attends to a slot")
    return int(indices[request][counts[request]][-1])


def spoil(
    tensors: dict[str, Tensor],
    layout: CacheLayout,
    slot: int,
    *,
    in_scale: bool,
    names: PoolNames = WINDOW,
) -> None:
    """A NaN in the first value of a slot, or in its (first) scale."""
    cache = tensors[names.cache]
    block, offset = divmod(slot, cache.shape[1])
    if not in_scale:
        first = ds_mla_parts(cache)[0] if layout is CacheLayout.FP8_DS_MLA else cache
        first[block, offset, 0] = NAN_CODE if first.dtype == torch.uint8 else torch.nan
    elif layout is CacheLayout.FP8_DS_MLA:
        ds_mla_parts(cache)[1][block, offset, 0] = NAN_SCALE
    elif layout is CacheLayout.PER_TOKEN_SCALE:
        tensors[names.inv_scale][slot] = torch.nan
    else:
        raise ContractError("nan_scale_at: a bfloat16 cache has no scales")


def normal_rows(slots: int, scale_range: float, generator: Generator) -> Tensor:
    """[slots, 512], normal; magnitudes of rows and of groups spread log-uniformly over `scale_range`."""
    rows = torch.randn(slots, HEAD_DIM // 64, 64, generator=generator)
    if scale_range != 1:
        for shape in ((slots, 1, 1), (slots, HEAD_DIM // 64, 1)):
            rows *= scale_range ** -torch.rand(shape, generator=generator)
    return rows.flatten(1)


def make_cache(
    rows: Tensor,
    layout: CacheLayout,
    scale_dtype: torch.dtype,
    unread: Tensor | None,
    names: PoolNames = WINDOW,
) -> dict[str, Tensor]:
    """The cache tensors of `rows` [blocks, block_size, 512], all ones bits where `unread` [slots]."""
    if layout is CacheLayout.PER_TOKEN_SCALE:
        cache, inv_scale = pack_per_token_scale(rows, scale_dtype)
        found = {names.cache: cache, names.inv_scale: inv_scale}
    elif layout is CacheLayout.FP8_DS_MLA:
        found = {names.cache: pack_ds_mla(rows)}
    else:
        found = {names.cache: rows.clone()}
    if unread is not None:
        _poison(found, layout, unread, names)
    return found


def _poison(found: dict[str, Tensor], layout: CacheLayout, unread: Tensor, names: PoolNames) -> None:
    """All ones is a NaN in e4m3, ue8m0, bfloat16 and fp32."""
    cache = found[names.cache]
    where = unread.view(cache.shape[:2])
    if layout is CacheLayout.FP8_DS_MLA:
        for part in ds_mla_parts(cache):
            part[where] = 0xFF
        return
    cache.view(torch.uint8)[where] = 0xFF
    if names.inv_scale in found:
        found[names.inv_scale][unread] = torch.nan
