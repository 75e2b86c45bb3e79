"""The STATE role of kernel_sm90_wide.py: 64 V rows of a value head's state in a warpgroup. CuTe DSL.

Only the chain of products that a chunk's state needs; OUT reads S and V_new from shared memory. A warp whose
left operand is in registers stands still until the tensor core takes it, so it cannot compute meanwhile.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS
from gdnbench_kernels.gdn_prefill.sm90_squares import KEY_STEPS, VALUES, column_values, put
from gdnbench_kernels.gdn_prefill.sm90_state import (
    BLOCK_BYTES,
    SQUARE_STEPS,
    TOKEN_STEPS,
    Registers,
    of_token,
    values_of,
)
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Rows, address_of


@cute.jit
def recurrence(kernel: cutlass.Constexpr, cuts: Any, pipelines: Any, shared: Any, states: Any) -> None:
    """Compute the states of each work of the CTA from the initial to the final one."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
    registers = Registers.create()
    done = cutlass.Int32(0)  # chunks of the CTA so far
    for number in cutlass.range(
        cute.arch.block_idx()[0], kernel.works(cuts), cute.arch.grid_dim()[0], unroll=1
    ):
        work = kernel.work(cuts, number)
        first = kernel.first_row(work, 0)
        states.load(Rows(first, warp, cute.arch.lane_idx()), work, registers.s)
        for half in cutlass.range_constexpr(2):
            registers.round_half(half)
        for i in cutlass.range(work.chunks, unroll=1):
            chunk(kernel, pipelines, shared, registers, done + i, warp)
        done = done + work.chunks
        states.store(Rows(first, warp, cute.arch.lane_idx()), work, registers.s)
    if cutlass.const_expr(kernel.outputs):
        pipelines.h.producer_tail_after(done)
        pipelines.v_new.producer_tail_after(done)


def chunk(kernel: Any, pipelines: Any, shared: Any, registers: Registers, turn: Any, warp: Any) -> None:
    """Update S by chunk `turn` of the CTA."""
    tuning, lane = kernel.tuning, cute.arch.lane_idx()
    k, gate = blackwell.Turn.consumer(turn, tuning.keys), blackwell.Turn.consumer(turn, GATES)
    v, squares = blackwell.Turn.consumer(turn, tuning.values), blackwell.Turn.consumer(turn, tuning.squares)
    only = blackwell.Turn.producer(turn)
    left, offset = registers.quads(), Lane(warp, lane)
    keys = address_of(shared.k, k.index)
    pipelines.k.consumer_wait(k)
    ks = hopper.product(None, left, (hopper.descriptor(keys), KEY_STEPS))
    pipelines.v.consumer_wait(v)
    words = [
        word
        for pair in range(CHUNK // hopper.STEP)
        for word in hopper.load_transposed(address_of(shared.v, v.index) + offset.by_token(pair))
    ]
    pipelines.gate.consumer_wait(gate)
    s_decays = shared.gate[Row.DECAY, None, gate.index]
    decays = column_values(s_decays, lane)
    # Past the end of a sequence the sums are its last token's.
    factor = s_decays[CHUNK - 1]
    (ks,) = hopper.wait(0, [ks], left)
    values = [value for word in words for value in hopper.widened(word)]
    x = hopper.quads_of([hopper.fma(-of_token(decays, at), ks[at], values[at]) for at in range(VALUES)])
    pipelines.aib.consumer_wait(squares)
    aib = hopper.descriptor(address_of(shared.aib, squares.index))
    v_new = hopper.product(None, x, (aib, SQUARE_STEPS))
    rest = column_values(shared.gate[Row.REST, None, gate.index], lane)
    if kernel.outputs:
        pipelines.h.producer_acquire(only)
        for at, quad in enumerate(left):
            block, pair = divmod(at, CHUNK // hopper.STEP)
            hopper.store_matrices(address_of(shared.h, 0, block) + offset.by_row(pair), quad)
    # Orders h, and this thread's reads of V before the next one, which is written through the async proxy.
    cute.arch.fence_proxy("async.shared", space="cta")
    if kernel.outputs:
        pipelines.h.producer_commit(only)
    pipelines.v.consumer_release(v)
    pipelines.gate.consumer_release(gate)
    s = [hopper.mul(value, factor) for value in values_of(registers.s)]
    (v_new,) = hopper.wait(0, [v_new], x)
    pipelines.aib.consumer_release(squares)
    added = hopper.quads_of([hopper.mul(v_new[at], of_token(rest, at)) for at in range(VALUES)])
    halves = []
    for half in range(2):
        part, at = s[VALUES * half : VALUES * (half + 1)], hopper.descriptor(keys + BLOCK_BYTES * half)
        halves.append(hopper.product(part, added, (at, TOKEN_STEPS), transposed=True))
    if kernel.outputs:
        pipelines.v_new.producer_acquire(only)
        for pair, quad in enumerate(hopper.quads_of(v_new)):
            hopper.store_matrices(address_of(shared.v_new, 0) + offset.by_row(pair), quad)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.v_new.producer_commit(only)
    for half in range(2):
        (found,) = hopper.wait(1 - half, [halves[half]], *([added] if half else []))
        put(registers.s, found, VALUES * half)
        registers.round_half(half)
    pipelines.k.consumer_release(k)
