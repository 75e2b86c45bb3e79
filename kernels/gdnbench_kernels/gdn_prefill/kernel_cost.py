"""FLOP and bytes of the SM100 prefill kernels per token and value head, counted from the shapes.

    python -m gdnbench_kernels.gdn_prefill.kernel_cost [--group 2]

A product of M x N over K is 2 M N K FLOP, masked parts included. Bytes are counted in two ways: as memory
traffic, where q and k are read once for all `group` = Hv / H value heads of a key head, and as the requests
of all CTAs. All chunks are full. Initial and final states, chunk tables and barriers do not grow with the
number of tokens and are left out.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM

BF16, F32 = 2, 4
STATE_TILES = 2
"""CTAs per value head's state: each reads all of K and W, and its own part of U."""
MERGES = 32
"""Products of 16 x 8 over 16 that merge the inverse's diagonal blocks, over all four warps."""
SUBSTITUTION_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Product:
    """A product per chunk and value head, `times` its size."""

    kernel: str
    name: str
    m: int
    n: int
    k: int
    times: int = 1

    @property
    def flop(self) -> float:
        """FLOP per token."""
        return 2 * self.m * self.n * self.k * self.times / CHUNK


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor that a kernel reads or writes: its bytes per token (or per chunk) and head.

    `per_key_head`: once for a group of value heads. `asked`: how many CTAs of a value head request it.
    """

    kernel: str
    tensor: str
    row: float
    writes: bool = False
    per_key_head: bool = False
    asked: int = 1

    def memory(self, group: int) -> float:
        return self.row / group if self.per_key_head else self.row

    @property
    def requested(self) -> float:
        return self.row * self.asked


UW, STATE, OUTPUT = KERNELS = ("chunk_uw", "chunk_state", "chunk_output")

PRODUCTS = (
    Product(UW, "K K^T", CHUNK, CHUNK, HEAD_DIM),
    Product(UW, "inverse, merges", 16, 8, 16, MERGES),
    # A lane computes a whole column of a block with 15 + 14 + ... + 1 multiplications and additions: 16
    # columns in each of 4 blocks.
    Product(
        UW, "inverse, blocks", SUBSTITUTION_BLOCK * (SUBSTITUTION_BLOCK - 1) // 2, SUBSTITUTION_BLOCK, 1, 4
    ),
    Product(UW, "(Ai beta) V", CHUNK, HEAD_DIM, CHUNK),
    Product(UW, "(Ai beta exp) K", CHUNK, HEAD_DIM, CHUNK),
    Product(STATE, "h W^T", HEAD_DIM, CHUNK, HEAD_DIM),
    Product(STATE, "V_new^T K", HEAD_DIM, HEAD_DIM, CHUNK),
    Product(OUTPUT, "Q K^T", CHUNK, CHUNK, HEAD_DIM),
    Product(OUTPUT, "Q h^T", CHUNK, HEAD_DIM, HEAD_DIM),
    Product(OUTPUT, "P V_new", CHUNK, HEAD_DIM, CHUNK),
)

_ROW = BF16 * HEAD_DIM
_STATE = BF16 * HEAD_DIM * HEAD_DIM / CHUNK  # one per chunk

TRANSFERS = (
    Transfer(UW, "k", _ROW, per_key_head=True),
    Transfer(UW, "v", _ROW),
    Transfer(UW, "g, beta", 2 * F32),
    Transfer(UW, "g_cu", F32, writes=True),
    Transfer(UW, "U", _ROW, writes=True),
    Transfer(UW, "W", _ROW, writes=True),
    Transfer(STATE, "k", _ROW, per_key_head=True, asked=STATE_TILES),
    Transfer(STATE, "U", _ROW),
    Transfer(STATE, "W", _ROW, asked=STATE_TILES),
    Transfer(STATE, "g_cu", F32, asked=STATE_TILES),
    Transfer(STATE, "h", _STATE, writes=True),
    Transfer(STATE, "V_new", _ROW, writes=True),
    Transfer(OUTPUT, "q", _ROW, per_key_head=True),
    Transfer(OUTPUT, "k", _ROW, per_key_head=True),
    Transfer(OUTPUT, "V_new", _ROW),
    Transfer(OUTPUT, "h", _STATE),
    Transfer(OUTPUT, "g_cu", F32),
    Transfer(OUTPUT, "o", _ROW, writes=True),
)

BETWEEN = ("g_cu", "U", "W", "h", "V_new")
"""Tensors that one kernel writes and another reads; a fused kernel saves them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP and bytes per token and value head."""

    flop: float
    memory: float
    requested: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flop + other.flop, self.memory + other.memory, self.requested + other.requested)


def cost(kernel: str, group: int) -> Cost:
    """The cost of one kernel; `group` is Hv / H."""
    moved = [transfer for transfer in TRANSFERS if transfer.kernel == kernel]
    return Cost(
        sum(product.flop for product in PRODUCTS if product.kernel == kernel),
        sum(transfer.memory(group) for transfer in moved),
        sum(transfer.requested for transfer in moved),
    )


def total(group: int) -> Cost:
    """The sum of the three kernels."""
    return cost(UW, group) + cost(STATE, group) + cost(OUTPUT, group)


def fused(group: int) -> Cost:
    """The cost of chunk_fused, which has no intermediates in memory: q, k, v, g, beta and o once, W never
    formed.

    U - W S^T = Ai beta (V - exp(g_cu) K S^T), so the product that forms W is left out; the other products
    keep their sizes.
    """
    kept = {transfer.tensor: transfer for transfer in TRANSFERS if transfer.tensor not in BETWEEN}
    return Cost(
        sum(product.flop for product in PRODUCTS) - next(p.flop for p in PRODUCTS if p.name.endswith("K")),
        sum(transfer.memory(group) for transfer in kept.values()),
        sum(transfer.row for transfer in kept.values()),
    )


def tables(group: int) -> str:
    """Markdown tables of products, transfers and sums, for `group` value heads per key head."""
    products = [
        (product.kernel, f"`{product.name}`", _size(product), f"{product.flop:,.0f}") for product in PRODUCTS
    ]
    transfers = [
        (
            transfer.kernel,
            f"`{transfer.tensor}`",
            "writes" if transfer.writes else "reads",
            f"{transfer.memory(group):,.0f}",
            f"{transfer.requested:,.0f}",
        )
        for transfer in TRANSFERS
    ]
    sums = [(kernel, cost(kernel, group)) for kernel in KERNELS]
    sums += [("**together**", total(group)), ("chunk_fused instead", fused(group))]
    summed = [
        (name, f"{found.flop:,.0f}", f"{found.memory:,.0f}", f"{found.requested:,.0f}")
        for name, found in sums
    ]
    return "\n\n".join(
        (
            _table(("kernel", "product", "M x N over K", "FLOP"), products),
            _table(("kernel", "tensor", "", "bytes of memory", "bytes asked for"), transfers),
            _table(("kernel", "FLOP", "bytes of memory", "bytes asked for"), summed),
        )
    )


def _size(product: Product) -> str:
    if product.k == 1:
        return f"{product.times} x {product.m * product.n} multiply-adds"
    return (
        f"{product.times} x " if product.times > 1 else ""
    ) + f"{product.m} x {product.n} over {product.k}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join((lines[0], f"|{'---|' * len(heads)}", *lines[1:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--group", type=int, default=2, help="Hv / H")
    print(tables(parser.parse_args().group))
