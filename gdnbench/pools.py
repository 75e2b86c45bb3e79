# SPDX-License-Identifier: Apache-2.0
"""State pools: the rows that a call can touch, and a checksum over those that it must not."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# 2**64 divided by the golden ratio, as torch's signed words hold it; odd, so that it has an inverse modulo
# 2**64.
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_BLOCK_WORDS = 1 << 22  # 32 MiB of 64-bit products at a time


def untouched_rows(slots: int, touched: Tensor) -> Tensor:
    """Rows of [0, slots) that are not in `touched`, int64, ascending, on its device."""
    untouched = torch.ones(slots, dtype=torch.bool, device=touched.device)
    untouched[touched.long()] = False
    return untouched.nonzero().squeeze(1)


def checksum(pool: Tensor, rows: Tensor) -> Tensor:
    """64 bits (0-d, int64) over the bits of `rows` of `pool` [slots, ...], on the pool's device.

    A row's sum is sum(word[j] * (2j+1) * C) modulo 2**64 with C odd: each weight is odd, so a change of a
    single word always changes it. A word has 4 bytes, or 2 or 1 where a row does not divide into such; with
    8, the change of two words' highest bits would cancel. The sums are mixed and weighted by slot, so that
    rows that change places are noticed. No cryptographic strength: it finds stray writes, not an adversary.
    """
    rows = rows.to(device=pool.device, dtype=torch.int64)
    sums = torch.zeros(rows.numel(), dtype=torch.int64, device=pool.device)
    _fill(pool, sums, rows, _in_numpy if pool.device.type == "cpu" else _in_torch)
    return mixed(sums, rows).sum()


def row_sums(pool: Tensor, out: Tensor) -> None:
    """Fill `out` (int64) with the sums of all rows of the pool, not mixed yet: two kernels for every 32 MiB,
    which a CUDA graph can hold, and nothing that would have the host wait."""
    _fill(pool, out, None, _in_torch)


def _fill(
    pool: Tensor, out: Tensor, rows: Tensor | None, weigh: Callable[[Tensor, Tensor, Tensor], None]
) -> None:
    row_bytes = pool[0].numel() * pool.element_size() if pool.shape[0] else 0
    if row_bytes == 0 or out.numel() == 0:
        out.zero_()
        return
    width = next(width for width in (4, 2, 1) if row_bytes % width == 0)
    weights = _weights(row_bytes // width, pool.device, _stream(pool.device))
    block_rows = max(1, _BLOCK_WORDS // len(weights))
    for start in range(0, out.numel(), block_rows):
        place = slice(start, start + block_rows)
        block = pool[place] if rows is None else pool[rows[place]]
        weigh(_words(block, width), weights, out[place])


def _in_torch(words: Tensor, weights: Tensor, out: Tensor) -> None:
    """words @ weights modulo 2**64."""
    torch.sum(words * weights, dim=1, out=out)


def _in_numpy(words: Tensor, weights: Tensor, out: Tensor) -> None:
    """The same on a CPU, in a quarter of the time: without the products in memory."""
    np.einsum("ij,j->i", words.numpy(), weights.numpy(), dtype=np.int64, out=out.numpy())


def mixed(sums: Tensor, rows: Tensor) -> Tensor:
    """What `rows` (int64) with these sums add to a `checksum`. Not linear in the words, so that weighting by
    slot tells rows apart."""
    return (sums ^ (sums >> 29)) * _ODD * (2 * rows + 1)


def _words(block: Tensor, width: int) -> Tensor:
    """Each row's bytes as integers of `width` bytes; a copy only where they do not follow each other, or
    begin in the middle of such an integer."""
    rows, size = block.reshape(len(block), -1), block.element_size()
    begins = (rows.data_ptr(), rows.storage_offset() * size, rows.stride(0) * size)
    if rows.stride(1) != 1 or any(byte % width for byte in begins):
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(_WORDS[width])


@lru_cache(maxsize=8)
def _weights(words: int, device: torch.device, stream: int) -> Tensor:
    """(2j+1) * C; for each stream its own, as no other waits for what fills it."""
    return (2 * torch.arange(words, dtype=torch.int64, device=device) + 1) * _ODD


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def digits(total: Tensor) -> str:
    """A checksum as 16 hex digits."""
    return f"{int(total) & 0xFFFFFFFFFFFFFFFF:016x}"
