"""The STATE role of kernel_sm100_fused.py: two warpgroups, each with 64 rows of a value head's state.

A warpgroup has the rows of its tensor-memory lanes in every tile or accumulator of 128 rows (`rows_of_half`).
A thread has the same elements of K S^T, Q S^T, X, V_new and o, each transposed, and of every 64 columns of S,
in the order that tcgen05.ld 16x256b, stmatrix and ldmatrix share. So threads exchange no data.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_lanes import Lanes, flat
from gdnbench_kernels.delta_prefill.fused_tiles import (
    GROUP_WARPS,
    PARTS,
    Half,
    WorkTile,
    read_given,
    write_kept,
)
from gdnbench_kernels.gdn_prefill.fused_plan import (
    AHEAD,
    GATES,
    T_ADDED,
    T_KS,
    T_PV,
    T_QS,
    T_V_NEW,
    Pipelines,
    Row,
    Shared,
)
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16
O_PARTS = 2
"""Parts of the tokens of a chunk, in which its o is formed."""
O_TOKENS = CHUNK // O_PARTS
State = list[cute.Tensor]
"""A thread's elements of each part."""


@cute.jit
def recurrence(
    kernel: cutlass.Constexpr,
    cuts: Any,
    pipelines: Pipelines,
    shared: Shared,
    base: cute.Pointer,
    states: Any,
    scale: cutlass.Float32,
) -> None:
    """Compute the states of each work of the CTA from the initial to the final one, which `states` loads and
    stores. A chunk's o is formed while the next chunk's products run, a part of the tokens during each."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.create(base, thread)
    of_o = Half.create(base, thread, O_TOKENS)
    lanes = Lanes.create(half.index, thread)
    r_s = [half.registers() for _ in range(PARTS)]
    done = cutlass.Int32(0)  # chunks of the CTA so far
    for number in cutlass.range(
        cute.arch.block_idx()[0], kernel.works(cuts), cute.arch.grid_dim()[0], unroll=1
    ):
        work = kernel.work(cuts, number)
        states.load(half, work, r_s)
        if work.chunks > 0:
            # The last work left an h that nobody reads.
            cute.arch.sync_warp()
            for part in cutlass.range_constexpr(PARTS):
                store_h(half, lanes, shared, r_s[part], part)
                pipelines.h.producer_commit(blackwell.Turn(part, done % 2))
        for i in cutlass.range(work.chunks, unroll=1):
            turn = done + i
            chunk, gate = blackwell.Turn.consumer(turn), blackwell.Turn.consumer(turn, GATES)
            pipelines.gate.consumer_wait(gate)
            form_x(half, lanes, work, pipelines, shared, (gate, chunk))
            pipelines.left.producer_commit(chunk)
            # Loaded this early, because in `form_v_new` all warps would load at the same time.
            r_rest = by_token(shared.gate[Row.REST, None, gate.index])
            if turn > 0:
                form_o(of_o, lanes, pipelines, shared, turn - 1, scale, 0)
            r_v_new = form_v_new(half, lanes, pipelines, shared, chunk, r_rest)
            if turn > 0:
                form_o(of_o, lanes, pipelines, shared, turn - 1, scale, 1)
            # Handed over with the next h.
            lanes.store(r_v_new, shared.v_new[None, None, 0])
            # Past the end of a sequence the sums are its last token's.
            factor = shared.gate[Row.DECAY, CHUNK - 1, gate.index]
            update_state(half, lanes, pipelines, shared, turn, factor, r_s, i + 1 < work.chunks)
        done = done + work.chunks
        states.store(half, work, r_s)
    if done > 0:
        # Hands over the last V_new; the wait is for its product.
        pipelines.h.producer_commit(blackwell.Turn(0, done % 2))
        pipelines.ks.consumer_wait(blackwell.Turn.consumer(done))
        blackwell.after_thread_sync()
        for part in cutlass.range_constexpr(O_PARTS):
            form_o(of_o, lanes, pipelines, shared, done - 1, scale, part)
    pipelines.o.producer_tail_after(done)


@dataclass(frozen=True)
class States:
    """The states of a call in global memory, each [N, Hv, V, K] or None."""

    initial: cute.Tensor | None
    final: cute.Tensor | None

    @cute.jit
    def load(self, half: Half, work: WorkTile, r_s: State) -> None:
        """Load S from the initial state; zeros if there is none."""
        for part in cutlass.range_constexpr(PARTS):
            read_given(half, work, self.initial, part, r_s[part])

    @cute.jit
    def store(self, half: Half, work: WorkTile, r_s: State) -> None:
        """Store S as the final state, if the call asks for it."""
        if cutlass.const_expr(self.final is not None):
            for part in cutlass.range_constexpr(PARTS):
                write_kept(half, work, self.final, part, r_s[part])


@cute.jit
def store_h(half: Half, lanes: Lanes, shared: Shared, r_s: cute.Tensor, part: cutlass.Constexpr) -> None:
    """Write a part of the columns of h, the rounded S, to s_h."""
    r_h = half.registers(BF16)
    r_h.store(r_s.load().to(BF16))
    lanes.store(r_h, shared.h[None, None, 0], part)
    # Orders V_new of the last chunk, too.
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_x(
    half: Half,
    lanes: Lanes,
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    states: tuple[Any, Any],
) -> None:
    """X^T = V^T - exp(g_cu) (K S^T)^T."""
    gate, chunk = states
    r_v, r_ks, r_x = half.registers(BF16), half.registers(), half.registers(BF16)
    read_v(lanes, pipelines, shared, chunk, r_v)
    r_decay = by_token(shared.gate[Row.DECAY, None, gate.index])
    r_value = half.registers()
    r_value.store(r_v.load().to(cutlass.Float32))
    half.tmem_copy.wait_and_load(pipelines.ks, chunk, T_KS, r_ks)
    for at, token in pairs():
        fma_pair(r_value, at, r_ks, (-r_decay[token], -r_decay[token + 1]), r_value)
    r_x.store(r_value.load().to(BF16))
    lanes.store(r_x, shared.left[None, None, 0])
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def read_v(lanes: Lanes, pipelines: Pipelines, shared: Shared, chunk: Any, r_v: cute.Tensor) -> None:
    """Read a thread's elements of V^T and release its stage."""
    pipelines.v.consumer_wait(chunk)
    lanes.load_by_token(shared.v[None, None, 0], r_v)
    # The next V is written through the async proxy: order this thread's reads before it.
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.v.consumer_release(chunk)


