"""All of a gdn_prefill call in one kernel: q, k, v, gates and first states in, o and last states out. CuTe
DSL, sm_100a.

Of a chunk of C = 64 tokens and value head hv, with key head hv // (Hv / H) and K = V = 128, S the state
before the chunk and h its rounding:

    g_cu  = cumsum(g)                                       summed in fp64, rounded once to f32
    A     = strict_lower(beta_i (K K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    Ai    = (I + A)^-1                                      inverse.py
    P     = lower((Q K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    X     = V - exp(g_cu) K h^T
    V_new = (Ai beta_j) X
    o     = scale (exp(g_cu) Q h^T + P V_new)
    S     = exp(g_last) S + (V_new exp(g_last - g_cu))^T K

U and W of chunk_uw.py, V_new = U - W h^T, need not be: Ai beta_j stands before both. The chunk's products, in
their order but for 1 and 2, which are the next chunk's and issued behind 4:

    product              M    N    K    left operand            right operand      accumulator
    1. KKT               64   64   128  s_k, K-major            s_k, K-major       t_kkt
    2. QK                64   64   128  s_q, K-major            s_k, K-major       t_qk
    3. (K h^T)^T         128  64   128  s_h, K-major            s_k, K-major       t_ks
    4. (Q h^T)^T         128  64   128  s_h, K-major            s_q, K-major       t_qs
    5. V_new^T           128  64   64   s_left = X^T, K-major   s_aib, K-major     t_v_new
    6. what S gains      128  128  64   s_left = Vs^T, K-major  s_k, N-major       t_added
    7. (P V_new)^T       128  64   64   s_v_new, K-major        s_p, K-major       t_pv

Vs is V_new exp(g_last - g_cu). A CTA carries S of one value head through one sequence, CTA n Hv + head, chunk
after chunk, in registers and unrounded. Rows are v in all that STATE touches (fused_state.py); whole 128 of
them, not halves in two CTAs as in chunk_state.py, since each CTA would have to invert A for itself. What
waits for nobody but the inputs, the inverse and P, is made a chunk ahead of the state.

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
    LOAD    12     TMA of K, Q and V; zeros behind the end of the sequence
    MMA     13     allocates TMEM; all products, KKT and QK a chunk ahead
    GATE    14     scans g; g_cu, beta, exp(g_cu) and exp(g_last - g_cu) into SMEM
    STORE   15     o to global memory

    ring     stages  full: arrivals        empty: arrivals
    k        3       1 LOAD + 16384 bytes  1 MMA commit
    q        2       1 LOAD + 16384 bytes  1 MMA commit
    v        1       1 LOAD + 16384 bytes  8 STATE warp
    tail     2       1 LOAD + 16384 bytes  1 nobody
    gate     3       1 GATE                12 INVERT, STATE warp
    scores   2       1 MMA commit          4 INVERT warp
    squares  2       4 INVERT warp         1 MMA commit
    h        1       8 STATE warp          1 MMA commit
    ks       1       1 MMA commit          8 STATE warp
    left     1       8 STATE warp          1 MMA commit
    update   1       1 MMA commit          8 STATE warp
    v_new    1       8 STATE warp          1 MMA commit
    added    1       1 MMA commit          8 STATE warp
    out      1       1 MMA commit          8 STATE warp
    o        1       8 STATE warp          1 STORE

    sync                               who                 orders
    fence.mbarrier_init, barrier TMEM  all                 mbarriers, tensor memory: before their use
    setmaxnreg                         all                 registers given up before STATE, INVERT take them
    tail ring                          LOAD                K, V have landed before zeros are stored
    fence.proxy.async                  LOAD                zeros in s_k written before products read them
    barrier INVERT                     INVERT              exchanges within the inverse: inverse.py
    fence.proxy.async                  INVERT              s_aib, s_p written before products read them
    fence.proxy.async                  STATE               s_h, s_left, s_v_new written before products
    fence.proxy.async                  STATE               s_o written before TMA, s_v read before TMA writes
    tcgen05.wait::ld                   INVERT, STATE       tensor memory read before its release
    tcgen05.fence before, after        MMA, INVERT, STATE  tensor memory, arrivals and waits
    bulk wait_group.read               STORE               the TMA store has read s_o before its release
    bulk wait_group                    STORE               o stored before the CTA ends
    drain of a ring                    its producer        no arrival after the CTA ends
    barrier of the CTA                 all                 tensor memory read before it is freed

512 threads, 229748 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

fused_plan.py makes these tables. With `split` there are 2 stages of s_k and 2 of s_blocks, 221540 bytes.

A last chunk of fewer than 64 tokens: K and V get rows of zeros past its end when they are loaded, g and beta
are 0 there; so are A, X, V_new but for h that is not finite, and the gate is the last token's. Q goes on with
the next sequence: its rows make rows of P and o that nobody stores. A sequence without tokens has no chunks:
its final state is its initial one.

Limits: K = V = 128, C = 64, Hv a multiple of H, bf16 tensors, f32 gates; states in f32 or bf16, each of the
two or none, the initial then 0; beta at most 1, with `split` 2; N >= 1; T Hv, N Hv < 2^31, N Hv V K too where
there are states; tensors contiguous, aligned to 16 bytes. g is at most 0: the sums never rise, also where
fp64 rounded, hence no exponent is positive. g = -inf counts as -128, a finite g below -2^100 as that, +inf as
NaN. NaN in a sequence stays in its own o and final state. A sequence's bits depend on its own data alone;
sums have one order. There are as many CTAs as sequences and value heads: a long sequence alone leaves SMs
idle, which chunk_uw.py and chunk_output.py would use.
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
from gdnbench_kernels.gdn_prefill import fused_state, inverse, triangle
from gdnbench_kernels.gdn_prefill.fused_plan import (
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
    Rings,
    Role,
    Row,
    Shared,
    Walk,
    planned,
)
from gdnbench_kernels.gdn_prefill.gate_scan import decay, rounded_decay, scan
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.triangle import ROWS_OF_WARP, fragment_column, fragment_row
from gdnbench_kernels.plan import WARP, Accumulator

BF16 = cutlass.BFloat16
STATE_REGISTERS, INVERT_REGISTERS, OTHER_REGISTERS = 152, 144, 64
"""Of a thread, after the warps that have little to do have given theirs up: 128 of them at launch."""

PLAN = planned(split=False)
SPLIT_PLAN = planned(split=True)


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory that tiles are copied from and to."""

    k: blackwell.Tma
    q: blackwell.Tma
    v: blackwell.Tma
    o: blackwell.Tma


