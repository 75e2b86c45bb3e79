"""The keys of an indexer: pages of e4m3 codes with fp32 scales, and which columns of logits a query fills.

A page is not rows of D + 4 bytes: first come the codes of its tokens, block_size * D bytes, then their
scales, block_size fp32. That is DeepGEMM's layout for `fp8_paged_mqa_logits`, which vLLM and SGLang write.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.indexer_logits.params import LogitsParams

SCALE_BYTES = 4


def page_parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a cache [blocks, block_size, D + 4]: codes [blocks, block_size, D] and the bytes of scales
    [blocks, block_size, 4], both uint8."""
    blocks, block_size, row = cache.shape
    features, page, offset = row - SCALE_BYTES, cache.stride(0), cache.storage_offset()
    codes = cache.as_strided((blocks, block_size, features), (page, features, 1), offset)
    scales = cache.as_strided(
        (blocks, block_size, SCALE_BYTES), (page, SCALE_BYTES, 1), offset + block_size * features
    )
    return codes, scales


def pack_pages(codes: Tensor, scales: Tensor, gap: int = 0) -> Tensor:
    """A cache of e4m3 codes [blocks, block_size, D] and fp32 scales [blocks, block_size]. `gap`: bytes
    between pages, a multiple of 4."""
    blocks, block_size, features = codes.shape
    row = features + SCALE_BYTES
    memory = torch.zeros(blocks * (block_size * row + gap), dtype=torch.uint8)
    cache = memory.as_strided((blocks, block_size, row), (block_size * row + gap, row, 1))
    held_codes, held_scales = page_parts(cache)
    held_codes.copy_(codes.view(torch.uint8))
    held_scales.copy_(scales.float().contiguous().view(torch.uint8).view(blocks, block_size, SCALE_BYTES))
    return cache


def read_pages(cache: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., block_size, D] e4m3 and scales [..., block_size] fp32 of `pages` [...]."""
    codes, scales = (part[pages.long()] for part in page_parts(cache))
    return codes.view(torch.float8_e4m3fn), scales.contiguous().view(torch.float32).squeeze(-1)


def request_of(rows: int, tables: int) -> int:
    """How many queries each request has."""
    return rows // tables if tables else 1


def width_of(params: LogitsParams) -> int:
    """How many columns logits has."""
    if params.columns is not None:
        return params.columns
    if params.k is not None:
        return params.k.shape[0]
    assert params.block_table is not None
    assert params.cache is not None
    return params.block_table.shape[1] * params.cache.shape[1]


def first_columns(params: LogitsParams) -> Tensor:
    """int64 [T]: the column of each query's first key."""
    if params.compressed or params.row_starts is None:
        return torch.zeros_like(params.lens, dtype=torch.int64)
    return params.row_starts.long()


def columns_of_keys(params: LogitsParams) -> Tensor:
    """bool [T, columns]: which columns of logits are a key's."""
    return key_columns(first_columns(params), params.lens, width_of(params))


def key_columns(first: Tensor, lens: Tensor, columns: int) -> Tensor:
    """bool [T, columns]: the `lens` columns from `first`."""
    column = torch.arange(columns, device=lens.device)
    first = first.unsqueeze(1)
    return (column >= first) & (column < first + lens.unsqueeze(1))
