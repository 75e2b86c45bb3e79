"""The LOAD warps of the wgmma kernel: load windows and queries, and store outputs from shared memory. CuTe
DSL.

Warp w copies entries 32 w .. + 31 of a window, two virtual warps of `Entries`, and heads 16 w .. + 15 of o.
An item's turn begins when MULTIPLY has read the previous item's queries:

    start the copy of the queries; wait for the rows' factors, scales and rope
    write the factors; write rope when MULTIPLY has read the previous item's
    store the outputs of the previous item
    start loading the next item's factors, scales and rope; copy its rows to the stage of those outputs

The first item's queries are loaded before its length is known. The second item's window is loaded after the
first one's, for which all CTAs wait at the same time.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode import sm90_ops as wgmma
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import Entries, Pages
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.sm90_plan import (
    BLOCKS,
    LOADERS,
    OUT_BYTES,
    STAGES,
    Barrier,
    Role,
    Tuning,
)
from gdnbench_kernels.swa_decode.sm90_queries import Queries
from gdnbench_kernels.swa_decode.sm90_window import DsMlaWindow, PerTokenWindow
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64 = cutlass.Int32, cutlass.Int64

WARP_HEADS = 16
"""Heads of o that a warp stores."""


@dataclass(frozen=True)
class TileScheduler:
    """The work of a CTA: items worker, worker + workers .., where an item is `rows` heads of a token."""

    heads: int
    rows: int
    count: cutlass.Int32

    @staticmethod
    def create(tokens: Any, heads: int, rows: int) -> TileScheduler:
        block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        return TileScheduler(heads, rows, (tokens * -(-heads // rows) - block + blocks - 1) // blocks)

    def work_tile(self, turn: Any) -> tuple[Any, Any]:
        """(token, its first head)."""
        groups = -(-self.heads // self.rows)
        item = cute.arch.block_idx()[0] + turn * cute.arch.grid_dim()[0]
        return item // groups, item % groups * self.rows

    def row(self, x: cute.Tensor, token: Any, head: Any) -> Any:
        """Address of a head's features in q or o."""
        return x.iterator.toint() + (I64(token) * self.heads + I64(head)) * (2 * HEAD_DIM)


@dataclass(frozen=True)
class PipelineState:
    """A stage and its phase."""

    index: Any
    phase: Any


