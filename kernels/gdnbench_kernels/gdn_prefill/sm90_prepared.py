"""Builds of the fused SM90 kernel whose squares, Ai beta and P, are in memory already: kernel_sm90_squares.py
has computed them. CuTe DSL, sm_90a.

There is no INVERT role, so a chunk takes as long as STATE's products do. TMA brings the squares. As the fused
kernel there is one for whole sequences, one for segments and one for the B and M of these. All bits are those
of the builds with INVERT.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import sm90_state
from gdnbench_kernels.gdn_prefill.kernel_sm90_fused import FusedSm90, Position
from gdnbench_kernels.gdn_prefill.kernel_sm90_squares import AIB, P, by_square, slot_of
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm90_segments import (
    Cuts,
    SegmentOutputs,
    SegmentStates,
    SegmentTransfer,
    TransferStates,
)
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import PREPARED, planned_prepared, prepared_roles
from gdnbench_kernels.gdn_prefill.sm90_tiles import Pipelines, Shared, States, Tma
from gdnbench_kernels.plan import KernelPlan


@dataclass(frozen=True, kw_only=True)
class PreparedTma(Tma):
    """With the squares."""

    squares: blackwell.Tma

    @staticmethod
    def of(tma: Tma, squares: cute.Tensor) -> PreparedTma:
        load = cpasync.CopyBulkTensorTileG2SOp()
        loaded = blackwell.Tma.create(load, by_square(squares), (CHUNK, CHUNK))
        return PreparedTma(**{one.name: getattr(tma, one.name) for one in fields(Tma)}, squares=loaded)

    def used(self) -> tuple[blackwell.Tma, ...]:
        return (*Tma.used(self), self.squares)


class Prepared(FusedSm90):
    """What the builds have in common; another base says what their works are."""

    @cute.kernel
    def kernel(
        self,
        tma: PreparedTma,
        gates: tuple[cute.Tensor, cute.Tensor],
        cuts: Any,
        states: Any,
        o: cute.Tensor | None,
        scale: cutlass.Float32,
    ) -> None:
        """`cuts` is what `work` finds a CTA's tokens by; `states` has methods `load` and `store`."""
        tuning: Any = self.tuning
        plan, role = self.plan, prepared_roles(tuning)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch(tma.used(), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        if warp < role.GATE:
            if cutlass.const_expr(tuning.state_registers > 0):
                cute.arch.setmaxregister_increase(tuning.state_registers)
            sm90_state.recurrence(self, cuts, pipelines, shared, states, scale)
        elif cutlass.const_expr(tuning.other_registers > 0):
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if (warp >= role.GATE) & (warp < role.LOAD):
            self.scan_every_second(cuts, pipelines, shared, gates, warp - role.GATE)
        if warp == role.LOAD:
            self.load(cuts, pipelines, shared, tma)
        if cutlass.const_expr(self.outputs):  # noqa: SIM102 - the other condition is one of run time
            if warp == role.STORE:
                self.store_outputs(cuts, pipelines, shared, tma, o)

    @property
    def plan(self) -> KernelPlan:
        tuning: Any = self.tuning
        return planned_prepared(tuning, self.outputs)

    def loaded(self, pipelines: Pipelines) -> list[Any]:
        squares = [pipelines.aib, *([pipelines.p] if self.outputs else [])]
        return [*super().loaded(pipelines), *squares]

    def load_beside_keys(
        self, pipelines: Pipelines, shared: Shared, tma: Any, origin: Any, position: Position, turn: Any
    ) -> None:
        """Ai beta."""
        self.load_square(pipelines.aib, shared.aib, origin, position, turn, tma, AIB)

    def load_beside_values(
        self, pipelines: Pipelines, shared: Shared, tma: Any, origin: Any, position: Position, turn: Any
    ) -> None:
        """P: its stage is released later than that of Ai beta."""
        if self.outputs:
            self.load_square(pipelines.p, shared.p, origin, position, turn, tma, P)

    def load_square(
        self,
        pipe: Any,
        s_tiles: cute.Tensor,
        origin: Any,
        position: Position,
        turn: Any,
        tma: PreparedTma,
        which: int,
    ) -> None:
        """Load a square of a chunk, the CTA's number `turn`."""
        tuning: Any = self.tuning
        stage = blackwell.Turn.producer(turn, tuning.squares)
        pipe.producer_acquire(stage)
        pipe.arrive_and_expect_tx(stage)
        slot = slot_of(origin, position.sequence, position.token)
        tma.squares.load(pipe, stage, s_tiles, 0, which, position.head, slot)

    def begin(
        self,
        tma: Tma,
        squares: cute.Tensor,
        gates: tuple[cute.Tensor, cute.Tensor],
        cuts: Any,
        states: Any,
        o: Any,
        scale: Any,
        ctas: Any,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(PreparedTma.of(tma, squares), gates, cuts, states, o, scale).launch(
            grid=(ctas, 1, 1), block=(self.plan.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )


@dataclass(frozen=True)
class PreparedSm90(Prepared):
    """Whole sequences."""

    tuning: Any = PREPARED[2]

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        squares: cute.Tensor,
        initial_state: cute.Tensor | None,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `FusedSm90` and of kernel_sm90_squares.py."""
        tma = Tma.create(k, q, v, o, self.tuning.slices)
        states = States(initial_state, final_state)
        self.begin(tma, squares, (g, beta), cu_seqlens, states, o, scale, ctas, stream)


@dataclass(frozen=True)
class PreparedOutputs(Prepared, SegmentOutputs):
    """Segments, each from its first state."""

    tuning: Any = PREPARED[2]

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        squares: cute.Tensor,
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        o: cute.Tensor,
        final_state: cute.Tensor | None,
        scale: cutlass.Float32,
        tokens: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `SegmentOutputs` and of kernel_sm90_squares.py."""
        cuts = Cuts(cu_seqlens, cute.size(firsts, mode=[0]), tokens)
        states = SegmentStates(initial_state, firsts, final_state)
        tma = Tma.create(k, q, v, o, self.tuning.slices)
        self.begin(tma, squares, (g, beta), cuts, states, o, scale, ctas, stream)


@dataclass(frozen=True)
class PreparedTransfer(Prepared, SegmentTransfer):
    """B and M of the segments, without outputs."""

    tuning: Any = PREPARED[2]

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        squares: cute.Tensor,
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        maps: cute.Tensor,
        tokens: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `SegmentTransfer` and of kernel_sm90_squares.py."""
        cuts = Cuts(cu_seqlens, cute.size(firsts, mode=[0]), tokens)
        states = TransferStates(initial_state, firsts, maps)
        tma = Tma.create(k, None, v, None, self.tuning.slices)
        one = cutlass.Float32(1.0)
        self.begin(tma, squares, (g, beta), cuts, states, None, one, ctas, stream)