@cute.jit
def form_v_new(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    chunk: Any,
    r_rest: cute.Tensor,
    accumulator: cutlass.Constexpr = T_V_NEW,
) -> cute.Tensor:
    """Hand over V_new^T, decayed to the chunk's end, in s_left; returns it as it is. Both are rounded from
    the same product."""
    r_update, r_vs, r_v_new = half.registers(), half.registers(BF16), half.registers(BF16)
    half.tmem_copy.wait_and_load(pipelines.update, chunk, accumulator, r_update)
    r_decayed = half.registers()
    r_from, r_to = flat(r_update), flat(r_decayed)
    for at, token in pairs():
        r_to[at], r_to[at + 1] = cute.arch.mul_packed_f32x2(
            (r_from[at], r_from[at + 1]), (r_rest[token], r_rest[token + 1])
        )
    r_vs.store(r_decayed.load().to(BF16))
    lanes.store(r_vs, shared.left[None, None, 0])
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.left.producer_commit(chunk)
    r_v_new.store(r_update.load().to(BF16))
    return r_v_new


@cute.jit
def update_state(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    turn: Any,
    factor: cutlass.Float32,
    r_s: State,
    goes_on: cutlass.Boolean,
) -> None:
    """S = exp(g_last) S + D2 behind chunk `turn`, and h, one part of the columns at a time, because both in
    full exceed the registers. h is handed over if the work `goes_on`; it is written in any case, which costs
    less than a branch around it."""
    pipelines.added.consumer_wait(blackwell.Turn.consumer(turn))
    blackwell.after_thread_sync()
    for part in cutlass.range_constexpr(PARTS):
        r_added = half.registers()
        half.tmem_copy.load(T_ADDED, 0, part * CHUNK, r_added)
        cute.arch.fence_view_async_tmem_load()
        for at, _ in pairs():
            fma_pair(r_s[part], at, r_s[part], (factor, factor), r_added)
        store_h(half, lanes, shared, r_s[part], part)
        if goes_on:
            pipelines.h.producer_commit(blackwell.Turn(part, (turn + 1) % 2))
    # Before the next arrival that MMA waits for before it adds again.
    blackwell.before_thread_sync()


