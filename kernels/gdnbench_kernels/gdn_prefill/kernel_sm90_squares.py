"""Ai beta and P of all chunks, in a launch of their own before the states'. CuTe DSL, sm_90a.

The products 1 and 2 of kernel_sm90_fused.py and the inverse: chunks are independent here, so all SMs take
part however few value heads there are. Reads q, k, g, beta; writes

    tensor   shape                  dtype     layout
    squares  SB, Hv, 2, 64, 64      bfloat16  Ai beta_j, then P; row = token

SB = T // 64 + N bounds the slots: chunk i of sequence n has (cu_seqlens[n] - cu_seqlens[0]) // 64 + n + i,
which no other chunk has. Bits are those of the fused kernel.

A work is a slot and one or two value heads of one key head: two where each key head has an even number of
them, which then share the products, the load of K and Q, and the instructions of the diagonal blocks'
inverses. CTA c of n has works c, c + n, ... Slots without a chunk are passed over. LOAD and GATE find a
slot's sequence, GATE passes the number of each work on to INVERT beside its gates, and -1 behind the last.
INVERT's warpgroups take works in turn. A warp stores its own rows of a square, P and later Ai beta from the
same memory, so warps exchange nothing but the inverse's blocks.

With two value heads a work and beta up to 1:

    SMEM        shape                   dtype     layout
    s_k         64 x 128, 3 stages      bfloat16  K-major, SW128
    s_q         64 x 128, 3 stages      bfloat16  K-major, SW128
    s_squares   16 x 64, 24 stages      bfloat16  row = token, SW128; a tile a warp
    s_gate      2 x 64, 12 stages       float32   g_cu, beta of a value head
    s_work      1, 6 stages             int32     the number of a work
    s_blocks    10 x 16 x 16, 6 stages  float16   16 x 16 blocks of 8 x 8
    s_diagonal  4 x 16 x 20, 6 stages   float32   columns contiguous, padded

    role    warps   does
    INVERT  0..11   a work each four warps: products 1 and 2, P, Ai beta, and their stores
    GATE    12..13  a value head each warp: scans g; g_cu and beta into SMEM
    LOAD    14      TMA of K and Q; zeros in K past the end of the sequence
    NONE    15      nothing

    pipeline  stages  full: arrivals        empty: arrivals
    k         3       1 LOAD + 16384 bytes  4 INVERT warp
    q         3       1 LOAD + 16384 bytes  4 INVERT warp
    tail_k    1       1 LOAD + 16384 bytes  1 nobody
    gate      6       2 GATE warp           4 INVERT warp

    sync                                     who          orders
    fence.mbarrier_init, barrier of the CTA  all          mbarriers before their use
    setmaxnreg                               all          increases wait for the others' decrease
    tail pipeline                            LOAD         K has landed before zeros are stored
    fence.proxy.async                        LOAD         zeros written before products read them
    barrier INVERT                           INVERT       exchanges within the inverse: sm90_inverse.py
    fence.proxy.async                        INVERT       squares written before TMA reads them
    bulk wait_group.read                     INVERT warp  TMA has read the warp's rows before the next
    bulk wait_group                          INVERT warp  squares stored before the CTA ends

512 threads, 215376 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

sm90_squares_plan.py makes these tables. Beyond beta 1 two warpgroups of INVERT have work.

Limits: those of kernel_sm90_fused.py; SB Hv < 2^31.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell, hopper
from gdnbench_kernels.delta_prefill.fused_tiles import load_own_rows
from gdnbench_kernels.gdn_prefill import sm90_inverse
from gdnbench_kernels.gdn_prefill.gate_scan import Gate, scan
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import is_tail, read_gates
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_inverse import Scratch
from gdnbench_kernels.gdn_prefill.sm90_plan import GROUP_WARPS
from gdnbench_kernels.gdn_prefill.sm90_squares import (
    KEY_STEPS,
    LOG2,
    barrier_of,
    clear_behind,
    form_rows,
    merge,
)
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import (
    WARP_ROWS,
    SquareRole,
    SquareTuning,
    heads_of_work,
    planned_squares,
)
from gdnbench_kernels.gdn_prefill.sm90_tiles import address_of, allocate_scratch
from gdnbench_kernels.plan import WARP, KernelPlan

I32, F32 = cutlass.Int32, cutlass.Float32
AIB, P = 0, 1
"""Squares of a slot."""
NONE = -1
"""In place of a work's number, behind the last one."""


def slot_of(origin: Any, sequence: Any, token: Any) -> Any:
    """The slot of the chunk of a sequence that begins with `token`; `origin` is cu_seqlens[0]."""
    return (token - origin) // CHUNK + sequence


