# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of `gdnbench.digests`: rows of one pool, or jobs of any number in one launch.

Grid (blocks of a row, groups of rows). A program computes the weights K of its block once, then reads
that block of each of its rows. Where a row has several blocks, programs add their sums atomically: integers
modulo 2**64 add up to the same in any order.

Elements of 1, 2 or 4 bytes are read in row-major order, whatever their strides: an element at byte b of a row
adds element * 2**(8 (b mod 4)) * K(2 (b div 4) + a). Rows whose bytes follow each other are read as words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # elements that a program reads of a row
_WARPS = 4
_JOB_BLOCK = 128  # words that a program of `run_jobs` reads of each of its rows at a time
_JOB_WARPS = 1
_JOB_LOOPS = (32, 8, 1)  # how often
_JOB_FILL = 4096  # programs of `run_jobs` that fill a GPU
_FILL = 512  # programs that fill a GPU; with more, one reads several rows


@triton.jit
def _weight(n):  # type: ignore[no-untyped-def]
    """splitmix64's output n; n is uint64."""
    z = (n + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _add_block(  # type: ignore[no-untyped-def]
    base,
    index,
    out,
    count,
    first,
    slots,
    row_stride,
    elements,
    size_1,
    size_2,
    stride_0,
    stride_1,
    stride_2,
    SIZE: tl.constexpr,
    SAMPLE: tl.constexpr,
    INDEXED: tl.constexpr,
    WORDS_FOLLOW: tl.constexpr,
    ATOMIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add one block of rows [first, first + ROWS) of the `count` chosen ones to `out` [count, 2]."""
    GROUP: tl.constexpr = 128 // SIZE
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    element = place // GROUP * (GROUP * SAMPLE) + place % GROUP
    inside = element < elements
    if WORDS_FOLLOW:
        offset = element
    else:
        outer = element // size_2
        offset = outer // size_1 * stride_0 + outer % size_1 * stride_1 + element % size_2 * stride_2
    octet = (element * SIZE).to(tl.uint64)
    word = octet // 4
    shift = 8 * (octet % 4)
    k0 = _weight(2 * word) << shift
    k1 = _weight(2 * word + 1) << shift
    for one in range(ROWS):
        at = first + one
        listed = at < count
        if INDEXED:  # noqa: SIM108
            row = tl.load(index + at, mask=listed, other=-1).to(tl.int64)
        else:
            row = at.to(tl.int64)
        there = listed & (row >= 0) & (row < slots)
        found = tl.load(base + row * row_stride + offset, mask=inside & there, other=0)
        if SIZE == 4:
            value = found.to(tl.uint32, bitcast=True).to(tl.uint64)
        elif SIZE == 2:
            value = found.to(tl.uint16, bitcast=True).to(tl.uint64)
        else:
            value = found.to(tl.uint8, bitcast=True).to(tl.uint64)
        h0 = tl.sum(value * k0, 0).to(tl.int64, bitcast=True)
        h1 = tl.sum(value * k1, 0).to(tl.int64, bitcast=True)
        if ATOMIC:
            tl.atomic_add(out + 2 * at, h0, mask=there, sem="relaxed")
            tl.atomic_add(out + 2 * at + 1, h1, mask=there, sem="relaxed")
        else:
            tl.store(out + 2 * at, h0, mask=listed)
            tl.store(out + 2 * at + 1, h1, mask=listed)


@triton.jit  # type: ignore[untyped-decorator]
def digest_rows(  # type: ignore[no-untyped-def]
    pool,
    index,
    out,
    count,
    slots,
    row_stride,
    elements,
    size_1,
    size_2,
    stride_0,
    stride_1,
    stride_2,
    SIZE: tl.constexpr,
    SAMPLE: tl.constexpr,
    INDEXED: tl.constexpr,
    WORDS_FOLLOW: tl.constexpr,
    ATOMIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fill `out` int64 [count, 2] with the digests of rows `index` of `pool`."""
    _add_block(
        pool, index, out, count, tl.program_id(1) * ROWS, slots, row_stride, elements, size_1, size_2,
        stride_0, stride_1, stride_2, SIZE, SAMPLE, INDEXED, WORDS_FOLLOW, ATOMIC, ROWS, BLOCK,
    )  # fmt: skip


JOB = 9
"""Columns of a table of jobs: whether it is a copy, the addresses of the pool (of what is copied) and of the
numbers of rows, the byte of the output, the numbers' count and size in words, the pool's slots and row
stride in words, and the words of a row (of the copy)."""


@triton.jit  # type: ignore[untyped-decorator]
def run_jobs(  # type: ignore[no-untyped-def]
    table,
    out,
    SAMPLE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (parts of a row, groups of rows, jobs); a part is LOOP blocks. `table` int64 [jobs, COLUMNS].
    `out` is zero where digests go: int64 [count, 2] of each job."""
    job = table + tl.program_id(2) * COLUMNS
    base = tl.load(job + 1).to(tl.pointer_type(tl.int32))
    byte = tl.load(job + 3)
    words = tl.load(job + 8)
    part = tl.program_id(0).to(tl.int64) * (BLOCK * LOOP)
    first = tl.program_id(1) * ROWS
    if tl.load(job) != 0:
        if first == 0:
            target = out.to(tl.pointer_type(tl.int32)) + byte // 4
            for one in range(LOOP):
                place = part + one * BLOCK + tl.arange(0, BLOCK)
                tl.store(
                    target + place, tl.load(base + place, mask=place < words, other=0), mask=place < words
                )
    else:
        count = tl.load(job + 4)
        if (first < count) & (part // 32 * (32 * SAMPLE) < words):
            index = tl.load(job + 2).to(tl.pointer_type(tl.int32))
            size = tl.load(job + 5)
            at = first + tl.arange(0, ROWS)
            listed = at < count
            low = tl.load(index + at * size, mask=listed, other=-1)
            high = tl.load(index + at * size + size - 1, mask=listed, other=-1)
            long = (high.to(tl.int64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.int64)
            row = tl.where(size == 2, long, low.to(tl.int64))
            there = listed & (row >= 0) & (row < tl.load(job + 6))
            source = base + row * tl.load(job + 7)
            h0 = tl.zeros((ROWS, BLOCK), tl.uint64)
            h1 = tl.zeros((ROWS, BLOCK), tl.uint64)
            for one in tl.range(LOOP, loop_unroll_factor=1):
                place = part + one * BLOCK + tl.arange(0, BLOCK)
                word = place // 32 * (32 * SAMPLE) + place % 32
                inside = there[:, None] & (word < words)[None, :]
                found = tl.load(source[:, None] + word[None, :], mask=inside, other=0)
                value = found.to(tl.uint32, bitcast=True).to(tl.uint64)
                h0 += value * _weight((2 * word).to(tl.uint64))[None, :]
                h1 += value * _weight((2 * word + 1).to(tl.uint64))[None, :]
            target = out + byte // 8 + 2 * at
            tl.atomic_add(target, tl.sum(h0, 1).to(tl.int64, bitcast=True), mask=there, sem="relaxed")
            tl.atomic_add(target + 1, tl.sum(h1, 1).to(tl.int64, bitcast=True), mask=there, sem="relaxed")


@dataclass(frozen=True, slots=True)
class RowMemory:
    """How a row of a pool lies in memory: at most three axes, in elements of `size` bytes."""

    size: int
    row_stride: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def words_follow(self) -> bool:
        return self.shape[:2] == (1, 1) and self.strides[2] == 1

    def blocks(self, sample: int) -> int:
        """How many blocks of `_BLOCK` elements a row has, of those that count."""
        group = 128 // self.size
        groups = -(-self.elements // group)
        return max(1, -(-(-(-groups // sample) * group) // _BLOCK))


def bits_and_form(pool: Tensor) -> tuple[Tensor, RowMemory] | None:
    """`pool` [slots, ...] as int32, int16 or int8, and the form of its rows.

    None if rows have more than three axes that do not follow each other, or such elements of 8 bytes.
    """
    size = pool.element_size()
    axes = _collapsed(tuple(pool.shape[1:]), tuple(pool.stride()[1:]))
    if len(axes) == 1 and axes[0][1] == 1:
        octets = axes[0][0] * size
        row_octets = pool.stride(0) * size
        if octets % 4 == 0 and row_octets % 4 == 0 and pool.data_ptr() % 4 == 0:
            words = pool.view(torch.uint8) if size == 1 else pool
            flat = torch.as_strided(words, (pool.shape[0], axes[0][0]), (pool.stride(0), 1))
            return flat.view(torch.int32), RowMemory(4, row_octets // 4, (1, 1, octets // 4), (0, 0, 1))
    if size == 8 or len(axes) > 3:
        return None
    bits = pool.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[size])
    padded = [(1, 0)] * (3 - len(axes)) + axes
    (a, b, c), (x, y, z) = zip(*padded, strict=True)
    return bits, RowMemory(size, pool.stride(0), (a, b, c), (x, y, z))


def _collapsed(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(size, stride) of a row's axes, with axes that follow each other merged."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes or [(1, 1)]


def _rows_of_a_program(rows: int, blocks: int) -> int:
    """A power of two, so that few variants are compiled."""
    wanted = rows * blocks // _FILL
    return 1 if wanted < 2 else min(8, 1 << (wanted.bit_length() - 1))


def fill_digests(pool: Tensor, index: Tensor | None, out: Tensor, sample: int) -> bool:
    """Queue the digests of rows `index` of `pool` into `out`; False if the kernel cannot read such rows."""
    found = bits_and_form(pool)
    if found is None:
        return False
    bits, form = found
    blocks = form.blocks(sample)
    count = len(out)
    if index is not None:
        index = index.reshape(-1)
    if blocks > 1:
        out.zero_()
    rows = _rows_of_a_program(count, blocks)
    with torch.cuda.device(pool.device):
        digest_rows[(blocks, triton.cdiv(count, rows))](
            bits,
            out if index is None else index,
            out,
            count,
            pool.shape[0],
            form.row_stride,
            form.elements,
            form.shape[1],
            form.shape[2],
            *form.strides,
            SIZE=form.size,
            SAMPLE=sample,
            INDEXED=index is not None,
            WORDS_FOLLOW=form.words_follow,
            ATOMIC=blocks > 1,
            ROWS=rows,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
    return True


@dataclass(slots=True)
class JobTable:
    """Jobs for one launch of `run_jobs`. `table`: int64 [jobs, JOB] on the device."""

    table: Tensor
    grid: tuple[int, int, int]
    rows: int
    loop: int
    sample: int
    _launch: Callable[..., Any] | None = None  # of the compiled kernel, without triton's search for it
    _before_stream: tuple[Any, ...] = ()  # its arguments
    _after_stream: tuple[Any, ...] = ()
    _constants: tuple[int, ...] = ()
    _device: int = -1

    def run(self, memory: Tensor, at: int) -> None:
        """Queue the jobs on the current stream. `memory`: uint8 [n]; the outputs begin at its byte `at`, a
        multiple of 256, and are zero there."""
        if self._device == torch._C._cuda_getDevice():
            launch = self.bound(memory.data_ptr() + at, torch._C._cuda_getCurrentRawStream(self._device))
            if launch is not None:
                launch()
                return
        with torch.cuda.device(memory.device):
            self._first_run(memory, at)

    def bound(self, address: int, stream: int) -> Callable[[], Any] | None:
        """Queues the jobs on `stream`, if its device is current; the outputs begin at `address`. None before
        the first `run`, which compiles the kernel."""
        if self._launch is None:
            return None
        before, after = self._before_stream, self._after_stream
        return partial(self._launch, *before, stream, *after, address, *self._constants)

    def _first_run(self, memory: Tensor, at: int) -> None:
        self._constants = (self.sample, self.rows, _JOB_BLOCK, self.loop, JOB)
        compiled = run_jobs[self.grid](
            self.table, memory[at:].view(torch.int64), *self._constants, num_warps=_JOB_WARPS
        )
        launch, self._before_stream, after = _launcher(compiled, self.grid)
        self._after_stream = (*after, self.table.data_ptr())
        self._launch, self._device = launch, memory.device.index  # last: other threads ask for them


def _launcher(
    compiled: Any, grid: tuple[int, int, int]
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
    """What triton's `JITFunction.run` ends with, for arguments as those that the kernel is compiled for: a
    function, and its arguments before the stream and between that and the kernel's.

    Triton 3.6's is a class around a function in C, whose arguments it completes.
    """
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    known = triton.__version__.startswith("3.6.") and type(run).__name__ == "CudaLauncher"
    if known and not run.global_scratch_size and not run.profile_scratch_size:
        completed = (run.launch_cooperative_grid, run.launch_pdl, None, None)
        return run.launch, grid, (function, *completed, metadata, None, None, None)
    return run, grid, (function, metadata, None, None, None)


def rows_job(pool: Tensor, index: Tensor, at: int) -> list[int] | None:
    """The job of digesting rows `index` of `pool` into int64 [n, 2] at byte `at`; None for rows whose words
    do not follow each other."""
    found = bits_and_form(pool)
    if found is None or not found[1].words_follow or not index.is_contiguous():
        return None
    form = found[1]
    numbers = (index.numel(), index.element_size() // 4, pool.shape[0], form.row_stride, form.elements)
    return [0, pool.data_ptr(), index.data_ptr(), at, *numbers]


def copy_job(source: Tensor, at: int) -> list[int] | None:
    """The job of copying `source` to byte `at`; None for a tensor that is not made of contiguous words."""
    if not source.is_contiguous() or source.data_ptr() % 4 or source.nbytes % 4:
        return None
    return [1, source.data_ptr(), 0, at, 0, 1, 0, 0, source.nbytes // 4]


def grid_of_jobs(jobs: Sequence[Sequence[int]], sample: int) -> tuple[tuple[int, int, int], int, int]:
    """The grid of `run_jobs`, how many rows a program reads, and how many blocks of each."""
    most = max(job[4] for job in jobs)
    rows = 1 if most < 4 else 4
    groups = [-(-job[8] // 32) for job in jobs]
    words = max(32 * (one if job[0] else -(-one // sample)) for job, one in zip(jobs, groups, strict=True))
    blocks, row_groups = max(1, -(-words // _JOB_BLOCK)), max(1, -(-most // rows))
    programs = blocks * row_groups * len(jobs)
    loop = next((one for one in _JOB_LOOPS if programs >= one * _JOB_FILL), 1)
    return (-(-blocks // loop), row_groups, len(jobs)), rows, loop
