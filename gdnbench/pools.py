"""State pools: the rows that a call can touch, and a checksum over those that it must not."""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
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
    single word always changes it. The sums are mixed and weighted by slot, so that rows that change places
    are noticed. No cryptographic strength: it finds stray writes, not an adversary.
    """
    rows = rows.to(device=pool.device, dtype=torch.int64)
    return row_checksums(pool, rows).sum()


def row_checksums(pool: Tensor, rows: Tensor) -> Tensor:
    """What each of `rows` (int64, on the pool's device) adds to a `checksum`: int64 [rows]."""
    found = torch.zeros(rows.numel(), dtype=torch.int64, device=pool.device)
    row_words = pool[0].numel() if pool.shape[0] else 0
    if row_words == 0 or rows.numel() == 0:
        return found
    positions = torch.arange(row_words, dtype=torch.int64, device=pool.device)
    weights = (2 * positions + 1) * _ODD
    block_rows = max(1, _BLOCK_WORDS // row_words)
    for start in range(0, rows.numel(), block_rows):
        block = rows[start : start + block_rows]
        words = pool[block].view(_WORDS[pool.element_size()]).reshape(block.numel(), row_words)
        sums = (words.to(torch.int64) * weights).sum(dim=1)
        found[start : start + block_rows] = _mixed(sums) * (2 * block + 1)
    return found


def _mixed(sums: Tensor) -> Tensor:
    """Makes the sum non-linear in its words, so that weighting by slot tells rows apart."""
    return (sums ^ (sums >> 29)) * _ODD


def digits(total: Tensor) -> str:
    """A checksum as 16 hex digits."""
    return f"{int(total) & 0xFFFFFFFFFFFFFFFF:016x}"