def by_square(squares: cute.Tensor) -> cute.Tensor:
    """[SB, Hv, 2, 64, 64] as (row, column, square, head, slot)."""
    return blackwell.reordered(squares, 3, 4, 2, 1, 0)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    k: blackwell.Pipeline
    q: blackwell.Pipeline
    tail_k: blackwell.Pipeline
    gate: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), gates (row, token, stage times head), numbers of
    works by stage."""

    k: cute.Tensor
    q: cute.Tensor
    squares: cute.Tensor
    gate: cute.Tensor
    work: cute.Tensor

    @staticmethod
    def allocate(plan: KernelPlan, smem: Any) -> Shared:
        """Allocate all buffers but the inverse's."""
        k, q, squares, gate, work = plan.smem[:5]
        s_k, s_q, s_squares = (blackwell.tiles(smem, buffer) for buffer in (k, q, squares))
        s_gate = blackwell.vectors(smem, gate)
        s_work = smem.allocate_tensor(I32, cute.make_layout(work.stages), work.align)
        return Shared(s_k, s_q, s_squares, s_gate, s_work)


@dataclass(frozen=True)
class Tma:
    """The tensors in global memory from and to which TMA copies tiles."""

    k: blackwell.Tma
    q: blackwell.Tma
    squares: blackwell.Tma

    @staticmethod
    def create(k: cute.Tensor, q: cute.Tensor, squares: cute.Tensor) -> Tma:
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        keys, queries = (blackwell.Tma.create(load, blackwell.by_head(x), (CHUNK, HEAD_DIM)) for x in (k, q))
        return Tma(keys, queries, blackwell.Tma.create(store, by_square(squares), (WARP_ROWS, CHUNK)))


@dataclass(frozen=True)
class Slots:
    """The slots of a batch."""

    cu_seqlens: cute.Tensor  # [N+1] int32
    count: cutlass.Int32  # SB


@dataclass(frozen=True)
class Place:
    """A work's number, and the tokens of its chunk: `token` up to `stop`, or more of the sequence."""

    number: cutlass.Int32
    sequence: cutlass.Int32
    token: cutlass.Int32
    stop: cutlass.Int32


