"""Sliding-window decode attention over FP8 pages: FlashMLA's `sparse_decode_fwd`. CuTe DSL, sm_100a.

Reads queries and pages, writes o and lse.

For request t, with j over the 128 entries of its window, sm100_gather.py computes from the page the entry's
row r and its factor f, where value = r f; f is 1 in fp8_ds_mla:

    s[h, j] = (q[h] . r[j]) (f[j] scale log2 e)        -inf where j does not count
    m[h]    = max_j s[h, j]                            at most the largest float32; 0 or 1 for -inf
    p[h, j] = exp2(s[h, j] - m[h])                     l[h] = sum_j p[h, j], of 32 in a thread, then of 4
    g[h]    = max_j |p[h, j] f[j]|                     2^-126 at least, at most 2^126; 1 in fp8_ds_mla
    o[h]    = (sum_j bf16(p[h, j] f[j] / g[h]) r[j]) (g[h] / (l[h] + exp2(sink[h] log2 e - m[h])))
    lse[h]  = (m[h] + log2 l[h]) ln 2

o is 0 if nothing counts. g makes the largest weight 1 or -1, which bf16 represents exactly: if one row has
most of the weight, the rounding error of its weight would affect all of o's features equally.

An item is a request and a tile of 64 of its heads; heads above H are zeros and not stored. A CTA computes one
of `parts` parts, 512 / parts features, of its items' o: CTA (part, worker) processes items worker, worker +
workers, ... . The whole window is in shared memory, a quarter of the features in each stage of s_kv, used as
keys and as values, so the softmax has all scores at once. The products of an item, where x is a quarter:

    product        M   N    K    left operand  right operand  accumulator    x
    1. S += Q K^T  64  128  128  s_q, K-major  s_kv, K-major  t_s            0, 1, 2, 3, as they come
    2. O = P V     64  128  128  s_p, K-major  s_kv, N-major  t_even, t_odd  those of the CTA's part

A stage is free for the next item's rows after its product 2, or after 1 if the CTA does not have those
features.

    tensor       shape            dtype     rows
    q, o         T, H, 512        bfloat16  by TMA, 64 heads and 128 features at once
    pages        blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale    slots            float32   or bfloat16; with per_token_scale alone
    indices      T, W             int32     any distance apart; W <= 128
    lens         T                int32
    attn_sink    H                float32   or none
    lse          T, H             float32   or none; written by the CTAs of part 0

    SMEM       shape                dtype     layout
    s_kv       128 x 128, 4 stages  bfloat16  K-major, SW128; read as N-major too
    s_q        64 x 128, 4 stages   bfloat16  K-major, SW128
    s_p        64 x 128             bfloat16  K-major, SW128
    s_o        64 x 128             bfloat16  row = head, SW128
    s_factor   128 x 2              float32   factor of a token, then 0, or -inf if not attended
    s_inverse  64                   float32   what o of a head is multiplied by

    TMEM    shape               columns   lanes  layout
    t_s     64 x 128            0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_even  64 x 128, 2 stages  128..383  low    M=64: row r in lane 32 (r/16) + r%16
    t_odd   64 x 128, 2 stages  128..383  high   M=64: row r in lane 32 (r/16) + r%16, + 16

    role      warps   does
    SOFTMAX   0..3    S from TMEM, softmax over the window, P into s_p; lse
    EPILOGUE  4..7    O from TMEM, divided, through s_o to memory
    GATHER    8..15   rows of the window from the pages, as bf16 into s_kv; their factors
    LOAD      16      TMA of Q
    MMA       17      allocates TMEM; all products
    IDLE      18..19  nothing

    pipeline  stages  full: arrivals        empty: arrivals
    kv        4       8 GATHER warp         1 MMA commit
    q         4       1 LOAD + 16384 bytes  1 MMA commit
    factor    1       8 GATHER warp         4 SOFTMAX warp
    scores    1       1 MMA commit          4 SOFTMAX warp
    p         1       4 SOFTMAX warp        1 MMA commit
    inverse   1       4 SOFTMAX warp        4 EPILOGUE warp
    o         4       1 MMA commit          4 EPILOGUE warp

    sync                               who                     orders
    fence.mbarrier_init, barrier TMEM  all                     mbarriers, TMEM there before they are used
    setmaxnreg                         all                     increases wait for the others' decrease
    relinquish                         MMA                     TMEM taken before another CTA may ask for it
    fence.proxy.async, s_kv            GATHER                  rows written before products read them
    fence.proxy.async, s_p             SOFTMAX                 P written before products read it
    bar.warp.sync                      SOFTMAX                 no factor is loaded early: registers
    bar.warp.sync, arrivals            who arrives by warp     a warp's accesses before the arrival for it
    tcgen05.fence before, after        MMA, SOFTMAX, EPILOGUE  products, TMEM with arrivals, waits
    tcgen05.wait::ld                   SOFTMAX, EPILOGUE       TMEM read before its release
    bulk wait_group.read               EPILOGUE, warp 4        the last TMA store has read s_o
    barrier EPILOGUE, first            EPILOGUE                s_o read by the last store before it is written
    fence.proxy.async, s_o             EPILOGUE                o in s_o before the TMA store reads it
    barrier EPILOGUE, second           EPILOGUE                all of s_o written before it is stored
    bulk wait_group                    EPILOGUE, warp 4        o stored before the CTA ends
    producer_tail                      each producer           no arrival after the CTA ends
    barrier of the CTA                 all                     TMEM read before it is freed

640 threads, 230916 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

The phase of a stage is the parity of the CTA's item number: each item uses every stage of the CTA once. An
entry that does not count, because it is past the length or -1, is not dereferenced; its row is zeros and its
score is replaced. As in the oracle, NaN in a row that counts makes o and lse of the request NaN; a score of
+inf makes o NaN and lse +inf; if all scores are -inf, lse is -inf and o is NaN or, with a sink, 0. A request
without entries that count also has l = 0; its m distinguishes it.

Limits: head_dim 512, bf16 q and o, H <= 128, W <= 128, pages of 2^block_shift tokens; slots and T H < 2^31;
parts 1, 2 or 4. A row's bits depend only on its own data, not on T, parts or workers; sums have a fixed
order. A short window takes as long as a full one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm100_gather import Gather
from gdnbench_kernels.swa_decode.sm100_output import Output
from gdnbench_kernels.swa_decode.sm100_plan import (
    FEATURES,
    HEADS,
    PLAN,
    QUARTERS,
    REGISTERS,
    T_EVEN,
    T_S,
    TILED_REGISTERS,
    TOKENS,
    Barrier,
    Pipelines,
    Role,
    Shared,
    Tile,
    TileScheduler,
    base_of,
    consumer_state,
    producer_state,
)
from gdnbench_kernels.swa_decode.sm100_softmax import Softmax


class Tcgen05Decode:
    """The kernel for `heads` heads and caches of one layout."""

    def __init__(self, heads: int, layout: CacheLayout) -> None:
        self.heads = heads
        self.tiled = False
        self.mla = layout is CacheLayout.FP8_DS_MLA

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        indices: cute.Tensor,
        lens: cute.Tensor,
        attn_sink: cute.Tensor | None,
        o: cute.Tensor,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        parts: cutlass.Int32,
        workers: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `launch_args.Arguments`. Grid: `parts` (1, 2 or 4) x `workers` CTAs."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_q = blackwell.Tma.create(load, by_quarter(q), (HEADS, FEATURES))
        tma_o = blackwell.Tma.create(store, by_quarter(o), (HEADS, FEATURES))
        self.kernel(tma_q, tma_o, pages, inv_scale, indices, lens, attn_sink, lse, scale, block_shift).launch(
            grid=(parts, workers, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
        tma_o: blackwell.Tma,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        indices: cute.Tensor,
        lens: cute.Tensor,
        attn_sink: cute.Tensor | None,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
    ) -> None:
        self.dispatch(
            tma_q,
            Gather(self.mla, pages, inv_scale, indices, lens, block_shift),
            Softmax(self.heads, not self.mla, self.tiled, attn_sink, lse, scale),
            Output(self.tiled, tma_o),
            lambda: TileScheduler.create(lens.shape[0], self.heads),
        )

    @cute.jit
    def dispatch(
        self,
        tma_q: blackwell.Tma,
        gather: Any,
        softmax: Softmax,
        output: Output,
        scheduler: Callable[[], Any],
    ) -> None:
        registers = TILED_REGISTERS if self.tiled else REGISTERS
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(smem)
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma_q, *output.tmas), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(PLAN, smem, Role.MMA, Barrier.TMEM)
        # Each role builds its scheduler itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.EPILOGUE:
            cute.arch.setmaxregister_increase(registers[Role.SOFTMAX])
            softmax.weigh(scheduler(), pipelines, shared, base)
        elif warp < Role.GATHER:
            cute.arch.setmaxregister_decrease(registers[Role.EPILOGUE])
            output.write(scheduler(), pipelines, shared, base)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(registers[Role.GATHER])
            gather.load(scheduler(), pipelines, shared)
        else:
            cute.arch.setmaxregister_decrease(registers[Role.LOAD])
        if warp == Role.LOAD:
            self.load(scheduler(), pipelines, shared, tma_q)
        if warp == Role.MMA:
            self.mma(scheduler(), pipelines, shared, base)
        cute.arch.sync_threads()
        tmem.free(base)

    @cute.jit
    def load(
        self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, tma_q: blackwell.Tma
    ) -> None:
        for turn in cutlass.range(scheduler.count, unroll=1):
            token, head = scheduler.work_tile(turn)
            for quarter in cutlass.range_constexpr(QUARTERS):
                state = producer_state(turn, quarter)
                pipelines.q.producer_acquire(state)
                pipelines.q.arrive_and_expect_tx(state)
                tma_q.load(pipelines.q, state, shared.q, head, quarter, token)
        for quarter in cutlass.range_constexpr(QUARTERS):
            pipelines.q.producer_acquire(producer_state(scheduler.count, quarter))

    @cute.jit
    def mma(self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        qk, pv = qk_mma(), pv_mma()
        operands = (
            *blackwell.operands(qk, shared.q, shared.kv, (HEADS, TOKENS, FEATURES)),
            *blackwell.operands(pv, shared.p, shared.kv, (HEADS, FEATURES, TOKENS)),
        )
        step = cutlass.Int32(0)
        for turn in cutlass.range(scheduler.count, unroll=1):
            if cutlass.const_expr(self.tiled):
                tiles = scheduler.tiles_of(turn)
                for index in cutlass.range(tiles, unroll=1):
                    tile = Tile(step + index, index > 0)
                    self.multiply(tile, turn, index == tiles - 1, scheduler, pipelines, base, operands)
                step += tiles
            else:
                self.multiply(Tile(turn, False), turn, True, scheduler, pipelines, base, operands)
        last = step if self.tiled else scheduler.count
        pipelines.scores.producer_acquire(producer_state(last))
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            pipelines.o.producer_acquire(producer_state(last, quarter))

    @cute.jit
    def multiply(
        self,
        tile: Tile,
        turn: cutlass.Int32,
        last: Any,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        base: cute.Pointer,
        operands: tuple[cute.Tensor, ...],
    ) -> None:
        """The products of a tile of entries; the queries are read for the last time if it is the item's
        last. A stage of s_kv is read twice. It is released after the second read, or after the first if the
        CTA does not compute those features of o. The loops over quarters stay rolled: unrolled, ptxas would
        keep the descriptors of all operands, 64 bits per step of each product, from item to item."""
        qk, pv = qk_mma(), pv_mma()
        r_q, r_k, r_p, r_v = operands
        t_s = blackwell.accumulator(qk, base, T_S)
        step = tile.step
        pipelines.scores.producer_acquire(producer_state(step))
        for quarter in cutlass.range(QUARTERS, unroll=1):
            state = consumer_state(step, quarter)
            pipelines.q.consumer_wait(consumer_state(turn, quarter))
            pipelines.kv.consumer_wait(state)
            blackwell.after_thread_sync()
            r_left, r_right = r_q[None, None, None, quarter], r_k[None, None, None, quarter]
            blackwell.mma(qk, t_s, r_left, r_right, add=quarter > 0)
            if last:
                pipelines.q.umma_release(consumer_state(turn, quarter))
            if not scheduler.owns(quarter):
                pipelines.kv.umma_release(state)
        pipelines.scores.umma_commit(producer_state(step))
        pipelines.p.consumer_wait(consumer_state(step))
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            pipelines.o.producer_acquire(producer_state(step, quarter))
            blackwell.after_thread_sync()
            t_o = blackwell.accumulator(pv, base_of(quarter, base), T_EVEN, quarter // 2)
            r_left, r_right = r_p[None, None, None, 0], r_v[None, None, None, quarter]
            blackwell.mma(pv, t_o, r_left, r_right, add=tile.more)
            pipelines.kv.umma_release(consumer_state(step, quarter))
            pipelines.o.umma_commit(producer_state(step, quarter))
        pipelines.p.umma_release(consumer_state(step))


def by_quarter(x: cute.Tensor) -> cute.Tensor:
    """View a tensor (tokens, heads, features) as (heads, features of a quarter, quarters, tokens)."""
    tokens, heads, features = x.stride
    shape = (x.shape[1], FEATURES, QUARTERS, x.shape[0])
    layout = cute.make_layout(shape, stride=(heads, features, FEATURES, tokens))
    return cute.make_tensor(x.iterator, layout)


def qk_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.K, HEADS, TOKENS)


def pv_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.MN, HEADS, FEATURES)
