"""The INVERT role of kernel_sm90_fused.py: Ai beta and P of the chunks, ahead of the state. CuTe DSL."""

# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill import inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.gate_scan import decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS, Barrier, Tuning
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Pipelines, Shared, address_of
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.sm90_ops import thread_in_role

F32 = cutlass.Float32
KEY_STEPS = hopper.columns_from(CHUNK, HEAD_DIM // hopper.STEP)


@cute.jit
def invert(
    kernel: cutlass.Constexpr,
    cuts: Any,
    pipelines: Pipelines,
    shared: Shared,
    scratch: inverse.Scratch,
    group: cutlass.Constexpr,
) -> None:
    """Compute Ai beta and P of every chunk whose number is `group` modulo the number of warpgroups."""
    tuning, outputs = kernel.tuning, kernel.outputs
    together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT + group, num_threads=GROUP_WARPS * WARP)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
    chunks = kernel.chunks(cuts)
    for turn in cutlass.range(group, chunks, tuning.inverters, unroll=1):
        gate, k = blackwell.Turn.consumer(turn, GATES), blackwell.Turn.consumer(turn, tuning.keys)
        lane = blackwell.lane_of_turn(turn)
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
        factors = factors_of(shared.gate[Row.G_CU, None, gate.index], warp, lane)
        r_beta = [shared.gate[Row.BETA, triangle.fragment_row(warp, lane, half), gate.index] for half in (0, 1)]
        squares = blackwell.Turn.producer(turn, tuning.squares)
        offset = Lane(warp, lane)
        p = []
        if cutlass.const_expr(outputs):
            pipelines.q.consumer_release(k)
            p = hopper.quads_of([hopper.mul(value, factor) for value, factor in zip(qk, factors, strict=True)])
        pipelines.squares.producer_acquire(squares)
        for pair, quad in enumerate(p):
            hopper.store_matrices(address_of(shared.p, squares.index) + offset.by_row(pair), quad)
        r_a = cute.make_rmem_tensor(CHUNK // 2, F32)
        form_a(r_a, kkt, factors, r_beta, warp, lane)
        inverse.invert(r_a, scratch, warp, lane, together)
        lane = blackwell.lane_of_turn(turn)
        r_scale = column_values(shared.gate[Row.BETA, None, gate.index], lane)
        scaled = [hopper.mul(r_a[at], r_scale[at // 4 * 2 + at % 2]) for at in range(CHUNK // 2)]
        aib = hopper.quads_of(scaled)
        offset = Lane(warp, lane)
        for pair, quad in enumerate(aib):
            hopper.store_matrices(address_of(shared.aib, squares.index) + offset.by_row(pair), quad)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.squares.producer_commit(squares)
        pipelines.gate.consumer_release(gate)
    # One of the warpgroups waits for all stages, after the last chunk of any.
    if cutlass.const_expr(group == 0):
        pipelines.squares.producer_tail_after(chunks)


def column_values(s_vector: cute.Tensor, lane: Any) -> list[Any]:
    """The numbers of a thread's columns, 8 n + 2 (lane % 4) and + 1."""
    found = []
    for n in range(CHUNK // 8):
        r_pair = triangle.pair_of(s_vector, lane, n)
        found += [r_pair[0], r_pair[1]]
    return found


def factors_of(s_sums: cute.Tensor, warp: Any, lane: Any) -> list[Any]:
    """exp(g_cu[i] - g_cu[j]) for a thread's elements with i >= j, at most 1, and 0 for others."""
    rows = [s_sums[triangle.fragment_row(warp, lane, half)] for half in range(2)]
    columns = column_values(s_sums, lane)
    # Row minus column of a thread's first value: of the others it differs by a constant.
    below = triangle.fragment_row(warp, lane, 0) - triangle.fragment_column(lane, 0, 0)
    factors = []
    for at in range(CHUNK // 2):
        n, half, j = at // 4, at // 2 % 2, at % 2
        span = rows[half] - columns[2 * n + j]
        factor = decay(cute.arch.fmin(span, 0.0, nan=True))
        factors.append(F32(cutlass.select_(below >= 8 * n + j - 8 * half, factor, F32(0.0))))
    return factors


def form_a(
    r_a: cute.Tensor, kkt: list[Any], factors: list[Any], r_beta: list[Any], warp: Any, lane: Any
) -> None:
    """A = strict_lower(beta_i KKT[i,j] exp(g_cu[i] - g_cu[j]))."""
    below = triangle.fragment_row(warp, lane, 0) - triangle.fragment_column(lane, 0, 0)
    for at in range(CHUNK // 2):
        n, half, j = at // 4, at // 2 % 2, at % 2
        value = hopper.mul(hopper.mul(r_beta[half], kkt[at]), factors[at])
        r_a[at] = F32(cutlass.select_(below > 8 * n + j - 8 * half, value, F32(0.0)))