@dataclass(frozen=True)
class SquaresSm90:
    """The squares for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at
    most 2."""

    heads: int
    value_heads: int
    split: bool = False
    tuning: SquareTuning = SquareTuning()  # noqa: RUF009 - it is frozen

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        squares: cute.Tensor,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """q, k [T, H, 128] and squares [SB, Hv, 2, 64, 64] bf16, g and beta [T, Hv] f32, cu_seqlens [N+1]
        int32."""
        slots = Slots(cu_seqlens, cute.size(squares, mode=[0]))
        self.kernel(Tma.create(k, q, squares), (g, beta), slots).launch(
            grid=(ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tma: Tma, gates: tuple[cute.Tensor, cute.Tensor], slots: Slots) -> None:
        plan, tuning, role = self.plan, self.tuning, SquareRole
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = allocate_scratch(plan, smem, self.split, self.together)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch((tma.k, tma.q, tma.squares), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        if warp < role.GATE:
            cute.arch.setmaxregister_increase(tuning.invert_registers)
            group = warp // GROUP_WARPS
            if group < self.groups:
                self.invert(pipelines, shared, scratch.of_group(group), tma, group)
        else:
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if (warp >= role.GATE) & (warp < role.GATE + self.together):
            self.scan_gates(slots, pipelines, shared, gates, warp - role.GATE)
        if warp == role.LOAD:
            self.load(slots, pipelines, shared, tma, gates)

    @property
    def together(self) -> int:
        """Value heads of a work."""
        return heads_of_work(self.heads, self.value_heads)

    @property
    def groups(self) -> int:
        """Warpgroups of INVERT that take part."""
        return self.tuning.groups(self.split)

    @property
    def plan(self) -> KernelPlan:
        return planned_squares(self.tuning, self.split, self.together)

    def works(self, slots: Slots) -> cutlass.Int32:
        return slots.count * (self.value_heads // self.together)

    def first_head(self, number: cutlass.Int32) -> cutlass.Int32:
        """The first value head of a work. Order: heads of a slot, slots."""
        return number % (self.value_heads // self.together) * self.together

    def slot(self, number: cutlass.Int32) -> cutlass.Int32:
        return number // (self.value_heads // self.together)

    @cute.jit
    def following(self, slots: Slots, place: Place) -> Place:
        """The CTA's next work that has a chunk; if there is none, the same tokens with a number past the last
        work. A whole warp calls this."""
        works, number, sequence = self.works(slots), place.number, place.sequence
        token, stop = I32(0), I32(0)
        while (number < works) & (token >= stop):
            number = number + cute.arch.grid_dim()[0]
            if number < works:
                slot = self.slot(number)
                sequence = sequence_of(slots, slot, sequence)
                start, stop = slots.cu_seqlens[sequence], slots.cu_seqlens[sequence + 1]
                token = start + CHUNK * (slot - slot_of(slots.cu_seqlens[0], sequence, start))
        found = token < stop
        token = cutlass.select_(found, token, place.token)
        stop = cutlass.select_(found, stop, place.stop)
        return Place(number, sequence, token, stop)

    def before(self) -> Place:
        """Before the CTA's first work, with a token that there is."""
        return Place(cute.arch.block_idx()[0] - cute.arch.grid_dim()[0], I32(0), I32(0), I32(1))

    @cute.jit
    def load(
        self,
        slots: Slots,
        pipelines: Pipelines,
        shared: Shared,
        tma: Tma,
        gates: tuple[cute.Tensor, cute.Tensor],
    ) -> None:
        """Load K and Q of each work. Past the end of a sequence, rows of Q affect only rows of P that no row
        of o needs; rows of K would affect others, so they are zeroed. LOAD is ahead of GATE, so it also
        brings the gates into the cache."""
        done, tails = I32(0), I32(0)
        works = self.works(slots)
        place = self.following(slots, self.before())
        while place.number < works:
            length = place.stop - place.token
            head = self.first_head(place.number) // (self.value_heads // self.heads)
            k = blackwell.Turn.producer(done, self.groups)
            pipelines.k.producer_acquire(k)
            tail = blackwell.Turn(0, tails % 2)
            load_own_rows(pipelines.tail_k, pipelines.k, k, tail, tma.k, shared.k, length, place.token, head)
            pipelines.q.producer_acquire(k)
            pipelines.q.arrive_and_expect_tx(k)
            tma.q.load(pipelines.q, k, shared.q, place.token, head)
            for g_values in gates:
                for j in cutlass.range_constexpr(2):
                    token = cutlass.min(place.token + 2 * cute.arch.lane_idx() + j, place.stop - 1)
                    at = cute.crd2idx((token, self.first_head(place.number)), g_values.layout)
                    hopper.prefetch((g_values.iterator + at).toint())
            tails = tails + is_tail(length)
            done = done + 1
            place = self.following(slots, place)

    @cute.jit
    def scan_gates(
        self,
        slots: Slots,
        pipelines: Pipelines,
        shared: Shared,
        gates: tuple[cute.Tensor, cute.Tensor],
        part: cutlass.Int32,
    ) -> None:
        """Scan the gates of value head number `part` of each work. Those of two works are loaded before the
        ones before them are scanned: memory takes longer than a scan."""
        one, other = ([cute.make_rmem_tensor((2,), F32) for _ in range(2)] for _ in range(2))
        done, works = I32(0), self.works(slots)
        place = self.following(slots, self.before())
        self.read_gates(place, gates, part, one)
        second = self.following(slots, place)
        self.read_gates(second, gates, part, other)
        while place.number < works:
            self.scan_work(place, one, pipelines, shared, part, done)
            place = self.following(slots, second)
            self.read_gates(place, gates, part, one)
            done = done + 1
            if second.number < works:
                self.scan_work(second, other, pipelines, shared, part, done)
                second = self.following(slots, place)
                self.read_gates(second, gates, part, other)
                done = done + 1
        for group in cutlass.range(self.groups, unroll=1):
            gate = blackwell.Turn.producer(done + group, 2 * self.groups)
            pipelines.gate.producer_acquire(gate)
            if part == 0:
                shared.work[gate.index] = NONE
            pipelines.gate.producer_commit(gate)

    def read_gates(
        self,
        place: Place,
        gates: tuple[cute.Tensor, cute.Tensor],
        part: cutlass.Int32,
        r_gates: list[cute.Tensor],
    ) -> None:
        """Load g and beta of a work, or behind the last one some: that costs less than a branch. Lane l has
        tokens 2l and 2l + 1."""
        head, lane = self.first_head(place.number) + part, cute.arch.lane_idx()
        read_gates(place.token + 2 * lane, place.stop, head, gates, tuple(r_gates))

    @cute.jit
    def scan_work(
        self,
        place: Place,
        r_gates: list[cute.Tensor],
        pipelines: Pipelines,
        shared: Shared,
        part: cutlass.Int32,
        done: cutlass.Int32,
    ) -> None:
        """Scan g of a work, and hand over its number, g_cu and beta. Past the end of the sequence g and beta
        are 0."""
        lane = cute.arch.lane_idx()
        r_g, r_beta, r_sum = (cute.make_rmem_tensor((2,), F32) for _ in range(3))
        for j in cutlass.range_constexpr(2):
            inside = place.token + 2 * lane + j < place.stop
            r_g[j] = cutlass.select_(inside, r_gates[0][j], F32(0.0))
            r_beta[j] = cutlass.select_(inside, r_gates[1][j], F32(0.0))
        scan(r_g, r_sum, lane, LOG2)
        gate = blackwell.Turn.producer(done, 2 * self.groups)
        pipelines.gate.producer_acquire(gate)
        s_gate = shared.gate[None, None, gate.index * self.together + part]
        for j in cutlass.range_constexpr(2):
            s_gate[Gate.G_CU, 2 * lane + j], s_gate[Gate.BETA, 2 * lane + j] = r_sum[j], r_beta[j]
        if part == 0:
            shared.work[gate.index] = place.number
        pipelines.gate.producer_commit(gate)

    @cute.jit
    def invert(
        self, pipelines: Pipelines, shared: Shared, scratch: Scratch, tma: Tma, group: cutlass.Int32
    ) -> None:
        """Compute and store the squares of every work whose turn is `group` modulo the number of
        warpgroups."""
        together, heads = barrier_of(group), range(self.together)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS
        firsts = [GROUP_WARPS * (group * self.together + head) for head in heads]
        addresses = [address_of(shared.squares, first) for first in firsts]
        for address in addresses:
            clear_behind(address, warp, cute.arch.lane_idx())
        done = I32(0)
        gate = self.gate_of(group, done)
        number = self.work_of(pipelines, shared, gate)
        while number >= 0:
            k = blackwell.Turn(group, done % 2)
            pipelines.k.consumer_wait(k)
            keys = hopper.descriptor(address_of(shared.k, group))
            kkt = hopper.product(None, (keys, KEY_STEPS), (keys, KEY_STEPS))
            pipelines.q.consumer_wait(k)
            queries = hopper.descriptor(address_of(shared.q, group))
            qk = hopper.product(None, (queries, KEY_STEPS), (keys, KEY_STEPS))
            kkt, qk = hopper.wait(0, [kkt, qk])
            pipelines.k.consumer_release(k)
            pipelines.q.consumer_release(k)
            gates = [shared.gate[None, None, gate.index * self.together + head] for head in heads]
            # Recompute the lane: otherwise ptxas keeps addresses live from turn to turn.
            lane = blackwell.lane_of_turn(done)
            self.wait_for_stores()
            # No warp reads the last chunk's blocks any more.
            together.arrive_and_wait()
            form_rows(kkt, qk, gates, scratch, addresses, warp, lane)
            self.store_squares(shared, tma, firsts, warp, P, number)
            sm90_inverse.invert_diagonals(scratch, warp, lane)
            lane = blackwell.lane_of_turn(done)
            self.wait_for_stores()
            merge(scratch, gates, addresses, warp, lane, together)
            self.store_squares(shared, tma, firsts, warp, AIB, number)
            pipelines.gate.consumer_release(gate)
            done = done + 1
            gate = self.gate_of(group, done)
            number = self.work_of(pipelines, shared, gate)
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)

    def gate_of(self, group: cutlass.Int32, done: cutlass.Int32) -> blackwell.Turn:
        """The stage of gates of a warpgroup's turn: two of them are its own."""
        return blackwell.Turn(group + self.groups * (done % 2), done // 2 % 2)

    def work_of(self, pipelines: Pipelines, shared: Shared, gate: blackwell.Turn) -> cutlass.Int32:
        """Wait for a stage of gates; the number of its work, or NONE."""
        pipelines.gate.consumer_wait(gate)
        return cute.arch.make_warp_uniform(shared.work[gate.index])

    def wait_for_stores(self) -> None:
        """Wait until TMA has read the warp's rows, which may then be overwritten."""
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_warp()

    def store_squares(
        self, shared: Shared, tma: Tma, firsts: list[Any], warp: Any, which: int, number: Any
    ) -> None:
        """Store a warp's rows of a square of each head."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            for head, first in enumerate(firsts):
                s_tile = shared.squares[None, None, first + warp]
                place = (which, self.first_head(number) + head, self.slot(number))
                tma.squares.store(s_tile, WARP_ROWS * warp, *place)
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def sequence_of(slots: Slots, slot: cutlass.Int32, sequence: cutlass.Int32) -> cutlass.Int32:
    """The sequence of a slot, which is not before `sequence`: the last one whose first slot is not behind it.
    A lane each looks at the next 32."""
    ahead = I32(WARP)
    while ahead == WARP:
        at = sequence + 1 + cute.arch.lane_idx()
        exists = at < cute.size(slots.cu_seqlens) - 1
        start = slots.cu_seqlens[cutlass.select_(exists, at, I32(0))]
        reached = exists & (slot_of(slots.cu_seqlens[0], at, start) <= slot)
        ahead = cute.arch.popc(cute.arch.vote_ballot_sync(reached))
        sequence = sequence + ahead
    return sequence
