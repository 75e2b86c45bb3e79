"""Kimi Delta Attention prefill in one kernel: `chunk_kda` of FLA, fused. CuTe DSL, sm_100a.

Reads q, k, v, gates and initial states; writes o and final states. For a chunk of C = 64 tokens and value
head hv, with key head hv // (Hv / H) and K = V = 128, S the state before the chunk and h its rounding, o the
product of elements and alpha = exp(g) [C, K] the decays:

    D[i,j] = prod_(j < t <= i) alpha_t                       [K] for each pair i >= j of tokens
    A      = strict_lower(beta_i sum_c k_i[c] D[i,j][c] k_j[c])
    Ai     = (I + A)^-1                                      gdn_prefill/inverse.py
    P      = lower(sum_c q_i[c] D[i,j][c] k_j[c])
    Kd     = K o D[i,before], Qd = Q o D[i,before]           decayed from the chunk's start
    Ke     = K o D[last,j]                                   decayed to the chunk's end
    X      = V - Kd h^T
    V_new  = (Ai beta_j) X
    o      = scale (Qd h^T + P V_new)
    S      = S diag(exp(sum g)) + V_new^T Ke

Levels: D of all pairs has C C K elements, and D[i,j] = exp(g_cu[i] - g_cu[j]) is no product of a factor of i
and one of j that fits in f32 if gates span more than 88. It is one for the pairs of a level: the level of
size 1, 2, 4 .. 32 has the pairs whose block of 2 size tokens has i in its upper half and j in its lower half.
With m the first token of the upper half,

    D[i,j] = up_i down_j        up_i = prod_(m <= t <= i) alpha_t, down_j = prod_(j < t < m) alpha_t

where both are products of numbers up to 1: nothing overflows, there are no exponents to subtract, and what
underflows is 0 to the accuracy of f32. Every pair i > j has one level. So a level scales K and Q row by row,
K in lower halves by down and in upper halves by up, and one product of K with itself and one of Q with K have
the level's elements of A and P in their places; the other elements are finite and ignored. P's diagonal is
that of Q K^T.

Ai beta_j is two bf16 tiles: s_aib has its rounding and s_blocks, between two inversions, the rounding of the
rest. fused_invert.py has the reason.

    product              M    N    K    left operand              right operand             accumulator
    0. Q K^T             64   64   128  s_q, K-major              s_k, K-major              t_qk
    1. K K^T, 6 levels   64   64   128  s_scaled_k, K-major       s_scaled_k, K-major       t_kkt
    2. Q K^T, 6 levels   64   64   128  s_scaled_q, K-major       s_scaled_k, K-major       t_qk
    3. (Kd h^T)^T        128  64   128  s_h, K-major              s_scaled_k, K-major       t_ks
    4. (Qd h^T)^T        128  64   128  s_h, K-major              s_scaled_q, K-major       t_o
    5. V_new^T           128  64   64   s_left = X^T, K-major     s_aib, s_blocks, K-major  t_v_new
    6. V_new^T Ke        128  128  64   s_left = V_new^T, K-major s_k = Ke, N-major         added to t_s
    7. (P V_new)^T       128  64   64   s_left = V_new^T, K-major s_p, K-major              added to t_o

CTA n Hv + head updates S of one value head through one sequence, chunk after chunk, in tensor memory and
unrounded. Products 0 to 2 and the inverse depend only on the inputs: SCALE, SCORES and INVERT are up to a
chunk ahead of the recurrence, of STATE and MMA.

    SMEM        shape               dtype     layout
    s_k         64 x 128, 2 stages  bfloat16  K-major, SW128: K, then Ke, read N-major
    s_q         64 x 128            bfloat16  K-major, SW128
    s_g         64 x 128            float32   row = token, SW128
    s_v         64 x 128            bfloat16  row = token, SW128
    s_scaled_k  64 x 128            bfloat16  K-major, SW128: K of a level, then Kd
    s_scaled_q  64 x 128            bfloat16  K-major, SW128: Q of a level, then Qd
    s_h         128 x 128           bfloat16  K-major, SW128
    s_left      128 x 64            bfloat16  K-major, SW128: X^T, then V_new^T
    s_aib       64 x 64             bfloat16  K-major, SW128: Ai beta_j, rounded
    s_p         64 x 64             bfloat16  K-major, SW128
    s_o         64 x 128            bfloat16  row = token, SW128
    s_total     128, 2 stages       float32   the chunk's decay of each channel
    s_halves    4 x 128             float32   rows contiguous
    s_beta      64, 2 stages        float32   a chunk's
    s_blocks    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal  4 x 16 x 20         float32   columns contiguous, padded

    TMEM     shape              columns   lanes  layout
    t_s      128 x 128          0..127    all    row r in lane r
    t_o      128 x 64           128..191  all    row r in lane r
    t_ks     128 x 64           192..255  all    row r in lane r
    t_v_new  128 x 64           256..319  all    row r in lane r
    t_kkt    64 x 64, 3 stages  320..511  low    M=64: row r in lane 32 (r/16) + r%16
    t_qk     64 x 64, 3 stages  320..511  high   M=64: row r in lane 32 (r/16) + r%16, + 16

    role    warps   does
    STATE   0..7    rounds S to h and decays S in TMEM; X, V_new and o; 64 rows each four warps
    SCALE   8..11   K and Q of each level, Kd, Qd, Ke and the decay of the chunk into SMEM
    INVERT  12..15  A and P from the levels' products; Ai in registers; Ai beta and P into SMEM
    LOAD    16      TMA of K, Q, g and V; zeros past the end of the sequence
    SCORES  17      products of the levels
    MMA     18      allocates TMEM; products with the state
    STORE   19      o to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    k         2       1 LOAD + 16384 bytes  1 MMA commit
    q         1       1 LOAD + 16384 bytes  5 SCALE warp, SCORES commit
    g         1       1 LOAD + 32768 bytes  4 SCALE warp
    v         1       1 LOAD + 16384 bytes  8 STATE warp
    tail      2       1 LOAD + 16384 bytes  1 nobody
    scaled    1       4 SCALE warp          1 SCORES commit
    reads     1       4 SCALE warp          1 MMA commit
    ends      2       4 SCALE warp          1 nobody
    total     2       4 SCALE warp          8 STATE warp
    scores    3       1 SCORES commit       4 INVERT warp
    squares   1       4 INVERT warp         1 MMA commit
    h         1       8 STATE warp          1 MMA commit
    ks        1       1 MMA commit          8 STATE warp
    left      1       8 STATE warp          1 MMA commit
    update    1       1 MMA commit          8 STATE warp
    added     1       1 MMA commit          8 STATE warp
    out       1       1 MMA commit          8 STATE warp
    o         1       8 STATE warp          1 STORE

    sync                               who            orders
    fence.mbarrier_init, barrier TMEM  all            mbarriers, tensor memory: before their use
    setmaxnreg                         all            increases wait for the others' decrease
    tail pipeline                      LOAD           K, V have landed before zeros are stored
    fence.proxy.async                  LOAD           zeros in s_k written before products read them
    fence.proxy.async                  SCALE          s_scaled_k, s_scaled_q, s_k written before products
    fence.proxy.async                  SCALE          s_q, s_g read before TMA writes
    barrier SCALE                      SCALE          s_halves written before the other half is read
    barrier INVERT                     INVERT         exchanges within the inverse: inverse.py
    barrier INVERT                     INVERT         s_blocks read before Ai beta's rest replaces it
    fence.proxy.async                  INVERT         s_aib, s_blocks, s_p written before products read them
    fence.proxy.async                  STATE          s_h, s_left written before products
    fence.proxy.async                  STATE          s_o written before TMA, s_v read before TMA writes
    tcgen05.wait::ld                   INVERT, STATE  tensor memory read before its release
    tcgen05.wait::st                   STATE          S written before products add to it
    tcgen05.fence before, after        TMEM's users   tensor memory, with the mbarriers around
    bulk wait_group.read               STORE          the TMA store has read s_o before its release
    bulk wait_group                    STORE          o stored before the CTA ends
    producer_tail                      each producer  no arrival after the CTA ends
    barrier of the CTA                 all            tensor memory read before it is freed

640 threads, 230788 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

fused_plan.py makes these tables. With `split` there is 1 stage of s_k and 2 of s_blocks, 222564 bytes.

A last chunk of fewer than 64 tokens: past its end LOAD sets rows of K and V to zero, beta is 0 and SCALE
takes decays of 1. So A, X and V_new are 0 there, unless h is not finite. Q continues with the next sequence:
those rows of P and o are not stored. A sequence without tokens has no chunks: its final state is its initial
one.

Limits: K = V = 128, Hv a multiple of H, bf16 tensors, f32 gates. Initial and final states are f32, bf16 or
absent; an absent initial state is 0. beta at most 1, with `split` 2; N >= 1; N Hv < 2^31, T Hv < 2^31, with
states also N Hv V K; tensors contiguous, aligned to 16 bytes. g is at most 0, of any size: exp of -inf is 0,
+inf becomes NaN. NaN in a sequence stays in its own o and final state. A sequence's bits depend only on its
own data; sums have a fixed order. The grid has one CTA per sequence and value head.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import TileMma, WorkTile, load_own_rows, store_output
from gdnbench_kernels.gdn_prefill import inverse
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.kda_prefill import fused_invert, fused_scale, fused_state
from gdnbench_kernels.kda_prefill.fused_plan import (
    BLOCKS_ALIGN,
    LEVELS,
    T_KKT,
    T_KS,
    T_O,
    T_QK,
    T_S,
    T_V_NEW,
    TOKENS,
    Barrier,
    Pipelines,
    Role,
    Shared,
    planned,
)

STATE_REGISTERS, SCALE_REGISTERS, INVERT_REGISTERS, OTHER_REGISTERS = 88, 104, 136, 64
"""Registers per thread after setmaxnreg; 96 at launch."""

PLAN = planned(split=False)
SPLIT_PLAN = planned(split=True)


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory from and to which TMA copies tiles."""

    k: blackwell.Tma
    q: blackwell.Tma
    g: blackwell.Tma
    v: blackwell.Tma
    o: blackwell.Tma


