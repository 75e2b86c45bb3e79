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
products in order, except that 1 and 2 are those of the chunk after next, and issued after 5 and after 6; with
`split` those of the next chunk, after 4. 7 is issued within 3 of the next chunk:

    product              M    N    K    left operand            right operand      accumulator
    1. KKT               64   64   128  s_k, K-major            s_k, K-major       t_kkt
    2. QK                64   64   128  s_q, K-major            s_k, K-major       t_qk
    3. (K h^T)^T         128  64   128  s_h, K-major            s_k, K-major       t_ks
    4. (Q h^T)^T         128  64   128  s_h, K-major            s_q, K-major       t_qs
    5. V_new^T           128  64   64   s_left = X^T, K-major   s_aib, K-major     t_v_new
    6. D2, added to S    128  128  64   s_left = Vs^T, K-major  s_k, N-major       t_added
    7. (P V_new)^T       128  64   64   s_v_new, K-major        s_p, K-major       t_pv

Vs is V_new exp(g_last - g_cu). Work n Hv + head is one value head of one sequence: its S is updated chunk
after chunk, in registers and unrounded. CTA c of n has works c, c + n, ...: while STATE ends one, the others
are already in the next. Rows of STATE's tiles are the V dim (fused_state.py). A CTA has all 128 of
them, not half as in chunk_state.py, because every CTA has to invert A. Ai and P depend only on the inputs,
so they are computed ahead of the recurrence.

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
    s_gate      4 x 64, 4 stages    float32   a row for each of GATE's
    s_blocks    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal  4 x 16 x 20         float32   columns contiguous, padded

    TMEM     shape               columns   lanes  layout
    t_kkt    64 x 64, 2 stages   0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_qk     64 x 64, 2 stages   0..127    high   M=64: row r in lane 32 (r/16) + r%16, + 16
    t_ks     128 x 64            128..191  all    row r in lane r: (K h^T)^T, then V_new^T
    t_qs     128 x 64, 2 stages  192..319  all    row r in lane r
    t_pv     128 x 64            320..383  all    row r in lane r
    t_added  128 x 128           384..511  all    row r in lane r

    role    warps  does
    STATE   0..7   carries S in registers, 64 rows each four warps; h, X, V_new and o
    INVERT  8..11  KKT and QK from TMEM; A and Ai in registers; Ai beta and P into SMEM
    GATE    12     scans g; g_cu, beta, exp(g_cu) and exp(g_last - g_cu) into SMEM
    MMA     13     allocates TMEM; all products, KKT and QK ahead
    LOAD    14     TMA of K, Q and V; zeros past the end of the sequence
    STORE   15     o to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    k         3       1 LOAD + 16384 bytes  1 MMA commit
    q         2       1 LOAD + 16384 bytes  1 MMA commit
    v         1       1 LOAD + 16384 bytes  8 STATE warp
    tail      2       1 LOAD + 16384 bytes  1 nobody
    gate      4       1 GATE                12 INVERT, STATE warp
    scores    2       1 MMA commit          1 nobody
    squares   2       4 INVERT warp         1 MMA commit
    h         2       8 STATE warp          1 nobody
    ks        1       1 MMA commit          1 nobody
    left      1       8 STATE warp          1 nobody
    update    1       1 MMA commit          1 nobody
    added     1       1 MMA commit          1 nobody
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

512 threads, 230772 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

fused_plan.py makes these tables. With `split` there are 2 stages of s_k and 2 of s_blocks, 222564 bytes.

Stages that nobody releases are free when they are written again, because the accesses before are ordered by
the barriers of other pipelines: STATE writes h, X, Vs and V_new after it has waited for a product that is
issued after those that read them (added; update; update of the next chunk); MMA overwrites an accumulator
after it has waited for what STATE wrote after reading it (h, X, Vs), or INVERT (squares). The stages
of h are the halves of its columns: product 3 begins with the first. Its hand-over comes after V_new of the
last chunk, so it is also V_new's; behind the last chunk of all, h is handed over without another one, and ks
once more. t_qs has two stages, because o of a chunk is formed while QS of the next one runs.

