"""FLOP and bytes of the SM100 prefill kernels per token and value head, counted from the shapes.

    python -m gdnbench_kernels.gdn_prefill.kernel_cost [--group 2]

A product of M x N over K is 2 M N K, whatever of it is masked. Bytes are counted twice: as memory sees them,
where q and k come once for all `group` = Hv / H value heads of a key head, and as the CTAs ask for them, each
for itself. Full chunks; the state of a sequence before its first and after its last token, the tables of
chunks and the barriers' words do not grow with its tokens and are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM

BF16, F32 = 2, 4
STATE_TILES = 2
"""CTAs that share a value head's state: each reads all of K and W, and its own part of U."""
MERGES = 32
"""Products of 16 x 8 over 16 that merge the inverse's diagonal blocks, of all four warps."""
SUBSTITUTION_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a chunk and value head, `times` of its size."""

    kernel: str
    name: str
    m: int
    n: int
    k: int
    times: int = 1

    @property
    def flop(self) -> float:
        """Of a token."""
        return 2 * self.m * self.n * self.k * self.times / CHUNK


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor that a kernel reads or writes: its bytes of a token (or of a chunk) and head.

    `per_key_head`: one for a group of value heads. `asked`: how many CTAs of a value head ask for it.
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
    # Column c of a block takes its rows below c, from c on, one multiplication and addition each: 16 columns
    # of 15 + 14 + ... + 1 in each of 4 blocks, since a lane does its whole column.
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
_STATE = BF16 * HEAD_DIM * HEAD_DIM / CHUNK  # one for a chunk

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
"""What only goes from one kernel to another: written, and read again, for want of fusion."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a token and value head."""

    flop: float
    memory: float
    requested: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flop + other.flop, self.memory + other.memory, self.requested + other.requested)


def cost(kernel: str, group: int) -> Cost:
    """Of one kernel; `group` is Hv / H."""
    moved = [transfer for transfer in TRANSFERS if transfer.kernel == kernel]
    return Cost(
        sum(product.flop for product in PRODUCTS if product.kernel == kernel),
        sum(transfer.memory(group) for transfer in moved),
        sum(transfer.requested for transfer in moved),
    )


def total(group: int) -> Cost:
    """Of the three kernels."""
    return cost(UW, group) + cost(STATE, group) + cost(OUTPUT, group)


def fused(group: int) -> Cost:
    """Of chunk_fused, which hands nothing on: q, k, v, g, beta and o once, W never formed.

    U - W S^T = Ai beta (V - exp(g_cu) K S^T), so the product that forms W goes; the others keep their sizes.
    """
    kept = {transfer.tensor: transfer for transfer in TRANSFERS if transfer.tensor not in BETWEEN}
    return Cost(
        sum(product.flop for product in PRODUCTS) - next(p.flop for p in PRODUCTS if p.name.endswith("K")),
        sum(transfer.memory(group) for transfer in kept.values()),
        sum(transfer.row for transfer in kept.values()),
    )


def tables(group: int) -> str:
    """Markdown: the products, the transfers and the sums, of `group` value heads to a key head."""
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
