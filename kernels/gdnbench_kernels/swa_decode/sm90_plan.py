# SPDX-License-Identifier: Apache-2.0
"""The plan of a CTA of the wgmma kernel, and its tuning parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Pipeline, Sync
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import PAD_BYTES, ROW_BYTES
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM, ROPE_DIM

GROUP_WARPS = 4
"""Threads of a warpgroup."""
MULTIPLIERS = 8
LOADERS = 4
THREADS = WARP * (MULTIPLIERS + LOADERS)
START_REGISTERS = 168
"""Registers per thread at launch."""
STAGES = 2
"""Windows in shared memory."""
BLOCKS = HEAD_DIM // GROUP
"""Blocks of 64 features: the chunks of a query in shared memory, and the tiles of o."""
OUT_BYTES = 2 * HEAD_DIM + PAD_BYTES
"""Bytes of a row of o in shared memory: heads are an odd multiple of 16 bytes apart."""
ROPE_BYTES = 2 * ROPE_DIM + PAD_BYTES

ROWS = (16, 32, 64)

REGISTERS = {16: 184, 32: 192, 64: 200}
"""Registers per MULTIPLY thread, by heads per CTA; LOAD threads have the rest. Neither layout spills, and no
product waits for registers of the previous one."""


class Role(IntEnum):
    """First warp of each role."""

    MULTIPLY = 0
    LOAD = 8


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    MULTIPLY = 1
    LOAD = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """Parameters that do not change the result."""

    rows: int = 64  # heads per CTA: N
    prefetch: int = 1  # how many items ahead queries are prefetched into L2
    pdl: bool = field(default=True, kw_only=True)  # programmatic dependent launch, as in `portable`

    def __post_init__(self) -> None:
        if self.rows not in ROWS:
            raise ValueError(f"rows is {', '.join(map(str, ROWS))}, not {self.rows}")
        if not 0 <= self.prefetch <= 4:
            raise ValueError(f"prefetch is 0 to 4, not {self.prefetch}")

    @property
    def multiply_registers(self) -> int:
        return REGISTERS[self.rows]

    @property
    def groups_in_flight(self) -> int:
        """Groups of product 2 in flight while the operands of the next one are converted."""
        return 1

    @property
    def load_registers(self) -> int:
        return 3 * START_REGISTERS - 2 * self.multiply_registers


def row_bytes(layout: CacheLayout) -> int:
    """Bytes of a row of codes in shared memory."""
    return NOPE_DIM + PAD_BYTES if layout is CacheLayout.FP8_DS_MLA else ROW_BYTES[layout]


def staged_heads(layout: CacheLayout, rows: int) -> int:
    """Heads whose outputs fit in a stage of s_rows, a multiple of 8; the outputs of other heads are stored
    from registers."""
    return min(rows, MAX_WINDOW * row_bytes(layout) // OUT_BYTES // 8 * 8)


def buffers(layout: CacheLayout, rows: int) -> tuple[Buffer, ...]:
    """Shared memory for queries, weights, two windows and what is known of heads."""
    mla = layout is CacheLayout.FP8_DS_MLA
    return (
        Buffer("s_q", (BLOCKS, rows, GROUP), "float16", "16-byte chunk ^= head % 8"),
        Buffer("s_p", (MAX_WINDOW // GROUP, rows, GROUP), "float16", "16-byte chunk ^= head % 8"),
        Buffer(
            "s_rows",
            (MAX_WINDOW, row_bytes(layout)),
            "uint8",
            f"{PAD_BYTES} of a row are padding; then o, heads {OUT_BYTES} bytes apart",
            stages=STAGES,
            align=128,
        ),
        *(
            (
                Buffer("s_rope", (MAX_WINDOW, ROPE_BYTES // 2), "float16", "as s_rows", align=128),
                Buffer("s_groups", (GROUPS, MAX_WINDOW), "float16", "2^(scale - factor)", STAGES, 16),
            )
            if mla
            else ()
        ),
        Buffer(
            "s_entries",
            (MAX_WINDOW, 4),
            "float32",
            "factor, its exponent, mantissa, 1 if it counts",
            STAGES,
            16,
        ),
        Buffer(
            "s_peaks",
            (MULTIPLIERS, rows, 2),
            "float32",
            "a warp's largest score, exponent; its sums over them",
            align=16,
        ),
        Buffer("s_tops", (rows, 2), "float32", "the largest score, exponent", align=16),
        Buffer("s_factors", (rows,), "float32", "of a head's outputs", align=16),
        Buffer("s_coefficients", (rows,), "float32", "of a head's scores", align=16),
    )


def pipelines(rows: int) -> tuple[Pipeline, ...]:
    """The pipelines of windows and of queries."""
    return (
        Pipeline("rows", STAGES, "LOAD, with their bytes", 3 * LOADERS, "MULTIPLY warps", MULTIPLIERS),
        Pipeline("q", 1, "LOAD", 1, "MULTIPLY warps", MULTIPLIERS, 2 * rows * HEAD_DIM),
    )


def plan(layout: CacheLayout, tuning: Tuning) -> KernelPlan:
    """The plan. Raises PlanError if it does not fit."""
    rows = tuning.rows
    return KernelPlan(
        name="wgmma_decode",
        roles=Role,
        warps={"MULTIPLY": MULTIPLIERS, "LOAD": LOADERS},
        does={
            "MULTIPLY": "queries as f16; a warpgroup 64 entries of product 1, 256 features of product 2",
            "LOAD": "windows, queries, what rows are multiplied by; outputs",
        },
        smem=(
            *buffers(layout, rows),
            Buffer("s_lens", (STAGES,), "int32", "of the windows", align=4),
            Buffer("s_ready", (2,), "int32", "mbarrier: s_rope is there", align=8),
        ),
        tmem=(),
        pipelines=pipelines(rows),
        syncs=(
            Sync("s_ready", "LOAD warps to MULTIPLY", "s_rope before it is multiplied"),
            Sync("barrier MULTIPLY, queries", "MULTIPLY", "s_q in f16 before product 1"),
            Sync("barrier MULTIPLY, first", "MULTIPLY", "s_peaks written before they are compared"),
            Sync("barrier MULTIPLY, second", "MULTIPLY", "s_tops written; s_peaks read before sums are"),
            Sync("barrier MULTIPLY, third", "MULTIPLY", "s_p and the sums written before product 2"),
            Sync("barrier MULTIPLY, fourth", "MULTIPLY", "rows and s_p read, s_factors written before o is"),
            Sync("barrier LOAD", "LOAD", "o read from a stage before rows are copied to it"),
            Sync("fence.proxy.async", "LOAD", "zeros of rows before copies"),
            Sync("fence.proxy.async", "MULTIPLY", "s_q, s_p before products, o before it is copied"),
        ),
    )
