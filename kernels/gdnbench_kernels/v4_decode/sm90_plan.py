# SPDX-License-Identifier: Apache-2.0
"""The plan of a CTA of the wgmma kernel of v4_decode: that of swa_decode's, with other registers."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench_kernels.plan import Buffer, KernelPlan, Sync
from gdnbench_kernels.swa_decode import sm90_plan
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.sm90_plan import LOADERS, MULTIPLIERS, ROWS, Role, buffers, pipelines
from gdnbench_kernels.v4_decode.splits import MAX_SPLITS

TILE = MAX_WINDOW
"""Entries of a tile."""

REGISTERS = {16: 192, 32: 200, 64: 216}
"""Registers per MULTIPLY thread, by heads per CTA: sums of outputs stay there from tile to tile. With
per_token_scale and 64 heads it is `MOST_REGISTERS`."""
MOST_REGISTERS = 224


@dataclass(frozen=True, slots=True)
class Tuning(sm90_plan.Tuning):
    """`swa_decode`'s, with registers for a layout."""

    layout: CacheLayout = CacheLayout.FP8_DS_MLA

    @property
    def tight(self) -> bool:
        """Whether registers leave no room for the operands of two groups of product 2: the assembler would
        then serialise all products (C7512)."""
        return self.rows == 64 and self.layout is CacheLayout.PER_TOKEN_SCALE

    @property
    def multiply_registers(self) -> int:
        return MOST_REGISTERS if self.tight else REGISTERS[self.rows]

    @property
    def groups_in_flight(self) -> int:
        return 0 if self.tight else 1


TILE_TIME = {16: 5.2, 32: 5.6, 64: 6.5}
"""Microseconds of a tile on an H200, by heads per CTA: little of it depends on their number."""
ITEM_TIME = 5.0
"""Microseconds of an item besides its tiles: its queries, entries and outputs."""
MERGE_TIME = 3.0
PART_TIME = 2 * 4 * HEAD_DIM / 3.5e6
"""Microseconds that a head's partial output takes to be written and read, in float32 at 3.5 TB/s."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a call is divided among CTAs."""

    rows: int  # heads of a CTA
    splits: int

    @staticmethod
    def choose(
        queries: int,
        heads: int,
        tiles: int,
        sms: int,
        rows: int | None = None,
        splits: int | None = None,
        most: int = MAX_SPLITS,
    ) -> Division:
        """The division of the least estimated time for `queries` query rows of up to `tiles` tiles; with
        `rows` or `splits` one that has them, else with at most `most` splits. The estimate follows the times
        measured on an H200 within a fifth."""
        many = range(1, max(1, min(tiles, most)) + 1) if splits is None else (splits,)
        all_rows = [Division(one, n) for one in (ROWS if rows is None else (rows,)) for n in many]
        return min(all_rows, key=lambda one: one.time(queries, heads, tiles, sms))

    def time(self, queries: int, heads: int, tiles: int, sms: int) -> float:
        """Estimated microseconds."""
        items = queries * -(-heads // self.rows) * self.splits
        each = -(-items // sms)
        found = each * (-(-tiles // self.splits) * TILE_TIME[self.rows] + ITEM_TIME)
        if self.splits == 1:
            return found
        return found + MERGE_TIME + queries * heads * self.splits * PART_TIME


def plan(tuning: Tuning) -> KernelPlan:
    """The plan. Raises PlanError if it does not fit."""
    return KernelPlan(
        name="wgmma_segments",
        roles=Role,
        warps={"MULTIPLY": MULTIPLIERS, "LOAD": LOADERS},
        does={
            "MULTIPLY": "queries as f16; a warpgroup 64 entries of product 1, 256 features of product 2",
            "LOAD": "tiles, queries, what rows are multiplied by; outputs",
        },
        smem=(
            *buffers(tuning.layout, tuning.rows),
            Buffer("s_ready", (2,), "int32", "mbarrier: s_rope is there", align=8),
        ),
        tmem=(),
        pipelines=pipelines(tuning.rows),
        syncs=(
            Sync("s_ready", "LOAD warps to MULTIPLY", "s_rope before it is multiplied"),
            Sync("barrier MULTIPLY, queries", "MULTIPLY", "s_q in f16 before product 1"),
            Sync("barrier MULTIPLY, first", "MULTIPLY", "s_peaks written before they are compared"),
            Sync(
                "barrier MULTIPLY, second",
                "MULTIPLY",
                "s_tops, s_factors written; s_peaks read before sums are",
            ),
            Sync(
                "barrier MULTIPLY, third",
                "MULTIPLY",
                "s_p and sums written; s_factors read before it is again",
            ),
            Sync("barrier MULTIPLY, fourth", "MULTIPLY", "rows, s_p, sums read, s_factors written"),
            Sync("barrier LOAD", "LOAD", "o read from a stage before rows are copied to it"),
            Sync("fence.proxy.async", "LOAD", "zeros of rows before copies"),
            Sync("fence.proxy.async", "MULTIPLY", "s_q, s_p before products, o before it is copied"),
        ),
    )
