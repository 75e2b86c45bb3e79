"""The INVERT role of kernel_sm100_fused.py: A and P from the products of the levels, and Ai. CuTe DSL.

A warp has 16 rows of the chunk. Of A and P it needs, from the products of each level,

    level 1, 2, 4, 8   its own 16 columns, where row and column belong to that level
    level 16           the 16 columns before its own: warps 1 and 3
    level 32           the first 32 columns: warps 2 and 3

and the diagonal of P from the product of Q and K themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import WorkTile
from gdnbench_kernels.gdn_prefill.inverse import BLOCK, VALUES, WARPS
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.triangle import ROWS_OF_WARP, fragment_column, fragment_row
from gdnbench_kernels.kda_prefill.fused_plan import LEVELS, T_KKT, T_QK, Barrier, Pipelines, Role, Shared
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16


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
        r_rows = cute.make_rmem_tensor((VALUES, WARPS), cutlass.Float32)
        r_rows.fill(0.0)
        for row in cutlass.range_constexpr(WARPS):
            if warp == row:
                for value in cutlass.range_constexpr(VALUES):
                    r_rows[value, row] = self.r_own[value]
                    if cutlass.const_expr(row % 2 == 1):
                        r_rows[value, row - 1] = self.r_before[value]
                    if cutlass.const_expr(row >= WARPS // 2):
                        for block in cutlass.range_constexpr(WARPS // 2):
                            r_rows[value, block] = self.r_first[value, block]
        return r_rows


@cute.jit
def invert(
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    scratch: inverse.Scratch,
    base: cute.Pointer,
    beta: cute.Tensor,
) -> None:
    """Compute Ai beta and P of each chunk. Warp w of the four has rows 16w .. 16w + 15."""
    thread = cute.arch.thread_idx()[0] - WARP * Role.INVERT
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.INVERT
    together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT, num_threads=WARP * WARPS)
    tiled_mma = blackwell.make_tiled_mma(OperandMajorMode.K, CHUNK, BLOCK)
    tmem_copy = blackwell.TmemCopy.create(tiled_mma, (CHUNK, BLOCK), base, thread)
    scores, squares = pipelines.scores.consumer_state(), pipelines.squares.producer_state()
    for i in cutlass.range(work.chunks, unroll=1):
        lane = blackwell.opaque(cute.arch.lane_idx())
        r_beta = _load_beta(work, beta, CHUNK * i, lane)
        a, p = Blocks.create(), Blocks.create()
        _read_diagonal(tmem_copy, pipelines, scores, a, p, warp, lane)
        _read_before(tmem_copy, pipelines, scores, a, p, warp)
        r_a, r_p = a.assemble(warp), p.assemble(warp)
        _scale_rows(r_a, r_beta, warp, lane)
        r_rounded = cute.make_rmem_tensor(CHUNK // 2, BF16)
        r_rounded.store(cute.make_tensor(r_p.iterator, cute.make_layout(CHUNK // 2)).load().to(BF16))
        r_values = cute.make_tensor(r_a.iterator, cute.make_layout(CHUNK // 2))
        inverse.invert(r_values, scratch, warp, lane, together)
        # Recompute the lane id here: otherwise ptxas keeps the store addresses live across the inverse.
        lane = blackwell.opaque(lane)
        _scale_columns(r_values, r_beta, lane)
        pipelines.squares.producer_acquire(squares)
        _store_rows(r_rounded, shared.p[None, None, squares.index], warp, lane)
        r_rounded.store(r_values.load().to(BF16))
        _store_rows(r_rounded, shared.aib[None, None, squares.index], warp, lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.squares.producer_commit(squares)
        squares.advance()
    pipelines.squares.producer_tail(squares)


@cute.jit
def _load_beta(work: WorkTile, beta: cute.Tensor, first: cutlass.Int32, lane: cutlass.Int32) -> cute.Tensor:
    """beta of tokens lane and lane + 32 of a chunk; 0 past the end of the sequence."""
    r_beta = cute.make_rmem_tensor(CHUNK // WARP, cutlass.Float32)
    r_beta.fill(0.0)
    for part in cutlass.range_constexpr(CHUNK // WARP):
        token = work.start + first + WARP * part + lane
        if token < work.stop:
            r_beta[part] = beta[token, work.head]
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
) -> None:
    """Take the diagonal blocks from the product of Q and K, and from the levels within 16 tokens."""
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
                        if _in_level(*_place(value, lane), size):
                            blocks.r_own[value] = r_values[value]
            blackwell.before_thread_sync()
            pipelines.scores.consumer_release(scores)
            scores.advance()


@cute.jit
def _read_before(
    tmem_copy: blackwell.TmemCopy,
    pipelines: Pipelines,
    scores: Any,
    a: Blocks,
    p: Blocks,
    warp: cutlass.Int32,
) -> None:
    """Take the other blocks from the last two levels."""
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


def _fragment(tmem_copy: blackwell.TmemCopy, r_block: cute.Tensor) -> cute.Tensor:
    """A block's values in the shape that tcgen05.ld fills."""
    return cute.make_tensor(r_block.iterator, cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32).layout)


def _place(value: int, lane: Any) -> tuple[Any, Any]:
    """(row, column) of a thread's value in a 16 x 16 block."""
    return lane // 4 + 8 * (value // 2 % 2), 2 * (lane % 4) + value % 2 + 8 * (value // 4)


def _in_level(i: Any, j: Any, size: int) -> Any:
    """Whether an element of a diagonal block belongs to a level, or with size 0 to the diagonal."""
    if size == 0:
        return i == j
    return (i > j) & ((i ^ j) >= size) & ((i ^ j) < 2 * size)


@cute.jit
def _scale_rows(r_a: cute.Tensor, r_beta: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
    """Replace r_a by beta_i r_a."""
    own = r_beta[0] if warp < WARPS // 2 else r_beta[1]
    for half in cutlass.range_constexpr(2):
        row = fragment_row(warp, lane, half)
        beta = cute.arch.shuffle_sync(own, row % WARP)
        for n in cutlass.range_constexpr(CHUNK // 8):
            for j in cutlass.range_constexpr(2):
                at = 4 * n + 2 * half + j
                r_a[at] = beta * r_a[at]


@cute.jit
def _scale_columns(r_ai: cute.Tensor, r_beta: cute.Tensor, lane: cutlass.Int32) -> None:
    """Replace Ai by Ai beta_j."""
    for n in cutlass.range_constexpr(CHUNK // 8):
        for j in cutlass.range_constexpr(2):
            column = fragment_column(lane, n, j)
            beta = cute.arch.shuffle_sync(r_beta[8 * n // WARP], column % WARP)
            for half in cutlass.range_constexpr(2):
                r_ai[4 * n + 2 * half + j] = r_ai[4 * n + 2 * half + j] * beta


def _store_rows(r_rounded: cute.Tensor, s_square: cute.Tensor, warp: Any, lane: Any) -> None:
    """Store this warp's rows."""
    triangle.store_rows(r_rounded, cute.local_tile(s_square, (ROWS_OF_WARP, CHUNK), (warp, 0)), lane)
