"""Segments of sequences, for the builds of the fused kernel that a context-parallel call launches. CuTe DSL.

A sequence is cut into segments of L tokens, the last one shorter; a sequence without tokens is one segment.
`chunk_metadata.py` writes the table, with L in place of C. Between the launches are two tensors:

    tensor  shape             dtype    slot s = (segment, value head)
    firsts  [UB, Hv, V, K]    float32  the state before segment s, if its sequence has others too
    maps    [UB, Hv, K, K]    float32  M of segment s

`kernel_sm100_transfer.py` writes B of segment s to slot s + 1 of firsts, and a sequence's initial state to
its first slot. B of the first segment begins with the initial state, so it is the second segment's first
state; `kernel_sm100_scan.py` adds S M to the others.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.delta_prefill.fused_tiles import PARTS, Half, WorkTile, read_given, write_kept
from gdnbench_kernels.gdn_prefill.fused_state import State
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import ChunkFused, Tma
from gdnbench_kernels.gdn_prefill.sizes import CHUNK


@dataclass(frozen=True)
class Cuts:
    """The segments of a batch, in global memory, and L, the tokens of a segment."""

    cu_seqlens: cute.Tensor  # [N+1] int32
    offsets: cute.Tensor  # [N+1] int32: segments before each sequence
    indices: cute.Tensor  # [UB, 2] int32: (sequence, segment within it)
    total: cute.Tensor  # [1] int32
    tokens: cutlass.Int32


@dataclass(frozen=True, kw_only=True)
class SegmentTile(WorkTile):
    """The work of a CTA: the chunks of a segment, for one value head."""

    segment: cutlass.Int32
    exists: cutlass.Boolean
    first: cutlass.Boolean  # of its sequence
    last: cutlass.Boolean

    @staticmethod
    def locate(cuts: Cuts, segment: cutlass.Int32, head: cutlass.Int32, wanted: Any) -> SegmentTile:
        """That of a segment, without chunks if there is no such segment or `wanted` is false for its index in
        its sequence and the sequence's number of segments."""
        total = cuts.total[0]
        exists = segment < total
        # The table has a row for each sequence at least.
        segment = cutlass.min(segment, total - 1)
        sequence, index = cuts.indices[segment, 0], cuts.indices[segment, 1]
        count = cuts.offsets[sequence + 1] - cuts.offsets[sequence]
        first, last = index == 0, index == count - 1
        start = cuts.cu_seqlens[sequence] + cuts.tokens * index
        stop = cutlass.min(start + cuts.tokens, cuts.cu_seqlens[sequence + 1])
        exists = exists & wanted(index, count)
        chunks = cutlass.select_(exists, (stop - start + CHUNK - 1) // CHUNK, cutlass.Int32(0))
        return SegmentTile(
            sequence,
            head,
            start,
            stop,
            chunks,
            segment=segment,
            exists=exists,
            first=first,
            last=last,
        )


@dataclass(frozen=True)
class SegmentStates:
    """The states of a call's segments in global memory."""

    initial: cute.Tensor | None  # [N, Hv, V, K]
    firsts: cute.Tensor
    final: cute.Tensor | None  # [N, Hv, V, K]

    @cute.jit
    def load(self, half: Half, work: SegmentTile, r_s: State) -> None:
        """Load S from the state before the segment: the initial one, if the sequence has no other segment."""
        for part in cutlass.range_constexpr(PARTS):
            r_s[part].fill(0.0)
            if work.exists:
                if work.first & work.last:
                    read_given(half, work, self.initial, part, r_s[part])
                else:
                    read_slot(half, work, self.firsts, part, r_s[part])

    @cute.jit
    def store(self, half: Half, work: SegmentTile, r_s: State) -> None:
        """Store S as the final state behind the last segment, if the call asks for it."""
        if cutlass.const_expr(self.final is not None):
            for part in cutlass.range_constexpr(PARTS):
                if work.exists & work.last:
                    write_kept(half, work, self.final, part, r_s[part])


@cute.jit
def read_slot(half: Half, work: SegmentTile, firsts: cute.Tensor, part: cutlass.Constexpr, r_s: Any) -> None:
    """Load a part of the columns of the segment's slot into r_s."""
    cute.autovec_copy(
        half.tmem_copy.partition(half.part(firsts[work.segment, work.head, None, None], part)), r_s
    )


@cute.jit
def write_slot(
    half: Half,
    slots: cute.Tensor,
    slot: cutlass.Int32,
    head: cutlass.Int32,
    part: cutlass.Constexpr,
    r_s: Any,
) -> None:
    """Store r_s as a part of the columns of a slot."""
    cute.autovec_copy(r_s, half.tmem_copy.partition(half.part(slots[slot, head, None, None], part)))


@dataclass(frozen=True)
class ChunkSegments(ChunkFused):
    """The fused kernel over segments, each from its first state."""

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        offsets: cute.Tensor,
        indices: cute.Tensor,
        total: cute.Tensor,
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        tokens: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `ChunkFused`, `Cuts` and this module's."""
        tma = Tma.create(k, q, v, o)
        cuts = Cuts(cu_seqlens, offsets, indices, total, tokens)
        states = SegmentStates(initial_state, firsts, final_state)
        self.kernel(tma, (g, beta), cuts, states, o, scale).launch(
            grid=(ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            min_blocks_per_mp=self.plan.ctas_per_sm,
            stream=stream,
        )

    def works(self, cuts: Cuts) -> cutlass.Int32:
        """For each row of the table, also those that no segment has."""
        return cute.size(cuts.indices, mode=[0]) * self.value_heads

    def work(self, cuts: Cuts, number: cutlass.Int32) -> SegmentTile:
        """Order: heads of a segment, segments."""
        return SegmentTile.locate(
            cuts, number // self.value_heads, number % self.value_heads, lambda index, count: True
        )
