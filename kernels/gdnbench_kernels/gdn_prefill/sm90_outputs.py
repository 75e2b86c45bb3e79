"""The OUT role of kernel_sm90_wide.py: o of the chunks, behind the state. CuTe DSL.

2. QK, and P from it in registers
4. Q h^T                   h from STATE, rounded
7. o = exp(g_cu) Q h^T + P V_new
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill import triangle
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.gate_scan import decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS
from gdnbench_kernels.gdn_prefill.sm90_squares import KEY_STEPS, LOG2, VALUES, pair_values
from gdnbench_kernels.gdn_prefill.sm90_state import SQUARE_STEPS
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, address_of

F32 = cutlass.Float32


@cute.jit
def form_outputs(
    kernel: cutlass.Constexpr, cuts: Any, pipelines: Any, shared: Any, scale: cutlass.Float32
) -> None:
    """Compute o of every chunk of the CTA."""
    tuning = kernel.tuning
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
    chunks = kernel.chunks(cuts)
    for turn in cutlass.range(chunks, unroll=1):
        k, gate = blackwell.Turn.consumer(turn, tuning.keys), blackwell.Turn.consumer(turn, GATES)
        only, stage = blackwell.Turn.consumer(turn), blackwell.Turn.producer(turn, tuning.outputs)
        lane = blackwell.lane_of_turn(turn)
        pipelines.k.consumer_wait(k)
        pipelines.q.consumer_wait(k)
        keys, queries = (hopper.descriptor(address_of(tile, k.index)) for tile in (shared.k, shared.q))
        qk = hopper.product(None, (queries, KEY_STEPS), (keys, KEY_STEPS))
        pipelines.gate.consumer_wait(gate)
        (qk,) = hopper.wait(0, [qk])
        pipelines.k.consumer_release(k)
        pipelines.h.consumer_wait(only)
        h = hopper.descriptor(address_of(shared.h, 0))
        qs = hopper.product(None, (queries, KEY_STEPS), (h, KEY_STEPS))
        p = form_p(qk, shared.gate[Row.G_CU, None, gate.index], warp, lane)
        (qs,) = hopper.wait(0, [qs])
        lane = blackwell.lane_of_turn(turn)
        rows = [triangle.fragment_row(warp, lane, half) for half in range(2)]
        decays = [shared.gate[Row.DECAY, row, gate.index] for row in rows]
        pipelines.gate.consumer_release(gate)
        pipelines.q.consumer_release(k)
        pipelines.h.consumer_release(only)
        read = [hopper.mul(qs[at], decays[at // 2 % 2]) for at in range(VALUES)]
        pipelines.v_new.consumer_wait(only)
        o = hopper.product(read, p, (hopper.descriptor(address_of(shared.v_new, 0)), SQUARE_STEPS))
        (o,) = hopper.wait(0, [o], p)
        pipelines.v_new.consumer_release(only)
        lane = blackwell.lane_of_turn(turn)
        quads = hopper.quads_of([hopper.mul(value, scale) for value in o])
        pipelines.o.producer_acquire(stage)
        for pair, quad in enumerate(quads):
            hopper.store_matrices(address_of(shared.o, stage.index) + Lane(warp, lane).by_row(pair), quad)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.o.producer_commit(stage)
    pipelines.o.producer_tail_after(chunks)


def form_p(qk: list[Any], s_sums: cute.Tensor, warp: Any, lane: Any) -> list[hopper.Quad]:
    """A warp's rows of P, as a left operand."""
    sums = [s_sums[triangle.fragment_row(warp, lane, half)] for half in range(2)]
    # Row minus column of a thread's first value: of the others it differs by a constant.
    below = triangle.fragment_row(warp, lane, 0) - triangle.fragment_column(lane, 0, 0)
    p = []
    for n in range(CHUNK // 8):
        columns = pair_values(s_sums, lane, n)
        for at in range(4 * n, 4 * n + 4):
            half, j = at // 2 % 2, at % 2
            value = hopper.mul(qk[at], decay(sums[half] - columns[j], unit=LOG2))
            p.append(F32(cutlass.select_(below >= 8 * n + j - 8 * half, value, F32(0.0))))
    return hopper.quads_of(p)
