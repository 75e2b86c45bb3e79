"""The INVERT role of kernel_sm100_fused.py: A and P from the products of the levels, and Ai. CuTe DSL.

A warp has 16 rows of the chunk. Of A and P it needs, from the products of each level,

    level 1, 2, 4, 8   its own 16 columns, where row and column belong to that level
    level 16           the 16 columns before its own: warps 1 and 3
    level 32           the first 32 columns: warps 2 and 3

and the diagonal of P from the product of Q and K themselves.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import WorkTile
from gdnbench_kernels.gdn_prefill import inverse, triangle
from gdnbench_kernels.gdn_prefill.inverse import BLOCK, VALUES, WARPS
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.triangle import fragment_row
from gdnbench_kernels.kda_prefill.fused_plan import (
    BETAS,
    LEVELS,
    T_KKT,
    T_QK,
    Barrier,
    Pipelines,
    Role,
    Shared,
)
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16
EIGHT = 8
"""Rows and columns of the quarters of a diagonal block, which a thread has two values of each."""


@dataclass(frozen=True)
class Blocks:
    """A thread's values of its warp's 16 rows, in blocks of 16 columns, before they are in the order of
    columns."""

    r_own: cute.Tensor  # the diagonal block
    r_before: cute.Tensor  # the block before it, of warps 1 and 3
    r_first: cute.Tensor  # the first two, of warps 2 and 3

    @staticmethod
    def create() -> Blocks:
        own, before, first = (
            cute.make_rmem_tensor(shape, cutlass.Float32) for shape in (VALUES, VALUES, (VALUES, 2))
        )
        for r_values in (own, before, first):
            r_values.fill(0.0)
        return Blocks(own, before, first)

    @cute.jit
    def assemble(self, warp: cutlass.Int32) -> cute.Tensor:
        """All 64 columns, in the order of `triangle`; 0 above the diagonal block."""
        r_values = cute.make_rmem_tensor(CHUNK // 2, cutlass.Float32)
        r_values.fill(0.0)
        r_rows = cute.make_tensor(r_values.iterator, cute.make_layout((VALUES, WARPS)))
        for row in cutlass.range_constexpr(WARPS):
            if warp == row:
                for value in cutlass.range_constexpr(VALUES):
                    r_rows[value, row] = self.r_own[value]
                    if cutlass.const_expr(row % 2 == 1):
                        r_rows[value, row - 1] = self.r_before[value]
                    if cutlass.const_expr(row >= WARPS // 2):
                        for block in cutlass.range_constexpr(WARPS // 2):
                            r_rows[value, block] = self.r_first[value, block]
        return r_values


@cute.jit
def invert(
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    scratch: inverse.Scratch,
    base: cute.Pointer,
    beta: cute.Tensor,
) -> None:
    """Compute Ai beta and P of each chunk. Warp w of the four has rows 16w .. 16w + 15.

    Ai beta is stored as two bf16 numbers: its rounding, and the rounding of the rest. Where keys are alike,
    a row of Ai is about beta for its own token and -beta for the one before, and what V_new adds to the state
    cancels but for the last token. Roundings of Ai beta, of one direction in all rows, would not cancel.
    """
    together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT, num_threads=WARP * WARPS)
    tiled_mma = blackwell.make_tiled_mma(OperandMajorMode.K, CHUNK, BLOCK)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.INVERT
    scores, squares = pipelines.scores.consumer_state(), pipelines.squares.producer_state()
    for i in cutlass.range(work.chunks, unroll=1):
        lane = blackwell.lane_of_turn(i)
        tmem_copy = blackwell.TmemCopy.create(tiled_mma, (CHUNK, BLOCK), base, WARP * warp + lane)
        s_beta = shared.beta[None, i % BETAS]
        r_beta = _load_beta(work, beta, CHUNK * i, s_beta, warp, lane)
        a, p = Blocks.create(), Blocks.create()
        scores = _read_diagonal(tmem_copy, pipelines, scores, a, p, warp, lane)
        scores = _read_before(tmem_copy, pipelines, scores, a, p, warp)
        pipelines.squares.producer_acquire(squares)
        triangle.write_rows(p.assemble(warp), shared.p[None, None, squares.index], warp, lane)
        r_values = a.assemble(warp)
        _scale_rows(r_values, r_beta)
        inverse.invert(r_values, scratch, warp, lane, together)
        triangle.scale_columns(r_values, s_beta, lane)
        triangle.write_rows(r_values, shared.aib[None, None, squares.index], warp, lane)
        r_values.store(r_values.load() - r_values.load().to(BF16).to(cutlass.Float32))
        # The inverse's blocks are no longer needed, and product 5 has read those of the chunk before.
        together.arrive_and_wait()
        triangle.write_rows(r_values, rest_of_aib(scratch)[None, None, 0], warp, lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.squares.producer_commit(squares)
        squares.advance()
    pipelines.squares.producer_tail(squares)


@cute.jit
def _load_beta(
    work: WorkTile,
    beta: cute.Tensor,
    first: cutlass.Int32,
    s_beta: cute.Tensor,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> cute.Tensor:
    """beta of a thread's two rows, 0 past the end of the sequence; also written to s_beta, for all columns.
    The barriers of the inverse order these writes before `_scale_columns`, and those two chunks later behind
    it."""
    r_beta = cute.make_rmem_tensor(2, cutlass.Float32)
    r_beta.fill(0.0)
    for half in cutlass.range_constexpr(2):
        row = fragment_row(warp, lane, half)
        token = work.start + first + row
        if token < work.stop:
            r_beta[half] = beta[token, work.head]
        if lane % 4 == 0:
            s_beta[row] = r_beta[half]
    return r_beta


@cute.jit
def _read_diagonal(
    tmem_copy: blackwell.TmemCopy,
    pipelines: Pipelines,
    scores: Any,
    a: Blocks,
    p: Blocks,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> Any:
    """Take the diagonal blocks from the product of Q and K, and from the levels within 16 tokens; returns the
    state of the next level."""
    column = cute.assume(BLOCK * warp, divby=BLOCK)
    r_block = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
    r_values = cute.make_tensor(r_block.iterator, cute.make_layout(VALUES))
    for size in cutlass.range_constexpr(BLOCK):
        if cutlass.const_expr(size in (0, *LEVELS)):
            pipelines.scores.consumer_wait(scores)
            blackwell.after_thread_sync()
            for part, blocks in ((T_KKT, a), (T_QK, p)):
                if cutlass.const_expr(size > 0 or part is T_QK):
                    tmem_copy.load(part, scores.index, column, r_block)
                    cute.arch.fence_view_async_tmem_load()
                    for value in cutlass.range_constexpr(VALUES):
                        right, lower, odd = value // 4, value // 2 % 2, value % 2
                        if cutlass.const_expr(size == EIGHT and lower > right):
                            blocks.r_own[value] = r_values[value]
                        if cutlass.const_expr(size < EIGHT and lower == right):
                            taken = _in_level(lane // 4, 2 * (lane % 4) + odd, size)
                            blocks.r_own[value] = r_values[value] if taken else blocks.r_own[value]
            blackwell.before_thread_sync()
            pipelines.scores.consumer_release(scores)
            scores.advance()
    return scores


@cute.jit
def _read_before(
    tmem_copy: blackwell.TmemCopy,
    pipelines: Pipelines,
    scores: Any,
    a: Blocks,
    p: Blocks,
    warp: cutlass.Int32,
) -> Any:
    """Take the other blocks from the last two levels; returns the state of the next chunk."""
    pipelines.scores.consumer_wait(scores)
    blackwell.after_thread_sync()
    if warp % 2 == 1:
        column = cute.assume(BLOCK * (warp - 1), divby=BLOCK)
        tmem_copy.load(T_KKT, scores.index, column, _fragment(tmem_copy, a.r_before))
        tmem_copy.load(T_QK, scores.index, column, _fragment(tmem_copy, p.r_before))
        cute.arch.fence_view_async_tmem_load()
        blackwell.before_thread_sync()
    pipelines.scores.consumer_release(scores)
    scores.advance()
    pipelines.scores.consumer_wait(scores)
    blackwell.after_thread_sync()
    if warp >= WARPS // 2:
        for block in cutlass.range_constexpr(WARPS // 2):
            tmem_copy.load(T_KKT, scores.index, BLOCK * block, _fragment(tmem_copy, a.r_first[None, block]))
            tmem_copy.load(T_QK, scores.index, BLOCK * block, _fragment(tmem_copy, p.r_first[None, block]))
        cute.arch.fence_view_async_tmem_load()
        blackwell.before_thread_sync()
    pipelines.scores.consumer_release(scores)
    scores.advance()
    return scores


def _fragment(tmem_copy: blackwell.TmemCopy, r_block: cute.Tensor) -> cute.Tensor:
    """A block's values in the shape that tcgen05.ld fills."""
    like = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
    return cute.make_tensor(r_block.iterator, like.layout)


def _in_level(i: Any, j: Any, size: int) -> Any:
    """Whether an element of 8 x 8 on the diagonal belongs to a level, or with size 0 to the diagonal."""
    if size == 0:
        return i == j
    return (i > j) & ((i ^ j) >= size) & ((i ^ j) < 2 * size)


@cute.jit
def _scale_rows(r_a: cute.Tensor, r_beta: cute.Tensor) -> None:
    """Replace r_a by beta_i r_a."""
    for n in cutlass.range_constexpr(CHUNK // 8):
        for value in cutlass.range_constexpr(4):
            r_a[4 * n + value] = r_beta[value // 2] * r_a[4 * n + value]


def rest_of_aib(scratch: inverse.Scratch) -> cute.Tensor:
    """The first part of s_blocks as a tile of bf16 (row, column, 1), to hold what rounds off Ai beta."""
    layout = blackwell.load_layout(BF16, CHUNK, CHUNK, 1)
    return cute.make_tensor(cute.recast_ptr(scratch.s_blocks.iterator, layout.inner, BF16), layout.outer)
