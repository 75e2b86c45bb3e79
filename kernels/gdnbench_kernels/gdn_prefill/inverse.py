"""The inverse of a 64x64 unit lower triangular matrix, in registers, by four warps.

    X = (I + A)^-1

Warp w owns rows 16w .. 16w+15 of A and of X, in blocks of 16x16; the block (i, j) of X is

    X[i,i]                = (I + A[i,i])^-1                                 0. every warp, in f32
    X[w,w-1]              = -(X[w,w] A[w,w-1]) X[w-1,w-1]                   1. warps 1 and 3
    P[w,0..1]             = -(X[w,2] A[2,0..1] + X[w,3] A[3,0..1])          2. warps 2 and 3
    X[w,0..1]             = P[w,0..1] [X[0,0] 0; X[1,0] X[1,1]]

Step 0 is substitution: a lane has a column of X in registers and subtracts row j times A[i,j] from all rows
i > j, for j = 0 .. 14. Steps 1 and 2 are mma.sync m16n8k16 in this order, with f32 sums and operands rounded
to fp16: A, X[i,j] of earlier steps, and the left product, whose accumulator a thread reuses as an operand.
With `split` an operand is hi + lo, two fp16 numbers: its rounding, and the rounding of the rest. Each product
is then three: hi hi, hi lo and lo hi.

    SMEM        shape                dtype    layout
    s_blocks    64 x 64, 1 or 2      float16  rows contiguous, 128 B swizzle; a second stage with `split`
    s_diagonal  4 x 16 x 20          float32  a block's columns contiguous, 4 words of padding

    what                  written by         to                 read by                      ordered by
    A[i,i]                warp i             s_diagonal[i]      its lanes, step 0            sync_warp
    X[i,i] in f32         16 lanes, warp i   s_diagonal[i]      its lanes, as a fragment     sync_warp
    A[i,j], j < i         warp i             block (i, j)       warps 1, 3; 2, 3 in step 2   second barrier
    X[i,i], i < 3         warp i             block (i, i)       warps 1, 3; 2, 3 in step 2   second barrier
    X[1,0]                warp 1             block (0, 1)       warps 2, 3 in step 2         third barrier
    A of the next call    all                all of these       -                            first barrier

Right operands are loaded from s_blocks by ldmatrix.trans, left ones are in registers. Block (0, 1) is free,
since A is 0 there. The first barrier prevents a call from overwriting data that warps 2 and 3 still read in
the previous call; a call reads no other data of earlier calls. All accesses are generic, so no proxy fence
is needed.

    in the code of        warp 0     warp 1     warp 2     warp 3     sum
    FFMA2                 64         64         64         64         256
    mma.sync m16n8k16     0          4          10         18         32
    with `split`          0          12         30         54         96

Limits: |A|, |X| and |P| below 65504, fp16's largest; for keys of norm about 1 and beta <= 2 all are at most
about 2. A grows with the square of the keys' norm and X with powers of A: with norms of 4 the error exceeded
the bound below, with norms of 6 fp16 overflowed. Relative error of X in the Frobenius norm, of the whole and
of 16x16 blocks: below 3e-3 for beta <= 1; for beta <= 2 up to 1e-1 was measured, with `split` up to 4e-5
(docs/inverse.md has both and the reasons for this method). A NaN or Inf in A makes rows of X NaN: those of
its block and below, none above.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import warp as warp_ops

from gdnbench_kernels.plan import WARP, Buffer

SIZE = 64
WARPS = 4
BLOCK = SIZE // WARPS
VALUES = BLOCK * BLOCK // WARP
"""Elements of a block per lane: of rows lane/4 and lane/4 + 8, two columns of each half."""
QUAD = 4
"""f32 words of one vector load."""
PITCH = BLOCK + QUAD
"""f32 words from column to column of a diagonal block in shared memory: with 20 neither the 32 words that a
warp scatters, column 2 (lane % 4) and row lane / 4, nor 8 quads of 8 columns share a bank."""

Operand = tuple[Any, ...]
"""A block's fragment in fp16: (its rounding,), or (its rounding, the rounding of the rest)."""


def buffers(split: bool = False, align: int = 128) -> tuple[Buffer, ...]:
    """The memory of `Scratch.allocate(smem, split, align)`; aligned to 1024, s_blocks can be an operand."""
    return (
        Buffer("s_blocks", (SIZE, SIZE), "float16", "rows contiguous, 128 B swizzle", 1 + split, align=align),
        Buffer("s_diagonal", (WARPS, BLOCK, PITCH), "float32", "columns contiguous, padded", align=128),
    )


