"""The INVERT role of kernel_sm100_fused.py: A and P from the products of the levels, and Ai. CuTe DSL.

A warp has 16 rows of the chunk. Of A and P it needs, from the products of each level,

    level 1, 2, 4, 8   its own 16 columns, where row and column belong to that level
    level 16           the 16 columns before its own: warps 1 and 3
    level 32           the first 32 columns: warps 2 and 3

and the diagonal of P from the product of Q and K themselves.
"""

from __future__ import annotations

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
        r_a, r_p = (cute.make_rmem_tensor((VALUES, WARPS), cutlass.Float32) for _ in range(2))
        r_a.fill(0.0)
        r_p.fill(0.0)
        for level in cutlass.range_constexpr(1 + len(LEVELS)):
            pipelines.scores.consumer_wait(scores)
            blackwell.after_thread_sync()
            size = 0 if level == 0 else LEVELS[level - 1]
            if cutlass.const_expr(size == 0):
                _read(tmem_copy, T_QK, scores.index, r_p, warp, lane, size)
            else:
                _read(tmem_copy, T_KKT, scores.index, r_a, warp, lane, size)
                _read(tmem_copy, T_QK, scores.index, r_p, warp, lane, size)
            blackwell.before_thread_sync()
            pipelines.scores.consumer_release(scores)
            scores.advance()
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
def _read(
    tmem_copy: blackwell.TmemCopy,
    part: cutlass.Constexpr,
    stage: cutlass.Int32,
    r_square: cute.Tensor,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
    size: cutlass.Constexpr,
) -> None:
    """Take this warp's elements of a level from its product; `size` is half the level's blocks, 0 for the
    diagonal."""
    r_block = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
    r_values = cute.make_tensor(r_block.iterator, cute.make_layout(VALUES))
    for row in cutlass.range_constexpr(WARPS):
        if warp == row:
            for column in cutlass.range_constexpr(row + 1):
                if cutlass.const_expr(_meets(row, column, size)):
                    tmem_copy.load(part, stage, BLOCK * column, r_block)
                    cute.arch.fence_view_async_tmem_load()
                    for value in cutlass.range_constexpr(VALUES):
                        if cutlass.const_expr(row != column):
                            r_square[value, column] = r_values[value]
                        else:
                            i = lane // 4 + 8 * (value // 2 % 2)
                            j = 2 * (lane % 4) + value % 2 + 8 * (value // 4)
                            if _in_level(i, j, size):
                                r_square[value, column] = r_values[value]


def _meets(row: int, column: int, size: int) -> bool:
    """Whether elements of a 16 x 16 block of the chunk belong to a level."""
    if row == column:
        return size < BLOCK
    return size >= BLOCK and (BLOCK * row) ^ (BLOCK * column) >= size and (row ^ column) * BLOCK < 2 * size


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
