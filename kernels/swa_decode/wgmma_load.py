"""The LOAD warps of the wgmma kernel: windows, queries, and outputs that lie in shared memory. CuTe DSL.

Warp w copies entries 32 w .. + 31 of a window, two virtual warps of `Entries`, and heads 16 w .. + 15 of o.
An item's turn begins when the queries of the item before have been read:

    ask for the queries, and for what describes the rows
    make the queries f16 in place, each head's times a power of two
    write what rows are multiplied by; rope when the item before is done with its own
    store the outputs of the item before, and copy the rows of the next item to where they were

Of every 16 features of codes position p < 8 is feature 4 (p / 2) + p % 2, position 8 + p is 2 more; of rope
position p < 8 is feature 2 p, position 8 + p the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode import wgmma_ops as wgmma
from gdnbench_kernels.swa_decode.latent_rows import BIAS, CHUNK, NO_NUMBER, PAIR_BITS, Entries, Pages
from gdnbench_kernels.swa_decode.mma_sync_decode import LOG2_E, Q_TOP
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.wgmma_plan import (
    BLOCKS,
    LOADERS,
    OUT_BYTES,
    STAGES,
    Arrival,
    Barrier,
    Role,
)
from gdnbench_kernels.swa_decode.wgmma_window import (
    HIGH_HALVES,
    LOW_HALVES,
    DsMlaWindow,
    PerTokenWindow,
    selected,
)
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

WARP_HEADS = 16
"""Of o, that a warp stores."""
CONVERTED = 4 * LOADERS
"""Heads whose queries are converted at once, each by 8 lanes."""


@dataclass(frozen=True)
class Items:
    """What a CTA does: items worker, worker + workers .., an item being `rows` heads of a token."""

    heads: int
    rows: int
    count: cutlass.Int32

    @staticmethod
    def of(tokens: Any, heads: int, rows: int) -> Items:
        block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
        return Items(heads, rows, (tokens * -(-heads // rows) - block + blocks - 1) // blocks)

    def at(self, turn: Any) -> tuple[Any, Any]:
        """(token, its first head)."""
        groups = -(-self.heads // self.rows)
        item = cute.arch.block_idx()[0] + turn * cute.arch.grid_dim()[0]
        return item // groups, item % groups * self.rows

    def row(self, x: cute.Tensor, token: Any, head: Any) -> Any:
        """Where a head's features lie, in q or o."""
        return x.iterator.toint() + (I64(token) * self.heads + I64(head)) * (2 * HEAD_DIM)


@dataclass(frozen=True)
class Turn:
    """A stage and its phase."""

    index: Any
    phase: Any


