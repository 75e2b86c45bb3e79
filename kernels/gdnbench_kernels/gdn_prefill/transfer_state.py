"""The STATE role of kernel_sm100_transfer.py: B and M of a segment in turn, so that products of one run while
the other's values are in registers. CuTe DSL.

A thread has its elements of B in registers, as in fused_state.py, and those of M in tensor memory, because
both exceed the registers. The last product of a chunk adds to M in place; so M is multiplied by a chunk's
exp(g_last) before it, when it is read for h.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_lanes import Lanes, flat
from gdnbench_kernels.delta_prefill.fused_tiles import GROUP_WARPS, PARTS, Half
from gdnbench_kernels.gdn_prefill.fused_plan import GATES, T_MAP, T_MAP_KS, Pipelines, Row, Shared
from gdnbench_kernels.gdn_prefill.fused_state import (
    BF16,
    by_token,
    form_v_new,
    form_x,
    pairs,
    store_h,
    update_state,
)
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import WARP


@cute.jit
def recurrence(
    kernel: cutlass.Constexpr,
    cuts: Any,
    pipelines: Pipelines,
    shared: Shared,
    base: cute.Pointer,
    states: Any,
) -> None:
    """Compute B and M of the CTA's segment; M only of a segment that `has_map`."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.create(base, thread)
    lanes = Lanes.create(half.index, thread)
    work = kernel.work(cuts, cute.arch.block_idx()[0])
    r_b = [half.registers() for _ in range(PARTS)]
    map_pipelines, map_shared = pipelines.of_map(), shared.of_map()
    states.load(half, work, r_b)
    if work.chunks > 0:
        for part in cutlass.range_constexpr(PARTS):
            store_h(half, lanes, shared, r_b[part], part)
            pipelines.h.producer_commit(blackwell.Turn(part, 0))
        if work.has_map:
            pipelines.gate.consumer_wait(blackwell.Turn.consumer(cutlass.Int32(0), GATES))
            for part in cutlass.range_constexpr(PARTS):
                r_map = half.registers()
                fill_identity(half, part, r_map)
                hand_over_map(half, lanes, map_pipelines, map_shared, cutlass.Int32(0), part, r_map)
    for i in cutlass.range(work.chunks, unroll=1):
        chunk, gate = blackwell.Turn.consumer(i), blackwell.Turn.consumer(i, GATES)
        pipelines.gate.consumer_wait(gate)
        form_x(half, lanes, work, pipelines, shared, (gate, chunk))
        pipelines.left.producer_commit(chunk)
        if work.has_map:
            form_map_x(half, lanes, map_pipelines, map_shared, gate, chunk)
            map_pipelines.left.producer_commit(chunk)
        r_rest = by_token(shared.gate[Row.REST, None, gate.index])
        form_v_new(half, lanes, pipelines, shared, chunk, r_rest)
        if work.has_map:
            form_v_new(half, lanes, map_pipelines, map_shared, chunk, r_rest, T_MAP_KS)
        factor = shared.gate[Row.DECAY, CHUNK - 1, gate.index]
        goes_on = i + 1 < work.chunks
        update_state(half, lanes, pipelines, shared, i, factor, r_b, goes_on)
        if work.has_map:
            read_map(half, lanes, map_pipelines, map_shared, i, goes_on)
        pipelines.gate.consumer_release(gate)
    states.store(half, work, r_b)


@cute.jit
def fill_identity(half: Half, part: cutlass.Constexpr, r_map: cute.Tensor) -> None:
    """Fill r_map with its part of the columns of the identity."""
    places = half.tmem_copy.partition(half.part(cute.make_identity_tensor((HEAD_DIM, HEAD_DIM)), part))
    for i in cutlass.range_constexpr(cute.size(r_map)):
        row, column = places[i]
        r_map[i] = cutlass.select_(row == column, cutlass.Float32(1.0), cutlass.Float32(0.0))


@cute.jit
def hand_over_map(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    turn: cutlass.Int32,
    part: cutlass.Constexpr,
    r_map: cute.Tensor,
) -> None:
    """Hand over h, the rounded M before chunk `turn`, and store M as that chunk's product adds to it."""
    store_h(half, lanes, shared, r_map, part)
    pipelines.h.producer_commit(blackwell.Turn(part, turn % 2))
    factor = shared.gate[Row.DECAY, CHUNK - 1, blackwell.Turn.consumer(turn, GATES).index]
    r_scaled = half.registers()
    r_from, r_to = flat(r_map), flat(r_scaled)
    for at, _ in pairs():
        r_to[at], r_to[at + 1] = cute.arch.mul_packed_f32x2((r_from[at], r_from[at + 1]), (factor, factor))
    half.tmem_copy.store(T_MAP, 0, part * CHUNK, r_scaled)
    # MMA adds behind a later arrival, that of V_new.
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def form_map_x(half: Half, lanes: Lanes, pipelines: Pipelines, shared: Shared, gate: Any, chunk: Any) -> None:
    """X^T = -exp(g_cu) (K M^T)^T, because V is 0."""
    r_ks, r_value, r_x = half.registers(), half.registers(), half.registers(BF16)
    r_decay = by_token(shared.gate[Row.DECAY, None, gate.index])
    half.tmem_copy.wait_and_load(pipelines.ks, chunk, T_MAP_KS, r_ks)
    r_from, r_to = flat(r_ks), flat(r_value)
    for at, token in pairs():
        r_to[at], r_to[at + 1] = cute.arch.mul_packed_f32x2(
            (r_from[at], r_from[at + 1]), (-r_decay[token], -r_decay[token + 1])
        )
    r_x.store(r_value.load().to(BF16))
    lanes.store(r_x, shared.left[None, None, 0])
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def read_map(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    turn: cutlass.Int32,
    goes_on: cutlass.Boolean,
) -> None:
    """Read M behind chunk `turn` and hand it over, if the segment `goes_on`."""
    pipelines.added.consumer_wait(blackwell.Turn.consumer(turn))
    blackwell.after_thread_sync()
    if goes_on:
        pipelines.gate.consumer_wait(blackwell.Turn.consumer(turn + 1, GATES))
        for part in cutlass.range_constexpr(PARTS):
            r_map = half.registers()
            half.tmem_copy.load(T_MAP, 0, part * CHUNK, r_map)
            cute.arch.fence_view_async_tmem_load()
            hand_over_map(half, lanes, pipelines, shared, turn + 1, part, r_map)
