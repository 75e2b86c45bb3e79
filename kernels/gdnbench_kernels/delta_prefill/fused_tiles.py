"""Shared by the fused SM100 prefill kernels: a CTA's work, products, halves of the state, loads, stores.
CuTe DSL.

The STATE role of these kernels is two warpgroups. A warpgroup has the rows of its tensor-memory lanes in
every tile or accumulator of 128 rows (`rows_of_half`). A thread has the same elements of every 64 columns of
an accumulator, in the order that tcgen05.ld 16x256b, stmatrix and ldmatrix share.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import WARP, Accumulator

BF16 = cutlass.BFloat16
TOKENS = (CHUNK, HEAD_DIM)
HALF = HEAD_DIM // 2
"""Rows of S that one of the two warpgroups of STATE updates."""
HALF_LANES = 16
"""Lanes of each 32 tensor-memory lanes, hence of each 32 rows, that belong to one warpgroup."""
GROUP_WARPS = 4
PARTS = HEAD_DIM // CHUNK
"""Parts of the columns of S, each as wide as an accumulator of one chunk's tokens, so one TmemCopy fits
all."""


@dataclass(frozen=True)
class WorkTile:
    """The work of a CTA: the chunks of a sequence, for one value head."""

    sequence: cutlass.Int32
    head: cutlass.Int32
    start: cutlass.Int32  # the first token
    stop: cutlass.Int32
    chunks: cutlass.Int32

    @staticmethod
    def create(cu_seqlens: cute.Tensor, value_heads: int, number: Any = None) -> WorkTile:
        """Work number `number`, or the calling CTA's. Order: heads of a sequence, sequences. So CTAs that
        read the same Q and K are neighbours."""
        number = cute.arch.block_idx()[0] if number is None else number
        n = number // value_heads
        start, stop = cu_seqlens[n], cu_seqlens[n + 1]
        return WorkTile(n, number % value_heads, start, stop, (stop - start + CHUNK - 1) // CHUNK)


@dataclass(frozen=True)
class TileMma:
    """One of the kernel's products: operand tiles in shared memory and their accumulator."""

    tiled_mma: cute.TiledMma
    base: cute.Pointer
    part: Accumulator
    r_left: cute.Tensor
    r_right: cute.Tensor

    @staticmethod
    def create(
        base: cute.Pointer,
        part: Accumulator,
        s_left: cute.Tensor,
        s_right: cute.Tensor,
        major: OperandMajorMode = OperandMajorMode.K,
    ) -> TileMma:
        tiled_mma = blackwell.make_tiled_mma(major, *part.shape)
        depth = cute.size(s_left, mode=[1])
        return TileMma(
            tiled_mma, base, part, *blackwell.operands(tiled_mma, s_left, s_right, (*part.shape, depth))
        )

    def issue(
        self, left: Any, right: Any, stage: Any = 0, add: bool = False, half: int | None = None
    ) -> None:
        """Issue the MMAs of the two operands' stages into a stage of the accumulator, or with `add` add to
        what it holds. With `half` only those of one half of the columns that both have."""
        t_part = blackwell.accumulator(self.tiled_mma, self.base, self.part, stage)
        r_left, r_right = (
            self.r_left[None, None, None, left.index],
            self.r_right[None, None, None, right.index],
        )
        blackwell.mma(self.tiled_mma, t_part, r_left, r_right, add, half)


def rows_of_half(tile: cute.Tensor, half: Any) -> cute.Tensor:
    """The 64 rows of a 128-row tile that belong to a warpgroup of STATE: the first or last 16 of each 32
    rows. Their tensor-memory lanes are those of an M=64 accumulator, so its TmemCopy loads them."""
    order = cute.make_layout((HALF_LANES, GROUP_WARPS, 2), stride=(1, WARP, HALF_LANES))
    columns = cute.size(tile, mode=[1])
    return cute.local_tile(
        cute.composition(tile, (order, cute.make_layout(columns))), (HALF, columns), (half, 0)
    )


@dataclass(frozen=True)
class Half:
    """A warpgroup's part of all tiles, and the copies with which a thread reads and writes its elements."""

    index: cutlass.Int32
    tmem_copy: blackwell.TmemCopy

    @staticmethod
    def create(base: cute.Pointer, thread: cutlass.Int32, columns: int = CHUNK) -> Half:
        """For the calling thread, number `thread` of its warpgroup, and so many columns at once."""
        index = cute.arch.make_warp_uniform(cute.arch.warp_idx()) // GROUP_WARPS
        apart = HALF_LANES * blackwell.LANE
        lanes = base + cute.assume(index * apart, divby=apart)
        tiled_mma = blackwell.make_tiled_mma(OperandMajorMode.K, HALF, columns)
        return Half(index, blackwell.TmemCopy.create(tiled_mma, (HALF, columns), lanes, thread))

    def registers(self, dtype: Any = cutlass.Float32) -> cute.Tensor:
        return cute.make_rmem_tensor(self.tmem_copy.coords.shape, dtype)

    def part(self, tile: cute.Tensor, part: int = 0) -> cute.Tensor:
        """A part of the columns of a tile of 128 rows."""
        return cute.local_tile(rows_of_half(tile, self.index), (HALF, CHUNK), (0, part))

    def by_token(self, s_vector: cute.Tensor) -> cute.Tensor:
        """A per-token number for each of a thread's elements of (rows, tokens)."""
        r_values = self.registers()
        columns = cute.make_tensor(s_vector.iterator, cute.make_layout((HALF, CHUNK), stride=(0, 1)))
        cute.autovec_copy(self.tmem_copy.partition(columns), r_values)
        return r_values