def window_place(turn: Any) -> Turn:
    return Turn(turn % STAGES, turn // STAGES & 1)


def query_place(turn: Any) -> Turn:
    return Turn(0, turn & 1)


@dataclass(frozen=True)
class Rings:
    rows: blackwell.Ring
    q: blackwell.Ring


@dataclass(frozen=True)
class Shared:
    """Addresses of the plan's buffers; q as a tensor too, and the mbarriers in s_ready."""

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
    row_bytes: int  # what rows are apart

    def stage(self, stage: Any) -> Any:
        """Where a window's rows lie."""
        return self.rows + stage * (MAX_WINDOW * self.row_bytes)

    def window(self, stage: Any, mla: bool, inv_scale: Any) -> Any:
        entries = self.entries + stage * (MAX_WINDOW * 16)
        if not mla:
            return PerTokenWindow(self.stage(stage), entries, inv_scale)
        groups = self.groups + stage * (GROUPS * MAX_WINDOW * 2)
        return DsMlaWindow(self.stage(stage), entries, groups, I32(0), self.rope)

    def arrive(self, which: Arrival) -> None:
        """A whole warp, which counts as one."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.ready + which)

    def wait(self, which: Arrival, turn: Any) -> None:
        cute.arch.mbarrier_wait(self.ready + which, turn & 1)


@dataclass(frozen=True)
class Loader:
    """`mla`: of fp8_ds_mla; `staged`: heads of o in shared memory; `prefetch`: Tuning's."""

    mla: bool
    staged: int
    prefetch: int
    pages: Pages
    block_size: cutlass.Int32
    inv_scale: cute.Tensor
    indices: cute.Tensor
    lens: cute.Tensor
    q: cute.Tensor
    o: cute.Tensor
    scale: cutlass.Float32

    @cute.jit
    def run(self, items: Items, rings: Rings, shared: Shared, tma_q: blackwell.Tma) -> None:
        warp = cute.arch.make_warp_uniform(wgmma.thread_in_role(Role.LOAD) // 32)
        slots, length = self.slots(items, I32(0), warp)
        later, later_length = self.slots(items, I32(1), warp)
        self.ask(items, rings, shared, tma_q, I32(0), length, warp)
        self.copy(rings, shared, I32(0), slots, warp)
        if items.count > 1:
            self.copy(rings, shared, I32(1), later, warp)
        for turn in cutlass.range(items.count, unroll=1):
            if turn > 0:
                rings.q.acquire(query_place(turn - 1))
                self.ask(items, rings, shared, tma_q, turn, length, warp)
            window = self.window(shared, turn)
            both = self.entries(rings, turn, slots, warp)
            loaded = [window.load(entries, self.pages) for entries in both]
            rings.q.wait(query_place(turn))
            if length > 0:
                self.convert(items, shared, warp)
            cute.arch.fence_proxy("async.shared", space="cta")
            shared.arrive(Arrival.QUERIES)
            left = []
            for entries, words in zip(both, loaded, strict=True):
                left += window.describe_codes(entries, self.pages, words)
            if warp == 0:
                ops.store_shared(shared.lens + turn % STAGES * 4, length)
            rings.rows.fill_by_warp(window_place(turn))
            after, after_length = self.slots(items, turn + 2, warp)
            if turn > 0:
                rings.rows.acquire(window_place(turn - 1))
            if cutlass.const_expr(self.mla):
                window.put_ropes(left)
                shared.arrive(Arrival.ROPE)
            if turn > 0:
                self.store(items, shared, turn - 1, warp)
                if turn + 1 < items.count:
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    cute.arch.barrier(barrier_id=Barrier.LOAD, number_of_threads=32 * LOADERS)
                    self.copy(rings, shared, turn + 1, later, warp)
            slots, length = later, later_length
            later, later_length = after, after_length
        rings.rows.acquire(window_place(items.count - 1))
        self.store(items, shared, items.count - 1, warp)
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def window(self, shared: Shared, turn: Any) -> Any:
        window = shared.window(turn % STAGES, self.mla, self.inv_scale)
        if not self.mla:
            return window
        return DsMlaWindow(window.s_rows, window.s_entries, window.s_groups, self.block_size, window.s_rope)

    def entries(self, rings: Rings, turn: Any, slots: Any, warp: Any) -> list[Entries]:
        """Of the two virtual warps."""
        lane, full = cute.arch.lane_idx(), rings.rows.full(window_place(turn))
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
    def slots(
        self, items: Items, turn: cutlass.Int32, warp: cutlass.Int32
    ) -> tuple[cutlass.Int32, cutlass.Int32]:
        """(the slot of this lane's entry, -1 where it does not count; the window's length), of the last item
        past the end."""
        token, _ = items.at(cutlass.min(turn, items.count - 1))
        entry = warp * 32 + cute.arch.lane_idx()
        found = I32(PADDING)
        if entry < cute.size(self.indices, mode=[1]):
            row = self.indices.iterator.toint() + I64(token) * I64(self.indices.stride[0]) * 4
            found = ops.load_index(row + I64(entry) * 4)
        length = ops.load_index(self.lens.iterator.toint() + I64(token) * 4)
        return ops.pick(entry < length, found, I32(PADDING)), length

    @cute.jit
    def ask(
        self,
        items: Items,
        rings: Rings,
        shared: Shared,
        tma_q: blackwell.Tma,
        turn: cutlass.Int32,
        length: cutlass.Int32,
        warp: cutlass.Int32,
    ) -> None:
        """For an item's queries into s_q, unless it attends to nothing; for those of one after it into L2."""
        token, head = items.at(turn)
        place = query_place(turn)
        if warp == 0 and length > 0:
            rings.q.expect(place)
            for block in cutlass.range_constexpr(BLOCKS):
                tma_q.load(rings.q, place, shared.tiles, head, block, token, stage=block)
        if warp == 0 and length <= 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(rings.q.full(place))
        if cutlass.const_expr(self.prefetch > 0):
            self.ask_ahead(items, turn + self.prefetch, warp)

    @cute.jit
    def ask_ahead(self, items: Items, turn: cutlass.Int32, warp: cutlass.Int32) -> None:
        """For the queries of an item, if there is one, into L2."""
        token, head = items.at(turn)
        number = warp * WARP_HEADS + cute.arch.lane_idx()
        mine = cute.arch.lane_idx() < WARP_HEADS and number < items.rows and head + number < items.heads
        if turn < items.count and mine:
            wgmma.prefetch_bulk(items.row(self.q, token, head + number), 2 * HEAD_DIM)

    def copy(self, rings: Rings, shared: Shared, turn: Any, slots: Any, warp: Any) -> None:
        """Starts the copies of an item's codes."""
        window = self.window(shared, turn)
        for entries in self.entries(rings, turn, slots, warp):
            window.copy(entries, self.pages)
        # Zeros of entries that do not count, before other rows are copied to where they are.
        cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def convert(self, items: Items, shared: Shared, warp: cutlass.Int32) -> None:
        """Queries of bf16 to f16, in place; scores' coefficients."""
        lane = cute.arch.lane_idx()
        half, first = (lane >> 2) & 1, lane >> 3
        for part in cutlass.range(items.rows // CONVERTED, unroll=1):
            head = part * CONVERTED + warp * 4 + lane % 4
            row = shared.q + head // 8 * 1024 + head % 8 * 128
            places = [
                row
                + (first + 4 * more) * (items.rows * 2 * GROUP)
                + ((4 * half + 2 * step) ^ (head % 8)) * CHUNK
                for more in range(2)
                for step in range(2)
            ]
            words = [[*ops.load_shared(place), *ops.load_shared(place ^ CHUNK)] for place in places]
            sizes = [word & PAIR_BITS for some in words for word in some]
            largest = sizes[0]
            for size in sizes[1:]:
                largest = ops.greater_halves(largest, size)
            largest = cutlass.max(largest >> 16, largest & 0x7FFF)
            for step in (4, 8, 16):
                largest = cutlass.max(largest, cute.arch.shuffle_sync_bfly(largest, step))
            field = largest >> 7
            power = cutlass.min(Q_TOP + BIAS - field, BIAS - 1)
            for number, (place, some) in enumerate(zip(places, words, strict=True)):
                pairs = halved(some, ops.power_of_two(power))
                chunks = pairs[::2], pairs[1::2]
                if self.mla and number >= 2:
                    # Rope's block is the last, which is the second of the lanes that have the fourth.
                    rope = first == BLOCKS - 5
                    evens, odds = even_and_odd(pairs)
                    chunks = (
                        [ops.pick(rope, x, y) for x, y in zip(evens, chunks[0], strict=True)],
                        [ops.pick(rope, x, y) for x, y in zip(odds, chunks[1], strict=True)],
                    )
                ops.store_shared(place, *chunks[0])
                ops.store_shared(place ^ CHUNK, *chunks[1])
            if lane < 4:
                coefficient = self.scale * F32(LOG2_E) * ops.power_of_two(-power)
                # A query that is not finite has no score that is.
                spoilt = ops.pick(field == 255, ops.float_of(I32(NO_NUMBER)), coefficient)
                ops.store_shared(shared.coefficients + head * 4, spoilt)

    @cute.jit
    def store(self, items: Items, shared: Shared, turn: cutlass.Int32, warp: cutlass.Int32) -> None:
        """Rows of o from a window's stage, in a bulk group."""
        token, first = items.at(turn)
        lane = cute.arch.lane_idx()
        number = warp * WARP_HEADS + lane
        head = first + number
        if lane < WARP_HEADS and number < self.staged and head < items.heads:
            source = shared.stage(turn % STAGES) + number * OUT_BYTES
            wgmma.put_bulk(items.row(self.o, token, head), source, 2 * HEAD_DIM)
        cute.arch.cp_async_bulk_commit_group()


def halved(words: list[Any], factor: Any) -> list[Any]:
    """Pairs of bf16 times `factor`, as pairs of f16."""
    found = []
    for word in words:
        low, high = ops.widened(word)
        found.append(ops.halves(low * factor, high * factor))
    return found


def even_and_odd(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Of eight pairs: the first of each, the second of each."""
    twos = list(zip(pairs[::2], pairs[1::2], strict=True))
    evens = [selected(low, high, LOW_HALVES) for low, high in twos]
    return evens, [selected(low, high, HIGH_HALVES) for low, high in twos]