@dataclass(frozen=True)
class Scratch:
    """The shared memory of one inversion at a time."""

    s_blocks: cute.Tensor  # (row, column, part)
    s_diagonal: cute.Tensor  # (row, column, block), rows padded to PITCH
    parts: int

    @staticmethod
    def allocate(smem: Any, split: bool = False, align: int = 128) -> Scratch:
        """Allocate in the order of `buffers(split, align)`."""
        blocks, diagonal = buffers(split, align)
        s_blocks = smem.allocate_tensor(
            cutlass.Float16,
            cute.make_layout((SIZE, SIZE, blocks.stages), stride=(SIZE, 1, SIZE * SIZE)),
            blocks.align,
            cute.make_swizzle(3, 4, 3),
        )
        s_diagonal = smem.allocate_tensor(
            cutlass.Float32, cute.make_layout((PITCH, BLOCK, WARPS)), diagonal.align
        )
        return Scratch(s_blocks, s_diagonal, blocks.stages)


@cute.jit
def invert(
    r_a: cute.Tensor,
    scratch: Scratch,
    warp_in_group: cutlass.Int32,
    lane: cutlass.Int32,
    barrier: pipeline.NamedBarrier,
) -> None:
    """Replace the strictly lower A in `r_a` by X. Four warps call this together; only they use `barrier`.

    r_a: 32 f32, the fragment of a 16x256b tensor-memory load of 64 columns by the warp of rows 16
    warp_in_group and on: element 4n + {0, 1} is row lane / 4, columns 8n + 2 (lane % 4) + {0, 1}; element 4n
    + {2, 3} has the same columns 8 rows below. On and above the diagonal A is 0; there X is 1 and 0.
    """
    r_rows = cute.make_tensor(r_a.iterator, cute.make_layout((VALUES, WARPS)))
    s_diagonal = scratch.s_diagonal[None, None, warp_in_group]
    barrier.arrive_and_wait()
    # Registers cannot be indexed at run time, so code that depends on the warp's columns exists per warp.
    for warp in cutlass.range_constexpr(WARPS):
        if warp_in_group == warp:
            _scatter_negated(r_rows[None, warp], s_diagonal, lane)
            for column in cutlass.range_constexpr(warp):
                _publish(_rounded(r_rows[None, column], scratch.parts), scratch, warp, column, lane)
    r_diagonal = _invert_diagonal(s_diagonal, lane)
    for warp in cutlass.range_constexpr(WARPS):
        if warp_in_group == warp:
            _merge(r_rows, r_diagonal, scratch, warp, lane, barrier)


@cute.jit
def _scatter_negated(r_block: cute.Tensor, s_block: cute.Tensor, lane: cutlass.Int32) -> None:
    for value in cutlass.range_constexpr(VALUES):
        s_block[_place(value, lane)] = -r_block[value]


