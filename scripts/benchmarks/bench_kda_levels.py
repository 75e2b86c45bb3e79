#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Errors of A and P of a chunk of Kimi Delta Attention, by how the decays of pairs of tokens are factored.

    python scripts/benchmarks/bench_kda_levels.py                a table in markdown
    python scripts/benchmarks/bench_kda_levels.py --chunks 32

A chunk has 64 tokens and 128 channels, bf16 keys and queries of norm 1, gates drawn from 0 to -g a token:
served models allow -5. Sums of products are exact (fp64), operands rounded to bf16 where the method rounds
them, exponentials in f32. The figure is the RMS error of A and P together over the RMS of the exact ones, of
the worst chunk; "not finite" if an exponential overflowed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

CHUNK, CHANNELS, PART = 64, 128, 16
LOWEST = (1e-3, 0.1, 1.0, 5.0, 20.0, 3e3)
"""-g of the lowest gate a token."""

Scores = Callable[[Tensor, Tensor, Tensor], Tensor]
"""x, k [C, K] bf16 and g [C, K] f32 to the [C, C] sums of x_i D_ij k_j for i >= j."""


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def exact(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    sums = g.double().cumsum(0)
    decays = (sums[:, None] - sums[None]).clamp(max=0).exp()
    return torch.einsum("ic,ijc,jc->ij", x.double(), decays, k.double()).tril()


def by_row(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """The torch kernel's: each pair its own exponential, of a difference of f32 sums of 16 tokens."""
    found = torch.zeros(CHUNK, CHUNK, dtype=torch.float64)
    for start in range(0, CHUNK, PART):
        own = slice(start, start + PART)
        sums = g[own].cumsum(0)
        decays = (sums[:, None] - sums[None]).clamp(max=0).exp()
        found[own, own] = (rounded(x[own, None].float() * decays) * k[None, own].double()).sum(-1)
    return found.tril()


def anchored(size: int) -> Scores:
    """One anchor, its first token, for each block of `size` tokens: factors exp(g_cu) and exp(-g_cu)."""

    def scores(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
        found = torch.zeros(CHUNK, CHUNK, dtype=torch.float64)
        for start in range(0, CHUNK, size):
            own = slice(start, start + size)
            sums = g[own].cumsum(0)
            rows, columns = rounded(x[own].float() * sums.exp()), rounded(k[own].float() * (-sums).exp())
            found[own, own] = rows @ columns.mT
        return found.tril()

    return scores


def levels(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """The fused kernel's."""
    decays = g.exp()
    found = torch.diag((x.double() * k.double()).sum(-1))
    size = 1
    while size < CHUNK:
        for start in range(0, CHUNK, 2 * size):
            middle, stop = start + size, start + 2 * size
            up = decays[middle:stop].cumprod(0)
            after = torch.cat([decays[start + 1 : middle], torch.ones(1, CHANNELS)])
            down = after.flip(0).cumprod(0).flip(0)
            rows = rounded(x[middle:stop].float() * up)
            found[middle:stop, start:middle] = rows @ rounded(k[start:middle].float() * down).mT
        size *= 2
    return found


def error(scores: Scores, lowest: float, chunks: int, within: int) -> float:
    """The worst chunk's; only pairs within blocks of `within` tokens count."""
    block = torch.arange(CHUNK) // within
    counted = (block[:, None] == block[None]).double()
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(chunks):
        q, k = (torch.randn(CHUNK, CHANNELS, generator=generator) for _ in range(2))
        q, k = ((x / x.norm(dim=-1, keepdim=True)).bfloat16() for x in (q, k))
        g = -lowest * torch.rand(CHUNK, CHANNELS, generator=generator)
        pairs = [(scores(x, k, g), exact(x, k, g)) for x in (k, q)]
        wrong, right = (torch.stack([pair[side] * counted for pair in pairs]) for side in range(2))
        found = float((wrong - right).norm() / right.norm())
        if not found < float("inf"):
            return float("nan")
        worst = max(worst, found)
    return worst


METHODS: dict[str, tuple[Scores, int]] = {
    "levels, as in sm100_fused": (levels, CHUNK),
    "one exponential a pair, 16 tokens, as in torch": (by_row, PART),
    "one anchor for 16 tokens": (anchored(PART), PART),
    "one anchor for 64 tokens": (anchored(CHUNK), CHUNK),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunks", type=int, default=8, help="chunks of each figure, default 8")
    chunks = parser.parse_args().chunks
    print("| gates a token | " + " | ".join(f"to -{lowest:g}" for lowest in LOWEST) + " |")
    print("|---|" + "---|" * len(LOWEST))
    for name, (scores, within) in METHODS.items():
        errors = [error(scores, lowest, chunks, within) for lowest in LOWEST]
        figures = ["not finite" if found != found else f"{found:.1e}" for found in errors]
        print(f"| {name} | " + " | ".join(figures) + " |")


if __name__ == "__main__":
    main()
