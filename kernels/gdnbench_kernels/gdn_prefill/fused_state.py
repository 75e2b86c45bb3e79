"""The STATE role of kernel_sm100_fused.py: two warpgroups, each with 64 rows of a value head's state.

A warpgroup has the rows of its tensor-memory lanes in every tile or accumulator of 128 rows (`rows_of_half`).
A thread has the same elements of K S^T, Q S^T, X, V_new and o, each transposed, and of every 64 columns of S,
in the order that tcgen05.ld 16x256b, stmatrix and ldmatrix share. So threads exchange no data.
"""

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
    stores. A chunk's o is formed after the state is passed to the next chunk, while the next chunk's products
    run; in a kernel without `outputs` not at all."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.create(base, thread)
    r_s = [half.registers() for _ in range(PARTS)]
    done = cutlass.Int32(0)  # chunks of the CTA so far
    for number in cutlass.range(
        cute.arch.block_idx()[0], kernel.works(cuts), cute.arch.grid_dim()[0], unroll=1
    ):
        work = kernel.work(cuts, number)
        states.load(half, work, r_s)
        for i in cutlass.range(work.chunks, unroll=1):
            turn = done + i
            # Recompute addresses in each turn: hoisted out of the loop they would not fit in registers.
            own, lanes = Half.create(base, blackwell.opaque(thread)), Lanes.create(half.index, thread)
            chunk, gate = blackwell.Turn.consumer(turn), blackwell.Turn.consumer(turn, GATES)
            store_h(own, lanes, r_s, shared.h[None, None, 0])
            pipelines.h.producer_commit(chunk)
            if cutlass.const_expr(kernel.outputs):  # noqa: SIM102 - the other condition is one of run time
                if turn > 0:
                    store_o(own, lanes, pipelines, shared, turn - 1, scale)

            pipelines.gate.consumer_wait(gate)
            form_x(own, lanes, work, pipelines, shared, (gate, chunk))
            pipelines.left.producer_commit(chunk)
            form_v_new(own, lanes, pipelines, shared, (gate, chunk), kernel.outputs)

            # Past the end of a sequence the sums are its last token's.
            update_state(own, pipelines, chunk, shared.gate[Row.DECAY, CHUNK - 1, gate.index], r_s)
            if cutlass.const_expr(not kernel.outputs):
                pipelines.gate.consumer_release(gate)
        done = done + work.chunks
        states.store(half, work, r_s)
    if cutlass.const_expr(kernel.outputs):
        if done > 0:
            store_o(half, Lanes.create(half.index, thread), pipelines, shared, done - 1, scale)
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
def store_h(half: Half, lanes: Lanes, r_s: State, s_h: cute.Tensor) -> None:
    """Write h, the rounded S, to s_h."""
    for part in cutlass.range_constexpr(PARTS):
        r_h = half.registers(BF16)
        r_h.store(r_s[part].load().to(BF16))
        lanes.store(r_h, s_h, part)
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
    if cutlass.const_expr(work.has_v is True):
        read_v(lanes, pipelines, shared, chunk, r_v)
    else:
        r_v.fill(0.0)
        if work.has_v:
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
    states: tuple[Any, Any],
    outputs: cutlass.Constexpr,
) -> None:
    """Write V_new^T, decayed to the chunk's end, to s_left, and for `outputs` as it is to s_v_new; both are
    rounded from the same product."""
    gate, update = states
    r_update, r_vs, r_v_new = half.registers(), half.registers(BF16), half.registers(BF16)
    r_rest = by_token(shared.gate[Row.REST, None, gate.index])
    half.tmem_copy.wait_and_load(pipelines.update, update, T_V_NEW, r_update)
    r_decayed = half.registers()
    r_from, r_to = flat(r_update), flat(r_decayed)
    for at, token in pairs():
        r_to[at], r_to[at + 1] = cute.arch.mul_packed_f32x2(
            (r_from[at], r_from[at + 1]), (r_rest[token], r_rest[token + 1])
        )
    r_vs.store(r_decayed.load().to(BF16))
    lanes.store(r_vs, shared.left[None, None, 0])
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.left.producer_commit(update)
    if cutlass.const_expr(outputs):
        r_v_new.store(r_update.load().to(BF16))
        lanes.store(r_v_new, shared.v_new[None, None, 0])
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.v_new.producer_commit(update)


