"""Prefill in one kernel for Hopper, with a warpgroup for the outputs."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import sm90_chain, sm90_outputs, sm90_squares
from gdnbench_kernels.gdn_prefill.kernel_sm90_fused import FusedSm90
from gdnbench_kernels.gdn_prefill.sm90_plan import GROUP_WARPS, planned_wide, roles_wide
from gdnbench_kernels.gdn_prefill.sm90_tiles import (
    Pipelines,
    Shared,
    Tma,
    allocate_scratch,
    scratch_of_group,
)
from gdnbench_kernels.plan import KernelPlan


@dataclass(frozen=True)
class WideSm90(FusedSm90):
    """As FusedSm90."""

    squares_of_q = False

    @cute.kernel
    def kernel(
        self,
        tma: Tma,
        gates: tuple[cute.Tensor, cute.Tensor],
        cuts: Any,
        states: Any,
        o: cute.Tensor | None,
        scale: cutlass.Float32,
    ) -> None:
        """`cuts` is what `work` finds a CTA's tokens by; `states` has methods `load` and `store`."""
        plan, tuning, role = self.plan, self.tuning, roles_wide(self.tuning)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = Shared.allocate(plan, smem)
        scratch = allocate_scratch(plan, smem, self.split)
        pipelines = Pipelines.allocate(plan, smem)
        blackwell.prefetch(tma.used(), warp == role.LOAD)
        blackwell.init_barriers(pipelines, warp == role.LOAD)
        cute.arch.sync_threads()
        # Each role finds its work itself: ptxas spills values that live across setmaxnreg.
        if warp < role.OUT:
            cute.arch.setmaxregister_increase(tuning.state_registers)
            sm90_chain.recurrence(self, cuts, pipelines, shared, states)
        elif warp < role.INVERT:
            self.change_registers(tuning.out_registers)
            sm90_outputs.form_outputs(self, cuts, pipelines, shared, scale)
        elif warp < role.GATE:
            self.change_registers(tuning.invert_registers)
            group = (warp - role.INVERT) // GROUP_WARPS
            sm90_squares.invert(self, cuts, pipelines, shared, scratch_of_group(scratch, group), group)
        else:
            cute.arch.setmaxregister_decrease(tuning.other_registers)
        if (warp >= role.GATE) & (warp < role.LOAD):
            self.scan_every_second(cuts, pipelines, shared, gates, warp - role.GATE)
        if warp == role.LOAD:
            self.load(cuts, pipelines, shared, tma)
        if warp == role.STORE:
            self.store_outputs(cuts, pipelines, shared, tma, o)

    def change_registers(self, count: int) -> None:
        if count > self.start_registers:
            cute.arch.setmaxregister_increase(count)
        else:
            cute.arch.setmaxregister_decrease(count)

    @property
    def plan(self) -> KernelPlan:
        return planned_wide(self.tuning, self.split)
