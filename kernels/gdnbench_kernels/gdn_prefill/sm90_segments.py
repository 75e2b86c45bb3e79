"""Segments of sequences, for the builds of the fused SM90 kernel that a context-parallel call launches.
CuTe DSL, sm_90a.

A sequence is cut into segments of L tokens, the last one shorter; a sequence without tokens is one segment.
No table of them is in memory: a CTA counts the segments of the sequences before its own. Segments are
numbered through the batch, and between the launches are two tensors with a slot for each (segment, value
head):

    tensor  shape             dtype    slot s
    firsts  [UB, Hv, V, K]    float32  the state before segment s, if its sequence has others too
    maps    [UB, Hv, K, K]    float32  M of segment s

A segment maps the state S before it to S M + B behind it. B is S behind the segment if S is 0 before it, M
is S behind it if S is the identity before it and V is 0: so rows of M are computed as rows of B are, by other
CTAs of the same launch. B of segment s goes to slot s + 1 of firsts. That of a sequence's first segment
begins with the initial state, so that it is the second segment's first state, and that segment has no M;
nobody needs either of a last segment. kernel_sm100_scan.py adds S M to the others.

    launch          class            works                                         read        written
    chunk_transfer  SegmentTransfer  B of each segment but a sequence's last; M    k, v        firsts, maps
                                     of those that are not the first either
    segment_scan    CutScan          states of a sequence and value head, 8 rows   maps        firsts
    chunk_segments  SegmentOutputs   all segments                                  q, k, v,    o, final states
                                                                                   firsts
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_prefill.kernel_sm90_fused import FusedSm90
from gdnbench_kernels.gdn_prefill.kernel_sm100_scan import SegmentScan, Strip, strip_of
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_tiles import (
    Rows,
    SliceTile,
    Tma,
    read_state,
    write_state,
)


@dataclass(frozen=True)
class Cuts:
    """The sequences of a batch in global memory; `slots` is UB, `tokens` is L."""

    cu_seqlens: cute.Tensor  # [N+1] int32
    slots: cutlass.Int32
    tokens: cutlass.Int32

    @property
    def sequences(self) -> Any:
        return cute.size(self.cu_seqlens) - 1

    @property
    def followed(self) -> Any:
        """At least the number of segments that another one follows."""
        return self.slots - self.sequences

    def segments(self, start: Any, stop: Any) -> Any:
        """Those of a sequence."""
        return cutlass.max((stop - start + self.tokens - 1) // self.tokens, 1)

    @property
    def between(self) -> Any:
        """At least the number of segments that another one follows and another one comes before."""
        return cutlass.max(self.followed - 1, 0)


@dataclass(frozen=True, kw_only=True)
class SegmentTile(SliceTile):
    """The work of a CTA: a segment, for one slice of the rows of a value head."""

    slot: cutlass.Int32
    exists: cutlass.Boolean
    first: cutlass.Boolean  # of its sequence
    last: cutlass.Boolean


@dataclass(frozen=True, kw_only=True)
class TransferTile(SegmentTile):
    """The work of a CTA: B of a segment, or M if it `is_map`."""

    is_map: cutlass.Boolean


@dataclass(frozen=True)
class Place:
    """A segment: its sequence, its number in it and in the batch, and how many its sequence has."""

    sequence: cutlass.Int32
    index: cutlass.Int32
    slot: cutlass.Int32
    count: cutlass.Int32
    exists: cutlass.Boolean


@cute.jit
def find_segment(cuts: Cuts, rank: cutlass.Int32, before: Any, after: Any) -> Place:
    """Segment number `rank` of those that have at least `before` and `after` others of their sequence before
    and behind them."""
    sequence, index, slot, count = cutlass.Int32(0), cutlass.Int32(0), cutlass.Int32(0), cutlass.Int32(1)
    exists = cutlass.Boolean(False)
    left, base, start = rank, cutlass.Int32(0), cuts.cu_seqlens[0]
    for n in cutlass.range(cuts.sequences, unroll=1):
        stop = cuts.cu_seqlens[n + 1]
        segments = cuts.segments(start, stop)
        own = cutlass.max(segments - before - after, 0)
        here = (left >= 0) & (left < own)
        sequence = cutlass.select_(here, n, sequence)
        index = cutlass.select_(here, left + before, index)
        slot = cutlass.select_(here, base + left + before, slot)
        count = cutlass.select_(here, segments, count)
        exists = exists | here
        left, base, start = left - own, base + segments, stop
    return Place(sequence, index, slot, count, exists)


def located(cuts: Cuts, place: Place, head: Any, part: Any) -> dict[str, Any]:
    """The fields of a `SegmentTile`; one that does not exist has no chunks."""
    start = cuts.cu_seqlens[place.sequence] + cuts.tokens * place.index
    stop = cutlass.min(start + cuts.tokens, cuts.cu_seqlens[place.sequence + 1])
    chunks = cutlass.select_(place.exists, (stop - start + CHUNK - 1) // CHUNK, cutlass.Int32(0))
    return {
        "sequence": place.sequence,
        "head": head,
        "start": start,
        "stop": stop,
        "chunks": chunks,
        "slice": part,
        "slot": place.slot,
        "exists": place.exists,
        "first": place.index == 0,
        "last": place.index == place.count - 1,
    }


@dataclass(frozen=True)
class SegmentStates:
    """The states of a call's segments in global memory."""

    initial: Any  # [N, Hv, V, K], or None
    firsts: cute.Tensor
    final: Any  # [N, Hv, V, K], or None

    @cute.jit
    def load(self, rows: Rows, work: SegmentTile, r_s: cute.Tensor) -> None:
        """Load the state before the segment: the initial one, if the sequence has no other segment."""
        r_s.fill(0.0)
        if work.exists:
            if work.first & work.last:
                if cutlass.const_expr(self.initial is not None):
                    read_state(rows, self.initial[work.sequence, work.head, None, None], r_s)
            else:
                read_state(rows, self.firsts[work.slot, work.head, None, None], r_s)

    @cute.jit
    def store(self, rows: Rows, work: SegmentTile, r_s: cute.Tensor) -> None:
        """Store the state behind a last segment, if the call asks for it."""
        if cutlass.const_expr(self.final is not None):  # noqa: SIM102 - the other condition is one of run time
            if work.exists & work.last:
                write_state(rows, self.final[work.sequence, work.head, None, None], r_s)


