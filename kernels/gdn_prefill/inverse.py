"""The inverse of a 64x64 unit lower triangular matrix, in registers, by four warps.

    X = (I + A)^-1

16x16 diagonal blocks by substitution in f32, then merges 16 -> 32 -> 64 by mma.sync with fp16 operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import warp as warp_ops

from gdnbench_kernels.plan import Buffer

SIZE = 64
BLOCK = 16
BLOCKS = SIZE // BLOCK
VALUES = 8
"""Elements of a 16x16 block that a thread holds."""
PITCH = 20
"""f32 words from column to column of a diagonal block in shared memory: 16 rows and 4 of padding, so that
neither the scattered words of a fragment nor whole columns meet in a bank."""


def buffers(split: bool = False) -> tuple[Buffer, ...]:
    """The shared memory that `Scratch.allocate(smem, split)` takes, for a plan."""
    return (
        Buffer("s_blocks", (SIZE, SIZE), "float16", "rows contiguous, 128 B swizzle", 1 + split, align=128),
        Buffer("s_diagonal", (BLOCKS, BLOCK, PITCH), "float32", "columns contiguous, padded", align=128),
    )


BUFFERS = buffers()


@dataclass(frozen=True)
class Scratch:
    """Shared memory of one inversion at a time."""

    s_blocks: cute.Tensor  # (64 rows, 64 columns, parts), fp16
    s_diagonal: cute.Tensor  # (16 rows and padding, 16 columns, 4 blocks), f32
    parts: int

    @staticmethod
    def allocate(smem: Any, split: bool = False) -> Scratch:
        """In the order of `buffers(split)`."""
        blocks, diagonal = buffers(split)
        s_blocks = smem.allocate_tensor(
            cutlass.Float16,
            cute.make_layout((SIZE, SIZE, blocks.stages), stride=(SIZE, 1, SIZE * SIZE)),
            blocks.align,
            cute.make_swizzle(3, 4, 3),
        )
        s_diagonal = smem.allocate_tensor(
            cutlass.Float32,
            cute.make_layout((PITCH, BLOCK, BLOCKS)),
            diagonal.align,
        )
        return Scratch(s_blocks, s_diagonal, blocks.stages)


@cute.jit
def invert(
    r_a: cute.Tensor,
    scratch: Scratch,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
    barrier: pipeline.NamedBarrier,
) -> None:
    """r_a = (I + r_a)^-1, by four warps together; see the header."""
    r_rows = cute.make_tensor(r_a.iterator, cute.make_layout((VALUES, BLOCKS)))
    r_diagonal = cute.make_rmem_tensor(VALUES, cutlass.Float32)
    r_diagonal.fill(0.0)
    barrier.arrive_and_wait()
    for block in cutlass.range_constexpr(BLOCKS):
        if block == warp:
            _assign(r_diagonal, r_rows[None, block])
        if block < warp:
            _publish(_rounded(r_rows[None, block], scratch.parts), scratch, warp, block, lane)
    _invert_diagonal(r_diagonal, scratch.s_diagonal[None, None, warp], lane)
    inverse = _rounded(r_diagonal, scratch.parts)
    _publish(inverse, scratch, warp, warp, lane)
    barrier.arrive_and_wait()

    r_left = cute.make_rmem_tensor(VALUES, cutlass.Float32)
    r_left.fill(0.0)
    if warp % 2 == 1:
        r_product = _product(inverse, _operand(scratch, warp, warp - 1, lane))
        before = _operand(scratch, warp - 1, warp - 1, lane)
        _assign(r_left, _product(_rounded(r_product, scratch.parts, negate=True), before))
        _publish(_rounded(r_left, scratch.parts), scratch, warp, warp - 1, lane)
    barrier.arrive_and_wait()
    for block in cutlass.range_constexpr(BLOCKS):
        if block == warp:
            _assign(r_rows[None, block], r_diagonal)
    if warp == 1:
        _assign(r_rows[None, 0], r_left)
    if warp == 3:
        _assign(r_rows[None, 2], r_left)
    if warp >= 2:
        _merge_lower(r_rows, inverse, _rounded(r_left, scratch.parts), scratch, warp, lane)


@cute.jit
def _merge_lower(
    r_rows: cute.Tensor,
    inverse: tuple[cute.Tensor, ...],
    left: tuple[cute.Tensor, ...],
    scratch: Scratch,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> None:
    """Columns 0..31 of warps 2 and 3."""
    products = []
    for column in cutlass.range_constexpr(2):
        r_product = _product(inverse, _operand(scratch, warp, column, lane))
        if warp == 3:
            _accumulate(r_product, left, _operand(scratch, 2, column, lane))
        products.append(_rounded(r_product, scratch.parts, negate=True))
    r_first = _product(products[0], _operand(scratch, 0, 0, lane))
    _accumulate(r_first, products[1], _operand(scratch, 1, 0, lane))
    _assign(r_rows[None, 0], r_first)
    _assign(r_rows[None, 1], _product(products[1], _operand(scratch, 1, 1, lane)))


@cute.jit
def _invert_diagonal(r_block: cute.Tensor, s_block: cute.Tensor, lane: cutlass.Int32) -> None:
    """r_block, a fragment of a strictly lower 16x16 block B, becomes that of (I + B)^-1; one warp."""
    row, column = lane // 4, 2 * (lane % 4)
    for value in cutlass.range_constexpr(VALUES):
        at = row + 8 * (value // 2 % 2), column + value % 2 + 8 * (value // 4)
        s_block[at] = -r_block[value]
    cute.arch.sync_warp()
    mine = lane % BLOCK
    r_x = cute.make_rmem_tensor(BLOCK, cutlass.Float32)
    for i in cutlass.range_constexpr(BLOCK):
        r_x[i] = cutlass.Float32(1.0) if mine == i else cutlass.Float32(0.0)
    r_column = cute.make_rmem_tensor(BLOCK, cutlass.Float32)
    for j in cutlass.range_constexpr(BLOCK - 1):
        for quad in cutlass.range_constexpr((j + 1) // 4, BLOCK // 4):
            s_quad = cute.local_tile(s_block[None, j], (4,), (quad,))
            cute.autovec_copy(s_quad, cute.local_tile(r_column, (4,), (quad,)))
        for i in cutlass.range_constexpr((j + 1) // 2 * 2, BLOCK, 2):
            r_x[i], r_x[i + 1] = cute.arch.fma_packed_f32x2(
                (r_column[i], r_column[i + 1]), (r_x[j], r_x[j]), (r_x[i], r_x[i + 1])
            )
    cute.arch.sync_warp()
    if lane < BLOCK:
        cute.autovec_copy(r_x, cute.local_tile(s_block[None, mine], (BLOCK,), (0,)))
    cute.arch.sync_warp()
    for value in cutlass.range_constexpr(VALUES):
        r_block[value] = s_block[row + 8 * (value // 2 % 2), column + value % 2 + 8 * (value // 4)]


def _assign(r_to: cute.Tensor, r_from: cute.Tensor) -> None:
    for value in range(VALUES):
        r_to[value] = r_from[value]


def _rounded(r_block: cute.Tensor, parts: int, negate: bool = False) -> tuple[cute.Tensor, ...]:
    """A block's fragment in fp16: (rounding,), or (rounding, rounding of what it left)."""
    rest = -r_block.load() if negate else r_block.load()
    rounded = []
    for part in range(parts):
        r_part = cute.make_rmem_tensor(VALUES, cutlass.Float16)
        r_part.store(rest.to(cutlass.Float16))
        if part + 1 < parts:
            rest = rest - r_part.load().to(cutlass.Float32)
        rounded.append(r_part)
    return tuple(rounded)


