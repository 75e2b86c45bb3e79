"""The STATE role of kernel_sm90_fused.py: 64 V rows of a value head's state in each warpgroup. CuTe DSL.

All products are transposed, with S, X and V_new as left operands in registers: a thread has the same elements
of each (hopper.py), so threads exchange no data. In a turn a warpgroup issues

    3. (K S^T)^T               waits for it before X = V - exp(g_cu) K S^T
    4. (Q S^T)^T               behind 3, while o of the chunk before is stored and X is formed
    5. V_new^T = X^T (Ai beta)^T
    6. S += Vs^T K             two halves of the columns; behind them
    7. o^T = (exp(g_cu) Q S^T)^T + V_new^T P^T, which the next turn waits for
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_ROWS, GROUP_WARPS, Tuning
from gdnbench_kernels.gdn_prefill.sm90_squares import KEY_STEPS, column_values
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Pipelines, Rows, Shared, address_of
from gdnbench_kernels.plan import WARP

F32, I32 = cutlass.Float32, cutlass.Int32
VALUES = CHUNK // 2
"""A thread's elements of 64 columns."""
SQUARE_STEPS = hopper.columns_from(CHUNK, CHUNK // hopper.STEP)
TOKEN_STEPS = hopper.rows_from(CHUNK // hopper.STEP)
BLOCK_BYTES = 128 * CHUNK
"""Bytes of 64 columns of a tile of 64 rows."""


@dataclass(frozen=True)
class Registers:
    """What a thread keeps from turn to turn."""

    s: cute.Tensor  # S in f32
    left: cute.Tensor  # its rounding, as a left operand
    o: cute.Tensor  # o of the chunk before, in flight

    @staticmethod
    def create() -> Registers:
        made = Registers(
            cute.make_rmem_tensor(HEAD_DIM // 2, F32),
            cute.make_rmem_tensor(HEAD_DIM // 4, I32),
            cute.make_rmem_tensor(VALUES, F32),
        )
        made.o.fill(0.0)
        return made

    def round_half(self, half: int) -> None:
        words = [word for quad in hopper.quads_of(self.half(half)) for word in quad]
        for at, word in enumerate(words):
            self.left[len(words) * half + at] = word

    def half(self, half: int) -> list[Any]:
        return [self.s[VALUES * half + at] for at in range(VALUES)]

    def quads(self) -> list[hopper.Quad]:
        words = [self.left[at] for at in range(HEAD_DIM // 4)]
        return [(words[at], words[at + 1], words[at + 2], words[at + 3]) for at in range(0, len(words), 4)]


def put(r_values: cute.Tensor, values: list[Any], first: int = 0) -> None:
    for at, value in enumerate(values):
        r_values[first + at] = value


@cute.jit
def recurrence(
    kernel: cutlass.Constexpr,
    cuts: Any,
    pipelines: Pipelines,
    shared: Shared,
    states: Any,
    scale: cutlass.Float32,
) -> None:
    """Compute the states of each work of the CTA from the initial to the final one, which `states` loads and
    stores. o of a chunk is stored while the next chunk's products run."""
    tuning = kernel.tuning
    warps = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group, warp = warps // GROUP_WARPS, warps % GROUP_WARPS
    registers = Registers.create()
    done = cutlass.Int32(0)  # chunks of the CTA so far
    for number in cutlass.range(
        cute.arch.block_idx()[0], kernel.works(cuts), cute.arch.grid_dim()[0], unroll=1
    ):
        work = kernel.work(cuts, number)
        first = kernel.first_row(work, group)
        states.load(Rows(first, warp, cute.arch.lane_idx()), work, registers.s)
        for half in cutlass.range_constexpr(2):
            registers.round_half(half)
        for i in cutlass.range(work.chunks, unroll=1):
            chunk(kernel, pipelines, shared, registers, work, done + i, group, warp, scale)
        done = done + work.chunks
        states.store(Rows(first, warp, cute.arch.lane_idx()), work, registers.s)
    if cutlass.const_expr(kernel.outputs):
        store_o(pipelines, shared, registers, done, group, Lane(warp, cute.arch.lane_idx()), scale, 0, tuning)
        pipelines.o.producer_tail_after(done)


@cute.jit
def chunk(
    kernel: cutlass.Constexpr,
    pipelines: Pipelines,
    shared: Shared,
    registers: Registers,
    work: Any,
    turn: cutlass.Int32,
    group: cutlass.Int32,
    warp: cutlass.Int32,
    scale: cutlass.Float32,
) -> None:
    """Update S by chunk `turn` of the CTA, which is one of `work`. Of a map V counts as 0."""
    tuning, outputs = kernel.tuning, kernel.outputs
    lane = cute.arch.lane_idx()
    offset = Lane(warp, lane)
    k, gate = blackwell.Turn.consumer(turn, tuning.keys), blackwell.Turn.consumer(turn, GATES)
    v, squares = blackwell.Turn.consumer(turn, tuning.values), blackwell.Turn.consumer(turn, tuning.squares)
    left = registers.quads()
    keys = address_of(shared.k, k.index)
    pipelines.k.consumer_wait(k)
    ks = hopper.product(None, left, (hopper.descriptor(keys), KEY_STEPS))
    qs: list[Any] = []
    if cutlass.const_expr(outputs):
        store_o(pipelines, shared, registers, turn, group, offset, scale, 1, tuning)
        pipelines.q.consumer_wait(k)
        qs = hopper.product(None, left, (hopper.descriptor(address_of(shared.q, k.index)), KEY_STEPS))
    pipelines.v.consumer_wait(v)
    values = [
        hopper.widened(word)
        for pair in range(CHUNK // 16)
        for word in hopper.load_transposed(address_of(shared.v, v.index, group) + offset.by_token(pair))
    ]
    if cutlass.const_expr(kernel.maps):
        values = [
            tuple(F32(cutlass.select_(work.is_map, F32(0.0), value)) for value in pair) for pair in values
        ]
    # The next V is written through the async proxy: order this thread's reads before it.
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.v.consumer_release(v)
    pipelines.gate.consumer_wait(gate)
    decays = column_values(shared.gate[Row.DECAY, None, gate.index], lane)
    rest = column_values(shared.gate[Row.REST, None, gate.index], lane)
    # Past the end of a sequence the sums are its last token's.
    factor = shared.gate[Row.DECAY, CHUNK - 1, gate.index]
    pipelines.gate.consumer_release(gate)
    (ks,) = hopper.wait(int(outputs), [ks])
    x = [
        hopper.fma(-decays[at // 4 * 2 + at % 2], ks[at], values[at // 2][at % 2]) for at in range(VALUES)
    ]
    x_quads = hopper.quads_of(x)
    pipelines.squares.consumer_wait(squares)
    aib = hopper.descriptor(address_of(shared.aib, squares.index))
    v_new = hopper.product(None, x_quads, (aib, SQUARE_STEPS))
    decayed = [hopper.mul(registers.s[at], factor) for at in range(HEAD_DIM // 2)]
    v_new, qs = hopper.wait(0, [v_new, qs], x_quads, left)
    if cutlass.const_expr(outputs):
        pipelines.q.consumer_release(k)
    added = hopper.quads_of([hopper.mul(v_new[at], rest[at // 4 * 2 + at % 2]) for at in range(VALUES)])
    halves = [
        hopper.product(
            decayed[VALUES * half : VALUES * (half + 1)],
            added,
            (hopper.descriptor(keys + BLOCK_BYTES * half), TOKEN_STEPS),
            transposed=True,
        )
        for half in range(2)
    ]
    o: list[Any] = []
    own: list[hopper.Quad] = []
    if cutlass.const_expr(outputs):
        own = hopper.quads_of(v_new)
        read = [hopper.mul(qs[at], decays[at // 4 * 2 + at % 2]) for at in range(VALUES)]
        p = hopper.descriptor(address_of(shared.p, squares.index))
        o = hopper.product(read, own, (p, SQUARE_STEPS))
    for half in cutlass.range_constexpr(2):
        (found,) = hopper.wait(1 - half + int(outputs), [halves[half]], *([added] if half else []))
        put(registers.s, found, VALUES * half)
        registers.round_half(half)
    pipelines.k.consumer_release(k)
    if cutlass.const_expr(outputs):
        put(registers.o, o)
    else:
        pipelines.squares.consumer_release(squares)


@cute.jit
def store_o(
    pipelines: Pipelines,
    shared: Shared,
    registers: Registers,
    turn: cutlass.Int32,
    group: cutlass.Int32,
    offset: Lane,
    scale: cutlass.Float32,
    pending: cutlass.Constexpr,
    tuning: cutlass.Constexpr,
) -> None:
    """Hand over o of the chunk before `turn`, once its product is complete: all but `pending` groups. Before
    the first chunk there is none: what is written is not handed over."""
    (o,) = hopper.wait(pending, [[registers.o[at] for at in range(VALUES)]])
    before = turn - 1
    squares = blackwell.Turn.consumer(before, tuning.squares)
    stage = blackwell.Turn.producer(before, tuning.outputs)
    quads = hopper.quads_of([hopper.mul(value, scale) for value in o])
    if turn > 0:
        pipelines.squares.consumer_release(squares)
        pipelines.o.producer_acquire(stage)
        for pair, quad in enumerate(quads):
            hopper.store_matrices(
                address_of(shared.o, stage.index, group) + offset.by_token(pair), quad, transposed=True
            )
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.o.producer_commit(stage)