@cute.jit
def _invert_diagonal(s_block: cute.Tensor, lane: cutlass.Int32) -> cute.Tensor:
    """The fragment of (I + B)^-1, for the strictly lower -B in `s_block`; each warp computes its own."""
    # Lanes 16..31 repeat the work of lanes 0..15 and store nothing.
    mine = lane % BLOCK
    r_x = cute.make_rmem_tensor(BLOCK, cutlass.Float32)
    for i in cutlass.range_constexpr(BLOCK):
        r_x[i] = cutlass.Float32(1.0) if mine == i else cutlass.Float32(0.0)
    r_column = cute.make_rmem_tensor(BLOCK, cutlass.Float32)
    cute.arch.sync_warp()
    for j in cutlass.range_constexpr(BLOCK - 1):
        for quad in cutlass.range_constexpr((j + 1) // QUAD, BLOCK // QUAD):
            s_quad = cute.local_tile(s_block[None, j], (QUAD,), (quad,))
            cute.autovec_copy(s_quad, cute.local_tile(r_column, (QUAD,), (quad,)))
        # Rows in pairs: the first may be row j itself, where B is 0.
        for i in cutlass.range_constexpr((j + 1) // 2 * 2, BLOCK, 2):
            r_x[i], r_x[i + 1] = cute.arch.fma_packed_f32x2(
                (r_column[i], r_column[i + 1]), (r_x[j], r_x[j]), (r_x[i], r_x[i + 1])
            )
    cute.arch.sync_warp()
    if lane < BLOCK:
        cute.autovec_copy(r_x, cute.local_tile(s_block[None, mine], (BLOCK,), (0,)))
    cute.arch.sync_warp()
    r_block = cute.make_rmem_tensor(VALUES, cutlass.Float32)
    for value in cutlass.range_constexpr(VALUES):
        r_block[value] = s_block[_place(value, lane)]
    return r_block


@cute.jit
def _merge(
    r_rows: cute.Tensor,
    r_diagonal: cute.Tensor,
    scratch: Scratch,
    warp: cutlass.Constexpr,
    lane: cutlass.Int32,
    barrier: pipeline.NamedBarrier,
) -> None:
    """Steps 1 and 2 for one warp's rows: 16 -> 32 -> 64."""
    _assign(r_rows[None, warp], r_diagonal)
    inverse = _rounded(r_diagonal, scratch.parts)
    if cutlass.const_expr(warp < 3):
        _publish(inverse, scratch, warp, warp, lane)
    barrier.arrive_and_wait()
    # Negate the left factor of each step's first product, where negation costs least.
    left = [_negated(inverse)]
    if cutlass.const_expr(warp % 2 == 1):
        r_product = _product(left, [_operand(scratch, warp, warp - 1, lane)])
        before = _operand(scratch, warp - 1, warp - 1, lane)
        r_left = _product([_rounded(r_product, scratch.parts)], [before])
        _assign(r_rows[None, warp - 1], r_left)
        rounded = _rounded(r_left, scratch.parts)
        if cutlass.const_expr(warp == 1):
            _publish(rounded, scratch, 0, 1, lane)
        left = [_negated(rounded), *left]
    barrier.arrive_and_wait()
    if cutlass.const_expr(warp >= 2):
        products = [
            _rounded(
                _product(left, [_operand(scratch, row, column, lane) for row in range(2, warp + 1)]),
                scratch.parts,
            )
            for column in range(2)
        ]
        first = [_operand(scratch, 0, 0, lane), _operand(scratch, 0, 1, lane)]
        _assign(r_rows[None, 0], _product(products, first))
        _assign(r_rows[None, 1], _product(products[1:], [_operand(scratch, 1, 1, lane)]))


def _place(value: int, lane: Any) -> tuple[Any, Any]:
    """(row, column) of a fragment's element in its block."""
    return lane // 4 + 8 * (value // 2 % 2), 2 * (lane % 4) + value % 2 + 8 * (value // 4)


def _assign(r_to: cute.Tensor, r_from: cute.Tensor) -> None:
    for value in range(VALUES):
        r_to[value] = r_from[value]


def _rounded(r_block: cute.Tensor, parts: int) -> Operand:
    rest, rounded = r_block.load(), []
    for part in range(parts):
        r_part = cute.make_rmem_tensor(VALUES, cutlass.Float16)
        r_part.store(rest.to(cutlass.Float16))
        if part + 1 < parts:
            rest = rest - r_part.load().to(cutlass.Float32)
        rounded.append(r_part)
    return tuple(rounded)


def _negated(operand: Operand) -> Operand:
    negated = []
    for r_part in operand:
        r_negated = cute.make_rmem_tensor(VALUES, cutlass.Float16)
        r_negated.store(-r_part.load())
        negated.append(r_negated)
    return tuple(negated)


def _row_of(scratch: Scratch, row: int, column: int, part: int, lane: Any) -> cute.Tensor:
    """The 8 elements of block (row, column) whose address `lane` passes to ldmatrix or stmatrix: lanes 0..15
    address the left half's rows, 16..31 the right half's."""
    s_row = scratch.s_blocks[BLOCK * row + lane % BLOCK, None, part]
    return cute.local_tile(s_row, (VALUES,), (2 * column + lane // BLOCK,))


def _publish(operand: Operand, scratch: Scratch, row: int, column: int, lane: Any) -> None:
    store = cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(num_matrices=4), cutlass.Float16)
    for part, r_part in enumerate(operand):
        cute.copy(store, r_part, _row_of(scratch, row, column, part, lane))


def _operand(scratch: Scratch, row: int, column: int, lane: Any) -> Operand:
    """Block (row, column) as a right operand: columns 0..7, then 8..15."""
    load = cute.make_copy_atom(warp_ops.LdMatrix8x8x16bOp(True, 4), cutlass.Float16)
    parts = []
    for part in range(scratch.parts):
        r_part = cute.make_rmem_tensor(VALUES, cutlass.Float16)
        cute.copy(load, _row_of(scratch, row, column, part, lane), r_part)
        parts.append(r_part)
    return tuple(parts)


def _product(left: list[Operand], right: list[Operand]) -> cute.Tensor:
    """The f32 fragment of the sum of left[i] right[i], in order; products of two rests are left out."""
    mma = cute.make_mma_atom(warp_ops.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16)))
    r_sum = cute.make_rmem_tensor(VALUES, cutlass.Float32)
    r_sum.fill(0.0)
    for a, b in zip(left, right, strict=True):
        for half in range(2):
            r_half = cute.local_tile(r_sum, (VALUES // 2,), (half,))
            for i, r_a in enumerate(a):
                for r_b in b[: len(b) - i]:
                    cute.mma_atom_call(
                        mma, r_half, r_a, cute.local_tile(r_b, (VALUES // 2,), (half,)), r_half
                    )
    return r_sum
