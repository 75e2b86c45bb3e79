"""`StateUpdate` by builds that show its stages, and one that is given its gates. For looking into the kernel:
what they leave beside that has the bits that other builds leave.

    tensor           shape           dtype     tap dump    tap inject
    alpha_t, beta_t  B, S, Hv        float32   written     read, and used in place of the kernel's own
    delta_t          B, S, Hv, 128   float32   written     written

Gates are written by the first warp of a head, of padding sequences too; delta_t, which is u, by all of a
sequence that is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import ptx
from gdnbench_kernels.gdn_decode.decode_plan import ROW_LANES, DecodePlan
from gdnbench_kernels.gdn_decode.kernel_sm90 import F32, I32, I64, Item, StateUpdate, address
from gdnbench_kernels.gdn_decode.kernel_sm90_bulk import BulkLoads, BulkUpdate

FLOAT = F32.width // 8


@dataclass(frozen=True)
class Taps:
    alpha: cute.Tensor
    beta: cute.Tensor
    delta: cute.Tensor


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
        self.tapped(
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
            alpha_t,
            beta_t,
            delta_t,
            scale,
            beta_max,
        ).launch(**self.launch(v, stream))

    @cute.kernel
    def tapped(
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
    ) -> None:
        self.taps = Taps(alpha_t, beta_t, delta_t)
        self.run(
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
            scale,
            beta_max,
        )

    def seen(self, item: Item, gates: tuple[Any, Any]) -> tuple[Any, Any]:
        taps = (self.taps.alpha, self.taps.beta)
        where = (item.sequence, self.own_token(item), item.head)
        if self.tap == "inject":
            return self.scalar(taps[0], where), self.scalar(taps[1], where)
        # Lanes beyond the tokens look after the last one too.
        mine = ptx.pick(item.first_row == 0, I32(self.tokens - 1) - item.lane, I32(-1))
        for tap, gate in zip(taps, gates, strict=True):
            ptx.store_if(mine, address(tap, where, FLOAT), [gate])
        return gates

    def see_updates(self, item: Item, number: int, updates: list[Any]) -> None:
        """The eight lanes of a group have them all: they take turns."""
        first = address(self.taps.delta, (item.sequence, number, item.head), FLOAT)
        for row, update in enumerate(updates):
            mine = ptx.pick(item.part == row % ROW_LANES, I32(0), I32(-1))
            ptx.store_if(mine, first + I64((item.row + row * self.plan.row_step) * FLOAT), [update])


class TappedBulkLoads(Tapped, BulkLoads):
    """See the module."""


class TappedBulkUpdate(Tapped, BulkUpdate):
    """See the module."""
