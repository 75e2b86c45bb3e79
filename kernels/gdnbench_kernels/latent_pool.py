"""A pool of latent rows in a call: what swa_decode and v4_decode check of its pages, and how the entries that
name its rows are renumbered when only some of its pages are stored.

A pool is `cache` [blocks, block_size, ...] in one of the layouts of `swa_decode.layouts`, perhaps with
`inv_scale` [slots], and a table whose entries are slots, block * block_size + offset, or whole pages.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.contract import ContractError
from gdnbench_kernels.swa_decode.layouts import CacheLayout, ds_mla_parts
from gdnbench_kernels.swa_decode.window import PADDING
from gdnbench_kernels.validate import dtype_name, element_name, first_true

CODES = ("float8_e4m3fn", "uint8")
CACHE_DTYPES = {
    CacheLayout.PER_TOKEN_SCALE: CODES,
    CacheLayout.FP8_DS_MLA: ("uint8",),
    CacheLayout.BFLOAT16: ("bfloat16",),
}


@dataclass(frozen=True, slots=True)
class PoolNames:
    """What a contract calls the tensors of a pool, and the convention of its layout."""

    cache: str = "cache"
    inv_scale: str = "inv_scale"
    indices: str = "swa_indices"
    lens: str = "swa_lens"
    layout: str = "cache_layout"


WINDOW = PoolNames()


def check_block_size(op: str, names: PoolNames, cache: Tensor, allowed: Sequence[int]) -> None:
    """Raises ContractError for pages of another number of tokens, or no pages."""
    if cache.shape[1] not in allowed:
        raise ContractError(
            f"{op}: {names.cache} has a block_size of {cache.shape[1]};"
            f" it must be one of {', '.join(map(str, allowed))}"
        )
    if not len(cache):
        raise ContractError(f"{op}: {names.cache} has no blocks")


def check_cache(op: str, names: PoolNames, layout: CacheLayout, tensors: Mapping[str, Tensor]) -> None:
    """Raises ContractError if dtype, strides or scales are not those of `layout`."""
    cache = tensors[names.cache]
    if dtype_name(cache.dtype) not in CACHE_DTYPES[layout]:
        raise ContractError(
            f"{op}: {names.cache} is {dtype_name(cache.dtype)}; with {names.layout} {layout} it must be"
            f" {' or '.join(CACHE_DTYPES[layout])}"
        )
    blocks, block_size, _ = cache.shape
    row = layout.row_size
    page = row * block_size
    if cache.stride()[1:] != (row, 1) or (blocks > 1 and cache.stride(0) < page):
        raise ContractError(
            f"{op}: {names.cache} has strides {tuple(cache.stride())}; rows of a page must be contiguous,"
            f" hence [{page} or more, {row}, 1]"
        )
    inv_scale = tensors.get(names.inv_scale)
    if (inv_scale is not None) != (layout is CacheLayout.PER_TOKEN_SCALE):
        what = "missing" if inv_scale is None else "given"
        raise ContractError(
            f"{op}: {names.inv_scale} is {what} with {names.layout} {layout}; it belongs to per_token_scale"
            " alone"
        )
    slots = blocks * block_size
    if inv_scale is not None and len(inv_scale) != slots:
        raise ContractError(
            f"{op}: {names.inv_scale} has {len(inv_scale)} elements; {names.cache} has {slots} slots"
        )


def slots_of_pages(pages: Tensor, block_size: int) -> Tensor:
    """All slots of `pages`, int64, in order."""
    return (pages.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()


def renumbered_entries(
    op: str,
    names: PoolNames,
    tensors: Mapping[str, Tensor],
    stored: Mapping[str, Sequence[int]],
    table: Tensor,
    kept: Tensor,
    *,
    of_pages: bool = False,
    entry_name: Callable[[tuple[int, ...]], str] | None = None,
) -> Tensor:
    """`table` [rows, entries] for a pool with only the rows `stored`, which are given by tensor, ascending.

    Entries that are `kept` (bool, of table's shape) are renumbered, the others become -1. `of_pages`: entries
    are pages, not slots. `entry_name`: how messages name an entry. Raises ContractError if the page of a kept
    entry is not stored, or if the stored scales are not those of the stored pages.
    """
    cache = tensors[names.cache]
    size = 1 if of_pages else cache.shape[1]
    pages = torch.tensor(stored.get(names.cache, range(len(cache))), dtype=torch.int64)
    _check_scales_stored(op, names, tensors, stored, slots_of_pages(pages, cache.shape[1]))
    page = table.long() // size
    place = torch.searchsorted(pages, page)
    there = torch.zeros_like(kept)
    if len(pages):
        there = pages[place.clamp(max=len(pages) - 1)] == page
    lost = first_true(kept & ~there)
    if lost is not None:
        name = element_name(names.indices, lost) if entry_name is None else entry_name(lost)
        what = "a page that" if of_pages else "a slot whose page"
        raise ContractError(f"{op}: {name} is {int(table[lost])}, {what} was not captured")
    return torch.where(kept, place * size + table % size, PADDING).to(table.dtype)


def _check_scales_stored(
    op: str,
    names: PoolNames,
    tensors: Mapping[str, Tensor],
    stored: Mapping[str, Sequence[int]],
    slots: Tensor,
) -> None:
    if names.inv_scale not in tensors:
        return
    scales = stored.get(names.inv_scale, range(len(tensors[names.inv_scale])))
    if list(scales) != slots.tolist():
        raise ContractError(
            f"{op}: {names.inv_scale} was captured for {len(scales)} slots; the captured pages of"
            f" {names.cache} have {len(slots)}, and they must be the same"
        )


def with_pages(cache: Tensor, pages: Tensor) -> Tensor:
    """A cache with the strides of `cache` that holds `pages`; bytes between pages are zero."""
    held = torch.zeros(_extent(cache), dtype=torch.uint8).view(cache.dtype)
    held = held.as_strided(cache.shape, cache.stride())
    _bits(held).copy_(_bits(pages))
    return held


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _bits(tensor: Tensor) -> Tensor:
    """torch copies and indexes no fp8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def rows_of_slots(cache: Tensor, layout: str) -> tuple[Tensor, ...]:
    """Views [blocks, block_size, ...] of what a page holds of each slot."""
    return ds_mla_parts(cache) if layout == CacheLayout.FP8_DS_MLA else (_bits(cache),)