@cute.jit
def form_o(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    turn: Any,
    scale: cutlass.Float32,
    part: cutlass.Constexpr,
) -> None:
    """o^T = scale (exp(g_cu) (Q S^T)^T + (P V_new)^T), for a part of the tokens of chunk `turn`, whose
    products are complete: K h^T of the next chunk, which came after them, was waited for."""
    gate, o = blackwell.Turn.consumer(turn, GATES), blackwell.Turn.producer(turn)
    r_qs, r_pv, r_o = half.registers(), half.registers(), half.registers(BF16)
    r_decay = by_token(shared.gate[Row.DECAY, None, gate.index], O_TOKENS, part)
    last = cutlass.const_expr(part == O_PARTS - 1)
    if cutlass.const_expr(last):
        pipelines.gate.consumer_release(gate)
    half.tmem_copy.load(T_QS, turn % AHEAD, O_TOKENS * part, r_qs)
    half.tmem_copy.load(T_PV, 0, O_TOKENS * part, r_pv)
    cute.arch.fence_view_async_tmem_load()
    blackwell.before_thread_sync()
    for at, token in pairs(O_TOKENS):
        fma_pair(r_qs, at, r_qs, (r_decay[token], r_decay[token + 1]), r_pv)
    r_o.store((scale * r_qs.load()).to(BF16))
    if cutlass.const_expr(part == 0):
        pipelines.o.producer_acquire(o)
    lanes.store_by_token(r_o, shared.o[None, None, 0], O_TOKENS * part)
    if cutlass.const_expr(last):
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.o.producer_commit(o)


def pairs(columns: int = CHUNK) -> list[tuple[int, int]]:
    """For each pair of a thread's values of 64 or fewer tokens: its place, and that of its tokens in
    `by_token`."""
    return [(4 * n + 2 * row, 2 * n) for n in range(columns // 8) for row in range(2)]


def by_token(s_vector: cute.Tensor, columns: int = CHUNK, part: int = 0) -> cute.Tensor:
    """A per-token number for each of a thread's tokens, 8 n + 2 (lane % 4) and + 1, in a part of the
    columns."""
    r_values = cute.make_rmem_tensor(columns // 4, cutlass.Float32)
    lane = cute.arch.lane_idx()
    for n in range(columns // 8):
        s_pair = cute.local_tile(s_vector, (2,), (columns // 2 * part + 4 * n + lane % 4,))
        cute.autovec_copy(s_pair, cute.local_tile(r_values, (2,), (n,)))
    return r_values


def fma_pair(
    r_to: cute.Tensor, at: int, r_a: cute.Tensor, factors: tuple[Any, Any], r_b: cute.Tensor
) -> None:
    """r_to = r_a * factors + r_b for the values at `at` and `at` + 1."""
    to, a, b = flat(r_to), flat(r_a), flat(r_b)
    to[at], to[at + 1] = cute.arch.fma_packed_f32x2((a[at], a[at + 1]), factors, (b[at], b[at + 1]))