A last chunk of fewer than 64 tokens: past its end LOAD sets rows of K and V to zero, g and beta are 0, and
the gate is the last token's. So A, X and V_new are 0 there, unless h is not finite. Q continues with the next
sequence: those rows of P and o are not stored. A sequence without tokens has no chunks: its final state is
its initial one.

Limits: K = V = 128, C = 64, Hv a multiple of H, bf16 tensors, f32 gates. Initial and final states are f32,
bf16 or absent; an absent initial state is 0. beta at most 1, with `split` 2; N >= 1; T Hv, N Hv < 2^31, with
states also N Hv V K; tensors contiguous, aligned to 16 bytes. g is at most 0. The sums never increase, even
where fp64 rounded, so no exponent is positive. g = -inf is replaced by -128, a finite g below -2^14 by
-2^14, +inf by NaN. NaN in a sequence stays in its own o and final state. A sequence's bits depend only on
its own data; sums have a fixed order. A value head of a sequence is never divided: one long sequence leaves
SMs idle, unless it is cut into segments (fused_cp.py).
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill import fused_lanes
from gdnbench_kernels.delta_prefill.fused_tiles import TileMma, WorkTile, load_own_rows, store_chunk
from gdnbench_kernels.gdn_prefill import fused_state, inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import (
    AHEAD,
    GATES,
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
from gdnbench_kernels.plan import WARP, KernelPlan

FIRST, X, DECAYED = blackwell.Turn(0, 0), blackwell.Turn(0, 0), blackwell.Turn(0, 1)
"""The only stage of a buffer; the two phases of s_left in a chunk."""

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
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """q, k [T, H, 128] and v, o [T, Hv, 128] bf16, g and beta [T, Hv] f32, cu_seqlens [N+1] int32, states
        [N, Hv, 128, 128] f32 or bf16."""
        tma = Tma.create(k, q, v, o)
        states = fused_state.States(initial_state, final_state)
        self.kernel(tma, (g, beta), cu_seqlens, states, o, scale).launch(
            grid=(ctas, 1, 1),
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
        tmem, _ = blackwell.allocate_tmem(plan, smem, Role.MMA, Barrier.TMEM)
        # Each role finds its work and tensor memory itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.INVERT:
            cute.arch.setmaxregister_increase(self.registers[0])
            self.recurrence(cuts, pipelines, shared, blackwell.base_of(tmem), states, scale)
        elif warp < Role.GATE:
            cute.arch.setmaxregister_increase(self.registers[1])
            self.invert(cuts, pipelines, shared, scratch, blackwell.base_of(tmem))
        else:
            cute.arch.setmaxregister_decrease(self.registers[2])
        if warp == Role.LOAD:
            self.load(cuts, pipelines, shared, tma)
        if warp == Role.MMA:
            self.mma(cuts, pipelines, shared, blackwell.base_of(tmem))
        if warp == Role.GATE:
            self.scan_gates(cuts, pipelines, shared, *gates)
        if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
            if warp == Role.STORE:
                self.store(cuts, pipelines, shared, tma, o)
        cute.arch.sync_threads()
        tmem.free(blackwell.base_of(tmem))

    outputs = True
    """Whether the build computes o."""
    gate_unit = 1.0
    """Unit of the sums of gates in shared memory."""
    registers = (160, 144, 48)
    """Per thread of STATE, INVERT and the others after setmaxnreg; 128 at launch."""

    @property
    def plan(self) -> KernelPlan:
        return SPLIT_PLAN if self.split else PLAN

    def works(self, cuts: Any) -> cutlass.Int32:
        """How many works the grid has; `cuts` is cu_seqlens."""
        return (cute.size(cuts) - 1) * self.value_heads

    def work(self, cuts: Any, number: cutlass.Int32) -> WorkTile:
        """Work number `number`. A CTA has every n-th, with n CTAs."""
        return WorkTile.create(cuts, self.value_heads, number)

    @cute.jit
    def chunks(self, cuts: Any) -> cutlass.Int32:
        """How many chunks the CTA's works have together. A lane counts every 32nd of them."""
        count = cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(
            first + step * cute.arch.lane_idx(), self.works(cuts), step * WARP, unroll=1
        ):
            count = count + self.work(cuts, number).chunks
        return cute.arch.make_warp_uniform(cute.arch.warp_reduction_sum(count))

    @cute.jit
    def nonempty(self, cuts: Any, number: cutlass.Int32) -> cutlass.Int32:
        """The CTA's first work from `number` on that has chunks, or a number past its last one."""
        works, step = self.works(cuts), cute.arch.grid_dim()[0]
        empty = number < works
        while empty:
            empty = self.work(cuts, number).chunks == 0
            if empty:
                number = number + step
            empty = empty & (number < works)
        return number

    @cute.jit
    def load(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load Q, V and K of each chunk, in the order in which their stages are released: in a turn, Q of the
        chunk after next, V of the next, K of that after these. Past the end of a sequence, rows of Q affect
        only rows of o that are not stored; rows of K and V would affect all others, so they are zeroed."""
        chunks = self.chunks(cuts)
        k, v = pipelines.k.producer_state(), pipelines.v.producer_state()
        if cutlass.const_expr(self.outputs):
            q = pipelines.q.producer_state()
        number = self.nonempty(cuts, cute.arch.block_idx()[0])
        # Of each tensor: the next chunk, and its work; how many chunks of fewer than 64 tokens there were.
        k_number, q_number, v_number = number, number, number
        k_i, q_i, v_i = cutlass.Int32(0), cutlass.Int32(0), cutlass.Int32(0)
        k_tails, v_tails = cutlass.Int32(0), cutlass.Int32(0)
        keys = pipelines.k.spec.stages
        for turn in cutlass.range(chunks + keys, unroll=1):
            if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
                if (turn >= keys - AHEAD) & (turn < chunks + keys - AHEAD):
                    work = self.work(cuts, q_number)
                    pipelines.q.producer_acquire(q)
                    pipelines.q.arrive_and_expect_tx(q)
                    tma.q.load(pipelines.q, q, shared.q, work.start + CHUNK * q_i, self.key_head(work))
                    q.advance()
                    q_number, q_i = self.following(cuts, work, q_number, q_i)
            if (turn >= keys - 1) & (turn < chunks + keys - 1):
                work = self.work(cuts, v_number)
                token = work.start + CHUNK * v_i
                length = work.stop - token
                pipelines.v.producer_acquire(v)
                tail = blackwell.Turn(1, v_tails % 2)
                load_own_rows(pipelines.tail, pipelines.v, v, tail, tma.v, shared.v, length, token, work.head)
                v.advance()
                v_tails = v_tails + is_tail(length)
                v_number, v_i = self.following(cuts, work, v_number, v_i)
            if turn < chunks:
                work = self.work(cuts, k_number)
                token = work.start + CHUNK * k_i
                length = work.stop - token
                pipelines.k.producer_acquire(k)
                tail = blackwell.Turn(0, k_tails % 2)
                load_own_rows(
                    pipelines.tail, pipelines.k, k, tail, tma.k, shared.k, length, token, self.key_head(work)
                )
                k.advance()
                k_tails = k_tails + is_tail(length)
                k_number, k_i = self.following(cuts, work, k_number, k_i)
        pipelines.k.producer_tail(k)
        if cutlass.const_expr(self.outputs):
            pipelines.q.producer_tail(q)
        pipelines.v.producer_tail(v)

    def recurrence(
        self, cuts: Any, pipelines: Pipelines, shared: Shared, base: cute.Pointer, states: Any, scale: Any
    ) -> None:
        """The STATE role."""
        fused_state.recurrence(self, cuts, pipelines, shared, base, states, scale)

    def key_head(self, work: WorkTile) -> cutlass.Int32:
        return work.head // (self.value_heads // self.heads)

    @cute.jit
    def following(
        self, cuts: Any, work: WorkTile, number: cutlass.Int32, i: cutlass.Int32
    ) -> tuple[cutlass.Int32, cutlass.Int32]:
        """The CTA's work and chunk in it after chunk `i` of `work`."""
        i = i + 1
        if i == work.chunks:
            number = self.nonempty(cuts, number + cute.arch.grid_dim()[0])
            i = cutlass.Int32(0)
        return number, i

    @cute.jit
    def store(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma, o: cute.Tensor) -> None:
        """Store the o of each chunk: of a full chunk by TMA, of a shorter one only its own rows, because the
        next sequence follows."""
        done = cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(first, self.works(cuts), step, unroll=1):
            work = self.work(cuts, number)
            for i in cutlass.range(work.chunks, unroll=1):
                turn = blackwell.Turn.consumer(done + i)
                store_chunk(work, i, pipelines.o, turn, shared.o, tma.o, o, self.value_heads)
            done = done + work.chunks
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def scan_gates(
        self, cuts: Any, pipelines: Pipelines, shared: Shared, g: cute.Tensor, beta: cute.Tensor
    ) -> None:
        """Lane l has tokens 2l and 2l + 1. Past the end of the sequence g and beta are 0. exp(g_cu) also
        multiplies the state, so it uses `rounded_decay`. A chunk's g and beta are loaded before those of the
        last one are used: behind the tiles of all SMs a load may take most of a chunk's time."""
        lane = cute.arch.lane_idx()
        r_g, r_beta, r_sum, r_next_g, r_next_beta = (
            cute.make_rmem_tensor((2,), cutlass.Float32) for _ in range(5)
        )
        chunks = self.chunks(cuts)
        number = self.nonempty(cuts, cute.arch.block_idx()[0])
        token, stop, head = cutlass.Int32(0), cutlass.Int32(0), cutlass.Int32(0)
        if chunks > 0:
            work = self.work(cuts, number)
            token, stop, head = work.start + 2 * lane, work.stop, work.head
            read_gates(token, stop, head, (g, beta), (r_next_g, r_next_beta))
        for turn in cutlass.range(chunks, unroll=1):
            gate = blackwell.Turn.producer(turn, GATES)
            for j in cutlass.range_constexpr(2):
                inside = token + j < stop
                r_g[j] = cutlass.select_(inside, r_next_g[j], cutlass.Float32(0.0))
                r_beta[j] = cutlass.select_(inside, r_next_beta[j], cutlass.Float32(0.0))
            if turn + 1 < chunks:
                token = token + CHUNK
                if token - 2 * lane >= stop:
                    number = self.nonempty(cuts, number + cute.arch.grid_dim()[0])
                    work = self.work(cuts, number)
                    token, stop, head = work.start + 2 * lane, work.stop, work.head
            # Behind the last chunk once more, which costs less than a branch around the loads.
            read_gates(token, stop, head, (g, beta), (r_next_g, r_next_beta))
            scan(r_g, r_sum, lane, self.gate_unit)
            g_last = cute.arch.shuffle_sync(r_sum[1], WARP - 1)
            pipelines.gate.producer_acquire(gate)
            for j in cutlass.range_constexpr(2):
                s_rows = shared.gate[None, 2 * lane + j, gate.index]
                s_rows[Row.G_CU], s_rows[Row.BETA] = r_sum[j], r_beta[j]
                s_rows[Row.DECAY] = rounded_decay(r_sum[j], self.gate_unit)
                s_rows[Row.REST] = decay(g_last - r_sum[j], self.gate_unit)
            pipelines.gate.producer_commit(gate)
        pipelines.gate.producer_tail_after(chunks)

    @cute.jit
    def mma(self, cuts: Any, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue all products. KKT and QK do not need the state: they are issued ahead, by as many chunks as
        the stages of K allow, when no product that STATE waits for can be issued."""
        kkt = TileMma.create(base, T_KKT, shared.k, shared.k)
        read_k = TileMma.create(base, T_KS, shared.h, shared.k)
        update = TileMma.create(base, T_V_NEW, shared.left, shared.aib)
        add = TileMma.create(base, T_ADDED, shared.left, shared.k, OperandMajorMode.MN)
        k_ahead, k = pipelines.k.consumer_state(), pipelines.k.consumer_state()
        qk = TileMma.create(base, T_QK, shared.q, shared.k)
        read_q = TileMma.create(base, T_QS, shared.h, shared.q)
        read_p = TileMma.create(base, T_PV, shared.v_new, shared.p)
        q_ahead, q = pipelines.q.consumer_state(), pipelines.q.consumer_state()
        ahead = cutlass.const_expr(pipelines.k.spec.stages - 1)
        chunks = self.chunks(cuts)
        for turn in cutlass.range(chunks + ahead, unroll=1):
            # The chunk whose state is read, as a stage of one and of two; the chunk before it.
            chunk = blackwell.Turn.consumer(turn + ahead)
            squares = blackwell.Turn.consumer(turn + (4 - ahead), AHEAD)
            before = blackwell.Turn.consumer(turn + (3 - ahead), AHEAD)
            if turn >= ahead:
                pipelines.h.consumer_wait(blackwell.Turn(0, chunk.phase))
                blackwell.after_thread_sync()
                read_k.issue(FIRST, k, half=0)
                if turn > ahead:
                    read_p.issue(FIRST, before)
                    pipelines.squares.umma_release(before)
                pipelines.h.consumer_wait(blackwell.Turn(1, chunk.phase))
                blackwell.after_thread_sync()
                read_k.issue(FIRST, k, half=1)
                pipelines.ks.umma_commit(chunk)
                read_q.issue(FIRST, q, (turn + ahead) % AHEAD)
                pipelines.q.umma_release(q)
                q.advance()
            if (ahead == 1) & (turn < chunks):
                self.issue_kkt(pipelines, turn, kkt, k_ahead)
                self.issue_qk(pipelines, turn, qk, q_ahead, k_ahead)
                k_ahead.advance()
                q_ahead.advance()
            if turn >= ahead:
                pipelines.squares.consumer_wait(squares)
                pipelines.left.consumer_wait(X)
                blackwell.after_thread_sync()
                update.issue(FIRST, squares)
                pipelines.update.umma_commit(chunk)
            if (ahead > 1) & (turn < chunks):
                self.issue_kkt(pipelines, turn, kkt, k_ahead)
            if turn >= ahead:
                pipelines.left.consumer_wait(DECAYED)
                blackwell.after_thread_sync()
                add.issue(FIRST, k)
                pipelines.added.umma_commit(chunk)
                pipelines.k.umma_release(k)
                k.advance()
            if (ahead > 1) & (turn < chunks):
                self.issue_qk(pipelines, turn, qk, q_ahead, k_ahead)
                k_ahead.advance()
                q_ahead.advance()
        if chunks > 0:
            pipelines.h.consumer_wait(blackwell.Turn(0, chunks % 2))
            blackwell.after_thread_sync()
            last = blackwell.Turn.consumer(chunks + (AHEAD - 1), AHEAD)
            read_p.issue(FIRST, last)
            pipelines.squares.umma_release(last)
            pipelines.ks.umma_commit(blackwell.Turn.consumer(chunks))

    def issue_kkt(self, pipelines: Pipelines, chunk: Any, kkt: TileMma, k: Any) -> None:
        """Issue KKT of a chunk, whose stage of K is `k`. INVERT has read the accumulator's last values: MMA
        has waited for the squares that came from them."""
        pipelines.k.consumer_wait(k)
        kkt.issue(k, k, chunk % AHEAD)

    def issue_qk(self, pipelines: Pipelines, chunk: Any, qk: TileMma, q: Any, k: Any) -> None:
        """Issue QK of a chunk; hand over both."""
        pipelines.q.consumer_wait(q)
        qk.issue(q, k, chunk % AHEAD)
        pipelines.scores.umma_commit(blackwell.Turn.consumer(chunk, AHEAD))

    @cute.jit
    def invert(
        self,
        cuts: Any,
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
        chunks = self.chunks(cuts)
        for turn in cutlass.range(chunks, unroll=1):
            gate = blackwell.Turn.consumer(turn, GATES)
            scores, squares = blackwell.Turn.consumer(turn, AHEAD), blackwell.Turn.producer(turn, AHEAD)
            r_kkt, r_qk = (cute.make_rmem_tensor(tmem_copy.coords.shape, cutlass.Float32) for _ in range(2))
            r_a, r_p = fused_lanes.flat(r_kkt), fused_lanes.flat(r_qk)
            pipelines.gate.consumer_wait(gate)
            s_gate = shared.gate[None, None, gate.index]
            pipelines.scores.consumer_wait(scores)
            blackwell.after_thread_sync()
            tmem_copy.load(T_KKT, scores.index, 0, r_kkt)
            # With `split` the inverse leaves no registers for both squares.
            both = cutlass.const_expr(self.outputs and not self.split)
            if cutlass.const_expr(both):
                tmem_copy.load(T_QK, scores.index, 0, r_qk)
            else:
                r_qk.fill(0.0)
            cute.arch.fence_view_async_tmem_load()
            if cutlass.const_expr(both or not self.outputs):
                blackwell.before_thread_sync()
            if cutlass.const_expr(self.outputs):
                pipelines.squares.producer_acquire(squares)
            # Recompute the lane: otherwise ptxas keeps addresses live from turn to turn.
            lane = blackwell.lane_of_turn(turn)
            triangle.form_squares(r_a, r_p, s_gate, warp, lane)
            s_p = None if cutlass.const_expr(not self.outputs) else shared.p[None, None, squares.index]
            if cutlass.const_expr(both):
                triangle.write_rows(r_p, s_p, warp, lane)
            lane = blackwell.lane_of_turn(turn)
            inverse.invert(r_a, scratch, warp, lane, together)
            lane = blackwell.lane_of_turn(turn)
            triangle.scale_columns(r_a, s_gate[Row.BETA, None], lane)
            triangle.write_rows(r_a, shared.aib[None, None, squares.index], warp, lane)
            if cutlass.const_expr(self.outputs and not both):
                tmem_copy.load(T_QK, scores.index, 0, r_qk)
                cute.arch.fence_view_async_tmem_load()
                blackwell.before_thread_sync()
                r_kkt.fill(0.0)
                triangle.form_squares(r_a, r_p, s_gate, warp, lane)
                triangle.write_rows(r_p, s_p, warp, lane)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.squares.producer_commit(squares)
            pipelines.gate.consumer_release(gate)
        if cutlass.const_expr(self.outputs):
            pipelines.squares.producer_tail_after(chunks)


@cute.jit
def read_gates(
    token: cutlass.Int32,
    stop: cutlass.Int32,
    head: cutlass.Int32,
    gates: tuple[cute.Tensor, cute.Tensor],
    r_gates: tuple[cute.Tensor, cute.Tensor],
) -> None:
    """Load g and beta of tokens `token` and the next, in place of tokens from `stop` on the last one's."""
    for g_values, r_values in zip(gates, r_gates, strict=True):
        for j in cutlass.range_constexpr(2):
            at = cutlass.select_(token + j < stop, token + j, stop - 1)
            r_values[j] = g_values[at, head]


def is_tail(length: cutlass.Int32) -> cutlass.Int32:
    """1 for a chunk with fewer tokens than 64, else 0."""
    return cutlass.select_(length < CHUNK, cutlass.Int32(1), cutlass.Int32(0))