def window_state(turn: Any) -> PipelineState:
    return PipelineState(turn % STAGES, turn // STAGES & 1)


def query_state(turn: Any) -> PipelineState:
    return PipelineState(0, turn & 1)


@dataclass(frozen=True)
class Pipelines:
    rows: blackwell.Pipeline
    q: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """Addresses of the plan's buffers; q also as a tensor; the mbarrier in s_ready."""

    tiles: cute.Tensor
    q: cutlass.Int32
    p: cutlass.Int32
    rows: cutlass.Int32
    rope: cutlass.Int32
    groups: cutlass.Int32
    entries: cutlass.Int32
    peaks: cutlass.Int32
    tops: cutlass.Int32
    factors: cutlass.Int32
    coefficients: cutlass.Int32
    lens: cutlass.Int32
    ready: cute.Pointer
    row_bytes: int  # distance of rows

    def stage(self, stage: Any) -> Any:
        """Address of a window's rows."""
        return self.rows + stage * (MAX_WINDOW * self.row_bytes)

    def window(self, stage: Any, mla: bool, inv_scale: Any) -> Any:
        entries = self.entries + stage * (MAX_WINDOW * 16)
        if not mla:
            return PerTokenWindow(self.stage(stage), entries, inv_scale)
        groups = self.groups + stage * (GROUPS * MAX_WINDOW * 2)
        return DsMlaWindow(self.stage(stage), entries, groups, I32(0), self.rope)

    def queries(self, mla: bool, rows: int, scale: Any) -> Queries:
        return Queries(mla, rows, self.q, self.coefficients, scale)

    def arrive_rope(self) -> None:
        """Called by a whole warp, which arrives once."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.ready)

    def wait_for_rope(self, turn: Any) -> None:
        cute.arch.mbarrier_wait(self.ready, turn & 1)


@dataclass(frozen=True)
class Loader:
    """`mla`: the layout is fp8_ds_mla; `staged`: heads of o in shared memory."""

    mla: bool
    staged: int
    tuning: Tuning
    pages: Pages
    block_size: cutlass.Int32
    inv_scale: cute.Tensor
    indices: cute.Tensor
    lens: cute.Tensor
    q: cute.Tensor
    o: cute.Tensor

    @cute.jit
    def load(
        self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, tma_q: blackwell.Tma
    ) -> None:
        warp = cute.arch.make_warp_uniform(wgmma.thread_in_role(Role.LOAD) // 32)
        if warp == 0:
            self.load_queries(scheduler, pipelines, shared, tma_q, I32(0))
        slot, length = self.load_entry(scheduler, I32(0), warp)
        later, later_length = self.load_entry(scheduler, I32(1), warp)
        slots = counted(slot, length, warp)
        self.load_rows(pipelines, shared, I32(0), slots, warp)
        later_slots = counted(later, later_length, warp)
        for turn in cutlass.range(scheduler.count, unroll=1):
            if turn > 0:
                pipelines.q.producer_acquire(query_state(turn - 1))
                self.load_next_queries(scheduler, pipelines, shared, tma_q, turn, length, warp)
            window = self.window(shared, turn)
            both = self.entries(pipelines, turn, slots, warp)
            loaded = [window.load(entries, self.pages) for entries in both]
            left = []
            for entries, words in zip(both, loaded, strict=True):
                left += window.describe_codes(entries, self.pages, words)
            if warp == 0:
                ops.store_shared(shared.lens + turn % STAGES * 4, length)
            pipelines.rows.producer_commit(window_state(turn))
            after, after_length = self.load_entry(scheduler, turn + 2, warp)
            if turn > 0:
                pipelines.rows.producer_acquire(window_state(turn - 1))
            if cutlass.const_expr(self.mla):
                window.store_ropes(left)
                shared.arrive_rope()
            if turn > 0:
                self.store_outputs(scheduler, shared, turn - 1, warp, turn - 1)
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                cute.arch.barrier(barrier_id=Barrier.LOAD, number_of_threads=32 * LOADERS)
            if turn + 1 < scheduler.count:
                self.load_rows(pipelines, shared, turn + 1, later_slots, warp)
                # Only in the first turn: later turns have prefetched these queries before.
                first = blackwell.opaque(turn) == 0
                self.prefetch_queries(
                    scheduler, ops.select_value(first, I32(self.tuning.prefetch), scheduler.count), warp
                )
            slots, length = later_slots, later_length
            later_slots, later_length = counted(after, after_length, warp), after_length
        pipelines.rows.producer_acquire(window_state(scheduler.count - 1))
        self.store_outputs(scheduler, shared, scheduler.count - 1, warp, scheduler.count - 1)
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def window(self, shared: Shared, turn: Any) -> Any:
        window = shared.window(turn % STAGES, self.mla, self.inv_scale)
        if not self.mla:
            return window
        return DsMlaWindow(window.s_rows, window.s_entries, window.s_groups, self.block_size, window.s_rope)

    def entries(self, pipelines: Pipelines, turn: Any, slots: Any, warp: Any) -> list[Entries]:
        """The entries of the two virtual warps."""
        lane, full = cute.arch.lane_idx(), pipelines.rows.full(window_state(turn))
        return [
            Entries(
                cute.arch.shuffle_sync(slots, lane % ENTRIES + ENTRIES * half),
                2 * warp + half,
                lane,
                full,
                full,
            )
            for half in range(2)
        ]

    @cute.jit
    def load_entry(
        self, scheduler: TileScheduler, turn: cutlass.Int32, warp: cutlass.Int32
    ) -> tuple[cutlass.Int32, cutlass.Int32]:
        """Start the loads of (this lane's entry, the window's length); past the end, those of the last
        item."""
        token, _ = scheduler.work_tile(cutlass.min(turn, scheduler.count - 1))
        entry = warp * 32 + cute.arch.lane_idx()
        found = I32(PADDING)
        if entry < cute.size(self.indices, mode=[1]):
            row = self.indices.iterator.toint() + I64(token) * I64(self.indices.stride[0]) * 4
            found = ops.load_index(row + I64(entry) * 4)
        length = ops.load_index(self.lens.iterator.toint() + I64(token) * 4)
        return found, length

    @cute.jit
    def load_next_queries(
        self,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        tma_q: blackwell.Tma,
        turn: cutlass.Int32,
        length: cutlass.Int32,
        warp: cutlass.Int32,
    ) -> None:
        """Load an item's queries to s_q, unless it attends to nothing, and prefetch those of a later item
        into L2."""
        if warp == 0 and length > 0:
            self.load_queries(scheduler, pipelines, shared, tma_q, turn)
        if warp == 0 and length <= 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(pipelines.q.full(query_state(turn)))
        self.prefetch_queries(scheduler, turn + self.tuning.prefetch, warp)

    def load_queries(
        self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared, tma_q: blackwell.Tma, turn: Any
    ) -> None:
        """Called by one warp."""
        token, head = scheduler.work_tile(turn)
        state = query_state(turn)
        pipelines.q.arrive_and_expect_tx(state)
        for block in range(BLOCKS):
            tma_q.load(pipelines.q, state, shared.tiles, head, block, token, stage=block)

    @cute.jit
    def prefetch_queries(self, scheduler: TileScheduler, turn: cutlass.Int32, warp: cutlass.Int32) -> None:
        """Prefetch the queries of an item, if it exists, into L2, as `Tuning` says."""
        if cutlass.const_expr(self.tuning.prefetch > 0):
            token, head = scheduler.work_tile(turn)
            first = warp * WARP_HEADS
            heads = cutlass.min(cutlass.min(scheduler.rows, scheduler.heads - head) - first, I32(WARP_HEADS))
            if turn < scheduler.count and heads > 0:
                with cute.arch.elect_one():
                    ops.prefetch_bulk(scheduler.row(self.q, token, head + first), heads * (2 * HEAD_DIM))

    def load_rows(self, pipelines: Pipelines, shared: Shared, turn: Any, slots: Any, warp: Any) -> None:
        """Start the copies of an item's codes, after prefetching the factors, scales and rope that `load`
        will read."""
        window = self.window(shared, turn)
        window.prefetch_descriptions(slots, self.pages)
        for entries in self.entries(pipelines, turn, slots, warp):
            window.load_codes(entries, self.pages)
        # Order the zeros of entries that do not count before later copies to the same addresses.
        cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def store_outputs(
        self,
        scheduler: TileScheduler,
        shared: Shared,
        turn: cutlass.Int32,
        warp: cutlass.Int32,
        item: cutlass.Int32,
    ) -> None:
        """Store an item's rows of o from the stage of a turn as a bulk group."""
        token, first = scheduler.work_tile(item)
        lane = cute.arch.lane_idx()
        number = warp * WARP_HEADS + lane
        head = first + number
        if lane < WARP_HEADS and number < self.staged and head < scheduler.heads:
            source = shared.stage(turn % STAGES) + number * OUT_BYTES
            wgmma.store_bulk(scheduler.row(self.o, token, head), source, 2 * HEAD_DIM)
        cute.arch.cp_async_bulk_commit_group()


def counted(slot: Any, length: Any, warp: Any) -> Any:
    """The slot of this lane's entry; -1 if it does not count."""
    return ops.select_value(warp * 32 + cute.arch.lane_idx() < length, slot, I32(PADDING))