@cute.jit
def update_state(half: Half, pipelines: Pipelines, added: Any, factor: cutlass.Float32, r_s: State) -> None:
    """S = exp(g_last) S + D2, one part of the columns at a time, because both in full exceed the
    registers."""
    pipelines.added.consumer_wait(added)
    blackwell.after_thread_sync()
    for part in cutlass.range_constexpr(PARTS):
        r_added = half.registers()
        half.tmem_copy.load(T_ADDED, 0, part * CHUNK, r_added)
        cute.arch.fence_view_async_tmem_load()
        for at, _ in pairs():
            fma_pair(r_s[part], at, r_s[part], (factor, factor), r_added)
    blackwell.before_thread_sync()


@cute.jit
def store_o(
    half: Half,
    lanes: Lanes,
    pipelines: Pipelines,
    shared: Shared,
    turn: Any,
    scale: cutlass.Float32,
) -> None:
    """o^T = scale (exp(g_cu) (Q S^T)^T + (P V_new)^T), for chunk `turn`."""
    gate, out = blackwell.Turn.consumer(turn, GATES), blackwell.Turn.consumer(turn)
    o = blackwell.Turn.producer(turn)
    r_qs, r_pv, r_o = half.registers(), half.registers(), half.registers(BF16)
    pipelines.out.consumer_wait(out)
    blackwell.after_thread_sync()
    r_decay = by_token(shared.gate[Row.DECAY, None, gate.index])
    pipelines.gate.consumer_release(gate)
    half.tmem_copy.load(T_QS, turn % AHEAD, 0, r_qs)
    half.tmem_copy.load(T_PV, 0, 0, r_pv)
    cute.arch.fence_view_async_tmem_load()
    blackwell.before_thread_sync()
    for at, token in pairs():
        fma_pair(r_qs, at, r_qs, (r_decay[token], r_decay[token + 1]), r_pv)
    r_o.store((scale * r_qs.load()).to(BF16))
    pipelines.o.producer_acquire(o)
    lanes.store_by_token(r_o, shared.o[None, None, 0])
    cute.arch.fence_proxy("async.shared", space="cta")
    pipelines.o.producer_commit(o)


def pairs() -> list[tuple[int, int]]:
    """For each pair of a thread's 32 values of 64 tokens: its place, and that of its tokens in `by_token`."""
    return [(4 * n + 2 * row, 2 * n) for n in range(CHUNK // 8) for row in range(2)]


def by_token(s_vector: cute.Tensor) -> cute.Tensor:
    """A per-token number for each of a thread's 16 tokens: 8 n + 2 (lane % 4) and + 1."""
    r_values = cute.make_rmem_tensor(CHUNK // 4, cutlass.Float32)
    lane = cute.arch.lane_idx()
    for n in range(CHUNK // 8):
        s_pair = cute.local_tile(s_vector, (2,), (4 * n + lane % 4,))
        cute.autovec_copy(s_pair, cute.local_tile(r_values, (2,), (n,)))
    return r_values


def fma_pair(
    r_to: cute.Tensor, at: int, r_a: cute.Tensor, factors: tuple[Any, Any], r_b: cute.Tensor
) -> None:
    """r_to = r_a * factors + r_b for the values at `at` and `at` + 1."""
    to, a, b = flat(r_to), flat(r_a), flat(r_b)
    to[at], to[at + 1] = cute.arch.fma_packed_f32x2((a[at], a[at + 1]), factors, (b[at], b[at + 1]))
