"""The INVERT role of kernel_sm90_fused.py: Ai beta and P of the chunks, ahead of the state. CuTe DSL."""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill import inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.gate_scan import decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS, Barrier
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Pipelines, Shared, address_of
from gdnbench_kernels.plan import WARP

F32 = cutlass.Float32
LOG2 = math.log(2)
VALUES = CHUNK // 2
"""A thread's elements of 64 columns."""
KEY_STEPS = hopper.columns_from(CHUNK, HEAD_DIM // hopper.STEP)


@cute.jit
def invert(
    kernel: cutlass.Constexpr,
    cuts: Any,
    pipelines: Pipelines,
    shared: Shared,
    scratch: inverse.Scratch,
    group: cutlass.Int32,
) -> None:
    """Compute Ai beta and P of every chunk whose number is `group` modulo the number of warpgroups."""
    tuning, outputs = kernel.tuning, kernel.outputs
    together = pipeline.NamedBarrier(barrier_id=group + Barrier.INVERT, num_threads=GROUP_WARPS * WARP)
    warps = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
    chunks = kernel.chunks(cuts)
    for turn in cutlass.range(group, chunks, tuning.inverters, unroll=1):
        gate, k = blackwell.Turn.consumer(turn, GATES), blackwell.Turn.consumer(turn, tuning.keys)
        squares = blackwell.Turn.producer(turn, tuning.squares)
        pipelines.k.consumer_wait(k)
        keys = hopper.descriptor(address_of(shared.k, k.index))
        kkt = hopper.product(None, (keys, KEY_STEPS), (keys, KEY_STEPS))
        qk: list[Any] = []
        if cutlass.const_expr(outputs):
            pipelines.q.consumer_wait(k)
            queries = hopper.descriptor(address_of(shared.q, k.index))
            qk = hopper.product(None, (queries, KEY_STEPS), (keys, KEY_STEPS))
        pipelines.gate.consumer_wait(gate)
        kkt, qk = hopper.wait(0, [kkt, qk])
        pipelines.k.consumer_release(k)
        if cutlass.const_expr(outputs):
            pipelines.q.consumer_release(k)
        r_a, r_qk = cute.make_rmem_tensor(VALUES, F32), cute.make_rmem_tensor(VALUES, F32)
        put(r_a, kkt)
        put(r_qk, qk)
        for warp in cutlass.range_constexpr(GROUP_WARPS):
            if warps == warp:
                s_gate = shared.gate[None, None, gate.index]
                s_p = address_of(shared.p, squares.index) if cutlass.const_expr(outputs) else None
                s_aib = address_of(shared.aib, squares.index)
                form_rows(r_a, r_qk, s_gate, s_p, pipelines, squares, warp, turn)
                invert_rows(r_a, scratch, warp, blackwell.lane_of_turn(turn), together)
                pipelines.aib.producer_acquire(squares)
                scale_rows(r_a, s_gate, s_aib, warp, turn)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.aib.producer_commit(squares)
        pipelines.gate.consumer_release(gate)
    pipelines.aib.producer_tail_after(chunks)
    if cutlass.const_expr(outputs):
        pipelines.p.producer_tail_after(chunks)


def form_rows(
    r_a: cute.Tensor,
    r_qk: cute.Tensor,
    s_gate: cute.Tensor,
    s_p: Any,
    pipelines: Pipelines,
    squares: Any,
    warp: int,
    turn: Any,
) -> None:
    """Hand over a warp's rows of P, and replace KKT in r_a by A. r_qk holds QK. A is not zero on and above its
    diagonal: the inverse does not read it there."""
    # Recompute the lane: otherwise ptxas keeps addresses live from turn to turn.
    lane = blackwell.lane_of_turn(turn)
    rows = [triangle.fragment_row(warp, lane, half) for half in range(2)]
    sums = [s_gate[Row.G_CU, row] for row in rows]
    betas = [s_gate[Row.BETA, row] for row in rows]
    p = []
    # Row minus column of a thread's first value in the diagonal block.
    below = lane // 4 - 2 * (lane % 4)
    for n in range(2 * (warp + 1)):  # blocks of 8 columns, up to the diagonal
        columns = pair_values(s_gate[Row.G_CU, None], lane, n)
        for at in range(4 * n, 4 * n + 4):
            half, j = at // 2 % 2, at % 2
            factor = decay(sums[half] - columns[j], unit=LOG2)
            if s_p is not None:
                value = hopper.mul(r_qk[at], factor)
                if n >= 2 * warp:
                    distance = 8 * (n - 2 * warp) + j - 8 * half
                    value = F32(cutlass.select_(below >= distance, value, F32(0.0)))
                p.append(value)
            r_a[at] = hopper.mul(hopper.mul(betas[half], r_a[at]), factor)
    if s_p is not None:
        pipelines.p.producer_acquire(squares)
        store_rows(s_p, Lane(warp, lane), hopper.quads_of(p))
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.p.producer_commit(squares)


def scale_rows(r_ai: cute.Tensor, s_gate: cute.Tensor, s_aib: Any, warp: int, turn: Any) -> None:
    """Write a warp's rows of Ai beta."""
    lane = blackwell.lane_of_turn(turn)
    scaled = []
    for n in range(2 * (warp + 1)):
        betas = pair_values(s_gate[Row.BETA, None], lane, n)
        scaled += [hopper.mul(r_ai[at], betas[at % 2]) for at in range(4 * n, 4 * n + 4)]
    store_rows(s_aib, Lane(warp, lane), hopper.quads_of(scaled))


def store_rows(address: Any, offset: Lane, quads: list[hopper.Quad]) -> None:
    """Store a warp's rows of a square: the given columns, and zeros."""
    zero = cutlass.Int32(0)
    quads = quads + [(zero, zero, zero, zero)] * (CHUNK // 16 - len(quads))
    for pair, quad in enumerate(quads):
        hopper.store_matrices(address + offset.by_row(pair), quad)


def invert_rows(
    r_a: cute.Tensor, scratch: inverse.Scratch, warp: int, lane: Any, together: pipeline.NamedBarrier
) -> None:
    """`inverse.invert` for one warp's rows, in its code alone."""
    r_rows = cute.make_tensor(r_a.iterator, cute.make_layout((inverse.VALUES, inverse.WARPS)))
    s_diagonal = scratch.s_diagonal[None, None, warp]
    together.arrive_and_wait()
    inverse._scatter_negated(r_rows[None, warp], s_diagonal, lane)
    for column in range(warp):
        rounded = inverse._rounded(r_rows[None, column], scratch.parts)
        inverse._publish(rounded, scratch, warp, column, lane)
    r_diagonal = inverse._invert_diagonal(s_diagonal, lane, scratch.packed)
    inverse._merge(r_rows, r_diagonal, scratch, warp, lane, together)


def column_values(s_vector: cute.Tensor, lane: Any) -> list[Any]:
    """The numbers of a thread's columns, 8 n + 2 (lane % 4) and + 1."""
    return [value for n in range(CHUNK // 8) for value in pair_values(s_vector, lane, n)]


def pair_values(s_vector: cute.Tensor, lane: Any, n: int) -> list[Any]:
    """Those of columns 8 n + 2 (lane % 4) and + 1."""
    r_pair = triangle.pair_of(s_vector, lane, n)
    return [r_pair[0], r_pair[1]]


def put(r_values: cute.Tensor, values: list[Any], first: int = 0) -> None:
    for at, value in enumerate(values):
        r_values[first + at] = value
