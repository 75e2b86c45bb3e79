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
from gdnbench_kernels.delta_prefill.fused_tiles import (
    GROUP_WARPS,
    PARTS,
    Half,
    WorkTile,
    read_given,
    read_v,
    write_kept,
    write_o,
)
from gdnbench_kernels.gdn_prefill.fused_plan import (
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
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    base: cute.Pointer,
    states: Any,
    scale: cutlass.Float32,
    outputs: cutlass.Constexpr,
) -> None:
    """Compute the states from the initial to the final one, which `states` loads and stores. A chunk's o is
    formed after the state is passed to the next chunk, while the next chunk's products run; without `outputs`
    not at all."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.create(base, thread)
    r_s = [half.registers() for _ in range(PARTS)]
    states.load(half, work, r_s)
    v, gate, gate_of_o = (
        pipelines.v.consumer_state(),
        pipelines.gate.consumer_state(),
        pipelines.gate.consumer_state(),
    )
    ks, update, added = (pipe.consumer_state() for pipe in (pipelines.ks, pipelines.update, pipelines.added))
    h, left = (pipe.producer_state() for pipe in (pipelines.h, pipelines.left))
    if cutlass.const_expr(outputs):
        out = pipelines.out.consumer_state()
        v_new, o = (pipe.producer_state() for pipe in (pipelines.v_new, pipelines.o))
    for turn in cutlass.range(work.chunks, unroll=1):
        # Recompute all addresses in each turn: hoisted out of the loop they would not fit in registers.
        own = Half.create(base, blackwell.opaque(thread))
        pipelines.h.producer_acquire(h)
        store_h(own, r_s, shared.h[None, None, h.index])
        pipelines.h.producer_commit(h)
        if cutlass.const_expr(outputs):  # noqa: SIM102 - the other condition is one of run time
            if turn > 0:
                store_o(own, pipelines, shared, (gate_of_o, out, o), scale)
                gate_of_o.advance()
                out.advance()
                o.advance()

        pipelines.gate.consumer_wait(gate)
        pipelines.left.producer_acquire(left)
        form_x(own, work, pipelines, shared, (v, gate, ks), shared.left[None, None, left.index])
        pipelines.left.producer_commit(left)
        left.advance()

        pipelines.left.producer_acquire(left)
        r_v_new = form_v_new(own, pipelines, shared, (gate, update), shared.left[None, None, left.index])
        pipelines.left.producer_commit(left)
        if cutlass.const_expr(outputs):
            pipelines.v_new.producer_acquire(v_new)
            own.tmem_copy.stmatrix(r_v_new, own.part(shared.v_new[None, None, v_new.index]))
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.v_new.producer_commit(v_new)

        # Past the end of a sequence the sums are its last token's.
        update_state(own, pipelines, added, shared.gate[Row.DECAY, CHUNK - 1, gate.index], r_s)
        if cutlass.const_expr(not outputs):
            pipelines.gate.consumer_release(gate)
        v.advance()
        gate.advance()
        ks.advance()
        update.advance()
        added.advance()
        h.advance()
        left.advance()
        if cutlass.const_expr(outputs):
            v_new.advance()
    if cutlass.const_expr(outputs):  # noqa: SIM102 - the other condition is one of run time
        if work.chunks > 0:
            store_o(half, pipelines, shared, (gate_of_o, out, o), scale)
            o.advance()
    states.store(half, work, r_s)
    pipelines.h.producer_tail(h)
    pipelines.left.producer_tail(left)
    if cutlass.const_expr(outputs):
        pipelines.v_new.producer_tail(v_new)
        pipelines.o.producer_tail(o)


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
def store_h(half: Half, r_s: State, s_h: cute.Tensor) -> None:
    """Write h, the rounded S, to s_h."""
    for part in cutlass.range_constexpr(PARTS):
        r_h = half.registers(BF16)
        r_h.store(r_s[part].load().to(BF16))
        half.tmem_copy.stmatrix(r_h, half.part(s_h, part))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_x(
    half: Half,
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    states: tuple[Any, Any, Any],
    s_x: cute.Tensor,
) -> None:
    """X^T = V^T - exp(g_cu) (K S^T)^T."""
    v, gate, ks = states
    if cutlass.const_expr(work.has_v is True):
        r_v = read_v(half, pipelines.v, v, shared.v)
    else:
        r_v = half.registers(BF16)
        r_v.fill(0.0)
        if work.has_v:
            r_v.store(read_v(half, pipelines.v, v, shared.v).load())
    r_ks, r_x = half.registers(), half.registers(BF16)
    r_decay = half.by_token(shared.gate[Row.DECAY, None, gate.index])
    half.tmem_copy.load_and_release(pipelines.ks, ks, T_KS, r_ks)
    r_x.store((r_v.load().to(cutlass.Float32) - r_decay.load() * r_ks.load()).to(BF16))
    half.tmem_copy.stmatrix(r_x, half.part(s_x))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_v_new(
    half: Half, pipelines: Pipelines, shared: Shared, states: tuple[Any, Any], s_vs: cute.Tensor
) -> cute.Tensor:
    """Return V_new^T and write it, decayed to the chunk's end, to s_vs; both are rounded from the same
    product."""
    gate, update = states
    r_update, r_vs, r_v_new = half.registers(), half.registers(BF16), half.registers(BF16)
    r_rest = half.by_token(shared.gate[Row.REST, None, gate.index])
    half.tmem_copy.load_and_release(pipelines.update, update, T_V_NEW, r_update)
    r_vs.store((r_update.load() * r_rest.load()).to(BF16))
    r_v_new.store(r_update.load().to(BF16))
    half.tmem_copy.stmatrix(r_vs, half.part(s_vs))
    cute.arch.fence_proxy("async.shared", space="cta")
    return r_v_new


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
        decayed = cute.full_like(r_added, factor)
        r_s[part].store(cute.math.fma(r_s[part].load(), decayed, r_added.load()))
    blackwell.before_thread_sync()
    pipelines.added.consumer_release(added)


@cute.jit
def store_o(
    half: Half, pipelines: Pipelines, shared: Shared, states: tuple[Any, Any, Any], scale: cutlass.Float32
) -> None:
    """o^T = scale (exp(g_cu) (Q S^T)^T + (P V_new)^T), one term after the other."""
    gate, out, o = states
    r_qs, r_pv, r_o = half.registers(), half.registers(), half.registers(BF16)
    pipelines.out.consumer_wait(out)
    blackwell.after_thread_sync()
    r_decay = half.by_token(shared.gate[Row.DECAY, None, gate.index])
    pipelines.gate.consumer_release(gate)
    half.tmem_copy.load(T_QS, 0, 0, r_qs)
    cute.arch.fence_view_async_tmem_load()
    r_qs.store(r_decay.load() * r_qs.load())
    half.tmem_copy.load(T_PV, 0, 0, r_pv)
    cute.arch.fence_view_async_tmem_load()
    blackwell.before_thread_sync()
    pipelines.out.consumer_release(out)
    r_o.store((scale * (r_qs.load() + r_pv.load())).to(BF16))
    write_o(half, pipelines.o, o, shared.o, r_o)
