# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for indexer_logits."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError, Scalar
from gdnbench_kernels.indexer_logits.keys import pack_pages

E4M3_MAX = 448.0
STALE_PAGE = 0x7F00_0000
"""What entries of a table past a request's keys hold, about: pages of no cache."""
DTYPES = ("float8_e4m3fn", "bfloat16", "float32")


def synth(
    *,
    lens: tuple[int, ...] = (1000, 64, 65, 1, 0),
    queries: int = 1,
    heads: int = 64,
    head_dim: int = 128,
    block_size: int = 64,
    spare_pages: int = 2,
    page_gap: int = 0,
    packed: bool = False,
    compressed: bool = False,
    dtype: str = "float8_e4m3fn",
    weights_dtype: str = "float32",
    logits_dtype: str = "float32",
    clean_logits: bool = False,
    positive: float = 0.5,
    columns: int | None = None,
    scale_range: float = 1.0,
    poison: bool = True,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `lens`: keys of each request. `queries`: how many a request has; each sees one key less than the next one.
    `packed`: the keys of all requests lie one after another, as in prefill, else in pages. `compressed`: then
    columns count from a query's first key. `positive`: share of the weights that are positive. `dtype`: that
    of q, and of packed keys. `scale_range`: magnitudes of keys differ by up to this factor. `page_gap`: bytes
    between pages. `poison`: keys that no query scores are NaN.
    """
    _check(lens, queries, dtype, positive, scale_range, page_gap, weights_dtype, logits_dtype)
    generator = torch.Generator().manual_seed(seed)
    rows = len(lens) * queries
    q = torch.randn(rows, heads, head_dim, generator=generator)
    weights = torch.randn(rows, heads, generator=generator).abs() * heads**-0.5
    weights *= torch.where(torch.rand(rows, heads, generator=generator) < positive, 1.0, -1.0)
    last = torch.tensor(lens).repeat_interleave(queries) if lens else torch.zeros(0, dtype=torch.long)
    back = torch.arange(queries - 1, -1, -1).repeat(len(lens))
    tensors: dict[str, Tensor] = {
        "q": q.to(getattr(torch, dtype)),
        "weights": weights.to(getattr(torch, weights_dtype)),
        "lens": (last - back).clamp(min=0).to(torch.int32),
    }
    if packed:
        tensors |= _packed(lens, queries, head_dim, dtype, scale_range, generator)
    else:
        tensors |= _paged(lens, head_dim, block_size, spare_pages, page_gap, scale_range, poison, generator)
    scalars: dict[str, Scalar] = {"clean_logits": clean_logits, "logits_dtype": logits_dtype}
    if packed and compressed:
        scalars |= {"compressed": True, "columns": max(lens, default=0)}
    if columns is not None:
        scalars["columns"] = columns
    return Call(tensors, scalars, {})


def _check(
    lens: tuple[int, ...],
    queries: int,
    dtype: str,
    positive: float,
    scale_range: float,
    page_gap: int,
    weights_dtype: str,
    logits_dtype: str,
) -> None:
    if min(lens, default=0) < 0:
        raise ContractError(f"lens are 0 or more; they are {', '.join(map(str, lens))}")
    if queries < 1:
        raise ContractError(f"queries is {queries}; it must be at least 1")
    for name, given, known in (
        ("dtype", dtype, DTYPES),
        ("weights_dtype", weights_dtype, DTYPES[1:]),
        ("logits_dtype", logits_dtype, DTYPES[1:]),
    ):
        if given not in known:
            raise ContractError(f"{name} is {given!r}; it is one of {', '.join(known)}")
    if not 0 <= positive <= 1:
        raise ContractError(f"positive is {positive:g}; it is a share, in [0, 1]")
    if not 1 <= scale_range < float("inf"):
        raise ContractError(f"scale_range is {scale_range:g}; it is a ratio, finite and at least 1")
    if page_gap < 0 or page_gap % 4:
        raise ContractError(f"page_gap is {page_gap}; it is a number of bytes, a multiple of 4")


def _keys(count: int, head_dim: int, scale_range: float, generator: Generator) -> Tensor:
    keys = torch.randn(count, head_dim, generator=generator)
    return keys * scale_range ** -torch.rand(count, 1, generator=generator)


def _quantised(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Codes e4m3 and scales of keys [..., D]: a key's largest magnitude, at least 1e-4, over 448."""
    scales = keys.abs().amax(-1).clamp(min=1e-4) / E4M3_MAX
    return (keys / scales.unsqueeze(-1)).to(torch.float8_e4m3fn), scales


def _packed(
    lens: tuple[int, ...],
    queries: int,
    head_dim: int,
    dtype: str,
    scale_range: float,
    generator: Generator,
) -> dict[str, Tensor]:
    keys = _keys(sum(lens), head_dim, scale_range, generator)
    ends = torch.tensor(lens, dtype=torch.int32).cumsum(0)
    starts = (ends - torch.tensor(lens, dtype=torch.int32)).to(torch.int32).repeat_interleave(queries)
    if dtype != "float8_e4m3fn":
        return {"k": keys.to(getattr(torch, dtype)), "row_starts": starts}
    codes, scales = _quantised(keys)
    return {"k": codes, "k_scale": scales, "row_starts": starts}


def _paged(
    lens: tuple[int, ...],
    head_dim: int,
    block_size: int,
    spare_pages: int,
    page_gap: int,
    scale_range: float,
    poison: bool,
    generator: Generator,
) -> dict[str, Tensor]:
    needed = [-(-length // block_size) for length in lens]
    blocks = sum(needed) + spare_pages
    order = torch.randperm(blocks, generator=generator)
    width = max([*needed, 1]) + 1
    table = STALE_PAGE + torch.arange(len(lens) * width, dtype=torch.int32).view(len(lens), width)
    codes, scales = _quantised(_keys(blocks * block_size, head_dim, scale_range, generator))
    read = torch.zeros(blocks * block_size, dtype=torch.bool)
    taken = 0
    for request, (count, length) in enumerate(zip(needed, lens, strict=True)):
        pages = order[taken : taken + count]
        taken += count
        table[request, :count] = pages.to(torch.int32)
        slots = (pages.unsqueeze(1) * block_size + torch.arange(block_size)).flatten()[:length]
        read[slots] = True
    if poison:
        codes.view(torch.uint8)[~read] = 0x7F  # a NaN in e4m3
        scales[~read] = torch.nan
    shape = (blocks, block_size)
    cache = pack_pages(codes.view(*shape, head_dim), scales.view(shape), page_gap)
    return {"cache": cache, "block_table": table}
