# SPDX-License-Identifier: Apache-2.0
"""The squares of a chunk, Ai beta and P, by a warpgroup; the INVERT role of kernel_sm90_fused.py.

CuTe DSL.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill import sm90_inverse, triangle
from gdnbench_kernels.gdn_prefill.gate_scan import Gate, decay
from gdnbench_kernels.gdn_prefill.inverse import VALUES as BLOCK_VALUES
from gdnbench_kernels.gdn_prefill.inverse import WARPS
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_inverse import BLOCK_BYTES, X10, Place, Scratch
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS, Barrier
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Pipelines, Shared, address_of
from gdnbench_kernels.plan import WARP

F32, I32 = cutlass.Float32, cutlass.Int32
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
    scratch: Scratch,
    group: cutlass.Int32,
) -> None:
    """Compute Ai beta and P of every chunk whose number is `group` modulo the number of warpgroups."""
    tuning, outputs = kernel.tuning, kernel.outputs
    together = barrier_of(group)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
    for stage in cutlass.range(group, tuning.squares, tuning.inverters, unroll=1):
        lane = cute.arch.lane_idx()
        clear_behind(address_of(shared.aib, stage), warp, lane)
        if cutlass.const_expr(outputs):
            clear_behind(address_of(shared.p, stage), warp, lane)
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
            pipelines.p.producer_acquire(squares)
        s_gate = shared.gate[None, None, gate.index]
        # Recompute the lane: otherwise ptxas keeps addresses live from turn to turn.
        lane = blackwell.lane_of_turn(turn)
        # No warp reads the last chunk's blocks any more.
        together.arrive_and_wait()
        squares_p = [address_of(shared.p, squares.index)] if cutlass.const_expr(outputs) else []
        form_rows(kkt, qk, [s_gate], scratch, squares_p, warp, lane)
        if cutlass.const_expr(outputs):
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.p.producer_commit(squares)
        sm90_inverse.invert_diagonals(scratch, warp, lane)
        lane = blackwell.lane_of_turn(turn)
        pipelines.aib.producer_acquire(squares)
        address = address_of(shared.aib, squares.index)
        merge(scratch, [s_gate], [address], warp, lane, together)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.aib.producer_commit(squares)
        pipelines.gate.consumer_release(gate)
    pipelines.aib.producer_tail_after(chunks)
    if cutlass.const_expr(outputs):
        pipelines.p.producer_tail_after(chunks)


def barrier_of(group: Any) -> pipeline.NamedBarrier:
    """That of a warpgroup of INVERT."""
    return pipeline.NamedBarrier(barrier_id=group + Barrier.INVERT, num_threads=GROUP_WARPS * WARP)


@cute.jit
def clear_behind(address: cutlass.Int32, warp: cutlass.Int32, lane: cutlass.Int32) -> None:
    """Write zeros to a warp's rows of a square, behind the diagonal block. Nothing else is written there."""
    zero = I32(0)
    for column in cutlass.range_constexpr(1, WARPS):
        if column > warp:
            hopper.store_matrices(address + Lane(warp, lane).by_row(column), (zero, zero, zero, zero))


