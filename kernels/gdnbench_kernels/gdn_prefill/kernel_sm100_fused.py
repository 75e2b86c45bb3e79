"""Prefill in one kernel: FLA's and vLLM's `chunk_gated_delta_rule`, fused. CuTe DSL, sm_100a.

Reads q, k, v, gates and initial states; writes o and final states. For a chunk of C = 64 tokens and value
head hv, with key head hv // (Hv / H) and K = V = 128, S the state before the chunk and h its rounding:

    g_cu  = cumsum(g)                                       summed in fp64, rounded once to f32
    A     = strict_lower(beta_i (K K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    Ai    = (I + A)^-1                                      inverse.py
    P     = lower((Q K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    X     = V - exp(g_cu) K h^T
    V_new = (Ai beta_j) X
    o     = scale (exp(g_cu) Q h^T + P V_new)
    S     = exp(g_last) S + (V_new exp(g_last - g_cu))^T K

U and W of chunk_uw.py (V_new = U - W h^T) are not computed: Ai beta_j is a common factor of both. The chunk's
products in order, except that 1 and 2 of the next chunk are issued after 4:

    product              M    N    K    left operand            right operand      accumulator
    1. KKT               64   64   128  s_k, K-major            s_k, K-major       t_kkt
    2. QK                64   64   128  s_q, K-major            s_k, K-major       t_qk
    3. (K h^T)^T         128  64   128  s_h, K-major            s_k, K-major       t_ks
    4. (Q h^T)^T         128  64   128  s_h, K-major            s_q, K-major       t_qs
    5. V_new^T           128  64   64   s_left = X^T, K-major   s_aib, K-major     t_v_new
    6. D2, added to S    128  128  64   s_left = Vs^T, K-major  s_k, N-major       t_added
    7. (P V_new)^T       128  64   64   s_v_new, K-major        s_p, K-major       t_pv

Vs is V_new exp(g_last - g_cu). CTA n Hv + head updates S of one value head through one sequence, chunk after
chunk, in registers and unrounded. Rows of STATE's tiles are the V dim (fused_state.py). A CTA has all 128 of
them, not half as in chunk_state.py, because every CTA has to invert A. Ai and P depend only on the inputs,
so they are computed one chunk ahead of the recurrence.

    SMEM        shape               dtype     layout
    s_k         64 x 128, 3 stages  bfloat16  K-major, SW128; read as N-major too
    s_q         64 x 128, 2 stages  bfloat16  K-major, SW128
    s_v         64 x 128            bfloat16  row = token, SW128
    s_h         128 x 128           bfloat16  K-major, SW128
    s_left      128 x 64            bfloat16  K-major, SW128: X^T, then (V_new exp(g_last - g_cu))^T
    s_v_new     128 x 64            bfloat16  K-major, SW128: V_new^T
    s_aib       64 x 64, 2 stages   bfloat16  K-major, SW128: Ai beta_j
    s_p         64 x 64, 2 stages   bfloat16  K-major, SW128
    s_o         64 x 128            bfloat16  row = token, SW128
    s_gate      4 x 64, 3 stages    float32   a row for each of GATE's
    s_blocks    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal  4 x 16 x 20         float32   columns contiguous, padded

    TMEM     shape              columns   lanes  layout
    t_kkt    64 x 64, 2 stages  0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_qk     64 x 64, 2 stages  0..127    high   M=64: row r in lane 32 (r/16) + r%16, + 16
    t_ks     128 x 64           128..191  all    row r in lane r
    t_qs     128 x 64           192..255  all    row r in lane r
    t_v_new  128 x 64           256..319  all    row r in lane r
    t_pv     128 x 64           320..383  all    row r in lane r
    t_added  128 x 128          384..511  all    row r in lane r

    role    warps  does
    STATE   0..7   carries S in registers, 64 rows each four warps; h, X, V_new and o
    INVERT  8..11  KKT and QK from TMEM; A and Ai in registers; Ai beta and P into SMEM
    LOAD    12     TMA of K, Q and V; zeros past the end of the sequence
    MMA     13     allocates TMEM; all products, KKT and QK a chunk ahead
    GATE    14     scans g; g_cu, beta, exp(g_cu) and exp(g_last - g_cu) into SMEM
    STORE   15     o to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    k         3       1 LOAD + 16384 bytes  1 MMA commit
    q         2       1 LOAD + 16384 bytes  1 MMA commit
    v         1       1 LOAD + 16384 bytes  8 STATE warp
    tail      2       1 LOAD + 16384 bytes  1 nobody
    gate      3       1 GATE                12 INVERT, STATE warp
    scores    2       1 MMA commit          4 INVERT warp
    squares   2       4 INVERT warp         1 MMA commit
    h         1       8 STATE warp          1 MMA commit
    ks        1       1 MMA commit          8 STATE warp
    left      1       8 STATE warp          1 MMA commit
    update    1       1 MMA commit          8 STATE warp
    v_new     1       8 STATE warp          1 MMA commit
    added     1       1 MMA commit          8 STATE warp
    out       1       1 MMA commit          8 STATE warp
    o         1       8 STATE warp          1 STORE

    sync                               who                 orders
    fence.mbarrier_init, barrier TMEM  all                 mbarriers, tensor memory: before their use
    setmaxnreg                         all                 increases wait for the others' decrease
    tail pipeline                      LOAD                K, V have landed before zeros are stored
    fence.proxy.async                  LOAD                zeros in s_k written before products read them
    barrier INVERT                     INVERT              exchanges within the inverse: inverse.py
    fence.proxy.async                  INVERT              s_aib, s_p written before products read them
    fence.proxy.async                  STATE               s_h, s_left, s_v_new written before products
    fence.proxy.async                  STATE               s_o written before TMA, s_v read before TMA writes
    tcgen05.wait::ld                   INVERT, STATE       tensor memory read before its release
    tcgen05.fence before, after        MMA, INVERT, STATE  tensor memory, with the mbarriers around
    bulk wait_group.read               STORE               the TMA store has read s_o before its release
    bulk wait_group                    STORE               o stored before the CTA ends
    producer_tail                      each producer       no arrival after the CTA ends
    barrier of the CTA                 all                 tensor memory read before it is freed

512 threads, 229748 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

fused_plan.py makes these tables. With `split` there are 2 stages of s_k and 2 of s_blocks, 221540 bytes.

A last chunk of fewer than 64 tokens: past its end LOAD sets rows of K and V to zero, g and beta are 0, and
the gate is the last token's. So A, X and V_new are 0 there, unless h is not finite. Q continues with the next
sequence: those rows of P and o are not stored. A sequence without tokens has no chunks: its final state is
its initial one.

Limits: K = V = 128, C = 64, Hv a multiple of H, bf16 tensors, f32 gates. Initial and final states are f32,
bf16 or absent; an absent initial state is 0. beta at most 1, with `split` 2; N >= 1; T Hv, N Hv < 2^31, with
states also N Hv V K; tensors contiguous, aligned to 16 bytes. g is at most 0. The sums never increase, even
where fp64 rounded, so no exponent is positive. g = -inf is replaced by -128, a finite g below -2^14 by
-2^14, +inf by NaN. NaN in a sequence stays in its own o and final state. A sequence's bits depend only on
its own data; sums have a fixed order. The grid has one CTA per sequence and value head: one long sequence
leaves SMs idle that chunk_uw.py and chunk_output.py would use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import TileMma, WorkTile, load_own_rows, store_output
from gdnbench_kernels.gdn_prefill import fused_state, inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import (
    OF_OUTPUTS,
    SQUARE,
    T_ADDED,
    T_KKT,
    T_KS,
    T_PV,
    T_QK,
    T_QS,
    T_V_NEW,
    TOKENS,
    Barrier,
    Pipelines,
    Role,
    Row,
    Shared,
    planned,
)
from gdnbench_kernels.gdn_prefill.gate_scan import decay, rounded_decay, scan
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.triangle import fragment_column, fragment_row
from gdnbench_kernels.plan import WARP, KernelPlan

STATE_REGISTERS, INVERT_REGISTERS, OTHER_REGISTERS = 152, 144, 64
"""Registers per thread after setmaxnreg; 128 at launch."""

PLAN = planned(split=False)
SPLIT_PLAN = planned(split=True)


@dataclass(frozen=True, kw_only=True)
class Tma:
    """The tensors in global memory from and to which TMA copies tiles."""

    k: blackwell.Tma
    q: blackwell.Tma = OF_OUTPUTS
    v: blackwell.Tma
    o: blackwell.Tma = OF_OUTPUTS

    @staticmethod
    def create(k: cute.Tensor, q: cute.Tensor | None, v: cute.Tensor, o: cute.Tensor | None) -> Tma:
        """Of a call's tensors; without q and o for a build without outputs."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        operations = {"k": (load, k), "q": (load, q), "v": (load, v), "o": (store, o)}
        return Tma(
            **{
                name: blackwell.Tma.create(operation, blackwell.by_head(x), TOKENS)
                for name, (operation, x) in operations.items()
                if x is not None
            }
        )

    def used(self) -> tuple[blackwell.Tma, ...]:
        return tuple(tensor for tensor in (self.k, self.q, self.v, self.o) if tensor is not OF_OUTPUTS)


