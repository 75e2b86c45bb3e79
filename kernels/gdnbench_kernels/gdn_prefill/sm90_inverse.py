"""The inverse of a 64x64 unit lower triangular matrix for Hopper: the method of inverse.py, for one or two
value heads of a chunk at a time. CuTe DSL, sm_90a.

Steps, roundings and orders of sums are those of inverse.py, and so are the bits. Here all warps have one
code, with real branches by warp: with code of its own for each of them the instructions of a chunk were more
than the SM's caches hold. A block is stored where it is formed and never kept. With two heads step 0 has
both, one in each half of a warp.

    SMEM        shape          dtype    layout
    s_blocks    10 x 16 x 16   float16  blocks of 8 x 8 matrices; again for each head and, with `split`, rest
    s_diagonal  4 x 16 x 20    float32  a block's columns contiguous, 4 words of padding; for each head

Blocks (i, j) with j <= i have number i (i + 1) / 2 + j; nobody reads X[3,3], and X[1,0] has its place. A
matrix of 8 x 8 has 128 bytes, so lane l passes the address of its block plus 16 l to ldmatrix and stmatrix.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import hopper
from gdnbench_kernels.gdn_prefill.inverse import BLOCK, PITCH, QUAD, VALUES, WARPS, _place
from gdnbench_kernels.plan import Buffer

F32 = cutlass.Float32
BLOCK_BYTES = 2 * BLOCK * BLOCK
BLOCKS = WARPS * (WARPS + 1) // 2
PART_BYTES = BLOCKS * BLOCK_BYTES
X10 = BLOCKS - 1
"""Number of the block of X[1,0]."""

ODD = 12
"""Words from row 0 of a column to row 1, with one head: neither the 32 words that a warp scatters nor 8 quads
of 8 columns share a bank."""

Operand = list[hopper.Quad]
"""A thread's part of a block in fp16: [its rounding], or [its rounding, the rounding of the rest]."""