@dataclass(frozen=True)
class Product:
    """A product of tiles in shared memory, into its accumulator."""

    mma: cute.TiledMma
    base: cute.Pointer
    part: Accumulator
    r_left: cute.Tensor
    r_right: cute.Tensor

    @staticmethod
    def of(
        base: cute.Pointer,
        part: Accumulator,
        s_left: cute.Tensor,
        s_right: cute.Tensor,
        major: OperandMajorMode = OperandMajorMode.K,
    ) -> Product:
        mma = blackwell.product(major, *part.shape)
        depth = cute.size(s_left, mode=[1])
        return Product(mma, base, part, *blackwell.operands(mma, s_left, s_right, (*part.shape, depth)))

    def issue(self, left: Any, right: Any, stage: Any = 0) -> None:
        """Of the stages at two places, into a stage of the accumulator."""
        t_part = blackwell.accumulator(self.mma, self.base, self.part, stage)
        r_left, r_right = (
            self.r_left[None, None, None, left.index],
            self.r_right[None, None, None, right.index],
        )
        blackwell.multiply(self.mma, t_part, r_left, r_right)


@dataclass(frozen=True)
class ChunkFused:
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` 2."""

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
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma = Tma(
            *(blackwell.Tma.of(load, blackwell.by_head(x), TOKENS) for x in (k, q, v)),
            *(blackwell.Tma.of(store, blackwell.by_head(x), TOKENS) for x in (o,)),
        )
        self.kernel(tma, (g, beta), cu_seqlens, (initial_state, final_state), o, scale).launch(
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
        cu_seqlens: cute.Tensor,
        states: tuple[cute.Tensor | None, cute.Tensor | None],
        o: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        plan = SPLIT_PLAN if self.split else PLAN
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = inverse.Scratch.allocate(smem, self.split)
        rings = Rings.allocate(plan, smem)
        blackwell.prefetch((tma.k, tma.q, tma.v, tma.o), warp == Role.LOAD)
        blackwell.init_barriers(rings, warp == Role.LOAD)
        tmem, base = blackwell.allocate_tmem(plan, smem, Role.MMA, Barrier.TMEM)
        # Each role finds its walk by itself: what lives across setmaxnreg is spilled.
        if warp < Role.INVERT:
            cute.arch.setmaxregister_increase(STATE_REGISTERS)
            fused_state.carry(self.walk(cu_seqlens), rings, shared, base, *states, scale)
        elif warp < Role.LOAD:
            cute.arch.setmaxregister_increase(INVERT_REGISTERS)
            self.invert(self.walk(cu_seqlens), rings, shared, scratch, base)
        else:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == Role.LOAD:
            self.load(self.walk(cu_seqlens), rings, shared, tma)
        if warp == Role.MMA:
            self.multiply(self.walk(cu_seqlens), rings, shared, base)
        if warp == Role.GATE:
            self.scan_gates(self.walk(cu_seqlens), rings, shared, *gates)
        if warp == Role.STORE:
            self.store(self.walk(cu_seqlens), rings, shared, tma, o)
        cute.arch.sync_threads()
        tmem.free(base)

    def walk(self, cu_seqlens: cute.Tensor) -> Walk:
        """Heads of a sequence, sequences: CTAs that read the same Q and K are neighbours."""
        block = cute.arch.block_idx()[0]
        n = block // self.value_heads
        start, stop = cu_seqlens[n], cu_seqlens[n + 1]
        return Walk(n, block % self.value_heads, start, stop, (stop - start + CHUNK - 1) // CHUNK)

    @cute.jit
    def load(self, walk: Walk, rings: Rings, shared: Shared, tma: Tma) -> None:
        """K, Q and V of each chunk. Rows of Q behind the end of the sequence, the next one's, make rows of o
        that nobody stores; those of K and V would be multiplied with all others'."""
        key_head = walk.head // (self.value_heads // self.heads)
        k, q, v = rings.k.producing(), rings.q.producing(), rings.v.producing()
        k_tail, v_tail = rings.tail.consuming(), rings.tail.consuming()
        v_tail.advance()
        for i in cutlass.range(walk.chunks, unroll=1):
            token = walk.start + CHUNK * i
            rings.k.acquire(k)
            self._load_own_rows(
                rings, rings.k, k, k_tail, tma.k, shared.k, walk.stop - token, token, key_head
            )
            rings.q.acquire(q)
            rings.q.expect(q)
            tma.q.load(rings.q, q, shared.q, token, key_head)
            rings.v.acquire(v)
            self._load_own_rows(
                rings, rings.v, v, v_tail, tma.v, shared.v, walk.stop - token, token, walk.head
            )
            k.advance()
            q.advance()
            v.advance()
        rings.k.drain(k)
        rings.q.drain(q)
        rings.v.drain(v)

    @cute.jit
    def _load_own_rows(
        self,
        rings: Rings,
        ring: blackwell.Ring,
        place: Any,
        tail: Any,
        tma: blackwell.Tma,
        s_tiles: cute.Tensor,
        length: cutlass.Int32,
        token: cutlass.Int32,
        head: cutlass.Int32,
    ) -> None:
        """A tile, zeros in its rows from `length` on. A sequence has one tail, which uses its stage once."""
        if length >= CHUNK:
            ring.expect(place)
            tma.load(ring, place, s_tiles, token, head)
        else:
            rings.tail.expect(tail)
            tma.load(rings.tail, tail, s_tiles, token, head, stage=place.index)
            rings.tail.wait(tail)
            blackwell.zero_rows(s_tiles[None, None, place.index], length)
            ring.fill_by_warp(place)

    @cute.jit
    def scan_gates(self, walk: Walk, rings: Rings, shared: Shared, g: cute.Tensor, beta: cute.Tensor) -> None:
        """Lane l has tokens 2l and 2l + 1. Behind the end of the sequence g and beta are 0. exp(g_cu) is
        what the state is multiplied with too, hence rounded."""
        lane = cute.arch.lane_idx()
        gate = rings.gate.producing()
        r_g, r_beta, r_sum = (cute.make_rmem_tensor((2,), cutlass.Float32) for _ in range(3))
        for i in cutlass.range(walk.chunks, unroll=1):
            token = walk.start + CHUNK * i + 2 * lane
            r_g.fill(0.0)
            r_beta.fill(0.0)
            for j in cutlass.range_constexpr(2):
                if token + j < walk.stop:
                    r_g[j] = g[token + j, walk.head]
                    r_beta[j] = beta[token + j, walk.head]
            scan(r_g, r_sum, lane)
            g_last = cute.arch.shuffle_sync(r_sum[1], WARP - 1)
            rings.gate.acquire(gate)
            for j in cutlass.range_constexpr(2):
                s_rows = shared.gate[None, 2 * lane + j, gate.index]
                s_rows[Row.G_CU], s_rows[Row.BETA] = r_sum[j], r_beta[j]
                s_rows[Row.DECAY], s_rows[Row.REST] = rounded_decay(r_sum[j]), decay(g_last - r_sum[j])
            rings.gate.fill_by_warp(gate)
            gate.advance()
        rings.gate.drain(gate)

    @cute.jit
    def multiply(self, walk: Walk, rings: Rings, shared: Shared, base: cute.Pointer) -> None:
        """KKT and QK of the next chunk go behind the products that read the state, which STATE waits for."""
        kkt = Product.of(base, T_KKT, shared.k, shared.k)
        qk = Product.of(base, T_QK, shared.q, shared.k)
        read_k, read_q = (
            Product.of(base, T_KS, shared.h, shared.k),
            Product.of(base, T_QS, shared.h, shared.q),
        )
        update = Product.of(base, T_V_NEW, shared.left, shared.aib)
        add = Product.of(base, T_ADDED, shared.left, shared.k, OperandMajorMode.MN)
        read_p = Product.of(base, T_PV, shared.v_new, shared.p)
        k_ahead, q_ahead, k, q = (ring.consuming() for ring in (rings.k, rings.q, rings.k, rings.q))
        h, left, v_new = (ring.consuming() for ring in (rings.h, rings.left, rings.v_new))
        squares = rings.squares.consuming()
        scores, ks, updates = (ring.producing() for ring in (rings.scores, rings.ks, rings.update))
        added, out = rings.added.producing(), rings.out.producing()
        # One turn more than there are chunks: the first does nothing but what goes ahead, the last all but.
        for turn in cutlass.range(walk.chunks + 1, unroll=1):
            if turn > 0:
                rings.ks.acquire(ks)
                rings.h.wait(h)
                blackwell.after_thread_sync()
                read_k.issue(h, k)
                rings.ks.fill_after_mma(ks)
                rings.out.acquire(out)
                blackwell.after_thread_sync()
                read_q.issue(h, q)
                rings.h.release_after_mma(h)
                rings.q.release_after_mma(q)
                ks.advance()
                h.advance()
                q.advance()
            if turn < walk.chunks:
                rings.k.wait(k_ahead)
                rings.q.wait(q_ahead)
                rings.scores.acquire(scores)
                blackwell.after_thread_sync()
                kkt.issue(k_ahead, k_ahead, scores.index)
                qk.issue(q_ahead, k_ahead, scores.index)
                rings.scores.fill_after_mma(scores)
                k_ahead.advance()
                q_ahead.advance()
                scores.advance()
            if turn > 0:
                rings.squares.wait(squares)
                rings.update.acquire(updates)
                rings.left.wait(left)
                blackwell.after_thread_sync()
                update.issue(left, squares)
                rings.update.fill_after_mma(updates)
                rings.left.release_after_mma(left)
                left.advance()
                rings.added.acquire(added)
                rings.left.wait(left)
                blackwell.after_thread_sync()
                add.issue(left, k)
                rings.added.fill_after_mma(added)
                rings.left.release_after_mma(left)
                rings.k.release_after_mma(k)
                rings.v_new.wait(v_new)
                blackwell.after_thread_sync()
                read_p.issue(v_new, squares)
                rings.out.fill_after_mma(out)
                rings.v_new.release_after_mma(v_new)
                rings.squares.release_after_mma(squares)
                updates.advance()
                left.advance()
                added.advance()
                k.advance()
                out.advance()
                v_new.advance()
                squares.advance()
        rings.scores.drain(scores)
        rings.ks.drain(ks)
        rings.update.drain(updates)
        rings.added.drain(added)
        rings.out.drain(out)

    @cute.jit
    def invert(
        self, walk: Walk, rings: Rings, shared: Shared, scratch: inverse.Scratch, base: cute.Pointer
    ) -> None:
        """Ai beta and P of each chunk. Warp w of the four has rows 16w .. 16w + 15."""
        thread = cute.arch.thread_idx()[0] - WARP * Role.INVERT
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - Role.INVERT
        together = pipeline.NamedBarrier(barrier_id=Barrier.INVERT, num_threads=PLAN.threads_of(Role.INVERT))
        mma = blackwell.product(OperandMajorMode.K, *SQUARE)
        reader = blackwell.Reader.of(mma, SQUARE, base, thread)
        scores, gate, squares = rings.scores.consuming(), rings.gate.consuming(), rings.squares.producing()
        for _ in cutlass.range(walk.chunks, unroll=1):
            r_square = cute.make_rmem_tensor(reader.where.shape, cutlass.Float32)
            r_values = cute.make_tensor(r_square.iterator, cute.make_layout(cute.size(r_square)))
            rings.scores.wait(scores)
            blackwell.after_thread_sync()
            reader.read(T_KKT, scores.index, 0, r_square)
            cute.arch.fence_view_async_tmem_load()
            rings.gate.wait(gate)
            s_gate = shared.gate[None, None, gate.index]
            lane = blackwell.afresh(cute.arch.lane_idx())
            triangle.form_a(r_values, s_gate, warp, lane)
            inverse.invert(r_values, scratch, warp, lane, together)
            # Or the addresses of what is written last are in registers all the while.
            lane = blackwell.afresh(lane)
            rings.squares.acquire(squares)
            self._scale_columns(r_values, s_gate, lane)
            self._write_rows(r_values, shared.aib[None, None, squares.index], warp, lane)
            reader.read(T_QK, scores.index, 0, r_square)
            cute.arch.fence_view_async_tmem_load()
            blackwell.before_thread_sync()
            rings.scores.release_by_warp(scores)
            self._form_p(r_values, s_gate, warp, lane)
            self._write_rows(r_values, shared.p[None, None, squares.index], warp, lane)
            cute.arch.fence_proxy("async.shared", space="cta")
            rings.squares.fill_by_warp(squares)
            rings.gate.release_by_warp(gate)
            scores.advance()
            gate.advance()
            squares.advance()
        rings.squares.drain(squares)

    @cute.jit
    def _scale_columns(self, r_ai: cute.Tensor, s_gate: cute.Tensor, lane: cutlass.Int32) -> None:
        """Ai becomes Ai beta_j."""
        for n in cutlass.range_constexpr(CHUNK // 8):
            for j in cutlass.range_constexpr(2):
                beta = s_gate[Row.BETA, fragment_column(lane, n, j)]
                for half in cutlass.range_constexpr(2):
                    r_ai[4 * n + 2 * half + j] = r_ai[4 * n + 2 * half + j] * beta

    @cute.jit
    def _form_p(
        self, r_qk: cute.Tensor, s_gate: cute.Tensor, warp: cutlass.Int32, lane: cutlass.Int32
    ) -> None:
        """QK becomes P. Above the diagonal the exponent could be positive and QK not finite, K's rows being
        zeros there and Q's not: what is there is replaced, not multiplied."""
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

    def _write_rows(self, r_values: cute.Tensor, s_square: cute.Tensor, warp: Any, lane: Any) -> None:
        """This warp's rows, rounded."""
        r_rounded = cute.make_rmem_tensor(r_values.shape, BF16)
        r_rounded.store(r_values.load().to(BF16))
        triangle.store_rows(r_rounded, cute.local_tile(s_square, (ROWS_OF_WARP, CHUNK), (warp, 0)), lane)

    @cute.jit
    def store(self, walk: Walk, rings: Rings, shared: Shared, tma: Tma, o: cute.Tensor) -> None:
        """A whole chunk by TMA; of a shorter one its own rows alone, behind which the next begins."""
        place = rings.o.consuming()
        for i in cutlass.range(walk.chunks, unroll=1):
            token = walk.start + CHUNK * i
            s_o = shared.o[None, None, place.index]
            rings.o.wait(place)
            if token + CHUNK <= walk.stop:
                with cute.arch.elect_one():
                    tma.o.store(s_o, token, walk.head)
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    rings.o.release(place)
            else:
                self._store_rows(s_o, o, token, walk)
                rings.o.release_by_warp(place)
            place.advance()
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def _store_rows(self, s_o: cute.Tensor, o: cute.Tensor, token: cutlass.Int32, walk: Walk) -> None:
        """Rows up to the end of the sequence, 16 bytes a lane."""
        # In 64 bits: T Hv 128 may pass 2^31.
        stride = self.value_heads * HEAD_DIM
        first = cutlass.Int64(token) * stride + walk.head * HEAD_DIM
        g_o = cute.make_tensor((o.iterator + first).align(16), cute.make_layout(TOKENS, stride=(stride, 1)))
        lane, lanes = cute.arch.lane_idx(), HEAD_DIM // blackwell.VECTOR
        for row in cutlass.range(lane // lanes, walk.stop - token, WARP // lanes, unroll=1):
            r_vector = cute.make_rmem_tensor((1, blackwell.VECTOR), BF16)
            s_vector, g_vector = (
                cute.local_tile(tile, (1, blackwell.VECTOR), (row, lane % lanes)) for tile in (s_o, g_o)
            )
            cute.autovec_copy(s_vector, r_vector)
            cute.autovec_copy(r_vector, g_vector)