@dataclass(frozen=True)
class ChunkFused:
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
        """q, k [T, H, 128] and v, o [T, Hv, 128] bf16, g and beta [T, Hv] f32, cu_seqlens [N+1] int32, states
        [N, Hv, 128, 128] f32 or bf16."""
        tma = Tma.create(k, q, v, o)
        states = fused_state.States(initial_state, final_state)
        self.kernel(tma, (g, beta), cu_seqlens, states, o, scale).launch(
            grid=((cute.size(cu_seqlens) - 1) * self.value_heads, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        gates: tuple[cute.Tensor, cute.Tensor],
        cuts: Any,
        states: Any,
        o: cute.Tensor | None,
        scale: cutlass.Float32,
    ) -> None:
        """`cuts` is what `work` finds a CTA's tokens by; `states` has methods `load` and `store`."""
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = inverse.Scratch.allocate(smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch(tma.used(), warp == Role.LOAD)
        blackwell.init_barriers(pipelines, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(plan, smem, Role.MMA, Barrier.TMEM)
        # Each role computes its work tile itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.INVERT:
            cute.arch.setmaxregister_increase(STATE_REGISTERS)
            fused_state.recurrence(self.work(cuts), pipelines, shared, base, states, scale, self.outputs)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(INVERT_REGISTERS)
            self.invert(self.work(cuts), pipelines, shared, scratch, base)
        else:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == Role.LOAD:
            self.load(self.work(cuts), pipelines, shared, tma)
        if warp == Role.MMA:
            self.mma(self.work(cuts), pipelines, shared, base)
        if warp == Role.GATE:
            self.scan_gates(self.work(cuts), pipelines, shared, *gates)
        if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
            if warp == Role.STORE:
                store_output(self.work(cuts), pipelines.o, shared.o, tma.o, o, self.value_heads)
        cute.arch.sync_threads()
        tmem.free(base)

    outputs = True
    """Whether the build computes o."""

    @property
    def plan(self) -> KernelPlan:
        return SPLIT_PLAN if self.split else PLAN

    def work(self, cuts: Any) -> WorkTile:
        """The calling CTA's; `cuts` is cu_seqlens."""
        return WorkTile.create(cuts, self.value_heads)

    @cute.jit
    def load(self, work: WorkTile, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load K, Q and V of each chunk. Past the end of the sequence, rows of Q affect only rows of o that
        are not stored; rows of K and V would affect all others, so they are zeroed."""
        key_head = work.head // (self.value_heads // self.heads)
        k, v = pipelines.k.producer_state(), pipelines.v.producer_state()
        if cutlass.const_expr(self.outputs):
            q = pipelines.q.producer_state()
        k_tail, v_tail = pipelines.tail.consumer_state(), pipelines.tail.consumer_state()
        v_tail.advance()
        for i in cutlass.range(work.chunks, unroll=1):
            token = work.start + CHUNK * i
            pipelines.k.producer_acquire(k)
            load_own_rows(
                pipelines.tail, pipelines.k, k, k_tail, tma.k, shared.k, work.stop - token, token, key_head
            )
            if cutlass.const_expr(self.outputs):
                pipelines.q.producer_acquire(q)
                pipelines.q.arrive_and_expect_tx(q)
                tma.q.load(pipelines.q, q, shared.q, token, key_head)
            if work.has_v:
                pipelines.v.producer_acquire(v)
                load_own_rows(
                    pipelines.tail,
                    pipelines.v,
                    v,
                    v_tail,
                    tma.v,
                    shared.v,
                    work.stop - token,
                    token,
                    work.head,
                )
                v.advance()
            k.advance()
            if cutlass.const_expr(self.outputs):
                q.advance()
        pipelines.k.producer_tail(k)
        if cutlass.const_expr(self.outputs):
            pipelines.q.producer_tail(q)
        pipelines.v.producer_tail(v)

    @cute.jit
    def scan_gates(
        self, work: WorkTile, pipelines: Pipelines, shared: Shared, g: cute.Tensor, beta: cute.Tensor
    ) -> None:
        """Lane l has tokens 2l and 2l + 1. Past the end of the sequence g and beta are 0. exp(g_cu) also
        multiplies the state, so it uses `rounded_decay`."""
        lane = cute.arch.lane_idx()
        gate = pipelines.gate.producer_state()
        r_g, r_beta, r_sum = (cute.make_rmem_tensor((2,), cutlass.Float32) for _ in range(3))
        for i in cutlass.range(work.chunks, unroll=1):
            token = work.start + CHUNK * i + 2 * lane
            r_g.fill(0.0)
            r_beta.fill(0.0)
            for j in cutlass.range_constexpr(2):
                if token + j < work.stop:
                    r_g[j] = g[token + j, work.head]
                    r_beta[j] = beta[token + j, work.head]
            scan(r_g, r_sum, lane)
            g_last = cute.arch.shuffle_sync(r_sum[1], WARP - 1)
            pipelines.gate.producer_acquire(gate)
            for j in cutlass.range_constexpr(2):
                s_rows = shared.gate[None, 2 * lane + j, gate.index]
                s_rows[Row.G_CU], s_rows[Row.BETA] = r_sum[j], r_beta[j]
                s_rows[Row.DECAY], s_rows[Row.REST] = rounded_decay(r_sum[j]), decay(g_last - r_sum[j])
            pipelines.gate.producer_commit(gate)
            gate.advance()
        pipelines.gate.producer_tail(gate)

    @cute.jit
    def mma(self, work: WorkTile, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue KKT and QK of the next chunk after the products that read the state, because STATE waits for
        those."""
        kkt = TileMma.create(base, T_KKT, shared.k, shared.k)
        read_k = TileMma.create(base, T_KS, shared.h, shared.k)
        update = TileMma.create(base, T_V_NEW, shared.left, shared.aib)
        add = TileMma.create(base, T_ADDED, shared.left, shared.k, OperandMajorMode.MN)
        k_ahead, k = pipelines.k.consumer_state(), pipelines.k.consumer_state()
        h, left = pipelines.h.consumer_state(), pipelines.left.consumer_state()
        squares = pipelines.squares.consumer_state()
        scores, ks, updates = (
            pipe.producer_state() for pipe in (pipelines.scores, pipelines.ks, pipelines.update)
        )
        added = pipelines.added.producer_state()
        if cutlass.const_expr(self.outputs):
            qk = TileMma.create(base, T_QK, shared.q, shared.k)
            read_q = TileMma.create(base, T_QS, shared.h, shared.q)
            read_p = TileMma.create(base, T_PV, shared.v_new, shared.p)
            q_ahead, q = pipelines.q.consumer_state(), pipelines.q.consumer_state()
            v_new, out = pipelines.v_new.consumer_state(), pipelines.out.producer_state()
        # One turn more than chunks: the first only issues KKT and QK, the last only the other products.
        for turn in cutlass.range(work.chunks + 1, unroll=1):
            if turn > 0:
                pipelines.ks.producer_acquire(ks)
                pipelines.h.consumer_wait(h)
                blackwell.after_thread_sync()
                read_k.issue(h, k)
                pipelines.ks.umma_commit(ks)
                if cutlass.const_expr(self.outputs):
                    pipelines.out.producer_acquire(out)
                    blackwell.after_thread_sync()
                    read_q.issue(h, q)
                pipelines.h.umma_release(h)
                if cutlass.const_expr(self.outputs):
                    pipelines.q.umma_release(q)
                ks.advance()
                h.advance()
                if cutlass.const_expr(self.outputs):
                    q.advance()
            if turn < work.chunks:
                pipelines.k.consumer_wait(k_ahead)
                if cutlass.const_expr(self.outputs):
                    pipelines.q.consumer_wait(q_ahead)
                pipelines.scores.producer_acquire(scores)
                blackwell.after_thread_sync()
                kkt.issue(k_ahead, k_ahead, scores.index)
                if cutlass.const_expr(self.outputs):
                    qk.issue(q_ahead, k_ahead, scores.index)
                    q_ahead.advance()
                pipelines.scores.umma_commit(scores)
                k_ahead.advance()
                scores.advance()
            if turn > 0:
                pipelines.squares.consumer_wait(squares)
                pipelines.update.producer_acquire(updates)
                pipelines.left.consumer_wait(left)
                blackwell.after_thread_sync()
                update.issue(left, squares)
                pipelines.update.umma_commit(updates)
                pipelines.left.umma_release(left)
                left.advance()
                pipelines.added.producer_acquire(added)
                pipelines.left.consumer_wait(left)
                blackwell.after_thread_sync()
                add.issue(left, k)
                pipelines.added.umma_commit(added)
                pipelines.left.umma_release(left)
                pipelines.k.umma_release(k)
                if cutlass.const_expr(self.outputs):
                    pipelines.v_new.consumer_wait(v_new)
                    blackwell.after_thread_sync()
                    read_p.issue(v_new, squares)
                    pipelines.out.umma_commit(out)
                    pipelines.v_new.umma_release(v_new)
                pipelines.squares.umma_release(squares)
                updates.advance()
                left.advance()
                added.advance()
                k.advance()
                if cutlass.const_expr(self.outputs):
                    out.advance()
                    v_new.advance()
                squares.advance()
        pipelines.scores.producer_tail(scores)
        pipelines.ks.producer_tail(ks)
        pipelines.update.producer_tail(updates)
        pipelines.added.producer_tail(added)
        if cutlass.const_expr(self.outputs):
            pipelines.out.producer_tail(out)

    @cute.jit
    def invert(
        self,
        work: WorkTile,
        pipelines: Pipelines,
        shared: Shared,
        scratch: inverse.Scratch,
        base: cute.Pointer,
    ) -> None:
        """Compute Ai beta and P of each chunk. Warp w of the four has rows 16w .. 16w + 15."""
        thread = cute.arch.thread_idx()[0] - WARP * Role.INVERT
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.INVERT
        together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT, num_threads=PLAN.threads_of(Role.INVERT))
        tiled_mma = blackwell.make_tiled_mma(OperandMajorMode.K, *SQUARE)
        tmem_copy = blackwell.TmemCopy.create(tiled_mma, SQUARE, base, thread)
        scores, gate, squares = (
            pipelines.scores.consumer_state(),
            pipelines.gate.consumer_state(),
            pipelines.squares.producer_state(),
        )
        for _ in cutlass.range(work.chunks, unroll=1):
            r_square = cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32)
            r_values = cute.make_tensor(r_square.iterator, cute.make_layout(cute.size(r_square)))
            pipelines.scores.consumer_wait(scores)
            blackwell.after_thread_sync()
            tmem_copy.load(T_KKT, scores.index, 0, r_square)
            cute.arch.fence_view_async_tmem_load()
            pipelines.gate.consumer_wait(gate)
            s_gate = shared.gate[None, None, gate.index]
            lane = blackwell.opaque(cute.arch.lane_idx())
            triangle.form_a(r_values, s_gate, warp, lane)
            inverse.invert(r_values, scratch, warp, lane, together)
            # Recompute the lane id here: otherwise ptxas keeps the store addresses live across the inverse.
            lane = blackwell.opaque(lane)
            pipelines.squares.producer_acquire(squares)
            triangle.scale_columns(r_values, s_gate[Row.BETA, None], lane)
            triangle.write_rows(r_values, shared.aib[None, None, squares.index], warp, lane)
            if cutlass.const_expr(self.outputs):
                tmem_copy.load(T_QK, scores.index, 0, r_square)
                cute.arch.fence_view_async_tmem_load()
            blackwell.before_thread_sync()
            pipelines.scores.consumer_release(scores)
            if cutlass.const_expr(self.outputs):
                self._form_p(r_values, s_gate, warp, lane)
                triangle.write_rows(r_values, shared.p[None, None, squares.index], warp, lane)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.squares.producer_commit(squares)
            pipelines.gate.consumer_release(gate)
            scores.advance()
            gate.advance()
            squares.advance()
        pipelines.squares.producer_tail(squares)

    @cute.jit
    def _form_p(
        self, r_qk: cute.Tensor, s_gate: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32
    ) -> None:
        """Replace QK by P. Above the diagonal the exponent could be positive and QK not finite (K's rows past
        the end are zero, Q's are not), so those elements are replaced by 0, not multiplied."""
        rows = [fragment_row(warp, lane, half) for half in range(2)]
        g_rows = [s_gate[Row.G_CU, row] for row in rows]
        for n in cutlass.range_constexpr(CHUNK // 8):
            for j in cutlass.range_constexpr(2):
                column = fragment_column(lane, n, j)
                g_column = s_gate[Row.G_CU, column]
                for half in cutlass.range_constexpr(2):
                    kept = column <= rows[half]
                    span = (g_rows[half] - g_column) if kept else cutlass.Float32(0.0)
                    value = r_qk[4 * n + 2 * half + j] * decay(span)
                    r_qk[4 * n + 2 * half + j] = value if kept else cutlass.Float32(0.0)
