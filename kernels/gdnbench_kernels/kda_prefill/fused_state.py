"""The STATE role of kernel_sm100_fused.py: two warpgroups, each with 64 rows of a value head's state.

S is in tensor memory, in f32. A warpgroup rounds it to h, then decays it in place; the product of V_new and
Ke is added to it there. A thread has the same elements of every accumulator (delta_prefill/fused_tiles.py).
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

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
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.kda_prefill.fused_plan import T_KS, T_O, T_S, T_V_NEW, Pipelines, Shared
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16


@cute.jit
def recurrence(
    work: WorkTile,
    pipelines: Pipelines,
    shared: Shared,
    base: cute.Pointer,
    initial_state: cute.Tensor | None,
    final_state: cute.Tensor | None,
    scale: cutlass.Float32,
) -> None:
    """Compute the states from the initial to the final one. A chunk's o is formed after the state is passed
    to the next chunk, while the next chunk's products run."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.create(base, thread)
    load_initial_state(half, work, initial_state)
    v, total, ks, update, added, out = (
        pipe.consumer_state()
        for pipe in (
            pipelines.v,
            pipelines.total,
            pipelines.ks,
            pipelines.update,
            pipelines.added,
            pipelines.out,
        )
    )
    h, left, o = (pipe.producer_state() for pipe in (pipelines.h, pipelines.left, pipelines.o))
    for turn in cutlass.range(work.chunks, unroll=1):
        # Recompute all addresses in each turn: hoisted out of the loop they would not fit in registers.
        own = Half.create(base, blackwell.opaque(thread))
        if turn > 0:
            pipelines.added.consumer_wait(added)
            blackwell.after_thread_sync()
        pipelines.h.producer_acquire(h)
        store_h(own, shared.h[None, None, h.index])
        pipelines.h.producer_commit(h)
        pipelines.total.consumer_wait(total)
        decay_state(own, shared.total[None, total.index])
        pipelines.total.consumer_release(total)
        if turn > 0:
            pipelines.added.consumer_release(added)
            added.advance()
            store_o(own, pipelines, shared, (out, o), scale)
            out.advance()
            o.advance()

        pipelines.left.producer_acquire(left)
        form_x(own, pipelines, shared, (v, ks), shared.left[None, None, left.index])
        pipelines.left.producer_commit(left)
        left.advance()

        pipelines.left.producer_acquire(left)
        form_v_new(own, pipelines, update, shared.left[None, None, left.index])
        pipelines.left.producer_commit(left)
        v.advance()
        total.advance()
        ks.advance()
        update.advance()
        h.advance()
        left.advance()
    if work.chunks > 0:
        store_o(half, pipelines, shared, (out, o), scale)
        o.advance()
        pipelines.added.consumer_wait(added)
        blackwell.after_thread_sync()
    store_final_state(half, work, final_state)
    if work.chunks > 0:
        blackwell.before_thread_sync()
        pipelines.added.consumer_release(added)
    pipelines.h.producer_tail(h)
    pipelines.left.producer_tail(left)
    pipelines.o.producer_tail(o)


@cute.jit
def load_initial_state(half: Half, work: WorkTile, initial_state: Any) -> None:
    """Write the initial state to S; zeros if there is none."""
    for part in cutlass.range_constexpr(PARTS):
        r_s = half.registers()
        read_given(half, work, initial_state, part, r_s)
        half.tmem_copy.store(T_S, 0, part * CHUNK, r_s)
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def store_final_state(half: Half, work: WorkTile, final_state: Any) -> None:
    """Store S as the final state, if the call asks for it."""
    if cutlass.const_expr(final_state is not None):
        for part in cutlass.range_constexpr(PARTS):
            r_s = half.registers()
            half.tmem_copy.load(T_S, 0, part * CHUNK, r_s)
            cute.arch.fence_view_async_tmem_load()
            write_kept(half, work, final_state, part, r_s)


@cute.jit
def store_h(half: Half, s_h: cute.Tensor) -> None:
    """Write h, the rounded S, to s_h."""
    for part in cutlass.range_constexpr(PARTS):
        r_s, r_h = half.registers(), half.registers(BF16)
        half.tmem_copy.load(T_S, 0, part * CHUNK, r_s)
        cute.arch.fence_view_async_tmem_load()
        r_h.store(r_s.load().to(BF16))
        half.tmem_copy.stmatrix(r_h, half.part(s_h, part))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def decay_state(half: Half, s_total: cute.Tensor) -> None:
    """Multiply each column of S by the chunk's decay of its channel."""
    for part in cutlass.range_constexpr(PARTS):
        r_s = half.registers()
        half.tmem_copy.load(T_S, 0, part * CHUNK, r_s)
        cute.arch.fence_view_async_tmem_load()
        r_total = half.by_token(cute.local_tile(s_total, (CHUNK,), (part,)))
        r_s.store(r_s.load() * r_total.load())
        half.tmem_copy.store(T_S, 0, part * CHUNK, r_s)
    cute.arch.fence_view_async_tmem_store()
    blackwell.before_thread_sync()


@cute.jit
def form_x(
    half: Half, pipelines: Pipelines, shared: Shared, states: tuple[Any, Any], s_x: cute.Tensor
) -> None:
    """X^T = V^T - (Kd h^T)^T."""
    v, ks = states
    r_v = read_v(half, pipelines.v, v, shared.v)
    r_ks, r_x = half.registers(), half.registers(BF16)
    half.tmem_copy.load_and_release(pipelines.ks, ks, T_KS, r_ks)
    r_x.store((r_v.load().to(cutlass.Float32) - r_ks.load()).to(BF16))
    half.tmem_copy.stmatrix(r_x, half.part(s_x))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_v_new(half: Half, pipelines: Pipelines, update: Any, s_v_new: cute.Tensor) -> None:
    """Round V_new^T to s_v_new."""
    r_update, r_v_new = half.registers(), half.registers(BF16)
    half.tmem_copy.load_and_release(pipelines.update, update, T_V_NEW, r_update)
    r_v_new.store(r_update.load().to(BF16))
    half.tmem_copy.stmatrix(r_v_new, half.part(s_v_new))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def store_o(
    half: Half, pipelines: Pipelines, shared: Shared, states: tuple[Any, Any], scale: cutlass.Float32
) -> None:
    """o^T = scale (Qd h^T + P V_new)^T."""
    out, o = states
    r_sum, r_o = half.registers(), half.registers(BF16)
    half.tmem_copy.load_and_release(pipelines.out, out, T_O, r_sum)
    r_o.store((scale * r_sum.load()).to(BF16))
    write_o(half, pipelines.o, o, shared.o, r_o)
