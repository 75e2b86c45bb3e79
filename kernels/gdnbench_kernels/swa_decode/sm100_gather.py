"""The GATHER role of kernel_sm100.py: loads the rows of a window from the pages to shared memory, as bf16.
CuTe DSL.

    per_token_scale  s_kv = e4m3                    factor = inv_scale[slot]
    fp8_ds_mla       s_kv = e4m3 2^(scale - 127)    factor = 1; the last 64 features unchanged

The conversion is exact: bf16 represents every e4m3 value, also times a power of two unless the product is
below bf16's normal range. NaN codes, and the NaN scale 255, give NaN.

Thread t has tokens t / 4 and t / 4 + 64. Of every 64 features, which share a scale in fp8_ds_mla, it has 16,
from 16 (t % 4) on: 16 bytes of codes, 32 of shared memory. Eight threads that store together have two rows,
one of them odd, so the swizzle distributes their 16-byte parts over different banks.

Three quarters of an item's loads are issued before the wait for the first stage, so they are in flight while
the previous item is multiplied. The last quarter is issued when the first is stored and its registers are
free. A token that does not count is not dereferenced; its row is zeros.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.plan import WARP
from gdnbench_kernels.swa_decode.layouts import DATA_BYTES, SCALE_BYTES
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM
from gdnbench_kernels.swa_decode.sm100_plan import (
    FEATURES,
    PLAN,
    QUARTERS,
    TOKENS,
    Pipelines,
    Role,
    Shared,
    TileScheduler,
    producer_state,
)
from gdnbench_kernels.swa_decode.window import PADDING

ACROSS = 4
"""Threads per group of 64 features of a token."""
CODES = GROUP // ACROSS
WORDS = CODES // 4
"""32-bit words of a thread's codes of a group."""
DOWN = 32 * PLAN.warps["GATHER"] // ACROSS
EACH = TOKENS // DOWN
"""Tokens per thread."""
HALVES = FEATURES // GROUP
LATE = 3
"""The quarter that is loaded after the first is stored."""
ROW_BYTES = 2 * GROUP
"""Bytes of a token in a group, in shared memory."""
BYTES = 16
"""Bytes that a thread loads or stores at once."""
SCALE_NAN = 255


@dataclass(frozen=True)
class Lane:
    """A thread's place: its first token, its 16 of the features of a group, and where it stores them."""

    down: cutlass.Int32
    across: cutlass.Int32
    parts: list[cutlass.Int32]

    @staticmethod
    def create(shared: Shared) -> Lane:
        return Lane.of(shared, cute.arch.thread_idx()[0] - WARP * Role.GATHER)

    @staticmethod
    def of(shared: Shared, thread: cutlass.Int32) -> Lane:
        down, across = thread // ACROSS, thread % ACROSS
        return Lane(down, across, store_addresses(shared.kv, down, across))


