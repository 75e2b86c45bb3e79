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
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm100_gather import Gather
from gdnbench_kernels.swa_decode.sm100_plan import (
    FEATURES,
    HALF,
    HEADS,
    PLAN,
    QUARTERS,
    REGISTERS,
    T_EVEN,
    T_S,
    TOKENS,
    Barrier,
    Pipelines,
    PipelineState,
    Role,
    Shared,
    TileScheduler,
    base_of,
    consumer_state,
    producer_state,
)

BF16 = cutlass.BFloat16
LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LEAST_NORMAL = 2.0**-126
GREATEST = 2.0**126
"""Its reciprocal is LEAST_NORMAL; reciprocals of larger numbers are flushed to 0."""
FINITE = (2 - 2.0**-23) * 2.0**127
"""The largest float32."""
NOTHING = 1.0
"""m if no token counts. No other row has this m with l = 0: its largest score would add 1 to l."""
QUAD = 4
"""Threads that share a row of an accumulator."""
ROWS = 2
"""Rows of an accumulator per thread, `ROW_DISTANCE` apart."""
ROW_DISTANCE = 8


class Tcgen05Decode:
    """The kernel for `heads` heads and caches of one layout."""

    def __init__(self, heads: int, layout: CacheLayout) -> None:
        self.heads = heads
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
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(smem)
        pipelines = Pipelines.allocate(PLAN, smem)
        blackwell.prefetch((tma_q, tma_o), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(PLAN, smem, Role.MMA, Barrier.TMEM)
        # Each role builds its scheduler itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.EPILOGUE:
            cute.arch.setmaxregister_increase(REGISTERS[Role.SOFTMAX])
            self.softmax(self.scheduler(lens), pipelines, shared, base, attn_sink, lse, scale)
        elif warp < Role.GATHER:
            cute.arch.setmaxregister_decrease(REGISTERS[Role.EPILOGUE])
            self.epilogue(self.scheduler(lens), pipelines, shared, base, tma_o)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(REGISTERS[Role.GATHER])
            window = Gather(self.mla, pages, inv_scale, indices, lens, block_shift)
            window.load_window(self.scheduler(lens), pipelines, shared)
        else:
            cute.arch.setmaxregister_decrease(REGISTERS[Role.LOAD])
        if warp == Role.LOAD:
            self.load(self.scheduler(lens), pipelines, shared, tma_q)
        if warp == Role.MMA:
            self.mma(self.scheduler(lens), pipelines, shared, base)
        cute.arch.sync_threads()
        tmem.free(base)

    def scheduler(self, lens: cute.Tensor) -> TileScheduler:
        return TileScheduler.create(lens.shape[0], self.heads)

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
        """A stage of s_kv is read twice. It is released after the second read, or after the first if the CTA
        does not compute those features of o. The loops over quarters stay rolled: unrolled, ptxas would keep
        the descriptors of all operands, 64 bits per step of each product, from item to item."""
        qk, pv = qk_mma(), pv_mma()
        r_q, r_k = blackwell.operands(qk, shared.q, shared.kv, (HEADS, TOKENS, FEATURES))
        r_p, r_v = blackwell.operands(pv, shared.p, shared.kv, (HEADS, FEATURES, TOKENS))
        t_s = blackwell.accumulator(qk, base, T_S)
        for turn in cutlass.range(scheduler.count, unroll=1):
            pipelines.scores.producer_acquire(producer_state(turn))
            for quarter in cutlass.range(QUARTERS, unroll=1):
                state = consumer_state(turn, quarter)
                pipelines.q.consumer_wait(state)
                pipelines.kv.consumer_wait(state)
                blackwell.after_thread_sync()
                r_left, r_right = r_q[None, None, None, quarter], r_k[None, None, None, quarter]
                blackwell.mma(qk, t_s, r_left, r_right, add=quarter > 0)
                pipelines.q.umma_release(state)
                if not scheduler.owns(quarter):
                    pipelines.kv.umma_release(state)
            pipelines.scores.umma_commit(producer_state(turn))
            pipelines.p.consumer_wait(consumer_state(turn))
            for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
                pipelines.o.producer_acquire(producer_state(turn, quarter))
                blackwell.after_thread_sync()
                t_o = blackwell.accumulator(pv, base_of(quarter, base), T_EVEN, quarter // 2)
                blackwell.mma(pv, t_o, r_p[None, None, None, 0], r_v[None, None, None, quarter])
                pipelines.kv.umma_release(consumer_state(turn, quarter))
                pipelines.o.umma_commit(producer_state(turn, quarter))
            pipelines.p.umma_release(consumer_state(turn))
        pipelines.scores.producer_acquire(producer_state(scheduler.count))
        for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
            pipelines.o.producer_acquire(producer_state(scheduler.count, quarter))

    @cute.jit
    def softmax(
        self,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        base: cute.Pointer,
        attn_sink: cute.Tensor | None,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
    ) -> None:
        """Compute P from S, and the factor of each row of o."""
        thread = cute.arch.thread_idx()[0]
        tmem_copy = blackwell.TmemCopy.create(half_mma(), (HEADS, HALF), base, thread)
        r_s = [cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32) for _ in range(TOKENS // HALF)]
        r_p = cute.make_rmem_tensor(tmem_copy.coords.shape, BF16)
        r_max, r_sum, r_top = (cute.make_rmem_tensor((ROWS,), cutlass.Float32) for _ in range(3))
        factor = scale * LOG2_E
        for turn in cutlass.range(scheduler.count, unroll=1):
            state = consumer_state(turn)
            pipelines.factor.consumer_wait(state)
            pipelines.scores.consumer_wait(state)
            blackwell.after_thread_sync()
            for half in cutlass.range_constexpr(len(r_s)):
                tmem_copy.load(T_S, 0, half * HALF, r_s[half])
            cute.arch.fence_view_async_tmem_load()
            blackwell.before_thread_sync()
            pipelines.scores.consumer_release(state)
            r_max.fill(-math.inf)
            for half in cutlass.range_constexpr(len(r_s)):
                self._scale(shared, half, thread % QUAD, factor, r_s[half], r_max)
                # Prevent ptxas from hoisting the loads of the other half's factors, which would cost
                # registers.
                cute.arch.sync_warp()
            none = self._none(shared, thread % WARP)
            for row in cutlass.range_constexpr(ROWS):
                across_quad(r_max, row, cute.arch.fmax)
                # Never subtract an infinity from itself: neither -inf (no score) nor +inf (a score).
                r_max[row] = none if r_max[row] == -math.inf else cute.arch.fmin(r_max[row], FINITE)
            r_sum.fill(0.0)
            r_top.fill(0.0)
            for half in cutlass.range_constexpr(len(r_s)):
                self._exponentiate(shared, half, thread % QUAD, r_s[half], r_max, r_sum, r_top)
                cute.arch.sync_warp()
            pipelines.factor.consumer_release(state)
            r_inverse = self._invert(r_top)
            pipelines.p.producer_acquire(producer_state(turn))
            for half in cutlass.range_constexpr(len(r_s)):
                for i in cutlass.range_constexpr(cute.size(r_p)):
                    r_p[i] = (r_s[half][i] * r_inverse[i // 2 % ROWS]).to(BF16)
                tmem_copy.stmatrix(r_p, cute.local_tile(shared.p[None, None, 0], (HEADS, HALF), (0, half)))
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.p.producer_commit(producer_state(turn))
            self._finish(turn, scheduler, pipelines, shared, thread, r_max, r_sum, r_top, attn_sink, lse)
        pipelines.p.producer_acquire(producer_state(scheduler.count))
        pipelines.inverse.producer_acquire(producer_state(scheduler.count))

    @cute.jit
    def _none(self, shared: Shared, lane: cutlass.Int32) -> cutlass.Float32:
        """m of a row without a score above -inf: NOTHING if no token counts, else 0."""
        most = cutlass.Float32(-math.inf)
        for first in cutlass.range_constexpr(0, TOKENS, WARP):
            most = cute.arch.fmax(most, shared.factor[first + lane, 1, 0])
        return cutlass.Float32(0.0) if cute.arch.vote_any_sync(most == 0.0) else cutlass.Float32(NOTHING)

    @cute.jit
    def _scale(
        self,
        shared: Shared,
        half: cutlass.Constexpr,
        lane: cutlass.Int32,
        factor: cutlass.Float32,
        r_s: cute.Tensor,
        r_max: cute.Tensor,
    ) -> None:
        """Scores as exponents of 2, -inf where a token does not count, and their maxima, which ignore NaN."""
        for pair in cutlass.range_constexpr(HALF // 8):
            r_pair = self._factors(shared, half, pair, lane)
            for i in cutlass.range_constexpr(4):
                at, token = 4 * pair + i, i % 2
                score = r_s[at] * (r_pair[2 * token] * factor)
                # Replace, not add: a NaN in the query must not affect an entry that does not count.
                r_s[at] = score if r_pair[2 * token + 1] == 0.0 else cutlass.Float32(-math.inf)
                r_max[i // 2] = cute.arch.fmax(r_max[i // 2], r_s[at])

    @cute.jit
    def _exponentiate(
        self,
        shared: Shared,
        half: cutlass.Constexpr,
        lane: cutlass.Int32,
        r_s: cute.Tensor,
        r_max: cute.Tensor,
        r_sum: cute.Tensor,
        r_top: cute.Tensor,
    ) -> None:
        """p f of half the window; the sums of p; the largest |p f|."""
        for pair in cutlass.range_constexpr(HALF // 8):
            r_pair = self._factors(shared, half, pair, lane)
            for i in cutlass.range_constexpr(4):
                at, row = 4 * pair + i, i // 2
                p = cute.math.exp2(r_s[at] - r_max[row], fastmath=True)
                r_sum[row] = r_sum[row] + p
                r_s[at] = p if self.mla else p * r_pair[2 * (i % 2)]
                r_top[row] = cute.arch.fmax(r_top[row], cute.math.absf(r_s[at]))

    @cute.jit
    def _invert(self, r_top: cute.Tensor) -> cute.Tensor:
        """1 / g; writes g, the largest |p f|, to r_top. In fp8_ds_mla both are 1."""
        r_inverse = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        r_inverse.fill(1.0)
        if cutlass.const_expr(self.mla):
            r_top.fill(1.0)
        else:
            for row in cutlass.range_constexpr(ROWS):
                across_quad(r_top, row, cute.arch.fmax)
                # Numbers outside this range have no reciprocal.
                r_top[row] = cute.arch.fmin(cute.arch.fmax(r_top[row], LEAST_NORMAL), GREATEST)
                r_inverse[row] = cute.arch.rcp_approx(r_top[row])
        return r_inverse

    def _factors(self, shared: Shared, half: int, pair: int, lane: cutlass.Int32) -> cute.Tensor:
        """(factor, whether it counts) of this thread's two tokens of each 8."""
        flat = cute.make_tensor(shared.factor.iterator, cute.make_layout(2 * TOKENS))
        r_pair = cute.make_rmem_tensor((4,), cutlass.Float32)
        cute.autovec_copy(cute.local_tile(flat, (4,), (2 * HALF // 4 * half + 4 * pair + lane,)), r_pair)
        return r_pair

    @cute.jit
    def _finish(
        self,
        turn: cutlass.Int32,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        thread: cutlass.Int32,
        r_max: cute.Tensor,
        r_sum: cute.Tensor,
        r_top: cute.Tensor,
        attn_sink: Any,
        lse: Any,
    ) -> None:
        """Write g / denominator of this thread's rows for EPILOGUE, and lse, by one thread of a quad."""
        token, first = scheduler.work_tile(turn)
        pipelines.inverse.producer_acquire(producer_state(turn))
        for row in cutlass.range_constexpr(ROWS):
            across_quad(r_sum, row, operator.add)
            at = row_of(thread, row)
            head = first + at
            total = r_sum[row]
            if thread % QUAD == 0 and head < self.heads:
                if cutlass.const_expr(attn_sink is not None):
                    total += cute.math.exp2(attn_sink[head] * LOG2_E - r_max[row], fastmath=True)
                if cutlass.const_expr(lse is not None):
                    natural = (r_max[row] + cute.math.log2(r_sum[row], fastmath=True)) * LN_2
                    # All parts of a request have the same lse; part 0 writes it.
                    if scheduler.first == 0:
                        lse[token, head] = natural
            inverse = r_top[row] * cute.arch.rcp_approx(total)
            if thread % QUAD == 0:
                # If no token counts, o is 0 whatever the sink.
                nothing = (r_sum[row] == 0.0) & (r_max[row] == NOTHING)
                shared.inverse[at, 0] = cutlass.Float32(0.0) if nothing else inverse
        pipelines.inverse.producer_commit(producer_state(turn))

    @cute.jit
    def epilogue(
        self,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        base: cute.Pointer,
        tma_o: blackwell.Tma,
    ) -> None:
        """Divide, round and store o, a quarter of the features at a time."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread = cute.arch.thread_idx()[0] - WARP * Role.EPILOGUE
        threads = PLAN.threads_of(Role.EPILOGUE)
        together = pipeline.NamedBarrier(barrier_id=Barrier.EPILOGUE, num_threads=threads)
        r_inverse = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
        for turn in cutlass.range(scheduler.count, unroll=1):
            token, head = scheduler.work_tile(turn)
            pipelines.inverse.consumer_wait(consumer_state(turn))
            for row in cutlass.range_constexpr(ROWS):
                r_inverse[row] = shared.inverse[row_of(thread, row), 0]
            pipelines.inverse.consumer_release(consumer_state(turn))
            for quarter in cutlass.range(scheduler.first, scheduler.stop, unroll=1):
                if warp == Role.EPILOGUE:
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                together.arrive_and_wait()
                tmem_copy = blackwell.TmemCopy.create(
                    half_mma(), (HEADS, HALF), base_of(quarter, base), thread
                )
                self._form_o(
                    consumer_state(turn, quarter), pipelines, shared.o[None, None, 0], tmem_copy, r_inverse
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if warp == Role.EPILOGUE:
                    with cute.arch.elect_one():
                        tma_o.store(shared.o[None, None, 0], head, quarter, token)
                        cute.arch.cp_async_bulk_commit_group()
        if warp == Role.EPILOGUE:
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _form_o(
        self,
        state: PipelineState,
        pipelines: Pipelines,
        s_o: cute.Tensor,
        tmem_copy: blackwell.TmemCopy,
        r_inverse: cute.Tensor,
    ) -> None:
        """Write a quarter of o to s_o, half of its columns at a time."""
        r_acc = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
        r_o = cute.make_rmem_tensor(tmem_copy.coords.shape, BF16)
        pipelines.o.consumer_wait(state)
        blackwell.after_thread_sync()
        for half in cutlass.range_constexpr(FEATURES // HALF):
            tmem_copy.load(T_EVEN, state.index // 2, half * HALF, r_acc)
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(half == FEATURES // HALF - 1):
                blackwell.before_thread_sync()
                pipelines.o.consumer_release(state)
            for i in cutlass.range_constexpr(cute.size(r_acc)):
                r_acc[i] = r_acc[i] * r_inverse[i // 2 % ROWS]
            r_o.store(r_acc.load().to(BF16))
            tmem_copy.stmatrix(r_o, cute.local_tile(s_o, (HEADS, HALF), (0, half)))


def across_quad(r_values: cute.Tensor, row: int, combine: Callable[..., Any]) -> None:
    """Combine a row's value of four threads; all four get the result."""
    for lane in range(QUAD.bit_length() - 1):
        other = cute.arch.shuffle_sync_bfly(r_values[row], 1 << lane)
        r_values[row] = combine(r_values[row], other)


def row_of(thread: cutlass.Int32, row: int) -> cutlass.Int32:
    """One of the rows of a thread's values in `blackwell.TmemCopy`."""
    return thread // WARP * 16 + thread % WARP // QUAD + row * ROW_DISTANCE


def by_quarter(x: cute.Tensor) -> cute.Tensor:
    """View a tensor (tokens, heads, features) as (heads, features of a quarter, quarters, tokens)."""
    tokens, heads, features = x.stride
    shape = (x.shape[1], FEATURES, QUARTERS, x.shape[0])
    layout = cute.make_layout(shape, stride=(heads, features, FEATURES, tokens))
    return cute.make_tensor(x.iterator, layout)


def qk_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.K, HEADS, TOKENS)


def half_mma() -> cute.TiledMma:
    """An MMA whose accumulator has the columns that a thread loads at once."""
    return blackwell.make_tiled_mma(OperandMajorMode.K, HEADS, HALF)


def pv_mma() -> cute.TiledMma:
    return blackwell.make_tiled_mma(OperandMajorMode.MN, HEADS, FEATURES)