@dataclass(frozen=True)
class TransferStates:
    """Where B and M start and where they go."""

    initial: Any  # [N, Hv, V, K], or None
    firsts: cute.Tensor
    maps: cute.Tensor

    @cute.jit
    def load(self, rows: Rows, work: TransferTile, r_s: cute.Tensor) -> None:
        """The identity for M; for B of a first segment the initial state, else 0. The initial state also goes
        to its slot: the last segment of the sequence may overwrite it."""
        r_s.fill(0.0)
        if work.exists:
            if work.is_map:
                fill_identity(rows, r_s)
            elif work.first:
                if cutlass.const_expr(self.initial is not None):
                    read_state(rows, self.initial[work.sequence, work.head, None, None], r_s)
                write_state(rows, self.firsts[work.slot, work.head, None, None], r_s)

    @cute.jit
    def store(self, rows: Rows, work: TransferTile, r_s: cute.Tensor) -> None:
        """Store B in the next segment's slot, M in this one's."""
        if work.exists:
            if work.is_map:
                write_state(rows, self.maps[work.slot, work.head, None, None], r_s)
            else:
                write_state(rows, self.firsts[work.slot + 1, work.head, None, None], r_s)


@cute.jit
def fill_identity(rows: Rows, r_s: cute.Tensor) -> None:
    """Fill a thread's elements with those of the identity. Element 4 n + 2 half + j is in row 8 half of the
    thread's first and column 8 n + 2 (lane % 4) + j."""
    row = rows.first + 16 * rows.warp + rows.lane // 4
    for n in cutlass.range_constexpr(HEAD_DIM // 8):
        for half in cutlass.range_constexpr(2):
            for j in cutlass.range_constexpr(2):
                on = row + 8 * half == 8 * n + 2 * (rows.lane % 4) + j
                r_s[4 * n + 2 * half + j] = cutlass.select_(on, cutlass.Float32(1.0), cutlass.Float32(0.0))


@dataclass(frozen=True)
class SegmentOutputs(FusedSm90):
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
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        tokens: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `FusedSm90` and of this module; `tokens` is L."""
        cuts = Cuts(cu_seqlens, cute.size(firsts, mode=[0]), tokens)
        states = SegmentStates(initial_state, firsts, final_state)
        tma = Tma.create(k, q, v, o, self.tuning.slices)
        self.kernel(tma, (g, beta), cuts, states, o, scale).launch(
            grid=(ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            min_blocks_per_mp=self.plan.ctas_per_sm,
            stream=stream,
        )

    def bounds(self, cuts: Cuts) -> cute.Tensor:
        return cuts.cu_seqlens

    def works(self, cuts: Cuts) -> cutlass.Int32:
        return cuts.slots * (self.value_heads * self.tuning.slices)

    def work(self, cuts: Cuts, number: cutlass.Int32) -> SegmentTile:
        """Order: slices of a head, heads of a segment, segments."""
        part, row = number % self.tuning.slices, number // self.tuning.slices
        place = find_segment(cuts, row // self.value_heads, 0, 0)
        return SegmentTile(**located(cuts, place, row % self.value_heads, part))


@dataclass(frozen=True)
class SegmentTransfer(FusedSm90):
    """B and M of the segments, without outputs."""

    outputs = False
    maps = True

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        maps: cute.Tensor,
        tokens: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `FusedSm90` and of this module; `tokens` is L."""
        cuts = Cuts(cu_seqlens, cute.size(firsts, mode=[0]), tokens)
        states = TransferStates(initial_state, firsts, maps)
        tma = Tma.create(k, None, v, None, self.tuning.slices)
        self.kernel(tma, (g, beta), cuts, states, None, cutlass.Float32(1.0)).launch(
            grid=(ctas, 1, 1),
            block=(self.plan.threads, 1, 1),
            min_blocks_per_mp=self.plan.ctas_per_sm,
            stream=stream,
        )

    def bounds(self, cuts: Cuts) -> cute.Tensor:
        return cuts.cu_seqlens

    def works(self, cuts: Cuts) -> cutlass.Int32:
        return (cuts.followed + cuts.between) * (self.value_heads * self.tuning.slices)

    def work(self, cuts: Cuts, number: cutlass.Int32) -> TransferTile:
        """Order: slices of a head, heads of a segment, segments; all B, then all M."""
        part, row = number % self.tuning.slices, number // self.tuning.slices
        rank, head = row // self.value_heads, row % self.value_heads
        is_map = rank >= cuts.followed
        rank = cutlass.select_(is_map, rank - cuts.followed, rank)
        place = find_segment(cuts, rank, cutlass.select_(is_map, cutlass.Int32(1), cutlass.Int32(0)), 1)
        return TransferTile(**located(cuts, place, head, part), is_map=is_map)


@dataclass(frozen=True)
class CutScan(SegmentScan):
    """The scan of segments that no table has."""

    @cute.jit
    def __call__(
        self,
        cu_seqlens: cute.Tensor,
        maps: cute.Tensor,
        firsts: cute.Tensor,
        tokens: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """cu_seqlens [N+1] int32; `tokens` is L."""
        cuts = Cuts(cu_seqlens, cute.size(firsts, mode=[0]), tokens)
        self.start(cuts.sequences, cuts, maps, firsts, stream)

    @cute.jit
    def strip(self, cuts: Cuts) -> Strip:
        n, head, row = self.place()
        first, start = cutlass.Int32(0), cuts.cu_seqlens[0]
        for before in cutlass.range(n, unroll=1):
            stop = cuts.cu_seqlens[before + 1]
            first = first + cuts.segments(start, stop)
            start = stop
        return strip_of(first, cuts.segments(start, cuts.cu_seqlens[n + 1]), head, row)
