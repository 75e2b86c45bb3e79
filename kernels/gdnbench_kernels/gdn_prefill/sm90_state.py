"""The STATE role of kernel_sm90_fused.py: 64 V rows of a value head's state in each warpgroup. CuTe DSL.

All products are transposed, with S, X and V_new as left operands in registers: a thread has the same elements
of each (hopper.py), so threads exchange no data. In a turn a warpgroup issues

    3. (K S^T)^T               waits for it before X = V - exp(g_cu) K S^T
    4. (Q S^T)^T               behind 3, while o of the chunk before is stored and X is formed
    5. V_new^T = X^T (Ai beta)^T
    6. S += Vs^T K             two halves of the columns; behind them
    7. o^T = (exp(g_cu) Q S^T)^T + V_new^T P^T, which the next turn waits for

Most live are S, its rounding, K S^T, Q S^T and X with exp(g_cu): some 210 registers with the rest. A
`sparing` build has 192, or ptxas makes each product wait for the one before. It stores o before product 3 and
waits for 4 with 3: then X takes the registers of S's rounding, and exp(g_cu) is read again for Q S^T. The two
warpgroups of such a CTA fill one another's gaps.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GATES, GROUP_WARPS
from gdnbench_kernels.gdn_prefill.sm90_squares import KEY_STEPS, VALUES, column_values, pair_values, put
from gdnbench_kernels.gdn_prefill.sm90_tiles import Lane, Pipelines, Rows, Shared, address_of

F32, I32 = cutlass.Float32, cutlass.Int32
TOKENS = CHUNK // 4
"""A thread's tokens: 8 n + 2 (lane % 4) and + 1."""
SQUARE_STEPS = hopper.columns_from(CHUNK, CHUNK // hopper.STEP)
TOKEN_STEPS = hopper.rows_from(CHUNK // hopper.STEP)
BLOCK_BYTES = 128 * CHUNK
"""Bytes of 64 columns of a tile of 64 rows."""


@dataclass(frozen=True)
class Registers:
    """A thread's elements, all in the order of hopper.py. From turn to turn stay S, V_new, Q S^T and
    exp(g_cu) of its tokens."""

    s: cute.Tensor
    left: cute.Tensor  # S, rounded, as a left operand
    v_new: cute.Tensor
    qs: cute.Tensor
    decays: cute.Tensor
    rest: cute.Tensor

    @staticmethod
    def create() -> Registers:
        counts = (HEAD_DIM // 2, HEAD_DIM // 4, VALUES, VALUES, TOKENS, TOKENS)
        dtypes = (F32, I32, F32, F32, F32, F32)
        return Registers(*(cute.make_rmem_tensor(n, kind) for n, kind in zip(counts, dtypes, strict=True)))

    def round_half(self, half: int) -> None:
        quads = hopper.quads_of(values_of(self.s, VALUES * half, VALUES), ordered=True)
        words = [word for quad in quads for word in quad]
        put(self.left, words, len(words) * half)

    def quads(self) -> list[hopper.Quad]:
        words = values_of(self.left)
        return [(words[at], words[at + 1], words[at + 2], words[at + 3]) for at in range(0, len(words), 4)]


def values_of(r_values: cute.Tensor, first: int = 0, count: int | None = None) -> list[Any]:
    return [r_values[first + at] for at in range(cute.size(r_values) if count is None else count)]


def of_token(values: Any, at: int) -> Any:
    """The one of a thread's tokens' numbers that belongs to its element `at`."""
    return values[at // 4 * 2 + at % 2]


def scaled(values: list[Any], factors: Any) -> list[Any]:
    """Each value times its token's factor."""
    return [hopper.mul(value, of_token(factors, at)) for at, value in enumerate(values)]


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
        if work.chunks > 0:
            for half in cutlass.range_constexpr(2):
                registers.round_half(half)
            read(kernel, pipelines, shared, registers, work, done, group, warp, None, scale)
            for i in cutlass.range(work.chunks - 1, unroll=1):
                turn = done + i
                o = update(kernel, pipelines, shared, registers, turn)
                read(kernel, pipelines, shared, registers, work, turn + 1, group, warp, o, scale)
            o = update(kernel, pipelines, shared, registers, done + work.chunks - 1)
            if cutlass.const_expr(kernel.outputs):
                store_o(kernel, pipelines, shared, o, done + work.chunks - 1, 0, group, warp, scale)
        done = done + work.chunks
        states.store(Rows(first, warp, cute.arch.lane_idx()), work, registers.s)
    if cutlass.const_expr(kernel.outputs):
        pipelines.o.producer_tail_after(done)


def read(
    kernel: Any,
    pipelines: Pipelines,
    shared: Shared,
    registers: Registers,
    work: Any,
    turn: Any,
    group: Any,
    warp: Any,
    before: list[Any] | None,
    scale: Any,
) -> None:
    """Products 3 to 5 of chunk `turn`, which is one of `work`: of a map V counts as 0. `before` is o of the
    chunk before, in flight, which is stored."""
    tuning, lane = kernel.tuning, cute.arch.lane_idx()
    k, gate = blackwell.Turn.consumer(turn, tuning.keys), blackwell.Turn.consumer(turn, GATES)
    v, squares = blackwell.Turn.consumer(turn, tuning.values), blackwell.Turn.consumer(turn, tuning.squares)
    left = registers.quads()
    if kernel.outputs and before is not None and tuning.sparing:
        store_o(kernel, pipelines, shared, before, turn - 1, 0, group, warp, scale)
        before = None
    pipelines.k.consumer_wait(k)
    ks = hopper.product(None, left, (hopper.descriptor(address_of(shared.k, k.index)), KEY_STEPS))
    qs: list[Any] = []
    if kernel.outputs:
        if before is not None:
            store_o(kernel, pipelines, shared, before, turn - 1, 1, group, warp, scale)
        pipelines.q.consumer_wait(k)
        qs = hopper.product(None, left, (hopper.descriptor(address_of(shared.q, k.index)), KEY_STEPS))
    pipelines.v.consumer_wait(v)
    pipelines.gate.consumer_wait(gate)
    tokens, s_decays = Lane(warp, lane), shared.gate[Row.DECAY, None, gate.index]
    # Past the end of a sequence the sums are its last token's.
    factor = s_decays[CHUNK - 1]
    if tuning.sparing:
        ks, qs = hopper.wait(0, [ks, qs], left)
    else:
        (ks,) = hopper.wait(int(kernel.outputs), [ks])
    x: list[hopper.Quad] = []
    for pair in range(CHUNK // 16):
        words = hopper.load_transposed(address_of(shared.v, v.index, group) + tokens.by_token(pair))
        if kernel.maps:
            words = tuple(I32(cutlass.select_(work.is_map, I32(0), word)) for word in words)
        values = [value for word in words for value in hopper.widened(word)]
        decays = [decay for n in (2 * pair, 2 * pair + 1) for decay in pair_values(s_decays, lane, n)]
        if not tuning.sparing:
            put(registers.decays, decays, len(decays) * pair)
        of = [hopper.fma(-of_token(decays, at), ks[16 * pair // 2 + at], values[at]) for at in range(8)]
        x += hopper.quads_of(of)
    pipelines.aib.consumer_wait(squares)
    aib = hopper.descriptor(address_of(shared.aib, squares.index))
    v_new = hopper.product(None, x, (aib, SQUARE_STEPS))
    if kernel.outputs and tuning.sparing:
        pipelines.q.consumer_release(k)
        qs = scaled(qs, column_values(s_decays, lane))
    put(registers.rest, column_values(shared.gate[Row.REST, None, gate.index], lane))
    pipelines.gate.consumer_release(gate)
    # The next V is written through the async proxy: order this thread's reads before it.
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.v.consumer_release(v)
    put(registers.s, [hopper.mul(value, factor) for value in values_of(registers.s)])
    if tuning.sparing:
        (v_new,) = hopper.wait(0, [v_new], x)
    else:
        v_new, qs = hopper.wait(0, [v_new, qs], x, left)
    pipelines.aib.consumer_release(squares)
    put(registers.v_new, v_new)
    if kernel.outputs:
        put(registers.qs, qs)
        if not tuning.sparing:
            pipelines.q.consumer_release(k)


def update(kernel: Any, pipelines: Pipelines, shared: Shared, registers: Registers, turn: Any) -> list[Any]:
    """Products 6 and 7 of chunk `turn`; returns o, in flight."""
    tuning, outputs = kernel.tuning, kernel.outputs
    k, squares = blackwell.Turn.consumer(turn, tuning.keys), blackwell.Turn.consumer(turn, tuning.squares)
    v_new, s = values_of(registers.v_new), values_of(registers.s)
    added = hopper.quads_of(scaled(v_new, registers.rest))
    keys = address_of(shared.k, k.index)
    halves = []
    for half in range(2):
        part, at = s[VALUES * half : VALUES * (half + 1)], hopper.descriptor(keys + BLOCK_BYTES * half)
        halves.append(hopper.product(part, added, (at, TOKEN_STEPS), transposed=True))
    o: list[Any] = []
    own: list[hopper.Quad] = []
    if outputs:
        own = hopper.quads_of(v_new)
        read_q = values_of(registers.qs)
        if not tuning.sparing:
            read_q = scaled(read_q, registers.decays)
        pipelines.p.consumer_wait(squares)
        p = hopper.descriptor(address_of(shared.p, squares.index))
        o = hopper.product(read_q, own, (p, SQUARE_STEPS))
    for half in range(2):
        (found,) = hopper.wait(1 - half + int(outputs), [halves[half]], *([added] if half else []))
        put(registers.s, found, VALUES * half)
        registers.round_half(half)
    pipelines.k.consumer_release(k)
    return o


def store_o(
    kernel: Any,
    pipelines: Pipelines,
    shared: Shared,
    o: list[Any],
    turn: Any,
    pending: int,
    group: Any,
    warp: Any,
    scale: Any,
) -> None:
    """Hand over o of chunk `turn`, once its product is complete: all but `pending` groups."""
    (o,) = hopper.wait(pending, [o])
    squares = blackwell.Turn.consumer(turn, kernel.tuning.squares)
    stage = blackwell.Turn.producer(turn, kernel.tuning.outputs)
    pipelines.p.consumer_release(squares)
    quads = hopper.quads_of([hopper.mul(value, scale) for value in o])
    tokens = Lane(warp, cute.arch.lane_idx())
    pipelines.o.producer_acquire(stage)
    for pair, quad in enumerate(quads):
        address = address_of(shared.o, stage.index, group) + tokens.by_token(pair)
        hopper.store_matrices(address, quad, transposed=True)
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.o.producer_commit(stage)
