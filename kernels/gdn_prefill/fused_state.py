"""The STATE role of kernel_sm100_fused.py: two warpgroups, each with 64 rows of a value head's state.

A warpgroup's rows of any tile or accumulator of 128 are those of its lanes of tensor memory (`rows_of_half`).
A thread has the same elements of K S^T, Q S^T, X, V_new and o, each transposed, and of every 64 columns of S,
in the order that tcgen05.ld 16x256b, stmatrix and ldmatrix share: no word goes from thread to thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.fused_plan import (
    GROUP_WARPS,
    HALF,
    HALF_LANES,
    T_ADDED,
    T_KS,
    T_PV,
    T_QS,
    T_V_NEW,
    Rings,
    Row,
    Shared,
    Walk,
    rows_of_half,
)
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16
PARTS = HEAD_DIM // CHUNK
"""Of the columns of S, each as wide as an accumulator of one chunk's tokens: one reader has them all."""

State = list[cute.Tensor]
"""A thread's elements of each part."""


@dataclass(frozen=True)
class Half:
    """A warpgroup's part of all tiles, and how a thread of it reads and writes its own."""

    index: cutlass.Int32
    reader: blackwell.Reader

    @staticmethod
    def of(base: cute.Pointer, thread: cutlass.Int32) -> Half:
        """Of the calling thread, number `thread` of its warpgroup."""
        index = cute.arch.make_warp_uniform(cute.arch.warp_idx()) // GROUP_WARPS
        apart = HALF_LANES * blackwell.LANE
        lanes = base + cute.assume(index * apart, divby=apart)
        mma = blackwell.product(OperandMajorMode.K, HALF, CHUNK)
        return Half(index, blackwell.Reader.of(mma, (HALF, CHUNK), lanes, thread))

    def registers(self, dtype: Any = cutlass.Float32) -> cute.Tensor:
        return cute.make_rmem_tensor(self.reader.where.shape, dtype)

    def part(self, tile: cute.Tensor, part: int = 0) -> cute.Tensor:
        """A part of the columns of a tile of 128 rows."""
        return cute.local_tile(rows_of_half(tile, self.index), (HALF, CHUNK), (0, part))

    def by_token(self, s_vector: cute.Tensor) -> cute.Tensor:
        """A number of each token for each of a thread's elements of (rows, tokens)."""
        r_values = self.registers()
        columns = cute.make_tensor(s_vector.iterator, cute.make_layout((HALF, CHUNK), stride=(0, 1)))
        cute.autovec_copy(self.reader.part(columns), r_values)
        return r_values


@cute.jit
def carry(
    walk: Walk,
    rings: Rings,
    shared: Shared,
    base: cute.Pointer,
    initial_state: cute.Tensor | None,
    final_state: cute.Tensor | None,
    scale: cutlass.Float32,
) -> None:
    """The state from the initial to the final one. A chunk's o is formed when the state behind the chunk has
    been handed on, while the products of the next one run."""
    thread = cute.arch.thread_idx()[0] % (GROUP_WARPS * WARP)
    half = Half.of(base, thread)
    r_s = [half.registers() for _ in range(PARTS)]
    begin(half, walk, initial_state, r_s)
    v, gate, gate_of_o = rings.v.consuming(), rings.gate.consuming(), rings.gate.consuming()
    ks, update, added, out = (ring.consuming() for ring in (rings.ks, rings.update, rings.added, rings.out))
    h, left, v_new, o = (ring.producing() for ring in (rings.h, rings.left, rings.v_new, rings.o))
    for turn in cutlass.range(walk.chunks, unroll=1):
        # Addresses of all that it reads and writes are as many registers, unless they are found in each turn.
        own = Half.of(base, blackwell.afresh(thread))
        rings.h.acquire(h)
        pack_state(own, r_s, shared.h[None, None, h.index])
        rings.h.fill_by_warp(h)
        if turn > 0:
            read_out(own, rings, shared, (gate_of_o, out, o), scale)
            gate_of_o.advance()
            out.advance()
            o.advance()

        rings.gate.wait(gate)
        rings.left.acquire(left)
        form_x(own, rings, shared, (v, gate, ks), shared.left[None, None, left.index])
        rings.left.fill_by_warp(left)
        left.advance()

        rings.left.acquire(left)
        r_v_new = form_updates(own, rings, shared, (gate, update), shared.left[None, None, left.index])
        rings.left.fill_by_warp(left)
        rings.v_new.acquire(v_new)
        own.reader.write(r_v_new, own.part(shared.v_new[None, None, v_new.index]))
        cute.arch.fence_proxy("async.shared", space="cta")
        rings.v_new.fill_by_warp(v_new)

        # Behind the end of a sequence the sums are its last token's.
        advance(own, rings, added, shared.gate[Row.DECAY, CHUNK - 1, gate.index], r_s)
        v.advance()
        gate.advance()
        ks.advance()
        update.advance()
        added.advance()
        h.advance()
        left.advance()
        v_new.advance()
    if walk.chunks > 0:
        read_out(half, rings, shared, (gate_of_o, out, o), scale)
        o.advance()
    end(half, walk, r_s, final_state)
    rings.h.drain(h)
    rings.left.drain(left)
    rings.v_new.drain(v_new)
    rings.o.drain(o)


