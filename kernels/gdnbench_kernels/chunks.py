# SPDX-License-Identifier: Apache-2.0
"""Cuts packed sequences into chunks, and gathers tokens by chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNREAD = -1
"""Value that rows of chunk_indices past the last chunk are given here; no kernel reads them."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of a packed batch in order of sequence; C chunks in all. A sequence without tokens has none.

    All tensors are int64 on the host.
    """

    chunk_size: int
    tokens: int  # T
    bound: int  # UB: at least C for every cut of T tokens into N sequences, so known without reading offsets
    sequence: Tensor  # [C] which sequence
    index: Tensor  # [C] which chunk of that sequence
    start: Tensor  # [C] first token
    length: Tensor  # [C] tokens, 1 .. chunk_size
    offsets: Tensor  # [N+1] chunks before each sequence

    @property
    def total(self) -> int:
        """C, the number of chunks (`total_chunks`)."""
        return len(self.sequence)

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """For chunks [start, stop): the token of every row [c, chunk_size], and whether the row has one."""
        rows = torch.arange(self.chunk_size)
        tokens = self.start[start:stop, None] + rows
        valid = rows < self.length[start:stop, None]
        return tokens.where(valid, 0), valid


def chunk_bound(tokens: int, sequences: int, chunk_size: int) -> int:
    """UB: (N - 1) + ceil((T - (N - 1)) / chunk_size). No cut of T tokens into N sequences has more chunks."""
    return sequences - 1 - (sequences - 1 - tokens) // chunk_size


def segment_bound(tokens: int, sequences: int, segment: int) -> int:
    """No cut of T tokens into N sequences has more segments, of which each sequence has at least one: all
    tokens in one sequence make the most, N - 1 of others and ceil(T / segment)."""
    return sequences - 1 + max(1, -(-tokens // segment))


def plan_chunks(cu_seqlens: Tensor, chunk_size: int) -> ChunkPlan:
    """The chunks of sequences [cu_seqlens[n], cu_seqlens[n + 1]); `cu_seqlens` is valid for its call."""
    bounds = cu_seqlens.cpu().long()
    sequences = len(bounds) - 1
    tokens = int(bounds[-1])
    lengths = bounds.diff()
    counts = (lengths + chunk_size - 1) // chunk_size
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sequence = torch.repeat_interleave(torch.arange(sequences), counts)
    index = torch.arange(len(sequence)) - offsets[sequence]
    start = bounds[sequence] + index * chunk_size
    length = (bounds[sequence + 1] - start).clamp(max=chunk_size)
    bound = chunk_bound(tokens, sequences, chunk_size)
    return ChunkPlan(chunk_size, tokens, bound, sequence, index, start, length, offsets)


def gather_chunks(x: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
    """Rows of `x` [T, H, ...] by chunk, heads first: [c, H, chunk_size, ...].

    Rows past the end of a sequence are set to zero, not multiplied by it: the token there belongs to another
    sequence and may be NaN.
    """
    on_device = tokens.to(x.device)
    rows = x.index_select(0, on_device.flatten()).view(*on_device.shape, *x.shape[1:])
    padding = ~valid.to(x.device)
    rows[padding] = 0
    return rows.movedim(2, 1)


def scatter_chunks(out: Tensor, chunks: Tensor, tokens: Tensor, valid: Tensor) -> None:
    """The inverse of `gather_chunks`: writes only the valid rows of `chunks` to `out`."""
    mask = valid.to(out.device)
    out[tokens.to(out.device)[mask]] = chunks.movedim(1, 2)[mask].to(out.dtype)
