# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for v4_decode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError, Scalar
from gdnbench_kernels.latent_inputs import (
    STALE,
    attended_slot,
    check_ranges,
    make_cache,
    normal_rows,
    scale_dtype_of,
    spoil,
)
from gdnbench_kernels.latent_pool import WINDOW
from gdnbench_kernels.swa_decode.layouts import CacheLayout, ds_mla_parts
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.window import PADDING
from gdnbench_kernels.v4_decode.checks import UNSETTLED, unsettled
from gdnbench_kernels.v4_decode.segments import (
    EXTRA,
    INDEX_SHAPES,
    LENS_SHAPES,
    IndexForm,
    MaskedIndices,
    segments_of,
    shaped_rows,
)
from gdnbench_kernels.v4_decode.sizes import EXTRA_BLOCK_SIZES, MAX_QUERIES

STALE_ENTRIES = ("outside", "live", "unread")


@dataclass(frozen=True, slots=True)
class _Table:
    """The entries of one segment of all query rows, before those that are stale."""

    entries: Tensor  # [rows, entries] int64, PADDING where nothing was dealt
    filled: Tensor  # [rows], how many entries were dealt
    lens: Tensor  # [rows], the lengths
    blocks: int
    block_size: int
    of_pages: bool


def synth(
    *,
    lens: tuple[int, ...] = (128, 17, 0, 1),
    extra_lens: tuple[int, ...] = (512, 5, 0, 0),
    queries: int = 1,
    heads: int = 64,
    window: int = MAX_WINDOW,
    topk: int = 512,
    block_size: int = 64,
    extra_block_size: int = 64,
    cache_layout: str = "per_token_scale",
    extra_layout: str = "per_token_scale",
    extra_index_form: str = "indices",
    index_shape: str = "BSW",
    lens_shape: str = "BS",
    masked_indices: str = "any",
    lse_base: str = "e",
    lse_sink: str = "without",
    lse_empty: str = "minus_inf",
    scale_dtype: str = "float32",
    holes: float = 0.0,
    duplicates: float = 0.0,
    stale: str | None = None,
    sink: float | None = None,
    sink_spread: float = 1.0,
    spread: float = 0.0,
    scale_range: float = 1.0,
    magnitude: float = 1.0,
    spare_pages: int = 2,
    packed: bool = False,
    poison: bool = True,
    nan_at: tuple[int, ...] = (),
    nan_extra_at: tuple[int, ...] = (),
    nan_scale_at: tuple[int, ...] = (),
    output_lse: bool = True,
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `lens`: window length of each request's first query; later queries see one token more each, up to the
    window, and share the earlier ones. `extra_lens`: how many slots, or positions of pages, each request's
    first query attends to in the extra segment, one fewer in each later query; empty for a call without an
    extra segment. With `lens_shape` B all queries of a request have the first one's lengths. `window`,
    `topk`: entries of the two tables; a block_table has as many pages as the longest request needs and one
    more. `holes`: share of a row's slots that are -1, rounded down, in both segments but not in pages.
    `duplicates`: share of a row's slots that repeat the row's first one. `stale`: entries past a length are
    slots or pages `outside` the cache, `live` ones that queries attend to, or `unread` ones, which no query
    attends to; live with `masked_indices` legal, else outside.
    `sink`: attn_sink about that value, none if not given; `sink_spread`: the standard deviation of a normal
    distribution around it. `spread`: the difference of the largest and the least of 128 scores, about.
    `scale_range`: the magnitudes of rows differ by up to this factor, and those of groups of 64 features too.
    `magnitude`: that of values, about; queries are then as small as to leave scores as they were.
    `spare_pages`: pages of each cache that no query attends to. `packed`: both caches lie in one allocation,
    page beside page. `poison`: slots that no query attends to hold NaN, in codes, scales and rope. `nan_at`,
    `nan_extra_at`: query rows of which one slot of the window, or of the extra segment, holds a NaN in its
    first value; `nan_scale_at`: in a scale of the window.
    """
    layouts = _layouts(cache_layout, extra_layout)
    _check_names(index_shape, lens_shape, extra_index_form, masked_indices)
    check_ranges(holes, spread, scale_range, magnitude, spare_pages, scale)
    _check_sizes(lens, extra_lens, queries, window, topk, block_size, extra_block_size)
    stale = _stale(stale, masked_indices, holes)
    if not 0 <= duplicates <= 1:
        raise ContractError(f"duplicates is {duplicates:g}; it is a share, in [0, 1]")
    if not 0 <= sink_spread < float("inf"):
        raise ContractError(f"sink_spread is {sink_spread:g}; it is a deviation, finite and not negative")
    generator = torch.Generator().manual_seed(seed)
    equal = lens_shape == "B"
    tables = [_window(lens, queries, window, block_size, spare_pages, equal, generator)]
    if extra_lens:
        deal = _positions if extra_index_form == IndexForm.BLOCK_TABLE else _topk
        tables.append(deal(extra_lens, queries, topk, extra_block_size, spare_pages, equal, generator))
    for table in tables:
        if not table.of_pages:
            _puncture(table, holes, duplicates, generator)
    q = torch.randn(len(lens), queries, heads, HEAD_DIM, generator=generator) / magnitude
    tensors: dict[str, Tensor] = {}
    for names, table, layout in zip((WINDOW, EXTRA), tables, layouts, strict=False):
        rows = normal_rows(table.blocks * table.block_size, scale_range, generator) * magnitude
        if spread and names is WINDOW:
            # Scores are then normal with this deviation; 128 of them span about 5.2 deviations.
            factor = spread / 5.2 / (HEAD_DIM**-0.5 if scale is None else scale)
            q *= factor / (rows / magnitude).norm(dim=1).mean()
        unread = _unread(table)
        rows = rows.to(torch.bfloat16).view(table.blocks, table.block_size, HEAD_DIM)
        made = unread if poison else None
        tensors |= make_cache(rows, layout, scale_dtype_of(scale_dtype), made, names)
        # A generator of its own: the values do not depend on what stale entries name.
        _point_stale(table, stale, unread, torch.Generator().manual_seed(seed))
        shaped = shaped_rows(table.entries.to(torch.int32), index_shape, len(lens), queries)
        tensors[names.indices] = shaped.contiguous()
        tensors[names.lens] = _shaped_lens(table.lens, lens_shape, len(lens), queries)
    tensors["q"] = q.to(torch.bfloat16)
    if sink is not None:
        tensors["attn_sink"] = sink + sink_spread * torch.randn(heads, generator=generator)
    if packed:
        tensors |= _packed(tensors, layouts)
    scalars: dict[str, Scalar] = {"output_lse": output_lse}
    if scale is not None:
        scalars["scale"] = scale
    conventions = {
        "cache_layout": layouts[0].value,
        "extra_layout": layouts[1].value,
        "extra_index_form": extra_index_form,
        "index_shape": index_shape,
        "lens_shape": lens_shape,
        "masked_indices": masked_indices,
        "lse_base": lse_base,
        "lse_sink": lse_sink,
        "lse_empty": lse_empty,
    }
    call = Call(tensors, scalars, conventions)
    _spoil(call, layouts, nan_at, nan_extra_at, nan_scale_at)
    return call


def _layouts(cache_layout: str, extra_layout: str) -> tuple[CacheLayout, CacheLayout]:
    found = []
    for name, value in (("cache_layout", cache_layout), ("extra_layout", extra_layout)):
        if value.lower() in UNSETTLED:
            raise ContractError(unsettled(name, value.lower()))
        if value not in tuple(CacheLayout):
            raise ContractError(f"{name} is {value!r}; it is one of {', '.join(CacheLayout)}")
        found.append(CacheLayout(value))
    return found[0], found[1]


def _check_names(index_shape: str, lens_shape: str, form: str, masked: str) -> None:
    for name, value, known in (
        ("index_shape", index_shape, tuple(INDEX_SHAPES)),
        ("lens_shape", lens_shape, tuple(LENS_SHAPES)),
        ("extra_index_form", form, tuple(IndexForm)),
        ("masked_indices", masked, tuple(MaskedIndices)),
    ):
        if value not in known:
            raise ContractError(f"{name} is {value!r}; it is one of {', '.join(known)}")


def _check_sizes(
    lens: tuple[int, ...],
    extra_lens: tuple[int, ...],
    queries: int,
    window: int,
    topk: int,
    block_size: int,
    extra_block_size: int,
) -> None:
    if not 1 <= queries <= MAX_QUERIES:
        raise ContractError(f"queries is {queries}; it must lie in [1, {MAX_QUERIES}]")
    if any(not 0 <= length <= window for length in lens):
        raise ContractError(f"lens are in [0, {window}], the window; they are {', '.join(map(str, lens))}")
    if extra_lens and len(extra_lens) != len(lens):
        raise ContractError(f"extra_lens has {len(extra_lens)} requests and lens {len(lens)}")
    if any(length < 0 for length in extra_lens) or topk < 1:
        raise ContractError(f"extra_lens and topk are not negative, and topk is 1 or more; topk is {topk}")
    for name, size, known in (
        ("block_size", block_size, BLOCK_SIZES),
        ("extra_block_size", extra_block_size, EXTRA_BLOCK_SIZES),
    ):
        if size not in known:
            raise ContractError(f"{name} is {size}; it is one of {', '.join(map(str, known))}")


def _stale(stale: str | None, masked: str, holes: float) -> str:
    legal = masked == MaskedIndices.LEGAL
    if stale is None:
        stale = "live" if legal else "outside"
    if stale not in STALE_ENTRIES:
        raise ContractError(f"stale is {stale!r}; it is one of {', '.join(STALE_ENTRIES)}")
    if legal and (stale == "outside" or holes):
        raise ContractError(
            "with masked_indices legal, stale entries are live or unread, and there are no holes"
        )
    return stale


def _window(
    lens: tuple[int, ...],
    queries: int,
    window: int,
    block_size: int,
    spare: int,
    equal: bool,
    generator: Generator,
) -> _Table:
    """Each request's tokens at slots drawn from the used pages; query s attends to the latest ones up to
    token lens + s."""
    tokens = [length + queries - 1 if length else 0 for length in lens]
    used = -(-max(1, sum(tokens)) // block_size)
    blocks = used + spare
    pages = torch.randperm(blocks, generator=generator)[:used]
    entries = torch.full((len(lens) * queries, window), PADDING)
    lengths = torch.zeros(len(entries), dtype=torch.int64)
    for request, (length, count) in enumerate(zip(lens, tokens, strict=True)):
        drawn = torch.randperm(used * block_size, generator=generator)[:count]
        slots = pages[drawn // block_size] * block_size + drawn % block_size
        for query in range(queries if length else 0):
            row, most = request * queries + query, length if equal else min(window, length + query)
            entries[row, :most] = slots[length + query - most : length + query]
            lengths[row] = most
    return _Table(entries, lengths.clone(), lengths, blocks, block_size, of_pages=False)


def _row_lengths(extra_lens: tuple[int, ...], queries: int, equal: bool) -> Tensor:
    """[requests, queries]: one fewer in each later query, but at least one of a request that has any."""
    lengths = torch.tensor(extra_lens, dtype=torch.int64).unsqueeze(1)
    less = torch.zeros(queries, dtype=torch.int64) if equal else torch.arange(queries)
    return torch.maximum(lengths - less, lengths.clamp(max=1))


def _topk(
    extra_lens: tuple[int, ...],
    queries: int,
    topk: int,
    block_size: int,
    spare: int,
    equal: bool,
    generator: Generator,
) -> _Table:
    """Slots of the used pages in any order, drawn for each query row."""
    if any(length > topk for length in extra_lens):
        raise ContractError(
            f"extra_lens are in [0, {topk}], topk; they are {', '.join(map(str, extra_lens))}"
        )
    lengths = _row_lengths(extra_lens, queries, equal).flatten()
    used = -(-max(1, sum(extra_lens)) // block_size)
    blocks = used + spare
    pages = torch.randperm(blocks, generator=generator)[:used]
    entries = torch.full((len(lengths), topk), PADDING)
    for row, length in enumerate(lengths.tolist()):
        drawn = torch.randperm(used * block_size, generator=generator)[:length]
        entries[row, :length] = pages[drawn // block_size] * block_size + drawn % block_size
    return _Table(entries, lengths.clone(), lengths, blocks, block_size, of_pages=False)


def _positions(
    extra_lens: tuple[int, ...],
    queries: int,
    topk: int,
    block_size: int,
    spare: int,
    equal: bool,
    generator: Generator,
) -> _Table:
    """Pages of its own for each request, the same for all its queries."""
    counts = [-(-length // block_size) for length in extra_lens]
    blocks = max(1, sum(counts)) + spare
    pages = torch.randperm(blocks, generator=generator)
    entries = torch.full((len(extra_lens) * queries, max(counts, default=0) + 1), PADDING)
    filled = torch.tensor(counts, dtype=torch.int64).repeat_interleave(queries)
    first = 0
    for request, count in enumerate(counts):
        entries[request * queries : (request + 1) * queries, :count] = pages[first : first + count]
        first += count
    lengths = _row_lengths(extra_lens, queries, equal).flatten()
    return _Table(entries, filled, lengths, blocks, block_size, of_pages=True)


def _puncture(table: _Table, holes: float, duplicates: float, generator: Generator) -> None:
    """Make shares of each row's slots its first one, and -1."""
    for row, length in zip(table.entries, table.lens.tolist(), strict=True):
        if duplicates:
            row[torch.randperm(length, generator=generator)[: int(duplicates * length)]] = row[0].clone()
        if holes:
            row[torch.randperm(length, generator=generator)[: int(holes * length)]] = PADDING


def _unread(table: _Table) -> Tensor:
    """Which slots of the cache no query attends to, bool."""
    unread = torch.ones(table.blocks * table.block_size, dtype=torch.bool)
    for row, length in zip(table.entries, table.lens.tolist(), strict=True):
        if table.of_pages:
            slots = (row[: -(-length // table.block_size)].unsqueeze(1) * table.block_size) + torch.arange(
                table.block_size
            )
            unread[slots.flatten()[:length]] = False
        else:
            slots = row[:length]
            unread[slots[slots != PADDING]] = False
    return unread


def _point_stale(table: _Table, stale: str, unread: Tensor, generator: Generator) -> None:
    """Entries past those that were dealt: outside the cache, or drawn of live or of unread slots or pages; a
    slot or page 0 if there are none."""
    past = torch.arange(table.entries.shape[1]) >= table.filled.unsqueeze(1)
    if stale == "outside":
        table.entries[past] = STALE + torch.arange(table.entries.shape[1]).expand(past.shape)[past]
        return
    chosen = (~unread if stale == "live" else unread).view(table.blocks, -1)
    if table.of_pages:
        chosen = chosen.any(1) if stale == "live" else chosen.all(1)
    known = chosen.flatten().nonzero().squeeze(1)
    if not len(known):
        known = torch.zeros(1, dtype=torch.int64)
    table.entries[past] = known[torch.randint(len(known), (int(past.sum()),), generator=generator)]


def _shaped_lens(lens: Tensor, shape: str, requests: int, queries: int) -> Tensor:
    by_request = lens.to(torch.int32).view(requests, queries)
    if shape == "B":
        return by_request[:, 0].contiguous()
    return by_request if shape == "BS" else by_request.flatten()


def _packed(tensors: dict[str, Tensor], layouts: tuple[CacheLayout, CacheLayout]) -> dict[str, Tensor]:
    """Both caches in one allocation: a page of each, side by side, and NaN where there is neither."""
    if EXTRA.cache not in tensors:
        raise ContractError("packed lays two caches side by side; give extra_lens")
    caches = [tensors[WINDOW.cache], tensors[EXTRA.cache]]
    widths = [one.stride(0) * one.element_size() for one in caches]
    step = sum(widths)
    memory = torch.full((max(map(len, caches)) * step,), 0xFF, dtype=torch.uint8)
    found = {}
    for names, cache, start in zip((WINDOW, EXTRA), caches, (0, widths[0]), strict=True):
        item = cache.element_size()
        strides = (step // item, cache.shape[2], 1)
        found[names.cache] = memory.view(cache.dtype).as_strided(cache.shape, strides, start // item)
    for names, cache, layout in zip((WINDOW, EXTRA), caches, layouts, strict=True):
        if layout is CacheLayout.FP8_DS_MLA:
            for new, old in zip(ds_mla_parts(found[names.cache]), ds_mla_parts(cache), strict=True):
                new.copy_(old)
        else:
            found[names.cache].view(torch.uint8).copy_(cache.view(torch.uint8))
    return found


def _spoil(
    call: Call,
    layouts: tuple[CacheLayout, CacheLayout],
    nan_at: tuple[int, ...],
    nan_extra_at: tuple[int, ...],
    nan_scale_at: tuple[int, ...],
) -> None:
    segments = segments_of(call.tensors, call.conventions)
    for option, place, rows in (
        ("nan_at", 0, nan_at),
        ("nan_extra_at", 1, nan_extra_at),
        ("nan_scale_at", 0, nan_scale_at),
    ):
        if rows and place == len(segments):
            raise ContractError(f"{option}: the call has no extra segment; give extra_lens")
        for row in rows:
            one = segments[place]
            slot = attended_slot(one.slots, one.counts, row, option)
            spoil(
                dict(call.tensors),
                layouts[place],
                slot,
                in_scale=option == "nan_scale_at",
                names=one.names,
            )