@dataclass(frozen=True)
class Scratch:
    """The shared memory of a warpgroup's inverses."""

    blocks: Any
    """Shared address of the first head's blocks."""
    s_diagonal: cute.Tensor  # (row, column, block, head), rows padded to PITCH
    parts: int
    heads: int

    @staticmethod
    def allocate(smem: Any, buffers: tuple[Buffer, Buffer], split: bool, heads: int = 1) -> Scratch:
        """Allocate the plan's two buffers; what is returned is the first warpgroup's."""
        blocks, diagonal = buffers
        s_blocks = smem.allocate_tensor(
            cutlass.Float16, cute.make_layout(blocks.bytes // 2), byte_alignment=blocks.align
        )
        s_diagonal = smem.allocate_tensor(
            F32, cute.make_layout((PITCH, BLOCK, WARPS, diagonal.stages)), diagonal.align
        )
        return Scratch(s_blocks.iterator.toint(), s_diagonal, 1 + split, heads)

    def of_group(self, group: cutlass.Int32) -> Scratch:
        """That of another warpgroup."""
        first = group * self.heads
        s_diagonal = cute.domain_offset((0, 0, 0, first), self.s_diagonal)
        return Scratch(self.head(first), s_diagonal, self.parts, self.heads)

    def head(self, head: Any) -> Any:
        """The shared address of a head's blocks."""
        return self.blocks + head * (self.parts * PART_BYTES)


@dataclass(frozen=True)
class Place:
    """Where a lane of a warp finds blocks of a head."""

    first: Any  # block (0, 0)
    row: Any  # the first block of the warp's row

    @staticmethod
    def create(scratch: Scratch, head: int, warp: Any, lane: Any) -> Place:
        first = scratch.head(head) + 16 * lane
        return Place(first, first + warp * (warp + 1) // 2 * BLOCK_BYTES)

    def block(self, number: int) -> Any:
        return self.first + BLOCK_BYTES * number

    def own(self, column: Any) -> Any:
        """A block of the warp's row."""
        return self.row + BLOCK_BYTES * column


def place(heads: int, value: int, lane: Any) -> tuple[Any, Any]:
    """Where a fragment's element lies in its diagonal block: word of the column, column. With one head even
    rows come first, and odd ones from ODD on."""
    row, column = _place(value, lane)
    return (row if heads > 1 else row % 2 * ODD + row // 2), column


def scatter(values: list[Any], s_block: cute.Tensor, heads: int, lane: Any) -> None:
    """Store a diagonal block for `invert_diagonals`."""
    for value in range(VALUES):
        s_block[place(heads, value, lane)] = values[value]


def diagonal_of(scratch: Scratch, head: int, warp: Any, lane: Any) -> list[Any]:
    """A thread's part of a warp's diagonal block of X."""
    s_block = scratch.s_diagonal[None, None, warp, head]
    return [s_block[place(scratch.heads, value, lane)] for value in range(VALUES)]


@cute.jit
def invert_diagonals(scratch: Scratch, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
    """Replace the strictly lower B in a warp's diagonal blocks by (I + B)^-1, of all heads. A lane has a
    column of X."""
    if cutlass.const_expr(scratch.heads > 1):
        invert_two(scratch.s_diagonal[None, None, warp, lane // BLOCK], lane % BLOCK)
    else:
        invert_one(scratch.s_diagonal[None, None, warp, 0], lane % BLOCK, lane // BLOCK)


@cute.jit
def invert_two(s_block: cute.Tensor, mine: cutlass.Int32) -> None:
    """Each half of a warp inverts a block of its own."""
    x = [cutlass.select_(mine == i, F32(1.0), F32(0.0)) for i in range(BLOCK)]
    r_column = cute.make_rmem_tensor(BLOCK, F32)
    cute.arch.sync_warp()
    for j in cutlass.range_constexpr(BLOCK - 1):
        load_from(j + 1, s_block[None, j], r_column)
        for row in cutlass.range_constexpr(j + 1, BLOCK):
            x[row] = hopper.fma(-r_column[row], x[j], x[row])
    cute.arch.sync_warp()
    store_column(x, s_block[None, mine])
    cute.arch.sync_warp()


@cute.jit
def invert_one(s_block: cute.Tensor, mine: cutlass.Int32, half: cutlass.Int32) -> None:
    """The halves of a warp share a block: lanes 0..15 have the even rows, lanes 16..31 the odd ones."""
    x = [cutlass.select_(mine - half == 2 * i, F32(1.0), F32(0.0)) for i in range(BLOCK // 2)]
    s_half = cute.domain_offset((half * ODD, 0), s_block)
    s_half = cute.make_tensor(s_half.iterator.align(4 * QUAD), s_half.layout)
    r_column = cute.make_rmem_tensor(BLOCK // 2, F32)
    cute.arch.sync_warp()
    for j in cutlass.range_constexpr(BLOCK - 1):
        at = j // 2
        known = cute.arch.shuffle_sync(x[at], mine + j % 2 * BLOCK)  # x of row j
        load_from(at + j % 2, s_half[None, j], r_column)
        if cutlass.const_expr(j % 2 == 0):  # row j + 1, beside row j itself
            next = hopper.fma(-r_column[at], known, x[at])
            x[at] = cutlass.select_(half == 1, next, x[at])
        for row in cutlass.range_constexpr(at + 1, BLOCK // 2):
            x[row] = hopper.fma(-r_column[row], known, x[row])
    cute.arch.sync_warp()
    store_column(x, s_half[None, mine])
    cute.arch.sync_warp()


def load_from(first: int, s_column: cute.Tensor, r_column: cute.Tensor) -> None:
    """Load a column from some row on, in whole quads."""
    for quad in range(first // QUAD, cute.size(r_column) // QUAD):
        s_quad = cute.local_tile(s_column, (QUAD,), (quad,))
        cute.autovec_copy(s_quad, cute.local_tile(r_column, (QUAD,), (quad,)))


def store_column(x: list[Any], s_column: cute.Tensor) -> None:
    r_x = cute.make_rmem_tensor(len(x), F32)
    for row, value in enumerate(x):
        r_x[row] = value
    cute.autovec_copy(r_x, cute.local_tile(s_column, (len(x),), (0,)))


def rounded(values: list[Any], parts: int) -> Operand:
    """A thread's part of a block as a left operand, or to be stored."""
    found = []
    for part in range(parts):
        words = [hopper.halves(values[at], values[at + 1]) for at in range(0, VALUES, 2)]
        found.append((words[0], words[1], words[2], words[3]))
        if part + 1 < parts:
            wide = [value for word in words for value in hopper.widened_halves(word)]
            values = [value - whole for value, whole in zip(values, wide, strict=True)]
    return found


def negated(operand: Operand) -> Operand:
    sign = cutlass.Int32(-0x7FFF8000)  # of both halves: 0x80008000
    return [(a ^ sign, b ^ sign, c ^ sign, d ^ sign) for a, b, c, d in operand]


def publish(operand: Operand, address: Any) -> None:
    for part, quad in enumerate(operand):
        hopper.store_matrices(address + part * PART_BYTES, quad)


def right(address: Any, parts: int) -> Operand:
    """A block as a right operand: columns 0..7, then 8..15."""
    return [hopper.load_transposed(address + part * PART_BYTES) for part in range(parts)]


def product(left: Operand, factor: Operand, sums: list[Any] | None = None) -> list[Any]:
    """Add the product of the two to `sums`. The product of two rests is not computed."""
    found = []
    for half in range(2):
        part = [F32(0.0) for _ in range(4)] if sums is None else sums[4 * half : 4 * half + 4]
        for number, a in enumerate(left):
            for b in factor[: len(factor) - number]:
                part = hopper.product_of_halves(part, a, (b[2 * half], b[2 * half + 1]))
        found += part
    return found