@dataclass(frozen=True)
class Registers:
    """What a thread holds of the tokens that it loads."""

    codes: cute.Tensor
    rope: cute.Tensor
    scales: cute.Tensor
    factor: cute.Tensor
    slot: cute.Tensor
    bits: cute.Tensor

    @staticmethod
    def allocate(groups: int) -> Registers:
        """For rows of up to `groups` groups of codes."""
        make, words = cute.make_rmem_tensor, cutlass.Int32
        return Registers(
            codes=make((WORDS, groups, EACH), words),
            rope=make((2 * WORDS, EACH), words),
            scales=make((SCALE_BYTES // 4, EACH), words),
            factor=make((2, EACH), cutlass.Float32),
            slot=make((EACH,), words),
            bits=make((2 * WORDS,), words),
        )


@dataclass(frozen=True)
class Gather:
    """A cache, in fp8_ds_mla if `mla`, and what a call attends to in it: slots; or with an `entry_shift`
    entries of 2^entry_shift slots in order, whose positions below the length count."""

    mla: bool
    pages: cute.Tensor  # uint8 [blocks, bytes]
    inv_scale: Any  # [slots], or None in fp8_ds_mla
    indices: cute.Tensor
    lens: cute.Tensor
    block_shift: cutlass.Int32
    entry_shift: Any = None

    @property
    def groups(self) -> int:
        """Groups of 64 codes of a row."""
        return GROUPS if self.mla else HEAD_DIM // GROUP

    @cute.jit
    def load(self, scheduler: TileScheduler, pipelines: Pipelines, shared: Shared) -> None:
        registers = Registers.allocate(self.groups)
        lane = Lane.create(shared)
        for turn in cutlass.range(scheduler.count, unroll=1):
            token, _ = scheduler.work_tile(turn)
            self.load_tile(turn, token, 0, pipelines, shared, lane, registers)
        finish(scheduler.count, pipelines)

    @cute.jit
    def load_tile(
        self,
        turn: cutlass.Int32,
        token: cutlass.Int32,
        first: Any,
        pipelines: Pipelines,
        shared: Shared,
        lane: Lane,
        registers: Registers,
    ) -> None:
        """Load 128 entries of `token` from entry `first` on. `turn` counts the CTA's tiles."""
        r_codes, r_rope, r_scales = registers.codes, registers.rope, registers.scales
        r_slot, r_bits = registers.slot, registers.bits
        down, across = lane.down, lane.across
        for i in cutlass.range_constexpr(EACH):
            r_slot[i] = self._slot(token, first + down + i * DOWN)
            self._fetch_factor(r_slot[i], r_scales[None, i], registers.factor[None, i])
            self._fetch(r_slot[i], across, 0, LATE * HALVES, r_codes[None, None, i], r_rope[None, i])
        self._store_factors(turn, pipelines, shared, registers.factor, down, across)
        for quarter in cutlass.range_constexpr(QUARTERS):
            state = producer_state(turn, quarter)
            pipelines.kv.producer_acquire(state)
            for i in cutlass.range_constexpr(EACH):
                for half in cutlass.range_constexpr(HALVES):
                    group = quarter * HALVES + half
                    start = group * TOKENS * ROW_BYTES + i * DOWN * ROW_BYTES
                    if cutlass.const_expr(group < self.groups):
                        self._convert(r_codes[None, group, i], r_scales[None, i], group, r_bits)
                        store_words(r_bits, lane.parts, start)
                    else:
                        store_words(r_rope[None, i], lane.parts, start)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.kv.producer_commit(state)
            if cutlass.const_expr(quarter == 0):
                for i in cutlass.range_constexpr(EACH):
                    self._fetch(
                        r_slot[i],
                        across,
                        LATE * HALVES,
                        QUARTERS * HALVES,
                        r_codes[None, None, i],
                        r_rope[None, i],
                    )

    @cute.jit
    def _slot(self, token: cutlass.Int32, entry: cutlass.Int32) -> cutlass.Int32:
        """The slot of an entry; PADDING if it does not count."""
        slot = cutlass.Int32(PADDING)
        if entry < cutlass.min(self.lens[token], self.room()):
            if cutlass.const_expr(self.entry_shift is None):
                slot = self.indices[token, entry]
            else:
                within = entry & ((1 << self.entry_shift) - 1)
                slot = (self.indices[token, entry >> self.entry_shift] << self.entry_shift) + within
        return slot

    def room(self) -> Any:
        """How many entries the table has room for."""
        entries = self.indices.shape[1]
        return entries if self.entry_shift is None else entries << self.entry_shift

    def _page(self, slot: cutlass.Int32) -> tuple[cute.Pointer, cutlass.Int32]:
        """(a slot's page, its position in the page in tokens)."""
        page = self.pages.iterator + cutlass.Int64(slot >> self.block_shift) * self.pages.stride[0]
        return page, slot & ((1 << self.block_shift) - 1)

    @cute.jit
    def _fetch_factor(self, slot: cutlass.Int32, r_scales: cute.Tensor, r_factor: cute.Tensor) -> None:
        """Load the scales of an entry's groups, and its factor."""
        r_scales.fill(0)
        r_factor[0], r_factor[1] = 0.0, -math.inf
        if slot != PADDING:
            r_factor[0], r_factor[1] = 1.0, 0.0
            if cutlass.const_expr(self.mla):
                page, offset = self._page(slot)
                load_words(page + (DATA_BYTES << self.block_shift) + offset * SCALE_BYTES, r_scales)
            else:
                factor = cutlass.Float32(self.inv_scale[slot])
                # NaN if it is infinite, because codes of 0 times infinity are NaN.
                r_factor[0] = factor + (factor - factor)

    @cute.jit
    def _fetch(
        self,
        slot: cutlass.Int32,
        across: cutlass.Int32,
        first: cutlass.Constexpr,
        stop: cutlass.Constexpr,
        r_codes: cute.Tensor,
        r_rope: cute.Tensor,
    ) -> None:
        """Load this thread's bytes of an entry's groups `first` .. `stop` - 1; zeros if it does not count."""
        groups = self.groups
        for group in cutlass.range_constexpr(first, min(stop, groups)):
            r_codes[None, group].fill(0)
        if cutlass.const_expr(stop > groups):
            r_rope.fill(0)
        if slot != PADDING:
            page, offset = self._page(slot)
            row = page + offset * (DATA_BYTES if self.mla else HEAD_DIM)
            for group in cutlass.range_constexpr(first, min(stop, groups)):
                load_words(row + group * GROUP + across * CODES, r_codes[None, group])
            if cutlass.const_expr(stop > groups):
                load_words(row + GROUPS * GROUP + across * 2 * CODES, r_rope)

    @cute.jit
    def _store_factors(
        self,
        turn: cutlass.Int32,
        pipelines: Pipelines,
        shared: Shared,
        r_factor: cute.Tensor,
        down: cutlass.Int32,
        across: cutlass.Int32,
    ) -> None:
        """One thread of each token stores its factor."""
        state = producer_state(turn)
        pipelines.factor.producer_acquire(state)
        if across == 0:
            for i in cutlass.range_constexpr(EACH):
                cute.autovec_copy(r_factor[None, i], shared.factor[down + i * DOWN, None, 0])
        pipelines.factor.producer_commit(state)

    @cute.jit
    def _convert(
        self, r_codes: cute.Tensor, r_scales: cute.Tensor, group: cutlass.Constexpr, r_bits: cute.Tensor
    ) -> None:
        """16 codes as bf16; in fp8_ds_mla times their group's scale."""
        r_values = cute.make_rmem_tensor((CODES,), cutlass.Float32)
        r_values.store(cute.recast_tensor(r_codes, cutlass.Float8E4M3FN).load().to(cutlass.Float32))
        if cutlass.const_expr(self.mla):
            factor = power_of_scale((r_scales[group // 4] >> (8 * (group % 4))) & 0xFF)
            for i in cutlass.range_constexpr(CODES):
                r_values[i] = r_values[i] * factor
        cute.recast_tensor(r_bits, cutlass.BFloat16).store(r_values.load().to(cutlass.BFloat16))


@cute.jit
def finish(turn: cutlass.Int32, pipelines: Pipelines) -> None:
    """Wait until all rows and factors are read; `turn` is the number of tiles."""
    pipelines.factor.producer_acquire(producer_state(turn))
    for quarter in cutlass.range_constexpr(QUARTERS):
        pipelines.kv.producer_acquire(producer_state(turn, quarter))


def load_words(start: cute.Pointer, r_words: cute.Tensor) -> None:
    """Load consecutive bytes from global memory, aligned to the size of one load."""
    size = cute.size(r_words)
    align = min(4 * size, BYTES)
    words = cute.recast_ptr(start.align(align), dtype=cutlass.Int32)
    cute.autovec_copy(cute.make_tensor(words, cute.make_layout(size)), r_words)


def store_addresses(s_kv: cute.Tensor, row: cutlass.Int32, across: cutlass.Int32) -> list[cutlass.Int32]:
    """The addresses of a thread's two parts of a row of the first group. A group of 64 features of all tokens
    is rows of 128 bytes, in which the swizzle moves part k of 16 bytes to k ^ (row % 8). All rows and groups
    of a thread have constant distances from these two addresses."""
    start = s_kv.iterator.toint() + row * ROW_BYTES
    return [start + ((2 * across + part) ^ (row % 8)) * BYTES for part in range(2)]


def store_words(r_words: cute.Tensor, parts: list[cutlass.Int32], distance: int) -> None:
    """Store 16 values of 16 bits to shared memory."""
    for i, part in enumerate(parts):
        target = cute.make_ptr(cutlass.Int32, part + distance, cute.AddressSpace.smem, assumed_align=BYTES)
        words = cute.local_tile(r_words, (BYTES // 4,), (i,))
        cute.autovec_copy(words, cute.make_tensor(target, cute.make_layout(BYTES // 4)))


@cute.jit
def power_of_scale(scale: cutlass.Int32) -> cutlass.Float32:
    """2^(scale - 127), NaN for 255: scale is the exponent of a normal f32, except 0, whose power is
    subnormal."""
    bits = scale << 23
    bits = cutlass.Int32(0x00400000) if scale == 0 else bits
    bits = cutlass.Int32(0x7FC00000) if scale == SCALE_NAN else bits
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[bits]
    )
