# SPDX-License-Identifier: Apache-2.0
"""What v4_decode checks of a call beyond the tables of its contract."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.latent_pool import WINDOW, check_block_size, check_cache
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, MAX_HEADS, MAX_WINDOW
from gdnbench_kernels.v4_decode.segments import EXTRA, LENS_SHAPES, POOLS, Segment, segments_of
from gdnbench_kernels.v4_decode.sizes import EXTRA_BLOCK_SIZES, MAX_QUERIES, MAX_TOPK
from gdnbench_kernels.validate import element_name, first_true

OP = "v4_decode"

UNSETTLED = {
    "nvfp4": "NVFP4 rows (384 bytes)",
    "fp4_mxfp8": "FP4 + MXFP8 rows",
}
"""Layouts of rows that kernels read and whose bytes are not settled."""
UNSETTLED_BYTES = {384: "nvfp4"}


def check_layout_names(conventions: Mapping[str, str]) -> None:
    """Raises ContractError for a layout that serving engines have and this operation does not."""
    for name in (WINDOW.layout, EXTRA.layout):
        value = str(conventions.get(name, "")).lower()
        if value in UNSETTLED:
            raise ContractError(unsettled(name, value))


def unsettled(where: str, layout: str) -> str:
    return (
        f"{OP}: {where} is {layout}: {UNSETTLED[layout]} are not supported, because their layout is not"
        " settled; record pages of per_token_scale, fp8_ds_mla or bfloat16"
    )


def check_rows(tensors: Mapping[str, Tensor]) -> None:
    """Raises ContractError for pages whose rows have the bytes of a layout that is not settled."""
    for names in POOLS:
        cache = tensors.get(names.cache)
        if cache is None or cache.ndim != 3 or cache.element_size() != 1:
            continue
        if cache.shape[2] in UNSETTLED_BYTES:
            raise ContractError(unsettled(names.cache, UNSETTLED_BYTES[cache.shape[2]]))


def window_range(entries: int) -> str:
    """The message about a window of another number of entries. Drafts of DeepSeek-V4.1 that see one another
    have 133."""
    if entries <= MAX_WINDOW:
        return f"swa_indices has a window of {entries}; it must be 1 to {MAX_WINDOW}"
    return (
        f"swa_indices has a window of {entries}; it must be 1 to {MAX_WINDOW}: where the layer has no"
        f" compressed rows, pass the entries from {MAX_WINDOW} on as extra_indices, with extra_cache = cache"
    )


def check_segments_given(tensors: Mapping[str, Tensor]) -> None:
    """Raises ContractError for a part of the extra segment without the rest."""
    parts = (EXTRA.cache, EXTRA.indices, EXTRA.lens)
    given = [name for name in parts if name in tensors]
    if given and len(given) < len(parts):
        missing = next(name for name in parts if name not in tensors)
        raise ContractError(f"{OP}: {given[0]} is given and {missing} is not; an extra segment needs both")
    if not given and EXTRA.inv_scale in tensors:
        raise ContractError(f"{OP}: {EXTRA.inv_scale} is given and {EXTRA.cache} is not; leave it out")


def check_sizes(call: Call, sizes: Mapping[str, int]) -> None:
    """Raises ContractError for a number of queries, heads, entries or rows of a page that is out of range."""
    if not 1 <= sizes["S"] <= MAX_QUERIES:
        raise ContractError(f"{OP}: q has {sizes['S']} queries a request; it must have 1 to {MAX_QUERIES}")
    if not 1 <= sizes["H"] <= MAX_HEADS:
        raise ContractError(f"{OP}: q has {sizes['H']} heads; it must have 1 to {MAX_HEADS}")
    if not 1 <= sizes["W"] <= MAX_WINDOW:
        raise ContractError(f"{OP}: {window_range(sizes['W'])}")
    rows = sizes["B"] * sizes["S"]
    if "T" in sizes and sizes["T"] != rows:
        raise ContractError(
            f"{OP}: the index tensors have T = {sizes['T']} rows; q has B S = {rows} query rows"
        )
    check_block_size(OP, WINDOW, call.tensors[WINDOW.cache], BLOCK_SIZES)
    if EXTRA.cache not in call.tensors:
        return
    if sizes["E"] < 1:
        raise ContractError(f"{OP}: extra_indices has no entries; leave the extra segment out")
    check_block_size(OP, EXTRA, call.tensors[EXTRA.cache], EXTRA_BLOCK_SIZES)


def check_pools(call: Call) -> None:
    """Raises ContractError for pages that are not of their layout, and for lengths and entries out of
    range."""
    for segment in segments_of(call.tensors, call.conventions):
        check_cache(OP, segment.names, segment.layout, call.tensors)
        _check_lengths(call, segment)
        _check_entries(segment)


def _check_lengths(call: Call, segment: Segment) -> None:
    if segment.names is EXTRA and not segment.of_pages and segment.table.shape[1] > MAX_TOPK:
        raise ContractError(
            f"{OP}: extra_indices has {segment.table.shape[1]} slots a query; it must have up to {MAX_TOPK}"
        )
    lens = call.tensors[segment.names.lens].cpu()
    wrong = first_true((lens < 0) | (lens > segment.capacity))
    if wrong is not None:
        what = "the positions of its pages" if segment.of_pages else "the entries of its table"
        raise ContractError(
            f"{OP}: {element_name(segment.names.lens, wrong)} is {int(lens[wrong])}; it must lie in"
            f" [0, {segment.capacity}], {what}"
        )


def _check_entries(segment: Segment) -> None:
    """Entries that count, and with legal masked indices also the masked ones."""
    if segment.legal and not len(segment.cache):
        return  # of a record in which no query attends to anything
    # In int64: an int32 would be compared with a number of slots above 2^31 as if that had wrapped.
    table = segment.table.cpu().long()
    last = len(segment.cache) * (1 if segment.of_pages else segment.block_size) - 1
    illegal = (table < 0) | (table > last)
    followed = segment.followed.cpu()
    what = "page" if segment.of_pages else "slot"
    outside = first_true(followed & illegal)
    if outside is None:
        return
    place, value = segment.entry_name(outside), int(table[outside])
    if segment.legal:
        raise ContractError(
            f"{OP}: {place} is {value}; with masked_indices legal every entry must be a {what} in"
            f" [0, {last}], those that are masked too"
        )
    if segment.of_pages:
        raise ContractError(f"{OP}: {place} is {value}; it must be a page in [0, {last}]")
    raise ContractError(f"{OP}: {place} is {value}; it must be a slot in [0, {last}], or -1 for padding")


def lens_in(lens: Tensor, source: str, target: str, requests: int, queries: int) -> Tensor:
    """Lengths in another of the callers' shapes. Raises ContractError if queries of a request have different
    lengths and `target` has one for all."""
    assert source in LENS_SHAPES
    rows = lens.repeat_interleave(queries) if source == "B" else lens
    by_request = rows.reshape(requests, queries)
    if target == "BS":
        return by_request
    if target == "T":
        return by_request.reshape(requests * queries)
    differs = first_true((by_request != by_request[:, :1]).any(1))
    if differs is not None:
        lengths = ", ".join(map(str, by_request[differs[0]].tolist()))
        raise ContractError(
            f"{OP}: the queries of request {differs[0]} have lengths {lengths}; lens_shape B has one for all"
            " of them"
        )
    return by_request[:, 0].contiguous()


def tables_expanded(segment: Segment) -> Tensor:
    """The slots of a table of pages, [rows, positions] int32, stale ones as -1."""
    if segment.capacity > MAX_TOPK:
        raise ContractError(
            f"{OP}: extra_indices has pages of {segment.capacity} positions; indices have up to {MAX_TOPK}"
        )
    return segment.slots.where(segment.counts, -1).to(torch.int32)