@dataclass(frozen=True)
class KdaFused:
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at most
    2."""

    heads: int
    value_heads: int
    split: bool = False

    def __post_init__(self) -> None:
        if self.value_heads % self.heads:
            raise ValueError(f"{self.value_heads} value heads are no multiple of {self.heads} key heads")

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        initial_state: cute.Tensor | None,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        stream: cuda.CUstream,
    ) -> None:
        """q, k [T, H, 128] and v, o [T, Hv, 128] bf16, g [T, Hv, 128] and beta [T, Hv] f32, cu_seqlens [N+1]
        int32, states [N, Hv, 128, 128] f32 or bf16."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma = Tma(
            *(blackwell.Tma.create(load, blackwell.by_head(x), TOKENS) for x in (k, q, g, v)),
            *(blackwell.Tma.create(store, blackwell.by_head(x), TOKENS) for x in (o,)),
        )
        self.kernel(tma, beta, cu_seqlens, (initial_state, final_state), o, scale).launch(
            grid=((cute.size(cu_seqlens) - 1) * self.value_heads, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        states: tuple[cute.Tensor | None, cute.Tensor | None],
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        plan = SPLIT_PLAN if self.split else PLAN
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = inverse.Scratch.allocate(smem, self.split, BLOCKS_ALIGN)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch((tma.k, tma.q, tma.g, tma.v, tma.o), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(plan, smem, Role.MMA, Barrier.TMEM)
        # Each role computes its work tile itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.SCALE:
            cute.arch.setmaxregister_decrease(STATE_REGISTERS)
            fused_state.recurrence(self.work(cu_seqlens), pipelines, shared, base, *states, scale)
        elif warp < Role.INVERT:
            cute.arch.setmaxregister_increase(SCALE_REGISTERS)
            fused_scale.scale(self.work(cu_seqlens), pipelines, shared)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(INVERT_REGISTERS)
            fused_invert.invert(self.work(cu_seqlens), pipelines, shared, scratch, base, beta)
        else:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == Role.LOAD:
            self.load(self.work(cu_seqlens), pipelines, shared, tma)
        if warp == Role.SCORES:
            self.scores(self.work(cu_seqlens), pipelines, shared, base)
        if warp == Role.MMA:
            self.mma(self.work(cu_seqlens), pipelines, shared, fused_invert.rest_of_aib(scratch), base)
        if warp == Role.STORE:
            store_output(self.work(cu_seqlens), pipelines.o, shared.o, tma.o, o, self.value_heads)
        cute.arch.sync_threads()
        tmem.free(base)

    def work(self, cu_seqlens: cute.Tensor) -> WorkTile:
        return WorkTile.create(cu_seqlens, self.value_heads)

    @cute.jit
    def load(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load K, Q, g and V of each chunk. Past the end of the sequence, SCALE ignores rows of g, and rows
        of Q affect only rows of o that are not stored; rows of K and V would affect all others, so they are
        zeroed."""
        key_head = work.head // (self.value_heads // self.heads)
        k, q, g, v = (pipe.producer_state() for pipe in (pipelines.k, pipelines.q, pipelines.g, pipelines.v))
        k_tail, v_tail = pipelines.tail.consumer_state(), pipelines.tail.consumer_state()
        v_tail.advance()
        for i in cutlass.range(work.chunks, unroll=1):
            token = work.start + CHUNK * i
            pipelines.g.producer_acquire(g)
            pipelines.g.arrive_and_expect_tx(g)
            tma.g.load(pipelines.g, g, shared.g, token, work.head)
            pipelines.k.producer_acquire(k)
            load_own_rows(
                pipelines.tail, pipelines.k, k, k_tail, tma.k, shared.k, work.stop - token, token, key_head
            )
            pipelines.q.producer_acquire(q)
            pipelines.q.arrive_and_expect_tx(q)
            tma.q.load(pipelines.q, q, shared.q, token, key_head)
            pipelines.v.producer_acquire(v)
            load_own_rows(
                pipelines.tail, pipelines.v, v, v_tail, tma.v, shared.v, work.stop - token, token, work.head
            )
            k.advance()
            q.advance()
            g.advance()
            v.advance()
        pipelines.k.producer_tail(k)
        pipelines.q.producer_tail(q)
        pipelines.g.producer_tail(g)
        pipelines.v.producer_tail(v)

    @cute.jit
    def scores(self, work: WorkTile, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue Q K^T for the diagonal of P, then the products of each level."""
        diagonal = TileMma.create(base, T_QK, shared.q, shared.k)
        kkt = TileMma.create(base, T_KKT, shared.scaled_k, shared.scaled_k)
        qk = TileMma.create(base, T_QK, shared.scaled_q, shared.scaled_k)
        k, q, scaled = (pipe.consumer_state() for pipe in (pipelines.k, pipelines.q, pipelines.scaled))
        scores = pipelines.scores.producer_state()
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.k.consumer_wait(k)
            pipelines.q.consumer_wait(q)
            pipelines.scores.producer_acquire(scores)
            blackwell.after_thread_sync()
            diagonal.issue(q, k, scores.index)
            pipelines.scores.umma_commit(scores)
            pipelines.q.umma_release(q)
            scores.advance()
            for _ in cutlass.range(len(LEVELS), unroll=1):
                pipelines.scaled.consumer_wait(scaled)
                pipelines.scores.producer_acquire(scores)
                blackwell.after_thread_sync()
                kkt.issue(scaled, scaled, scores.index)
                qk.issue(scaled, scaled, scores.index)
                pipelines.scores.umma_commit(scores)
                pipelines.scaled.umma_release(scaled)
                scaled.advance()
                scores.advance()
            k.advance()
            q.advance()
        pipelines.scores.producer_tail(scores)

    @cute.jit
    def mma(
        self,
        work: WorkTile,
        pipelines: Pipelines,
        shared: Shared,
        s_rest: cute.Tensor,
        base: cute.Pointer,
    ) -> None:
        """Issue the products with the state. s_rest: what rounds off Ai beta."""
        read_k = TileMma.create(base, T_KS, shared.h, shared.scaled_k)
        read_q = TileMma.create(base, T_O, shared.h, shared.scaled_q)
        update = TileMma.create(base, T_V_NEW, shared.left, shared.aib)
        correct = TileMma.create(base, T_V_NEW, shared.left, s_rest)
        add = TileMma.create(base, T_S, shared.left, shared.k, OperandMajorMode.MN)
        read_p = TileMma.create(base, T_O, shared.left, shared.p)
        k, reads, ends, squares, h, left = (
            pipe.consumer_state()
            for pipe in (
                pipelines.k,
                pipelines.reads,
                pipelines.ends,
                pipelines.squares,
                pipelines.h,
                pipelines.left,
            )
        )
        ks, updates, added, out = (
            pipe.producer_state() for pipe in (pipelines.ks, pipelines.update, pipelines.added, pipelines.out)
        )
        for _ in cutlass.range(work.chunks, unroll=1):
            pipelines.reads.consumer_wait(reads)
            pipelines.ks.producer_acquire(ks)
            pipelines.h.consumer_wait(h)
            blackwell.after_thread_sync()
            read_k.issue(h, reads)
            pipelines.ks.umma_commit(ks)
            pipelines.out.producer_acquire(out)
            blackwell.after_thread_sync()
            read_q.issue(h, reads)
            pipelines.h.umma_release(h)
            pipelines.reads.umma_release(reads)

            pipelines.squares.consumer_wait(squares)
            pipelines.update.producer_acquire(updates)
            pipelines.left.consumer_wait(left)
            blackwell.after_thread_sync()
            update.issue(left, squares)
            correct.issue(left, squares, add=True)
            pipelines.update.umma_commit(updates)
            pipelines.left.umma_release(left)
            left.advance()

            pipelines.ends.consumer_wait(ends)
            pipelines.added.producer_acquire(added)
            pipelines.left.consumer_wait(left)
            blackwell.after_thread_sync()
            add.issue(left, k, add=True)
            pipelines.added.umma_commit(added)
            pipelines.k.umma_release(k)
            read_p.issue(left, squares, add=True)
            pipelines.out.umma_commit(out)
            pipelines.left.umma_release(left)
            pipelines.squares.umma_release(squares)
            left.advance()
            k.advance()
            reads.advance()
            ends.advance()
            squares.advance()
            h.advance()
            ks.advance()
            updates.advance()
            added.advance()
            out.advance()
        pipelines.ks.producer_tail(ks)
        pipelines.update.producer_tail(updates)
        pipelines.added.producer_tail(added)
        pipelines.out.producer_tail(out)
