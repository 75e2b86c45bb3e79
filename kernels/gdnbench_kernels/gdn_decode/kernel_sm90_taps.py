"""Builds of `StateUpdate` (kernel_sm90.py) with taps, for numerical bisection: `dump` stores gates and u,
`inject` loads gates and stores u. With the same gates, o and the state have the bits of the plain build.

    tensor           shape           dtype     tap dump    tap inject
    alpha_t, beta_t  B, S, Hv        float32   written     read, and used in place of the kernel's own
    delta_t          B, S, Hv, 128   float32   written     written

delta_t is u. The first warp of a head writes the gates, also those of padding sequences; all warps of a
sequence that is not padding write delta_t.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import ptx
from gdnbench_kernels.gdn_decode.decode_plan import ROW_LANES, DecodePlan
from gdnbench_kernels.gdn_decode.kernel_sm90 import F32, I32, I64, StateUpdate, address
from gdnbench_kernels.gdn_decode.kernel_sm90_bulk import BulkLoads, BulkUpdate
from gdnbench_kernels.gdn_decode.kernel_values import KernelParams, Taps, WorkTile

FLOAT = F32.width // 8


class Tapped(StateUpdate):
    """`tap`: dump or inject."""

    def __init__(
        self, tokens: int, group: int, state_dtype: str, gate: str, qk: str, plan: DecodePlan, tap: str
    ) -> None:
        super().__init__(tokens, group, state_dtype, gate, qk, plan)
        self.tap = tap

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        A_log: cute.Tensor,
        dt_bias: cute.Tensor,
        state: cute.Tensor,
        state_indices: cute.Tensor,
        num_accepted: cute.Tensor,
        read_indices: cute.Tensor,
        o: cute.Tensor,
        alpha_t: cute.Tensor,
        beta_t: cute.Tensor,
        delta_t: cute.Tensor,
        scale: cutlass.Float32,
        beta_max: cutlass.Float32,
        stream: cuda.CUstream,
    ) -> None:
        params = KernelParams(
            q,
            k,
            v,
            g,
            beta,
            A_log,
            dt_bias,
            state,
            state_indices,
            num_accepted,
            read_indices,
            o,
            Taps(alpha_t, beta_t, delta_t),
            scale,
            beta_max,
        )
        self.kernel(params).launch(**self.launch(v, stream))

    def tap_gates(self, work: WorkTile, gates: tuple[Any, Any], taps: Taps) -> tuple[Any, Any]:
        """Store the gates, or load others in their place."""
        where = (work.sequence, self.own_token(work), work.head)
        if self.tap == "inject":
            return self.scalar(taps.alpha, where), self.scalar(taps.beta, where)
        # Lanes past the last token repeat it: they store nothing.
        mine = ptx.select_value(work.first_row == 0, I32(self.tokens - 1) - work.lane, I32(-1))
        for tap, gate in zip((taps.alpha, taps.beta), gates, strict=True):
            ptx.store_if(mine, address(tap, where, FLOAT), [gate])
        return gates

    def tap_updates(self, work: WorkTile, number: int, updates: list[Any], taps: Taps) -> None:
        store_updates(work, number, updates, taps, self.plan)


def store_updates(work: WorkTile, number: int, updates: list[Any], taps: Taps, plan: DecodePlan) -> None:
    """Store u of each row. All eight lanes of a group have every row's: they take turns."""
    first = address(taps.delta, (work.sequence, number, work.head), FLOAT)
    for row, update in enumerate(updates):
        mine = ptx.select_value(work.part == row % ROW_LANES, I32(0), I32(-1))
        ptx.store_if(mine, first + I64((work.row + row * plan.row_step) * FLOAT), [update])


class TappedBulkLoads(Tapped, BulkLoads):
    """`BulkLoads` with taps."""


class TappedBulkUpdate(Tapped, BulkUpdate):
    """`BulkUpdate` with taps."""