@cute.jit
def load_own_rows(
    tails: blackwell.Pipeline,
    pipe: blackwell.Pipeline,
    state: Any,
    tail: Any,
    tma: blackwell.Tma,
    s_tiles: cute.Tensor,
    length: cutlass.Int32,
    token: cutlass.Int32,
    head: cutlass.Int32,
) -> None:
    """Load a tile, with zeros in its rows from `length` on. A sequence has one tail, which uses its stage
    once."""
    if length >= CHUNK:
        pipe.arrive_and_expect_tx(state)
        tma.load(pipe, state, s_tiles, token, head)
    else:
        tails.arrive_and_expect_tx(tail)
        tma.load(tails, tail, s_tiles, token, head, stage=state.index)
        tails.consumer_wait(tail)
        blackwell.zero_rows(s_tiles[None, None, state.index], length)
        pipe.producer_commit(state)


@cute.jit
def store_output(
    work: WorkTile,
    outputs: blackwell.Pipeline,
    s_tiles: cute.Tensor,
    tma: blackwell.Tma,
    o: cute.Tensor,
    value_heads: cutlass.Constexpr,
) -> None:
    """Store the o of each chunk: of a full chunk by TMA, of a shorter one only its own rows, because the next
    sequence follows."""
    state = outputs.consumer_state()
    for i in cutlass.range(work.chunks, unroll=1):
        store_chunk(work, i, outputs, state, s_tiles, tma, o, value_heads)
        state.advance()
    with cute.arch.elect_one():
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def store_chunk(
    work: WorkTile,
    i: cutlass.Int32,
    outputs: blackwell.Pipeline,
    state: Any,
    s_tiles: cute.Tensor,
    tma: blackwell.Tma,
    o: cute.Tensor,
    value_heads: cutlass.Constexpr,
) -> None:
    """Store the o of chunk `i`."""
    token = work.start + CHUNK * i
    s_o = s_tiles[None, None, state.index]
    outputs.consumer_wait(state)
    if token + CHUNK <= work.stop:
        with cute.arch.elect_one():
            tma.store(s_o, token, work.head)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            outputs.consumer_release_thread(state)
    else:
        _store_rows(s_o, o, token, work, value_heads)
        outputs.consumer_release(state)


@cute.jit
def _store_rows(
    s_o: cute.Tensor,
    o: cute.Tensor,
    token: cutlass.Int32,
    work: WorkTile,
    value_heads: cutlass.Constexpr,
) -> None:
    """Store rows up to the end of the sequence, 16 bytes per lane."""
    # In 64 bits: T Hv 128 may exceed 2^31.
    stride = value_heads * HEAD_DIM
    first = cutlass.Int64(token) * stride + work.head * HEAD_DIM
    g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout(TOKENS, stride=(stride, 1)))
    lane, lanes = cute.arch.lane_idx(), HEAD_DIM // blackwell.VECTOR
    for row in cutlass.range(lane // lanes, work.stop - token, WARP // lanes, unroll=1):
        r_vector = cute.make_rmem_tensor((1, blackwell.VECTOR), BF16)
        s_vector, g_vector = (
            cute.local_tile(tile, (1, blackwell.VECTOR), (row, lane % lanes)) for tile in (s_o, g_o)
        )
        cute.autovec_copy(s_vector, r_vector)
        cute.autovec_copy(r_vector, g_vector)


@cute.jit
def read_given(half: Half, work: WorkTile, initial_state: Any, part: cutlass.Constexpr, r_s: Any) -> None:
    """Load a part of the columns of the initial state into r_s; zeros if there is none."""
    if cutlass.const_expr(initial_state is None):
        r_s.fill(0.0)
    else:
        g_given = half.part(initial_state[work.sequence, work.head, None, None], part)
        r_given = half.registers(initial_state.element_type)
        cute.autovec_copy(half.tmem_copy.partition(g_given), r_given)
        r_s.store(r_given.load().to(cutlass.Float32))


@cute.jit
def write_kept(half: Half, work: WorkTile, final_state: Any, part: cutlass.Constexpr, r_s: Any) -> None:
    """Store r_s as a part of the columns of the final state."""
    g_kept = half.part(final_state[work.sequence, work.head, None, None], part)
    r_kept = half.registers(final_state.element_type)
    r_kept.store(r_s.load().to(final_state.element_type))
    cute.autovec_copy(r_kept, half.tmem_copy.partition(g_kept))


@cute.jit
def read_v(half: Half, pipe: blackwell.Pipeline, state: Any, s_tiles: cute.Tensor) -> cute.Tensor:
    """A thread's elements of V^T, whose stage is released."""
    r_v = half.registers(BF16)
    pipe.consumer_wait(state)
    s_v = blackwell.reordered(s_tiles[None, None, state.index], 1, 0)
    half.tmem_copy.ldmatrix(half.part(s_v), r_v, transpose=True)
    # The next V is written through the async proxy: order this thread's reads before it.
    cute.arch.fence_proxy("async.shared", space="cta")
    pipe.consumer_release(state)
    return r_v


@cute.jit
def write_o(half: Half, pipe: blackwell.Pipeline, state: Any, s_tiles: cute.Tensor, r_o: cute.Tensor) -> None:
    """Write a thread's elements of o^T for STORE."""
    pipe.producer_acquire(state)
    s_o = blackwell.reordered(s_tiles[None, None, state.index], 1, 0)
    half.tmem_copy.stmatrix(r_o, half.part(s_o), transpose=True)
    cute.arch.fence_proxy("async.shared", space="cta")
    pipe.producer_commit(state)
