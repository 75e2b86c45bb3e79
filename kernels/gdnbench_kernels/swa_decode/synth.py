# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for swa_decode."""

from __future__ import annotations

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
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.window import INDEX_SHAPES, PADDING, attended, shaped_indices

STALE_ENTRIES = ("outside", "live")


def synth(
    *,
    lens: tuple[int, ...] = (128, 17, 0, 1),
    heads: int = 64,
    window: int = MAX_WINDOW,
    block_size: int = 64,
    cache_layout: str = "per_token_scale",
    index_shape: str = "TW",
    scale_dtype: str = "float32",
    holes: float = 0.0,
    stale: str = "outside",
    sink: float | None = None,
    sink_spread: float = 1.0,
    spread: float = 0.0,
    scale_range: float = 1.0,
    magnitude: float = 1.0,
    shared_page: bool = False,
    spare_pages: int = 2,
    poison: bool = True,
    nan_at: tuple[int, ...] = (),
    nan_scale_at: tuple[int, ...] = (),
    output_lse: bool = True,
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `lens`: swa_lens, one request each. `window`: W. `holes`: share of a row's entries that are -1, rounded
    down. `stale`: entries past a row's length are slots `outside` the cache, or `live` slots that requests
    attend to, with finite values. `sink`: attn_sink about that value, none if not given; `sink_spread`: the
    standard deviation of a normal distribution around it, 0 for equal sinks. `spread`: the difference
    of the largest and the least score of a row, about; 0 leaves them as they fall, near 1. `scale_range`: the
    magnitudes of rows differ by up to this factor, and those of groups of 64 features too. `magnitude`: that
    of values, about; queries are then as small as to leave scores as they were. `shared_page`: all
    rows attend within one page; else to slots at random. `spare_pages`: pages that no row attends to, among
    the others. `poison`: slots that no row attends to hold NaN, in codes, scales and rope. `nan_at`: requests
    of which one slot that they attend to holds a NaN in its first value; `nan_scale_at`: in a scale.
    """
    _check_names(cache_layout, index_shape, block_size)
    check_ranges(holes, spread, scale_range, magnitude, spare_pages, scale)
    if stale not in STALE_ENTRIES:
        raise ContractError(f"stale is {stale!r}; it is one of {', '.join(STALE_ENTRIES)}")
    if not 0 <= sink_spread < float("inf"):
        raise ContractError(f"sink_spread is {sink_spread:g}; it is a deviation, finite and not negative")
    layout = CacheLayout(cache_layout)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lens, dtype=torch.int32)
    if bool((lengths < 0).any()) or bool((lengths > window).any()):
        raise ContractError(f"lens are in [0, {window}], the window; they are {', '.join(map(str, lens))}")
    used = 1 if shared_page else -(-max(1, int(lengths.sum())) // block_size)
    blocks = used + spare_pages
    pages = torch.randperm(blocks, generator=generator)[:used]
    indices = _deal(lengths, window, block_size, pages, shared_page, holes, generator)
    rows = normal_rows(blocks * block_size, scale_range, generator) * magnitude
    q = torch.randn(len(lens), heads, HEAD_DIM, generator=generator) / magnitude
    if spread:
        # Scores are then normal with this deviation; 128 of them span about 5.2 deviations.
        factor = spread / 5.2 / (HEAD_DIM**-0.5 if scale is None else scale)
        q *= factor / (rows / magnitude).norm(dim=1).mean()
    tensors: dict[str, Tensor] = {"q": q.to(torch.bfloat16)}
    rows = rows.to(torch.bfloat16).view(blocks, block_size, HEAD_DIM)
    counts = attended(indices, lengths)
    unread = torch.ones(blocks * block_size, dtype=torch.bool)
    unread[indices[counts].long()] = False
    tensors |= make_cache(rows, layout, scale_dtype_of(scale_dtype), unread if poison else None)
    for name, requests in (("nan_at", nan_at), ("nan_scale_at", nan_scale_at)):
        for request in requests:
            slot = attended_slot(indices, counts, request, name)
            spoil(tensors, layout, slot, in_scale=name == "nan_scale_at")
    if stale == "live":
        _point_at_live_slots(indices, counts, lengths, generator)
    tensors["swa_indices"] = shaped_indices(indices, index_shape).contiguous()
    tensors["swa_lens"] = lengths
    if sink is not None:
        tensors["attn_sink"] = sink + sink_spread * torch.randn(heads, generator=generator)
    scalars: dict[str, Scalar] = {"output_lse": output_lse}
    if scale is not None:
        scalars["scale"] = scale
    return Call(tensors, scalars, {"cache_layout": layout.value, "index_shape": index_shape})


def _check_names(cache_layout: str, index_shape: str, block_size: int) -> None:
    if cache_layout not in tuple(CacheLayout):
        raise ContractError(f"cache_layout is {cache_layout!r}; it is one of {', '.join(CacheLayout)}")
    if block_size not in BLOCK_SIZES:
        raise ContractError(f"block_size is {block_size}; it is one of {', '.join(map(str, BLOCK_SIZES))}")
    if index_shape not in INDEX_SHAPES:
        raise ContractError(f"index_shape is {index_shape!r}; it is one of {', '.join(INDEX_SHAPES)}")


def _deal(
    lengths: Tensor,
    window: int,
    block_size: int,
    pages: Tensor,
    shared_page: bool,
    holes: float,
    generator: Generator,
) -> Tensor:
    """[T, W] int32: slots of `pages` at random, -1 at random among the first `lengths`, stale entries after
    them."""
    indices = torch.empty(len(lengths), window, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        if shared_page:
            slots = torch.randint(block_size, (length,), generator=generator)
        else:
            slots = torch.randperm(len(pages) * block_size, generator=generator)[:length]
        slots = pages[slots // block_size] * block_size + slots % block_size
        missing = torch.randperm(length, generator=generator)[: int(holes * length)]
        slots[missing] = PADDING
        indices[row, :length] = slots.to(torch.int32)
        indices[row, length:] = STALE + torch.arange(window - length, dtype=torch.int32)
    return indices


def _point_at_live_slots(indices: Tensor, counts: Tensor, lengths: Tensor, generator: Generator) -> None:
    """Make the entries past a row's length slots that requests attend to, drawn, in place; nothing if there
    are none."""
    live = indices[counts]
    past = torch.arange(indices.shape[1]) >= lengths.unsqueeze(1)
    if len(live):
        indices[past] = live[torch.randint(len(live), (int(past.sum()),), generator=generator)]
