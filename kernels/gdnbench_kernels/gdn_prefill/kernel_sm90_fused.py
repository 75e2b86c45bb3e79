"""Prefill in one kernel: FLA's and vLLM's `chunk_gated_delta_rule`, fused. CuTe DSL, sm_90a, wgmma.

Reads q, k, v, gates and initial states; writes o and final states. The equations are those of
kernel_sm100_fused.py. For a chunk of C = 64 tokens and value head hv, with key head hv // (Hv / H) and
K = V = 128, S the state before the chunk and h its rounding:

    g_cu  = cumsum(g)                                       summed in fp64, in units of log 2, rounded once
    A     = strict_lower(beta_i (K K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    Ai    = (I + A)^-1                                      sm90_inverse.py
    P     = lower((Q K^T)[i,j] exp(g_cu[i] - g_cu[j]))
    X     = V - exp(g_cu) K h^T
    V_new = (Ai beta_j) X
    o     = scale (exp(g_cu) Q h^T + P V_new)
    S     = exp(g_last) S + (V_new exp(g_last - g_cu))^T K

The rows of S do not mix, so a value head has `slices` CTAs of 128 / slices V rows, 64 for each warpgroup of
STATE. The products of a chunk in order; accumulators are registers:

    product              M   N    K    left operand            right operand        by
    1. KKT               64  64   128  s_k, K-major            s_k, K-major         INVERT
    2. QK                64  64   128  s_q, K-major            s_k, K-major         INVERT
    3. (K h^T)^T         64  64   128  h, registers            s_k, K-major         STATE
    4. (Q h^T)^T         64  64   128  h, registers            s_q, K-major         STATE
    5. V_new^T           64  64   64   X^T, registers          s_aib, K-major       STATE
    6. S^T, added to     64  64   64   Vs^T, registers         s_k, N-major, twice  STATE
    7. o^T, added to QS  64  64   64   V_new^T, registers      s_p, K-major         STATE

Vs is V_new exp(g_last - g_cu). Work (n Hv + head) slices + slice is a slice of one value head of one
sequence. CTA c of n has works c, c + n, ...: while STATE ends one, the others are already in the next.
INVERT's warpgroups take chunks in turn, and Ai and P depend only on the inputs, so they are computed ahead of
the recurrence. The time of a chunk is that of the longest of: STATE's chain of products 3, 5 and 6; the
inverse, divided by the number of INVERT's warpgroups; the instructions that the four schedulers issue.

With two slices:

    SMEM        shape                   dtype     layout
    s_k         64 x 128, 4 stages      bfloat16  K-major, SW128; read as N-major too
    s_q         64 x 128, 4 stages      bfloat16  K-major, SW128
    s_v         64 x 64, 2 stages       bfloat16  row = token, SW128
    s_aib       64 x 64, 2 stages       bfloat16  K-major, SW128: Ai beta_j
    s_p         64 x 64, 2 stages       bfloat16  K-major, SW128
    s_o         64 x 64, 2 stages       bfloat16  row = token, SW128
    s_gate      4 x 64, 4 stages        float32   a row for each of GATE's
    s_blocks    10 x 16 x 16, 2 stages  float16   16 x 16 blocks of 8 x 8
    s_diagonal  4 x 16 x 20, 2 stages   float32   columns contiguous, padded

    role    warps   does
    STATE   0..3    64 rows of S each four warps, in registers; products 3 to 7
    INVERT  4..11   a chunk each four warps, ahead of STATE: products 1 and 2, Ai beta, P
    GATE    12..13  a chunk each warp: scans g; g_cu, beta, exp(g_cu), exp(g_last - g_cu) into SMEM
    LOAD    14      TMA of K, Q and V; zeros in K and V past the end of the sequence
    STORE   15      o to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    k         4       1 LOAD + 16384 bytes  8 INVERT, STATE warp
    q         4       1 LOAD + 16384 bytes  8 INVERT, STATE warp
    v         2       1 LOAD + 8192 bytes   4 STATE warp
    tail_k    1       1 LOAD + 16384 bytes  1 nobody
    tail_v    1       1 LOAD + 8192 bytes   1 nobody
    gate      4       1 GATE                8 INVERT, STATE warp
    aib       2       4 INVERT warp         4 STATE warp
    p         2       4 INVERT warp         4 STATE warp
    o         2       4 STATE warp          1 STORE

    sync                                     who            orders
    fence.mbarrier_init, barrier of the CTA  all            mbarriers before their use
    setmaxnreg                               all            increases wait for the others' decrease
    tail pipelines                           LOAD           K, V have landed before zeros are stored
    fence.proxy.async                        LOAD           zeros written before products read them
    barrier INVERT                           INVERT         exchanges within the inverse: sm90_inverse.py
    fence.proxy.async                        INVERT         s_aib, s_p written before products read them
    fence.proxy.async                        STATE          s_o written before TMA, s_v read before a load
    wgmma.wait_group                         INVERT, STATE  operands read before their release
    bulk wait_group.read                     STORE          the TMA store has read s_o before its release
    bulk wait_group                          STORE          o stored before the CTA ends
    producer_tail                            each producer  no arrival after the CTA ends

512 threads, 221536 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

sm90_plan.py makes these tables. Beyond beta 1 INVERT is one warpgroup, with 2 stages of s_blocks.

Stages of K, Q and of the squares are even where INVERT has two warpgroups: a warpgroup that never waits for
some phases of a barrier takes a phase for the next but one. o of a chunk is handed over while product 3 of
the next one runs; with one slice before it, to save registers (sm90_state.py). Products in flight do not
cross a loop's end: ptxas would make all products wait.

A last chunk of fewer than 64 tokens: past its end LOAD sets rows of K and V to zero, g and beta are 0, and
the gate is the last token's. So A, X and V_new are 0 there, unless h is not finite. Q continues with the next
sequence: those rows of P and o are not stored. A sequence without tokens has no chunks: its final state is
its initial one.

Limits: those of kernel_sm100_fused.py, and N Hv slices < 2^31. A sequence's bits depend only on its own data,
neither on slices nor on CTAs; sums have a fixed order.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import load_own_rows
from gdnbench_kernels.gdn_prefill import sm90_squares, sm90_state
from gdnbench_kernels.gdn_prefill.fused_plan import Row
from gdnbench_kernels.gdn_prefill.gate_scan import decay, rounded_decay, scan
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import ChunkFused, is_tail, read_gates
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import (
    GATES,
    GROUP_ROWS,
    GROUP_WARPS,
    SCANNERS,
    Tuning,
    planned,
    roles_of,
)
from gdnbench_kernels.gdn_prefill.sm90_tiles import (
    Pipelines,
    Shared,
    SliceTile,
    States,
    Tma,
    allocate_scratch,
)
from gdnbench_kernels.plan import WARP, KernelPlan

BF16 = cutlass.BFloat16


@dataclass(frozen=True)
class Position:
    """A chunk of a CTA: its work, first token, and what belongs to the work."""

    number: cutlass.Int32
    token: cutlass.Int32
    stop: cutlass.Int32
    head: cutlass.Int32
    slice: cutlass.Int32
    sequence: cutlass.Int32


@dataclass(frozen=True)
class FusedSm90(ChunkFused):
    """The kernel for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at most
    2."""

    tuning: Tuning = Tuning()  # noqa: RUF009 - it is frozen
    maps = False
    """Whether a work may be rows of M of a segment: see sm90_segments.py."""

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
        tma = Tma.create(k, q, v, o, self.tuning.slices)
        states = States(initial_state, final_state)
        self.kernel(tma, (g, beta), cu_seqlens, states, o, scale).launch(
            grid=(ctas, 1, 1), block=(self.plan.threads, 1, 1), min_blocks_per_mp=1, stream=stream
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
        plan, tuning, role = self.plan, self.tuning, roles_of(self.tuning)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = allocate_scratch(plan, smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch(tma.used(), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        # Each role finds its work itself: ptxas spills values that live across setmaxnreg.
        if warp < role.INVERT:
            cute.arch.setmaxregister_increase(tuning.state_registers)
            sm90_state.recurrence(self, cuts, pipelines, shared, states, scale)
        elif warp < role.GATE:
            if cutlass.const_expr(tuning.invert_registers > self.start_registers):
                cute.arch.setmaxregister_increase(tuning.invert_registers)
            else:
                cute.arch.setmaxregister_decrease(tuning.invert_registers)
            group = (warp - role.INVERT) // GROUP_WARPS
            sm90_squares.invert(self, cuts, pipelines, shared, scratch.of_group(group), group)
        else:
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if (warp >= role.GATE) & (warp < role.LOAD):
            self.scan_every_second(cuts, pipelines, shared, gates, warp - role.GATE)
        if warp == role.LOAD:
            self.load(cuts, pipelines, shared, tma)
        if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
            if warp == role.STORE:
                self.store_outputs(cuts, pipelines, shared, tma, o)

    gate_unit = sm90_squares.LOG2

    @property
    def plan(self) -> KernelPlan:
        return planned(self.tuning, self.split)

    @property
    def start_registers(self) -> int:
        """Registers per thread at launch."""
        return min(65536 // self.plan.threads, 255) // 8 * 8

    def works(self, cuts: Any) -> cutlass.Int32:
        return (cute.size(cuts) - 1) * (self.value_heads * self.tuning.slices)

    def work(self, cuts: Any, number: cutlass.Int32) -> SliceTile:
        return SliceTile.locate(cuts, self.value_heads, self.tuning.slices, number)

    def first_row(self, work: SliceTile, group: Any) -> Any:
        """The first V row of a warpgroup of STATE."""
        return (work.slice * self.tuning.groups + group) * GROUP_ROWS

    def column(self, work: SliceTile | Position) -> Any:
        """The number of a work's V columns, among those of all heads."""
        return work.head * self.tuning.slices + work.slice

    @cute.jit
    def start(self, cuts: Any) -> Position:
        """The CTA's first chunk."""
        number = self.nonempty(cuts, cute.arch.block_idx()[0])
        zero = cutlass.Int32(0)
        token, stop, head, slice, sequence = zero, zero, zero, zero, zero
        if number < self.works(cuts):
            work = self.work(cuts, number)
            token, stop, head, slice = work.start, work.stop, work.head, work.slice
            sequence = work.sequence
        return Position(number, token, stop, head, slice, sequence)

    @cute.jit
    def after(self, cuts: Any, position: Position, chunks: cutlass.Constexpr = 1) -> Position:
        """The chunk that comes so many chunks later, which exists. Global memory is read only for another
        work: it takes long."""
        number, token, stop = position.number, position.token + CHUNK * chunks, position.stop
        head, slice, sequence = position.head, position.slice, position.sequence
        while token >= stop:
            # In whole chunks behind the work's end.
            behind = (token - stop) // CHUNK
            number = self.nonempty(cuts, number + cute.arch.grid_dim()[0])
            work = self.work(cuts, number)
            token, stop, head, slice = work.start + CHUNK * behind, work.stop, work.head, work.slice
            sequence = work.sequence
        return Position(number, token, stop, head, slice, sequence)

    @cute.jit
    def load(self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Any) -> None:
        """Load K, Q and V of each chunk, V a turn later: its stage is released later. Past the end of a
        sequence, rows of Q affect only rows of o that are not stored; rows of K and V would affect all
        others, so they are zeroed."""
        tuning = self.tuning
        chunks = self.chunks(cuts)
        origin = self.bounds(cuts)[0]
        keys = self.start(cuts)
        values = keys
        tails, v_tails = cutlass.Int32(0), cutlass.Int32(0)
        for turn in cutlass.range(chunks + 1, unroll=1):
            if turn < chunks:
                length = keys.stop - keys.token
                head = keys.head // (self.value_heads // self.heads)
                k = blackwell.Turn.producer(turn, tuning.keys)
                pipelines.k.producer_acquire(k)
                tail = blackwell.Turn(0, tails % 2)
                load_own_rows(
                    pipelines.tail_k, pipelines.k, k, tail, tma.k, shared.k, length, keys.token, head
                )
                if cutlass.const_expr(self.outputs):
                    pipelines.q.producer_acquire(k)
                    pipelines.q.arrive_and_expect_tx(k)
                    tma.q.load(pipelines.q, k, shared.q, keys.token, head)
                self.load_beside_keys(pipelines, shared, tma, origin, keys, turn)
                tails = tails + is_tail(length)
                if turn + 1 < chunks:
                    keys = self.after(cuts, keys)
            if turn > 0:
                length = values.stop - values.token
                v = blackwell.Turn.producer(turn - 1, tuning.values)
                pipelines.v.producer_acquire(v)
                tail = blackwell.Turn(0, v_tails % 2)
                column = self.column(values)
                load_own_rows(
                    pipelines.tail_v, pipelines.v, v, tail, tma.v, shared.v, length, values.token, column
                )
                self.load_beside_values(pipelines, shared, tma, origin, values, turn - 1)
                v_tails = v_tails + is_tail(length)
                if turn < chunks:
                    values = self.after(cuts, values)
        for pipe in self.loaded(pipelines):
            pipe.producer_tail_after(chunks)

    def bounds(self, cuts: Any) -> cute.Tensor:
        """cu_seqlens."""
        return cuts

    def loaded(self, pipelines: Pipelines) -> list[Any]:
        """The pipelines that LOAD fills."""
        return [pipelines.k, *([pipelines.q] if self.outputs else []), pipelines.v]

    def load_beside_keys(
        self, pipelines: Pipelines, shared: Shared, tma: Any, origin: Any, position: Position, turn: Any
    ) -> None:
        """Load what else STATE needs with K of a chunk, the CTA's number `turn`. `origin` is the first
        sequence's start."""

    def load_beside_values(
        self, pipelines: Pipelines, shared: Shared, tma: Any, origin: Any, position: Position, turn: Any
    ) -> None:
        """The same with V of a chunk."""

    @cute.jit
    def scan_every_second(
        self,
        cuts: Any,
        pipelines: Pipelines,
        shared: Shared,
        gates: tuple[cute.Tensor, cute.Tensor],
        warp: cutlass.Int32,
    ) -> None:
        """Scan the gates of every chunk whose number is `warp` modulo SCANNERS. Lane l has tokens 2l and 2l +
        1. Past the end of the sequence g and beta are 0. exp(g_cu) also multiplies the state, so it uses
        `rounded_decay`. A chunk's g and beta are loaded before those of the last one are used."""
        lane = cute.arch.lane_idx()
        r_g, r_beta, r_sum, r_next_g, r_next_beta = (
            cute.make_rmem_tensor((2,), cutlass.Float32) for _ in range(5)
        )
        chunks = self.chunks(cuts)
        position = self.start(cuts)
        if warp < chunks:
            if warp > 0:
                position = self.after(cuts, position)
            token = position.token + 2 * lane
            read_gates(token, position.stop, position.head, gates, (r_next_g, r_next_beta))
        for turn in cutlass.range(warp, chunks, SCANNERS, unroll=1):
            gate = blackwell.Turn.producer(turn, GATES)
            for j in cutlass.range_constexpr(2):
                inside = position.token + 2 * lane + j < position.stop
                r_g[j] = cutlass.select_(inside, r_next_g[j], cutlass.Float32(0.0))
                r_beta[j] = cutlass.select_(inside, r_next_beta[j], cutlass.Float32(0.0))
            if turn + SCANNERS < chunks:
                position = self.after(cuts, position, SCANNERS)
            # Behind the last chunk once more, which costs less than a branch around the loads.
            token = position.token + 2 * lane
            read_gates(token, position.stop, position.head, gates, (r_next_g, r_next_beta))
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
    def store_outputs(
        self, cuts: Any, pipelines: Pipelines, shared: Shared, tma: Tma, o: cute.Tensor
    ) -> None:
        """Store the o of each chunk: of a full chunk by TMA, of a shorter one only its own rows, because the
        next sequence follows."""
        done = cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(first, self.works(cuts), step, unroll=1):
            work = self.work(cuts, number)
            for i in cutlass.range(work.chunks, unroll=1):
                token = work.start + CHUNK * i
                stage = blackwell.Turn.consumer(done + i, self.tuning.outputs)
                s_o = shared.o[None, None, stage.index]
                pipelines.o.consumer_wait(stage)
                if token + CHUNK <= work.stop:
                    with cute.arch.elect_one():
                        tma.o.store(s_o, token, self.column(work))
                        cute.arch.cp_async_bulk_commit_group()
                        cute.arch.cp_async_bulk_wait_group(0, read=True)
                        pipelines.o.consumer_release_thread(stage)
                else:
                    store_rows(s_o, o, token, work.stop, self.column(work), self.value_heads)
                    pipelines.o.consumer_release(stage)
            done = done + work.chunks
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def store_rows(
    s_o: cute.Tensor,
    o: cute.Tensor,
    token: cutlass.Int32,
    stop: cutlass.Int32,
    column: cutlass.Int32,
    value_heads: cutlass.Constexpr,
) -> None:
    """Store rows up to the end of the sequence, 16 bytes per lane."""
    columns = cute.size(s_o, mode=[1])
    # In 64 bits: T Hv 128 may exceed 2^31.
    stride = value_heads * HEAD_DIM
    first = cutlass.Int64(token) * stride + column * columns
    g_o = cute.make_tensor(
        (o.iterator + first).align(16), cute.make_layout((CHUNK, columns), stride=(stride, 1))
    )
    lane, lanes = cute.arch.lane_idx(), columns // blackwell.VECTOR
    for row in cutlass.range(lane // lanes, stop - token, WARP // lanes, unroll=1):
        r_vector = cute.make_rmem_tensor((1, blackwell.VECTOR), BF16)
        s_vector, g_vector = (
            cute.local_tile(tile, (1, blackwell.VECTOR), (row, lane % lanes)) for tile in (s_o, g_o)
        )
        cute.autovec_copy(s_vector, r_vector)
        cute.autovec_copy(r_vector, g_vector)
