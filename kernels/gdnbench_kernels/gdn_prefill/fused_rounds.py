"""The fused kernel in two launches that occupy all CTAs to the end. CuTe DSL.

With W works and S CTAs, W = q S + r, `sm100_fused` takes q + 1 rounds, in the last of which S - r CTAs have
no work. Here the last S works are cut behind their first C' tokens, a multiple of C. The first launch has all
of the others and the first parts of these; the second has the S rests, one a CTA:

    launch  CTAs             works
    first   all              q - 1 whole ones each
            r of them        one more
            G = S - r        P = ceil(S / G) first parts at most
    second  all              one rest each

A first part leaves the state in `carried`, unrounded, from which its rest goes on: so the bits are those of
one launch, wherever the cut is. A sequence of C' tokens or fewer has no rest; the second launch copies its
state.

    tensor   shape      dtype    slot
    carried  [S, V, K]  float32  work W - S + slot
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import PARTS, Half, WorkTile, read_given, write_kept
from gdnbench_kernels.gdn_prefill.fused_state import State
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import PLAN, ChunkFused, Tma
from gdnbench_kernels.gdn_prefill.sizes import CHUNK


@dataclass(frozen=True)
class Rounds:
    """The works of a launch, by cu_seqlens [N+1] int32. `cut` is C', `common` the works of the first
    q - 1 rounds, `left` is r, `rounds` P, `per_cta` 1 / S."""

    cu_seqlens: cute.Tensor
    cut: cutlass.Int32
    common: cutlass.Int32
    left: cutlass.Int32
    rounds: cutlass.Int32
    per_cta: cutlass.Float32


@dataclass(frozen=True, kw_only=True)
class PartTile(WorkTile):
    """A whole work, its first part or its rest; none if it does not exist. `slot` is of a first part or a
    rest, `carries` whether the work is a first part."""

    number: cutlass.Int32
    slot: cutlass.Int32
    exists: cutlass.Boolean
    carries: cutlass.Boolean


@dataclass(frozen=True)
class RoundStates:
    """The states of the first launch: initial and final ones, each [N, Hv, V, K] or None, and those behind
    first parts."""

    cuts: Rounds
    initial: cute.Tensor | None
    carried: cute.Tensor
    final: cute.Tensor | None
    value_heads: cutlass.Constexpr

    @cute.jit
    def load(self, half: Half, work: PartTile, r_s: State) -> None:
        """Load S from the initial state."""
        for part in cutlass.range_constexpr(PARTS):
            r_s[part].fill(0.0)
            if work.exists:
                read_given(half, work, self.initial, part, r_s[part])

    @cute.jit
    def store(self, half: Half, work: PartTile, r_s: State) -> None:
        """Store S as the carried state behind a first part, otherwise as the final state, if the call asks
        for it."""
        # Located anew, which leaves more registers to the chunks.
        work = part_tile(self.cuts, self.value_heads, blackwell.opaque(work.number))
        for part in cutlass.range_constexpr(PARTS):
            if work.carries:
                cute.autovec_copy(r_s[part], _slot(half, self.carried, work, part))
            elif cutlass.const_expr(self.final is not None):  # noqa: SIM102 - the other condition is one of run time
                if work.exists:
                    write_kept(half, work, self.final, part, r_s[part])


@dataclass(frozen=True)
class RestStates:
    """The states of the second launch: those behind first parts, and final ones [N, Hv, V, K] or None."""

    carried: cute.Tensor
    final: cute.Tensor | None

    @cute.jit
    def load(self, half: Half, work: PartTile, r_s: State) -> None:
        """Load S from the carried state."""
        for part in cutlass.range_constexpr(PARTS):
            cute.autovec_copy(_slot(half, self.carried, work, part), r_s[part])

    @cute.jit
    def store(self, half: Half, work: PartTile, r_s: State) -> None:
        """Store S as the final state, if the call asks for it."""
        if cutlass.const_expr(self.final is not None):
            for part in cutlass.range_constexpr(PARTS):
                write_kept(half, work, self.final, part, r_s[part])


def _slot(half: Half, carried: cute.Tensor, work: PartTile, part: int) -> cute.Tensor:
    """A thread's elements of a part of the columns of the work's slot."""
    return half.tmem_copy.partition(half.part(carried[work.slot, None, None], part))


@dataclass(frozen=True)
class ChunkRounds(ChunkFused):
    """The first launch: the fused kernel over whole works and first parts."""

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
        carried: cute.Tensor,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        cut: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `ChunkFused`, and carried [S, 128, 128] f32; `ctas` is S."""
        total = (cute.size(cu_seqlens) - 1) * self.value_heads
        left = total % ctas
        cuts = Rounds(
            cu_seqlens,
            cut,
            total - left - ctas,
            left,
            self.rounds(ctas - left, ctas),
            1.0 / cutlass.Float32(ctas),
        )
        states = self.states(cuts, initial_state, carried, final_state)
        self.kernel(Tma.create(k, q, v, o), (g, beta), cuts, states, o, scale).launch(
            grid=(ctas, 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    def states(
        self, cuts: Rounds, initial: cute.Tensor | None, carried: cute.Tensor, final: cute.Tensor | None
    ) -> Any:
        return RoundStates(cuts, initial, carried, final, self.value_heads)

    def rounds(self, free: cutlass.Int32, ctas: cutlass.Int32) -> cutlass.Int32:
        """P."""
        return (ctas + free - 1) // free

    def works(self, cuts: Rounds) -> cutlass.Int32:
        """So many that each CTA has a number for each of its works; some do not exist."""
        return cuts.common + cuts.rounds * cute.arch.grid_dim()[0]

    def work(self, cuts: Rounds, number: cutlass.Int32) -> PartTile:
        return part_tile(cuts, self.value_heads, number)


@dataclass(frozen=True)
class ChunkRests(ChunkRounds):
    """The second launch: the fused kernel over rests."""

    def states(
        self, cuts: Rounds, initial: cute.Tensor | None, carried: cute.Tensor, final: cute.Tensor | None
    ) -> Any:
        return RestStates(carried, final)

    def works(self, cuts: Rounds) -> cutlass.Int32:
        """One a CTA."""
        return cute.arch.grid_dim()[0]

    def work(self, cuts: Rounds, number: cutlass.Int32) -> PartTile:
        """Order: of the works."""
        index = cuts.common + cuts.left + number
        _, stop, cut = _bounds(cuts, index // self.value_heads)
        exists, carries = cutlass.Boolean(True), cutlass.Boolean(False)
        return _tile(self.value_heads, (number, index), (cut, stop), number, (exists, carries))


def part_tile(cuts: Rounds, value_heads: int, number: cutlass.Int32) -> PartTile:
    """The whole work or first part number `number`; a CTA has every S-th. Order: the whole works of all CTAs;
    then a CTA's last whole one, or its first parts."""
    cta, ctas = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    late = number - cuts.common
    # late - cta is a multiple of S, of few: exact behind rounding, and not a division.
    turn = cutlass.Int32(cutlass.Float32(late - cta) * cuts.per_cta + 0.5)
    slot = cta - cuts.left + (ctas - cuts.left) * turn
    carries = (late >= 0) & (cta >= cuts.left) & (slot < ctas)
    whole = (late < 0) | ((cta < cuts.left) & (late < ctas))
    index = cutlass.select_(carries, cuts.common + cuts.left + slot, number)
    index = cutlass.select_(carries | whole, index, cutlass.Int32(0))
    start, stop, cut = _bounds(cuts, index // value_heads)
    stop = cutlass.select_(carries, cut, stop)
    return _tile(value_heads, (number, index), (start, stop), slot, (carries | whole, carries))


def _bounds(cuts: Rounds, sequence: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]:
    """Where a sequence starts and stops, and where it is cut."""
    start, stop = cuts.cu_seqlens[sequence], cuts.cu_seqlens[sequence + 1]
    return start, stop, cutlass.min(start + cuts.cut, stop)


def _tile(
    value_heads: int,
    numbers: tuple[cutlass.Int32, cutlass.Int32],
    tokens: tuple[cutlass.Int32, cutlass.Int32],
    slot: cutlass.Int32,
    flags: tuple[cutlass.Boolean, cutlass.Boolean],
) -> PartTile:
    """`numbers`: among those of the launch, and of the work; `flags`: `exists` and `carries`."""
    (number, index), (start, stop), (exists, carries) = numbers, tokens, flags
    chunks = cutlass.select_(exists, (stop - start + CHUNK - 1) // CHUNK, cutlass.Int32(0))
    return PartTile(
        index // value_heads,
        index % value_heads,
        start,
        stop,
        chunks,
        number=number,
        slot=slot,
        exists=exists,
        carries=carries,
    )