def _spot(scratch: Scratch, row: Any, column: Any, part: int, lane: Any) -> cute.Tensor:
    """The 8 elements of block (row, column) whose address `lane` gives to ldmatrix and stmatrix."""
    at = BLOCK * row + lane % 16, 2 * column + lane // 16
    s_row = scratch.s_blocks[at[0], None, part]
    return cute.local_tile(s_row, (VALUES,), (at[1],))


def _publish(parts: tuple[cute.Tensor, ...], scratch: Scratch, row: Any, column: Any, lane: Any) -> None:
    store = cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(transpose=False, num_matrices=4), cutlass.Float16)
    for part, r_part in enumerate(parts):
        cute.copy(store, r_part, _spot(scratch, row, column, part, lane))


def _operand(scratch: Scratch, row: Any, column: Any, lane: Any) -> tuple[cute.Tensor, ...]:
    """Block (row, column) as B operand."""
    load = cute.make_copy_atom(warp_ops.LdMatrix8x8x16bOp(transpose=True, num_matrices=4), cutlass.Float16)
    parts = []
    for part in range(scratch.parts):
        r_part = cute.make_rmem_tensor(VALUES, cutlass.Float16)
        cute.copy(load, _spot(scratch, row, column, part, lane), r_part)
        parts.append(r_part)
    return tuple(parts)


def _product(a: tuple[cute.Tensor, ...], b: tuple[cute.Tensor, ...]) -> cute.Tensor:
    r_sum = cute.make_rmem_tensor(VALUES, cutlass.Float32)
    r_sum.fill(0.0)
    _accumulate(r_sum, a, b)
    return r_sum


def _accumulate(r_sum: cute.Tensor, a: tuple[cute.Tensor, ...], b: tuple[cute.Tensor, ...]) -> None:
    """r_sum += a b, without the product of two rests."""
    mma = cute.make_mma_atom(warp_ops.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16)))
    for half in range(2):
        r_half = cute.local_tile(r_sum, (4,), (half,))
        for i, r_a in enumerate(a):
            for r_b in b[: len(a) - i]:
                cute.mma_atom_call(mma, r_half, r_a, cute.local_tile(r_b, (4,), (half,)), r_half)
