"""The chunks of packed sequences: FLA's `prepare_chunk_indices` and `prepare_chunk_offsets`. CuTe DSL.

Cuts each sequence into chunks of C = 64 tokens, on the device:

    chunk_offsets[n]  = sum over m < n of ceil((cu_seqlens[m+1] - cu_seqlens[m]) / C)        n = 0 .. N
    chunk_indices[c]  = (n, c - chunk_offsets[n])        n the sequence that chunk c belongs to
    total_chunks[0]   = chunk_offsets[N]

There are no products. One CTA processes strips of as many sequences as it has threads:

    1. each thread counts the chunks of one sequence; a scan over the warp, a scan of the warps' sums over the
       CTA and the count of earlier strips give chunk_offsets of the strip, also in shared memory
    2. the threads take the strip's chunks in turn and search each chunk's sequence: the last n with
       chunk_offsets[n] <= c, which skips sequences without tokens

So all threads write, for one long sequence as for many short ones.

The table of segments, for fused_segments.py, is another build, with a segment's tokens in place of C and at
least one segment of each sequence.

    SMEM       shape  dtype  layout
    s_offsets  1024   int32  contiguous: chunk_offsets of the strip
    s_sums     32     int32  contiguous: chunks of each warp's sequences

    role  warps  does
    SCAN  0..31  counts, scans, writes the tables

    sync                   who   orders
    barrier after s_sums   SCAN  sums written before they are scanned; s_offsets searched before rewritten
    barrier after offsets  SCAN  s_offsets written before it is searched; s_sums scanned before rewritten

1024 threads, 4224 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

Limits: N < 2^31 - 1024 sequences, including zero-length ones and N = 0; cu_seqlens int32, not decreasing.
chunk_indices has at least total_chunks rows; rows past that are not written. Invalid offsets, with more
chunks than rows, are truncated there in all three tables. The sums are integers, so the result does not
depend on the order of threads.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_prefill.chunk_table import CHUNK
from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Sync

WARPS = 32


class Role(IntEnum):
    """First warp of each role."""

    SCAN = 0


PLAN = KernelPlan(
    name="chunk_metadata",
    roles=Role,
    warps={"SCAN": WARPS},
    does={"SCAN": "counts, scans, writes the tables"},
    smem=(
        Buffer("s_offsets", (WARPS * WARP,), "int32", "contiguous: chunk_offsets of the strip", align=16),
        Buffer("s_sums", (WARPS,), "int32", "contiguous: chunks of each warp's sequences", align=16),
    ),
    tmem=(),
    pipelines=(),
    syncs=(
        Sync(
            "barrier after s_sums",
            "SCAN",
            "sums written before they are scanned; s_offsets searched before rewritten",
        ),
        Sync(
            "barrier after offsets",
            "SCAN",
            "s_offsets written before it is searched; s_sums scanned before rewritten",
        ),
    ),
)


@dataclass(frozen=True)
class ChunkMetadata:
    """Fills the chunk tables that the operation's other kernels read: of chunks of `tokens` tokens, at least
    `least` of each sequence."""

    tokens: int = CHUNK
    least: int = 0

    @cute.jit
    def __call__(
        self,
        cu_seqlens: cute.Tensor,
        chunk_offsets: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(cu_seqlens, chunk_offsets, chunk_indices, total_chunks).launch(
            grid=(1, 1, 1), block=(PLAN.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        cu_seqlens: cute.Tensor,
        chunk_offsets: cute.Tensor,
        chunk_indices: cute.Tensor,
        total_chunks: cute.Tensor,
    ) -> None:
        smem = cutlass.memory.SmemAllocator()
        s_offsets = smem.allocate_tensor(cutlass.Int32, cute.make_layout(PLAN.threads), 16)
        s_sums = smem.allocate_tensor(cutlass.Int32, cute.make_layout(WARPS), 16)
        thread = cute.arch.thread_idx()[0]
        sequences, rows = cute.size(cu_seqlens) - 1, cute.size(chunk_indices, mode=[0])
        before = cutlass.Int32(0)
        for first in cutlass.range(0, sequences, PLAN.threads, unroll=1):
            sequence = first + thread
            count = cutlass.Int32(0)
            if sequence < sequences:
                length = cu_seqlens[sequence + 1] - cu_seqlens[sequence]
                count = (length + self.tokens - 1) // self.tokens
                if cutlass.const_expr(self.least > 0):
                    count = cutlass.max(count, self.least)
            offset, chunks = self.scan(count, s_sums)
            offset += before
            if sequence < sequences:
                chunk_offsets[sequence] = cutlass.min(offset, rows)
            s_offsets[thread] = offset
            cute.arch.sync_threads()
            self.index(first, before, cutlass.min(before + chunks, rows), s_offsets, chunk_indices)
            before += chunks
        if thread == 0:
            chunk_offsets[sequences] = cutlass.min(before, rows)
            total_chunks[0] = cutlass.min(before, rows)

    @cute.jit
    def scan(self, count: cutlass.Int32, s_sums: cute.Tensor) -> tuple[cutlass.Int32, cutlass.Int32]:
        """(sum of the counts of all threads before this one, sum of all), in every thread of the CTA."""
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        through = self.scan_warp(count, lane)
        if lane == WARP - 1:
            s_sums[warp] = through
        cute.arch.sync_threads()
        sums = self.scan_warp(s_sums[lane], lane)
        # sum before this warp = sum through it - the warp's own
        warps_before = cute.arch.shuffle_sync(sums, warp) - cute.arch.shuffle_sync(through, WARP - 1)
        return warps_before + through - count, cute.arch.shuffle_sync(sums, WARP - 1)

    @cute.jit
    def scan_warp(self, value: cutlass.Int32, lane: cutlass.Int32) -> cutlass.Int32:
        """The sum of the values of this lane and the lanes below it."""
        for step in cutlass.range_constexpr(WARP.bit_length() - 1):
            below = cute.arch.shuffle_sync_up(value, 1 << step)
            value += cutlass.select_(lane >= 1 << step, below, cutlass.Int32(0))
        return value

    @cute.jit
    def index(
        self,
        first: cutlass.Int32,
        start: cutlass.Int32,
        stop: cutlass.Int32,
        s_offsets: cute.Tensor,
        chunk_indices: cute.Tensor,
    ) -> None:
        """Write rows [start, stop) of chunk_indices: the chunks of the strip of sequences that begins at
        `first`."""
        for chunk in cutlass.range(start + cute.arch.thread_idx()[0], stop, PLAN.threads, unroll=1):
            # Bisection invariant: offsets through `place` are at most `chunk`, as the strip's first one is.
            place = cutlass.Int32(0)
            for bit in cutlass.range_constexpr(PLAN.threads.bit_length() - 2, -1, -1):
                further = place + (1 << bit)
                place = cutlass.select_(s_offsets[further] <= chunk, further, place)
            chunk_indices[chunk, 0] = first + place
            chunk_indices[chunk, 1] = chunk - s_offsets[place]
