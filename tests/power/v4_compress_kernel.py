# SPDX-License-Identifier: Apache-2.0
"""v4_compress in torch, a window at a time, every step of which a variant or a fault replaces.

    slots    = the tokens at p - ratio + 1 .. p of a closed window, before them with overlap those of the
               window before; x = kv, z = score + ape[position % ratio]
    columns  = the last D of a window's own tokens, the first D of those of the window before
    c        = sum_s exp(z[s] - max z) x[s] / sum_s exp(z[s] - max z)            for each feature
    entry    = c / sqrt(mean c^2 + eps) norm_weight, its last R features turned by pairs
    state    = x and z of each token of the call, in its page

Written from the contract's formulas. `Compressor(z=function)` passes that intermediate through
`function(z, window)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.power.number_formats import Exp


@dataclass(frozen=True)
class Closed:
    """A window that a token of the call closes."""

    row: int  # of that token in the call
    sequence: int
    last: int  # its position
    positions: list[int]  # of the slots; negative before the sequence
    ratio: int
    overlap: bool
    features: int


Edit = Callable[[Tensor, Closed], Tensor]


class Compressor:
    """A kernel of v4_compress."""

    calls = 0

    def __init__(self, *, compute: torch.dtype = torch.float32, exp: Exp = torch.exp, **edits: Edit) -> None:
        self.compute, self.exp, self.edits = compute, exp, edits

    def __call__(
        self,
        *,
        kv: Tensor,
        score: Tensor,
        ape: Tensor,
        cu_seqlens: Tensor,
        starts: Tensor,
        state: Tensor,
        block_table: Tensor,
        entries: Tensor,
        norm_weight: Tensor | None = None,
        rope: Tensor | None = None,
        ratio: int = 4,
        overlap: bool = True,
        eps: float = 1e-6,
        **_: Any,
    ) -> dict[str, Tensor]:
        self.eps, self.ratio, self.overlap = eps, ratio, overlap
        columns, size = kv.shape[1], state.shape[1]
        features = columns // 2 if overlap else columns
        before = state.clone()
        for n, (first, end) in enumerate(pairwise(cu_seqlens.tolist())):
            start = int(starts[n])
            for row in range(first, end):
                position = start + row - first
                token = self.token(kv[row], score[row], ape, position)
                page = self.page(block_table, n, position, size)
                if page >= 0:
                    state[page, position % size] = self.kept(token).to(state.dtype)
                if not self.closes(position, row - first):
                    continue
                closed = Closed(row, n, position, self.slots(position), ratio, overlap, features)
                tokens = []
                for at in closed.positions:
                    if at < 0:
                        tokens.append(self.missing(columns))
                    elif at >= start:
                        tokens.append(self.token(kv[first + at - start], score[first + at - start], ape, at))
                    else:
                        place = self.page(block_table, n, at, size)
                        tokens.append(self.read(before, place, at % size))
                entry = self.entry(torch.stack(tokens), closed, norm_weight, rope)
                entries[self.row_of(closed)] = self.rounded(entry, entries.dtype)
        return self.finish({"entries": entries, "state": state}, None)

    def edit(self, name: str, x: Tensor, closed: Closed) -> Tensor:
        return self.edits[name](x, closed) if name in self.edits else x

    def token(self, kv: Tensor, score: Tensor, ape: Tensor, position: int) -> Tensor:
        """[2 E]: x, then z."""
        wide = score.to(self.compute) + ape[self.place(position)].to(self.compute)
        return torch.cat([kv.to(self.compute), wide])

    def place(self, position: int) -> int:
        return position % self.ratio

    def kept(self, token: Tensor) -> Tensor:
        return token

    def missing(self, columns: int) -> Tensor:
        """What a slot before the sequence holds."""
        return torch.cat([torch.zeros(columns), torch.full((columns,), -torch.inf)]).to(self.compute)

    def page(self, block_table: Tensor, n: int, position: int, size: int) -> int:
        place = position // size
        return int(block_table[n, place]) if place < block_table.shape[1] else -1

    def read(self, state: Tensor, page: int, offset: int) -> Tensor:
        return state[page, offset].to(self.compute)

    def closes(self, position: int, number: int) -> bool:
        """Whether the call's token `number` of a sequence closes a window."""
        return (position + 1) % self.ratio == 0

    def slots(self, position: int) -> list[int]:
        count = self.ratio * (2 if self.overlap else 1)
        return list(range(position + 1 - count, position + 1))

    def row_of(self, closed: Closed) -> int:
        return closed.row

    def entry(self, tokens: Tensor, closed: Closed, weight: Tensor | None, rope: Tensor | None) -> Tensor:
        x, z = tokens.chunk(2, dim=1)
        if closed.overlap:
            x, z = self.columns(x, closed), self.columns(z, closed)
        c = self.edit("c", self.pooled(self.edit("x", x, closed), self.edit("z", z, closed)), closed)
        if weight is not None:
            c = self.normalised(c, weight.to(self.compute))
        if rope is not None and rope.shape[1]:
            c = self.rotated(c, rope[self.angle(closed)].to(self.compute))
        return self.edit("entry", c, closed)

    def columns(self, x: Tensor, closed: Closed) -> Tensor:
        """[slots, D] of [slots, 2 D]."""
        features = closed.features
        return torch.cat([x[: closed.ratio, :features], x[closed.ratio :, features:]])

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        """[D] of [slots, D]."""
        p = self.exp(z - z.amax(0))
        return (p * x).sum(0) / p.sum(0)

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return c / (c.square().mean() + self.eps).sqrt() * weight

    def angle(self, closed: Closed) -> int:
        """The position whose angle turns an entry."""
        return closed.last + 1 - closed.ratio

    def rotated(self, c: Tensor, angles: Tensor) -> Tensor:
        cos, sin = angles.chunk(2)
        kept, turned = c[: len(c) - len(angles)], c[len(c) - len(angles) :]
        even, odd = turned[::2], turned[1::2]
        pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], 1)
        return torch.cat([kept, pairs.flatten()])

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def finish(self, found: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
        return found
