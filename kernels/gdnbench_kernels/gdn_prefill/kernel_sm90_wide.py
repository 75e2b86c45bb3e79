"""Prefill in one kernel with a warpgroup for the outputs. CuTe DSL, sm_90a, wgmma.

Equations, works, limits and bits are those of kernel_sm90_fused.py. STATE there waits for products of o,
whose left operands are in registers: a warp stands still until the tensor core takes such a product, so that
nothing else of it runs meanwhile. Here STATE has only the products that the next state needs, and OUT follows
a chunk behind. Rows of STATE's tiles are V, rows of OUT's are tokens:

    product            M   N   K    left operand            right operand        by
    1. KKT             64  64  128  s_k, K-major            s_k, K-major         INVERT
    2. QK              64  64  128  s_q, K-major            s_k, K-major         OUT
    3. (K h^T)^T       64  64  128  h, registers            s_k, K-major         STATE
    4. Q h^T           64  64  128  s_q, K-major            s_h, K-major         OUT
    5. V_new^T         64  64  64   X^T, registers          s_aib, K-major       STATE
    6. S^T, added to   64  64  64   Vs^T, registers         s_k, N-major, twice  STATE
    7. o, added to QS  64  64  64   P, registers            s_v_new, K-major     OUT

    SMEM          shape               dtype     layout
    s_k           64 x 128, 4 stages  bfloat16  K-major, SW128; read as N-major too
    s_q           64 x 128, 4 stages  bfloat16  K-major, SW128
    s_v           64 x 64, 2 stages   bfloat16  row = token, SW128
    s_aib         64 x 64, 2 stages   bfloat16  K-major, SW128: Ai beta_j
    s_h           64 x 128            bfloat16  K-major, SW128
    s_v_new       64 x 64             bfloat16  K-major, SW128: V_new^T
    s_o           64 x 64             bfloat16  row = token, SW128
    s_gate        4 x 64, 4 stages    float32   a row for each of GATE's
    s_blocks      64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal    4 x 16 x 20         float32   columns contiguous, padded
    s_blocks_1    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal_1  4 x 16 x 20         float32   columns contiguous, padded

    role    warps   does
    STATE   0..3    64 rows of S, in registers; products 3, 5 and 6
    OUT     4..7    a chunk behind STATE: products 2, 4 and 7, P in registers
    INVERT  8..15   a chunk each four warps, ahead of STATE: product 1, Ai beta
    GATE    16..17  a chunk each warp: scans g; g_cu, beta, exp(g_cu), exp(g_last - g_cu) into SMEM
    LOAD    18      TMA of K, Q and V; zeros in K and V past the end of the sequence
    STORE   19      o to global memory

    pipeline  stages  full: arrivals        empty: arrivals
    k         4       1 LOAD + 16384 bytes  12 STATE, OUT, INVERT warp
    q         4       1 LOAD + 16384 bytes  4 OUT warp
    v         2       1 LOAD + 8192 bytes   4 STATE warp
    tail_k    1       1 LOAD + 16384 bytes  1 nobody
    tail_v    1       1 LOAD + 8192 bytes   1 nobody
    gate      4       1 GATE                12 STATE, OUT, INVERT warp
    aib       2       4 INVERT warp         4 STATE warp
    h         1       4 STATE warp          4 OUT warp
    v_new     1       4 STATE warp          4 OUT warp
    o         1       4 OUT warp            1 STORE

    sync                                     who                 orders
    fence.mbarrier_init, barrier of the CTA  all                 mbarriers before their use
    setmaxnreg                               all                 increases wait for the others' decrease
    tail pipelines                           LOAD                K, V have landed before zeros are stored
    fence.proxy.async                        LOAD                zeros written before products read them
    barrier INVERT                           INVERT              exchanges within the inverse: inverse.py
    fence.proxy.async                        INVERT              s_aib written before products read them
    fence.proxy.async                        STATE               s_h, s_v_new written, s_v read before a load
    fence.proxy.async                        OUT                 s_o written before TMA
    wgmma.wait_group                         INVERT, OUT, STATE  operands read before their release
    bulk wait_group.read                     STORE               the TMA store has read s_o before its release
    bulk wait_group                          STORE               o stored before the CTA ends
    producer_tail                            each producer       no arrival after the CTA ends

640 threads, 227664 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

sm90_plan.py makes these tables. STATE hands over h, the rounded S before a chunk, while product 5 runs, and
V_new while product 6 runs.
"""  # SPDX-License-Identifier: Apache-2.0

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
