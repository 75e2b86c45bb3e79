"""Ai beta and P of all chunks, in a launch of their own before the states'. CuTe DSL, sm_90a.

The products 1 and 2 of kernel_sm90_fused.py and the inverse, by its INVERT role (sm90_squares.py): chunks are
independent here, so all SMs take part however few value heads there are. Reads q, k, g, beta; writes

    tensor   shape                  dtype     layout
    squares  SB, Hv, 2, 64, 64      bfloat16  Ai beta_j, then P; row = token

SB = T // 64 + N bounds the slots: chunk i of sequence n has (cu_seqlens[n] - cu_seqlens[0]) // 64 + n + i,
which no other chunk has. A CTA has every n-th (chunk, value head). Their bits are those of the fused kernel.

Limits: those of kernel_sm90_fused.py; SB Hv < 2^31.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import load_own_rows
from gdnbench_kernels.gdn_prefill import sm90_squares
from gdnbench_kernels.gdn_prefill.kernel_sm90_fused import FusedSm90
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import is_tail
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import GROUP_WARPS
from gdnbench_kernels.gdn_prefill.sm90_segments import Cuts, find_segment, located
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import SquareRole, SquareTuning, planned_squares
from gdnbench_kernels.gdn_prefill.sm90_tiles import SliceTile, allocate_scratch
from gdnbench_kernels.plan import KernelPlan

ALL_SHARED = 100
"""Shared-memory carveout in percent: with less not all CTAs would fit."""
AIB, P = 0, 1
"""Squares of a slot."""


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
    aib: blackwell.Pipeline
    p: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), gates (row, token, stage)."""

    k: cute.Tensor
    q: cute.Tensor
    aib: cute.Tensor
    p: cute.Tensor
    gate: cute.Tensor

    @staticmethod
    def allocate(plan: KernelPlan, smem: Any) -> Shared:
        """Allocate all buffers but the inverse's."""
        *often, gate = plan.smem[: len(fields(Shared))]
        found = {buffer.name.removeprefix("s_"): blackwell.tiles(smem, buffer) for buffer in often}
        return Shared(**found, gate=blackwell.vectors(smem, gate))


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
        return Tma(keys, queries, blackwell.Tma.create(store, by_square(squares), (CHUNK, CHUNK)))


@dataclass(frozen=True)
class SquaresSm90(FusedSm90):
    """The squares for `heads` key heads and `value_heads` value heads; beta is at most 1, with `split` at
    most 2."""

    tuning: Any = SquareTuning()  # noqa: RUF009 - it is frozen

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
        # A work is a segment of one chunk; there are at least as many slots.
        cuts = Cuts(cu_seqlens, cute.size(squares, mode=[0]), cutlass.Int32(CHUNK))
        self.kernel(Tma.create(k, q, squares), (g, beta), cuts).launch(
            grid=(ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            min_blocks_per_mp=self.plan.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tma: Tma, gates: tuple[cute.Tensor, cute.Tensor], cuts: Cuts) -> None:
        plan, tuning, role = self.plan, self.tuning, SquareRole
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = allocate_scratch(plan, smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch((tma.k, tma.q, tma.squares), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        if warp < role.GATE:
            if cutlass.const_expr(tuning.invert_registers > self.start_registers):
                cute.arch.setmaxregister_increase(tuning.invert_registers)
            sm90_squares.invert(self, cuts, pipelines, shared, scratch, cutlass.Int32(0))
        elif cutlass.const_expr(tuning.other_registers < self.start_registers):
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if (warp >= role.GATE) & (warp < role.LOAD):
            self.scan_every_second(cuts, pipelines, shared, gates, warp - role.GATE)
        if warp == role.LOAD:
            self.load_keys(cuts, pipelines, shared, tma)
        if warp == role.STORE:
            self.store_squares(cuts, pipelines, shared, tma)

    @property
    def plan(self) -> KernelPlan:
        return planned_squares(self.tuning, self.split)

    @property
    def start_registers(self) -> int:
        """Registers per thread at launch."""
        return min(65536 // (self.plan.threads * self.plan.ctas_per_sm), 255) // 8 * 8

    def works(self, cuts: Cuts) -> cutlass.Int32:
        return cuts.slots * self.value_heads

    def work(self, cuts: Cuts, number: cutlass.Int32) -> SliceTile:
        """Order: heads of a chunk, chunks."""
        place = find_segment(cuts, number // self.value_heads, 0, 0)
        found = located(cuts, place, number % self.value_heads, cutlass.Int32(0))
        return SliceTile(**{field.name: found[field.name] for field in fields(SliceTile)})

    @cute.jit
    def load_keys(self, cuts: Cuts, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Load K and Q of each chunk. Past the end of a sequence, rows of Q affect only rows of P that no row
        of o needs; rows of K would affect others, so they are zeroed."""
        done, tails = cutlass.Int32(0), cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(first, self.works(cuts), step, unroll=1):
            work = self.work(cuts, number)
            if work.chunks > 0:
                length, head = work.stop - work.start, self.key_head(work)
                k = blackwell.Turn.producer(done, self.tuning.keys)
                pipelines.k.producer_acquire(k)
                tail = blackwell.Turn(0, tails % 2)
                load_own_rows(
                    pipelines.tail_k, pipelines.k, k, tail, tma.k, shared.k, length, work.start, head
                )
                pipelines.q.producer_acquire(k)
                pipelines.q.arrive_and_expect_tx(k)
                tma.q.load(pipelines.q, k, shared.q, work.start, head)
                tails = tails + is_tail(length)
            done = done + work.chunks
        pipelines.k.producer_tail_after(done)
        pipelines.q.producer_tail_after(done)

    @cute.jit
    def store_squares(self, cuts: Cuts, pipelines: Pipelines, shared: Shared, tma: Tma) -> None:
        """Store P and Ai beta of each chunk."""
        done = cutlass.Int32(0)
        first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        for number in cutlass.range(first, self.works(cuts), step, unroll=1):
            work = self.work(cuts, number)
            if work.chunks > 0:
                slot = slot_of(cuts.cu_seqlens[0], work.sequence, work.start)
                stage = blackwell.Turn.consumer(done, self.tuning.squares)
                for pipe, s_tiles, which in (
                    (pipelines.p, shared.p, P),
                    (pipelines.aib, shared.aib, AIB),
                ):
                    pipe.consumer_wait(stage)
                    with cute.arch.elect_one():
                        tma.squares.store(s_tiles[None, None, stage.index], 0, which, work.head, slot)
                        cute.arch.cp_async_bulk_commit_group()
                        cute.arch.cp_async_bulk_wait_group(0, read=True)
                        pipe.consumer_release_thread(stage)
            done = done + work.chunks
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(0)


__all__ = ["AIB", "GROUP_WARPS", "P", "SquaresSm90", "by_square", "slot_of"]