@cute.jit
def form_rows(
    kkt: list[Any],
    qk: list[Any],
    gates: list[cute.Tensor],
    scratch: Scratch,
    addresses: list[Any],
    warp: cutlass.Int32,
    lane: cutlass.Int32,
) -> None:
    """Store a warp's rows of A for the inverse, and those of P at `addresses`, of each head, up to the
    diagonal block. A is not zero on and above its diagonal: the inverse does not read it there."""
    heads = range(scratch.heads)
    places = [Place.create(scratch, head, warp, lane) for head in heads]
    rows = [triangle.fragment_row(warp, lane, half) for half in range(2)]
    sums = [[s_gate[Gate.G_CU, row] for row in rows] for s_gate in gates]
    betas = [[s_gate[Gate.BETA, row] for row in rows] for s_gate in gates]
    for pair in cutlass.range_constexpr(WARPS):
        if pair <= warp:
            for head in cutlass.range_constexpr(scratch.heads):
                decays = decays_of(gates[head], sums[head], pair, lane)
                if cutlass.const_expr(len(qk) > 0):
                    p = [hopper.mul(qk[8 * pair + at], decays[at]) for at in range(BLOCK_VALUES)]
                    quad = lower(hopper.quads_of(p)[0], pair == warp, lane)
                    hopper.store_matrices(addresses[head] + Lane(warp, lane).by_row(pair), quad)
                a = [
                    hopper.mul(hopper.mul(betas[head][at // 2 % 2], kkt[8 * pair + at]), decays[at])
                    for at in range(BLOCK_VALUES)
                ]
                if pair < warp:
                    sm90_inverse.publish(sm90_inverse.rounded(a, scratch.parts), places[head].own(pair))
                else:
                    block = scratch.s_diagonal[None, None, warp, head]
                    sm90_inverse.scatter(a, block, scratch.heads, lane)


def decays_of(s_gate: cute.Tensor, sums: list[Any], pair: int, lane: Any) -> list[Any]:
    """exp(g_cu[i] - g_cu[j]) of a thread's elements of a block; `sums` are g_cu of its rows."""
    columns = [value for n in range(2) for value in pair_values(s_gate[Gate.G_CU, None], lane, 2 * pair + n)]
    return [decay(sums[at // 2 % 2] - columns[at // 4 * 2 + at % 2], unit=LOG2) for at in range(BLOCK_VALUES)]


def lower(quad: hopper.Quad, diagonal: Any, lane: Any) -> hopper.Quad:
    """A block of P, without what is above the diagonal if it is a diagonal one."""
    below = triangle.fragment_row(0, lane, 0) - triangle.fragment_column(lane, 0, 0)
    first = cutlass.select_(below >= 0, I32(0xFFFF), I32(0))
    second = cutlass.select_(below >= 1, I32(-0x10000), I32(0))
    kept = cutlass.select_(diagonal, first | second, I32(-1))
    behind = cutlass.select_(diagonal, I32(0), I32(-1))
    return quad[0] & kept, quad[1], quad[2] & behind, quad[3] & kept


@cute.jit
def merge(
    scratch: Scratch,
    gates: list[cute.Tensor],
    addresses: list[Any],
    warp: cutlass.Int32,
    lane: cutlass.Int32,
    together: pipeline.NamedBarrier,
) -> None:
    """Steps 1 and 2 of inverse.py behind `invert_diagonals`; store a warp's rows of Ai beta of each head, up
    to the diagonal block."""
    parts = scratch.parts
    r_left = cute.make_rmem_tensor((4, parts, scratch.heads), I32)
    own, places = [], []
    for head in cutlass.range_constexpr(scratch.heads):
        place = Place.create(scratch, head, warp, lane)
        x = sm90_inverse.diagonal_of(scratch, head, warp, lane)
        store_block(x, gates[head], addresses[head], warp, warp, lane)
        diagonal = sm90_inverse.rounded(x, parts)
        if warp < WARPS - 1:
            sm90_inverse.publish(diagonal, place.own(warp))
        own.append(sm90_inverse.negated(diagonal))
        places.append(place)
        keep(r_left, head, own[head])
    together.arrive_and_wait()
    if warp % 2 == 1:
        for head in cutlass.range_constexpr(scratch.heads):
            place = places[head]
            first = sm90_inverse.product(own[head], sm90_inverse.right(place.own(warp - 1), parts))
            before = sm90_inverse.right(place.row - BLOCK_BYTES, parts)  # X[w-1,w-1]
            x = sm90_inverse.product(sm90_inverse.rounded(first, parts), before)
            store_block(x, gates[head], addresses[head], warp, warp - 1, lane)
            left = sm90_inverse.rounded(x, parts)
            if warp == 1:
                sm90_inverse.publish(left, place.block(X10))
            keep(r_left, head, sm90_inverse.negated(left))
    together.arrive_and_wait()
    if warp >= 2:
        for head in cutlass.range_constexpr(scratch.heads):
            place = places[head]
            left = [tuple(r_left[word, part, head] for word in range(4)) for part in range(parts)]
            products = []
            for column in cutlass.range_constexpr(2):
                # A[2,c] and A[3,c] are blocks 3 + c and 6 + c.
                x = sm90_inverse.product(left, sm90_inverse.right(place.block(3 + column), parts))
                r_sums = cute.make_rmem_tensor(BLOCK_VALUES, F32)
                put(r_sums, x)
                if warp == WARPS - 1:
                    factor = sm90_inverse.right(place.block(6 + column), parts)
                    put(r_sums, sm90_inverse.product(own[head], factor, x))
                products.append(sm90_inverse.rounded([r_sums[at] for at in range(BLOCK_VALUES)], parts))
            x00, x10, x11 = (sm90_inverse.right(place.block(number), parts) for number in (0, X10, 2))
            x = sm90_inverse.product(products[1], x10, sm90_inverse.product(products[0], x00))
            store_block(x, gates[head], addresses[head], warp, 0, lane)
            x = sm90_inverse.product(products[1], x11)
            store_block(x, gates[head], addresses[head], warp, 1, lane)


def keep(r_words: cute.Tensor, head: int, operand: sm90_inverse.Operand) -> None:
    for part, quad in enumerate(operand):
        for word in range(4):
            r_words[word, part, head] = quad[word]


def store_block(
    values: list[Any], s_gate: cute.Tensor, address: Any, warp: Any, column: Any, lane: Any
) -> None:
    """Write a block of Ai beta, 16 x 16."""
    betas = [beta for n in range(2) for beta in pair_values(s_gate[Gate.BETA, None], lane, 2 * column + n)]
    scaled = [hopper.mul(values[at], betas[at // 4 * 2 + at % 2]) for at in range(BLOCK_VALUES)]
    hopper.store_matrices(address + Lane(warp, lane).by_row(column), hopper.quads_of(scaled)[0])


def pair_values(s_vector: cute.Tensor, lane: Any, n: Any) -> list[Any]:
    """Those of columns 8 n + 2 (lane % 4) and + 1."""
    r_pair = triangle.pair_of(s_vector, lane, n)
    return [r_pair[0], r_pair[1]]


def column_values(s_vector: cute.Tensor, lane: Any) -> list[Any]:
    """The numbers of a thread's columns, 8 n + 2 (lane % 4) and + 1."""
    return [value for n in range(CHUNK // 8) for value in pair_values(s_vector, lane, n)]


def put(r_values: cute.Tensor, values: list[Any], first: int = 0) -> None:
    for at, value in enumerate(values):
        r_values[first + at] = value
