# SPDX-License-Identifier: Apache-2.0
"""The INVERT role of kernel_sm90_fused.py: Ai beta and P of the chunks, ahead of the state. CuTe DSL."""

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
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
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
        s_gate = shared.gate[None, None, gate.index]
        # Recompute the lane: otherwise ptxas keeps addresses live from turn to turn.
        lane = blackwell.lane_of_turn(turn)
        r_a, p = form_rows(kkt, qk, s_gate, warp, lane)
        if cutlass.const_expr(outputs):
            pipelines.p.producer_acquire(squares)
            for pair, quad in enumerate(p):
                hopper.store_matrices(
                    address_of(shared.p, squares.index) + Lane(warp, lane).by_row(pair), quad
                )
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.p.producer_commit(squares)
        lane = blackwell.lane_of_turn(turn)
        blocks = invert_rows(r_a, scratch, warp, lane, together)
        lane = blackwell.lane_of_turn(turn)
        pipelines.aib.producer_acquire(squares)
        store_inverse(blocks, s_gate, address_of(shared.aib, squares.index), warp, lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.aib.producer_commit(squares)
        pipelines.gate.consumer_release(gate)
    pipelines.aib.producer_tail_after(chunks)
    if cutlass.const_expr(outputs):
        pipelines.p.producer_tail_after(chunks)


@cute.jit
def form_rows(
    kkt: list[Any], qk: list[Any], s_gate: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32
) -> tuple[cute.Tensor, list[hopper.Quad]]:
    """A warp's rows of A and P, up to the diagonal block. A is not zero on and above its diagonal: the
    inverse does not read it there."""
    rows = [triangle.fragment_row(warp, lane, half) for half in range(2)]
    sums = [s_gate[Row.G_CU, row] for row in rows]
    betas = [s_gate[Row.BETA, row] for row in rows]
    r_a = cute.make_rmem_tensor(VALUES, F32)
    put(r_a, kkt)
    r_p = cute.make_rmem_tensor(VALUES // 2, cutlass.Int32)
    r_p.fill(0)
    # Row minus column of a thread's first value: of the others it differs by a constant.
    below = triangle.fragment_row(warp, lane, 0) - triangle.fragment_column(lane, 0, 0)
    for pair in cutlass.range_constexpr(CHUNK // 16):
        if pair <= warp:
            p = []
            for n in (2 * pair, 2 * pair + 1):
                columns = pair_values(s_gate[Row.G_CU, None], lane, n)
                for at in cutlass.range_constexpr(4 * n, 4 * n + 4):
                    half, j = at // 2 % 2, at % 2
                    factor = decay(sums[half] - columns[j], unit=LOG2)
                    if cutlass.const_expr(len(qk) > 0):
                        value = hopper.mul(qk[at], factor)
                        kept = below >= 8 * n + j - 8 * half
                        p.append(F32(cutlass.select_(kept, value, F32(0.0))))
                    r_a[at] = hopper.mul(hopper.mul(betas[half], r_a[at]), factor)
            put(r_p, [word for quad in hopper.quads_of(p) for word in quad], 4 * pair)
    words = [r_p[at] for at in range(VALUES // 2)]
    quads = [(words[at], words[at + 1], words[at + 2], words[at + 3]) for at in range(0, len(words), 4)]
    return r_a, quads if cutlass.const_expr(len(qk) > 0) else []


@cute.jit
def invert_rows(
    r_a: cute.Tensor,
    scratch: inverse.Scratch,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
    together: pipeline.NamedBarrier,
) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor]:
    """`inverse.invert` by one code for all warps: with one for each, the instructions of a chunk are more
    than the SM's caches of them hold. Returns a warp's blocks of Ai: the diagonal one; that before it, of
    warps 1 and 3; the first two, of warps 2 and 3."""
    r_rows = cute.make_tensor(r_a.iterator, cute.make_layout((inverse.VALUES, inverse.WARPS)))
    s_diagonal = scratch.s_diagonal[None, None, warp]
    r_left, r_first, r_second = (cute.make_rmem_tensor(inverse.VALUES, F32) for _ in range(3))
    for r_block in (r_left, r_first, r_second):
        r_block.fill(0.0)
    together.arrive_and_wait()
    for column in cutlass.range_constexpr(inverse.WARPS):
        if warp == column:
            inverse.scatter(r_rows[None, column], s_diagonal, lane)
        if column < warp:
            rounded = inverse._rounded(r_rows[None, column], scratch.parts)
            inverse._publish(rounded, scratch, warp, column, lane)
    r_diagonal = inverse._invert_diagonal(s_diagonal, lane, scratch.packed)
    own = inverse._rounded(r_diagonal, scratch.parts)
    if warp < inverse.WARPS - 1:
        inverse._publish(own, scratch, warp, warp, lane)
    together.arrive_and_wait()
    negated = inverse._negated(own)
    if warp % 2 == 1:
        r_product = inverse._product([negated], [inverse._operand(scratch, warp, warp - 1, lane)])
        before = inverse._operand(scratch, warp - 1, warp - 1, lane)
        r_merged = inverse._product([inverse._rounded(r_product, scratch.parts)], [before])
        inverse._assign(r_left, r_merged)
        if warp == 1:
            inverse._publish(inverse._rounded(r_merged, scratch.parts), scratch, 0, 1, lane)
    together.arrive_and_wait()
    if warp >= 2:
        # The left factors of columns 2 and 3; warp 2 has none of column 3.
        third = warp == 3
        left = inverse._negated(inverse._rounded(r_left, scratch.parts))
        factors = [chosen(third, left, negated), chosen(third, negated, None)]
        products = [
            inverse._rounded(
                inverse._product(factors, [inverse._operand(scratch, row, column, lane) for row in (2, 3)]),
                scratch.parts,
            )
            for column in range(2)
        ]
        first = [inverse._operand(scratch, 0, 0, lane), inverse._operand(scratch, 0, 1, lane)]
        inverse._assign(r_first, inverse._product(products, first))
        inverse._assign(r_second, inverse._product(products[1:], [inverse._operand(scratch, 1, 1, lane)]))
    return r_diagonal, r_left, r_first, r_second


def chosen(condition: Any, one: inverse.Operand, other: inverse.Operand | None) -> inverse.Operand:
    """`one` if the condition holds, else `other`, or zeros."""
    parts = []
    for number, r_one in enumerate(one):
        r_part = cute.make_rmem_tensor(inverse.VALUES, cutlass.Float16)
        words, ones = (cute.recast_tensor(x, cutlass.Int32) for x in (r_part, r_one))
        others = None if other is None else cute.recast_tensor(other[number], cutlass.Int32)
        for at in range(inverse.VALUES // 2):
            instead = cutlass.Int32(0) if others is None else others[at]
            words[at] = cutlass.Int32(cutlass.select_(condition, ones[at], instead))
        parts.append(r_part)
    return tuple(parts)


@cute.jit
def store_inverse(
    blocks: tuple[cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor],
    s_gate: cute.Tensor,
    address: cutlass.Int32,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> None:
    """Write a warp's rows of Ai beta from its blocks of Ai, and zeros behind them."""
    diagonal, left, first, second = blocks
    for column in cutlass.range_constexpr(1, inverse.WARPS):
        if column > warp:
            zero = cutlass.Int32(0)
            hopper.store_matrices(address + Lane(warp, lane).by_row(column), (zero, zero, zero, zero))
    store_block(diagonal, s_gate, address, warp, warp, lane)
    if warp % 2 == 1:
        store_block(left, s_gate, address, warp, warp - 1, lane)
    if warp >= 2:
        store_block(first, s_gate, address, warp, 0, lane)
        store_block(second, s_gate, address, warp, 1, lane)


def store_block(
    r_block: cute.Tensor, s_gate: cute.Tensor, address: Any, warp: Any, column: Any, lane: Any
) -> None:
    """Write a block of Ai beta, 16 x 16."""
    betas = [beta for n in range(2) for beta in pair_values(s_gate[Row.BETA, None], lane, 2 * column + n)]
    scaled = [hopper.mul(r_block[at], betas[at // 4 * 2 + at % 2]) for at in range(inverse.VALUES)]
    hopper.store_matrices(address + Lane(warp, lane).by_row(column), hopper.quads_of(scaled)[0])


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
