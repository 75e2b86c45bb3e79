"""A and Ai of a chunk in the registers of four warps: 64 x 64 in f32, 16 rows per warp. CuTe DSL.

A thread has 32 values, in the order of tcgen05.ld 16x256b and of mma.sync accumulators: value 4n + 2 half + j
is row 16 warp + lane/4 + 8 half, column 8n + 2 (lane % 4) + j.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from enum import IntEnum
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp as warp_ops

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.gate_scan import Gate, decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK

ROWS_OF_WARP = 16


class Tap(IntEnum):
    """What a build does with A and Ai: nothing, write both, read one of them, or read A and write the Ai
    computed from it."""

    NONE = 0
    DUMP = 1
    INJECT_A = 2
    INJECT_AI = 3
    INVERT = 4


def fragment_row(warp: Any, lane: Any, half: int) -> Any:
    """Row of a thread's values 4n + 2 half and 4n + 2 half + 1."""
    return ROWS_OF_WARP * warp + lane // 4 + 8 * half


def fragment_column(lane: Any, n: int, j: int) -> Any:
    """Column of a thread's values 4n + j and 4n + 2 + j."""
    return 8 * n + 2 * (lane % 4) + j


@cute.jit
def form_a(r_a: cute.Tensor, s_scalars: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
    """Replace KKT in r_a by A. On and above the diagonal the exponent could be positive and KKT not finite,
    so those elements are replaced by 0, not multiplied."""
    rows = [fragment_row(warp, lane, half) for half in range(2)]
    scalars = [(s_scalars[Gate.G_CU, row], s_scalars[Gate.BETA, row]) for row in rows]
    for n in cutlass.range_constexpr(CHUNK // 8):
        for j in cutlass.range_constexpr(2):
            column = fragment_column(lane, n, j)
            g_column = s_scalars[Gate.G_CU, column]
            for half in cutlass.range_constexpr(2):
                at = 4 * n + 2 * half + j
                below = column < rows[half]
                g_row, beta_row = scalars[half]
                span = (g_row - g_column) if below else cutlass.Float32(0.0)
                value = beta_row * r_a[at] * decay(span)
                r_a[at] = value if below else cutlass.Float32(0.0)


@cute.jit
def form_squares(
    r_kkt: cute.Tensor, r_qk: cute.Tensor, s_scalars: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32
) -> None:
    """Replace KKT in r_kkt by A and QK in r_qk by P = lower(QK exp(g_cu[i] - g_cu[j])); both share the
    exponentials, which are 0 above the diagonal, and never more than 1."""
    rows = [fragment_row(warp, lane, half) for half in range(2)]
    scalars = [(s_scalars[Gate.G_CU, row], s_scalars[Gate.BETA, row]) for row in rows]
    # Row minus column of a thread's first value: of the others it differs by a constant.
    below = rows[0] - fragment_column(lane, 0, 0)
    for n in cutlass.range_constexpr(CHUNK // 8):
        r_sums = pair_of(s_scalars[Gate.G_CU, None], lane, n)
        for half in cutlass.range_constexpr(2):
            at = 4 * n + 2 * half
            g_row, beta_row = scalars[half]
            spans = cute.arch.add_packed_f32x2((g_row, g_row), (-r_sums[0], -r_sums[1]))
            kept, strict = [], []
            for j in cutlass.range_constexpr(2):
                factor = decay(cute.arch.fmin(spans[j], 0.0, nan=True))
                distance = 8 * n + j - 8 * half
                kept.append(factor if below >= distance else cutlass.Float32(0.0))
                strict.append(factor if below > distance else cutlass.Float32(0.0))
            scaled = cute.arch.mul_packed_f32x2((r_kkt[at], r_kkt[at + 1]), (beta_row, beta_row))
            r_kkt[at], r_kkt[at + 1] = cute.arch.mul_packed_f32x2(scaled, tuple(strict))
            r_qk[at], r_qk[at + 1] = cute.arch.mul_packed_f32x2((r_qk[at], r_qk[at + 1]), tuple(kept))


def pair_of(s_vector: cute.Tensor, lane: Any, n: int) -> cute.Tensor:
    """The two numbers of a vector in shared memory for a thread's columns 8n + 2 (lane % 4) and + 1."""
    r_pair = cute.make_rmem_tensor(2, s_vector.element_type)
    cute.autovec_copy(cute.local_tile(s_vector, (2,), (4 * n + lane % 4,)), r_pair)
    return r_pair


@cute.jit
def write_operands(
    r_ai: cute.Tensor,
    s_scalars: cute.Tensor,
    s_aib: cute.Tensor,
    s_aibg: cute.Tensor,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> None:
    """Write this warp's rows of Ai beta_j and Ai beta_j exp(g_cu[j]) in bf16 to one stage of each buffer."""
    r_aib, r_aibg = (cute.make_rmem_tensor(r_ai.shape, cutlass.BFloat16) for _ in range(2))
    for n in cutlass.range_constexpr(CHUNK // 8):
        for j in cutlass.range_constexpr(2):
            column = fragment_column(lane, n, j)
            beta, decayed = s_scalars[Gate.BETA, column], s_scalars[Gate.DECAY, column]
            for half in cutlass.range_constexpr(2):
                at = 4 * n + 2 * half + j
                value = r_ai[at] * beta
                r_aib[at] = value.to(cutlass.BFloat16)
                r_aibg[at] = (value * decayed).to(cutlass.BFloat16)
    for s_operand, r_operand in ((s_aib, r_aib), (s_aibg, r_aibg)):
        store_rows(r_operand, cute.local_tile(s_operand, (ROWS_OF_WARP, CHUNK), (warp, 0)), lane)


def fragment_of(square: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32) -> cute.Tensor:
    """A thread's values of a 64 x 64 matrix in global memory, in the order of `fragment`. They share one
    address with constant offsets; with an index per value the compiler would keep as many addresses."""
    corner = cute.domain_offset((fragment_row(warp, lane, 0), fragment_column(lane, 0, 0)), square)
    return cute.make_tensor(
        corner.iterator.align(8), cute.make_layout((2, 2, CHUNK // 8), stride=(1, 8 * CHUNK, 8))
    )


def fragment(r_square: cute.Tensor) -> cute.Tensor:
    """View a thread's 32 values as (column of a pair, row of a pair, eight columns)."""
    return cute.make_tensor(r_square.iterator, cute.make_layout((2, 2, CHUNK // 8)))


def store_rows(r_values: cute.Tensor, s_rows: cute.Tensor, lane: Any) -> None:
    """Store a warp's 16 rows of 64 bf16 values, in fragment order, to shared memory by stmatrix."""
    store = cute.make_copy_atom(warp_ops.StMatrix8x8x16bOp(transpose=False, num_matrices=4), cutlass.BFloat16)
    for pair in range(CHUNK // 16):
        s_row = cute.local_tile(s_rows[lane % 16, None], (blackwell.VECTOR,), (2 * pair + lane // 16,))
        cute.copy(store, cute.local_tile(r_values, (blackwell.VECTOR,), (pair,)), s_row)


@cute.jit
def scale_columns(r_ai: cute.Tensor, s_beta: cute.Tensor, lane: cutlass.Int32) -> None:
    """Replace Ai by Ai beta_j."""
    for n in cutlass.range_constexpr(CHUNK // 8):
        r_beta = pair_of(s_beta, lane, n)
        for half in cutlass.range_constexpr(2):
            at = 4 * n + 2 * half
            r_ai[at], r_ai[at + 1] = cute.arch.mul_packed_f32x2(
                (r_ai[at], r_ai[at + 1]), (r_beta[0], r_beta[1])
            )


def write_rows(r_values: cute.Tensor, s_square: cute.Tensor, warp: Any, lane: Any) -> None:
    """Round and store a warp's rows."""
    r_rounded = cute.make_rmem_tensor(CHUNK // 2, cutlass.BFloat16)
    r_rounded.store(r_values.load().to(cutlass.BFloat16))
    store_rows(r_rounded, cute.local_tile(s_square, (ROWS_OF_WARP, CHUNK), (warp, 0)), lane)