@cute.jit
def begin(half: Half, walk: Walk, initial_state: Any, r_s: State) -> None:
    """S as it was given, 0 without any."""
    for part in cutlass.range_constexpr(PARTS):
        if cutlass.const_expr(initial_state is None):
            r_s[part].fill(0.0)
        else:
            g_given = half.part(initial_state[walk.sequence, walk.head, None, None], part)
            r_given = half.registers(initial_state.element_type)
            cute.autovec_copy(half.reader.part(g_given), r_given)
            r_s[part].store(r_given.load().to(cutlass.Float32))


@cute.jit
def end(half: Half, walk: Walk, r_s: State, final_state: Any) -> None:
    """S to where it is wanted, nowhere without any."""
    if cutlass.const_expr(final_state is not None):
        for part in cutlass.range_constexpr(PARTS):
            g_kept = half.part(final_state[walk.sequence, walk.head, None, None], part)
            r_kept = half.registers(final_state.element_type)
            r_kept.store(r_s[part].load().to(final_state.element_type))
            cute.autovec_copy(r_kept, half.reader.part(g_kept))


@cute.jit
def pack_state(half: Half, r_s: State, s_h: cute.Tensor) -> None:
    """h, S rounded."""
    for part in cutlass.range_constexpr(PARTS):
        r_h = half.registers(BF16)
        r_h.store(r_s[part].load().to(BF16))
        half.reader.write(r_h, half.part(s_h, part))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_x(half: Half, rings: Rings, shared: Shared, places: tuple[Any, Any, Any], s_x: cute.Tensor) -> None:
    """X^T = V^T - exp(g_cu) (K S^T)^T."""
    v, gate, ks = places
    r_v, r_ks, r_x = half.registers(BF16), half.registers(), half.registers(BF16)
    rings.v.wait(v)
    s_v = blackwell.reordered(shared.v[None, None, v.index], 1, 0)
    half.reader.fetch(half.part(s_v), r_v, transpose=True)
    # The next V comes through the async proxy.
    cute.arch.fence_proxy("async.shared", space="cta")
    rings.v.release_by_warp(v)
    r_decay = half.by_token(shared.gate[Row.DECAY, None, gate.index])
    half.reader.take(rings.ks, ks, T_KS, r_ks)
    r_x.store((r_v.load().to(cutlass.Float32) - r_decay.load() * r_ks.load()).to(BF16))
    half.reader.write(r_x, half.part(s_x))
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def form_updates(
    half: Half, rings: Rings, shared: Shared, places: tuple[Any, Any], s_vs: cute.Tensor
) -> cute.Tensor:
    """V_new^T, returned, and in s_vs what is left of it at the chunk's end: both rounded from one product."""
    gate, update = places
    r_update, r_vs, r_v_new = half.registers(), half.registers(BF16), half.registers(BF16)
    r_rest = half.by_token(shared.gate[Row.REST, None, gate.index])
    half.reader.take(rings.update, update, T_V_NEW, r_update)
    r_vs.store((r_update.load() * r_rest.load()).to(BF16))
    r_v_new.store(r_update.load().to(BF16))
    half.reader.write(r_vs, half.part(s_vs))
    cute.arch.fence_proxy("async.shared", space="cta")
    return r_v_new


@cute.jit
def advance(half: Half, rings: Rings, added: Any, factor: cutlass.Float32, r_s: State) -> None:
    """S = exp(g_last) S + what the chunk adds, a part at a time: S and all of that at once are too many
    registers."""
    rings.added.wait(added)
    blackwell.after_thread_sync()
    for part in cutlass.range_constexpr(PARTS):
        r_added = half.registers()
        half.reader.read(T_ADDED, 0, part * CHUNK, r_added)
        cute.arch.fence_view_async_tmem_load()
        decayed = cute.full_like(r_added, factor)
        r_s[part].store(cute.math.fma(r_s[part].load(), decayed, r_added.load()))
    blackwell.before_thread_sync()
    rings.added.release_by_warp(added)


@cute.jit
def read_out(
    half: Half, rings: Rings, shared: Shared, places: tuple[Any, Any, Any], scale: cutlass.Float32
) -> None:
    """o^T = scale (exp(g_cu) (Q S^T)^T + (P V_new)^T), one term after the other, as in `advance`."""
    gate, out, o = places
    r_qs, r_pv, r_o = half.registers(), half.registers(), half.registers(BF16)
    rings.out.wait(out)
    blackwell.after_thread_sync()
    r_decay = half.by_token(shared.gate[Row.DECAY, None, gate.index])
    rings.gate.release_by_warp(gate)
    half.reader.read(T_QS, 0, 0, r_qs)
    cute.arch.fence_view_async_tmem_load()
    r_qs.store(r_decay.load() * r_qs.load())
    half.reader.read(T_PV, 0, 0, r_pv)
    cute.arch.fence_view_async_tmem_load()
    blackwell.before_thread_sync()
    rings.out.release_by_warp(out)
    r_o.store((scale * (r_qs.load() + r_pv.load())).to(BF16))
    rings.o.acquire(o)
    s_o = blackwell.reordered(shared.o[None, None, o.index], 1, 0)
    half.reader.write(r_o, half.part(s_o), transpose=True)
    cute.arch.fence_proxy("async.shared", space="cta")
    rings.o.fill_by_warp(o)
