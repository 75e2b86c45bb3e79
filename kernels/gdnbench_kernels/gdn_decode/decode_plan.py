"""Plans of the decode kernel: how a call is divided among CTAs and how its state is loaded and stored.

A CTA has `cta_rows` of the 128 rows (value dims) of one state, `tile_rows` of them in each pass. A group of 8
lanes has `rows` rows of a pass, and a lane 16 of each row's 128 elements. Every plan assigns the same
elements to a lane and sums in the same order, so a plan does not change the result.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.plan import BARRIER_BYTES, CTA_SMEM, SM_SMEM, WARP

ROW_LANES = 8
"""Lanes that share a row."""
LANE_ELEMENTS = HEAD_DIM // ROW_LANES
GROUPS = WARP // ROW_LANES
"""Groups of lanes in a warp; each has one row at a time."""
STATE_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of an element."""

Transport = Literal["registers", "bulk_in", "bulk"]
"""Loads and stores of 16 bytes per lane; or one bulk copy per warp through shared memory, for loads or
both."""
Advice = Literal["none", "no_allocate", "evict_first"]
"""Cache hints: none; no allocation in L1; no allocation in L1 and evict-first in L2."""
TRANSPORTS: tuple[str, ...] = get_args(Transport)
ADVICE: tuple[str, ...] = get_args(Advice)
ROWS = (2, 4, 8)
WARPS = (1, 2, 4, 8)
PASSES = (1, 2, 4, 8)
RANKED = (0, 1, 2, 4, 8, 16, 32)

SMEM_STEP = 128
"""Granularity of a CTA's shared memory in bytes."""
H200_SMS = 132


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """rows: per group of lanes. warps: per CTA. transport: see `Transport`. load, store: cache hints.
    ctas_per_sm: CTAs for which an SM must have registers (min_blocks_per_mp); 0 for no limit. pdl:
    programmatic dependent launch: the kernel may start before the previous one has ended, waits for its end
    before it reads or writes, and lets the next kernel of the stream do the same. passes: per CTA, one after
    another. resident: the most CTAs per SM, limited by reserving shared memory; 0 for no limit. spread: the
    rows of a group are GROUPS apart, so a load of a warp reads adjacent rows. ranked: CTAs process sequences
    in the order of their slots. Every warp finds its sequence itself; each of its lanes holds `ranked` slots,
    so a call has at most WARP x `ranked` sequences beside the first ones. 0: the order of the call. started:
    with `ranked`, how many CTAs are taken to start at once. The sequences of these are not ranked: they are
    the first of the call, and memory does not idle while their CTAs compare slots."""

    rows: int = 4
    warps: int = 4
    transport: Transport = "registers"
    load: Advice = "no_allocate"
    store: Advice = "none"
    ctas_per_sm: int = 0
    pdl: bool = False
    passes: int = 1
    resident: int = 0
    spread: bool = False
    ranked: int = 0
    started: int = 0

    def __post_init__(self) -> None:
        for name, value, taken in (
            ("rows", self.rows, ROWS),
            ("warps", self.warps, WARPS),
            ("transport", self.transport, TRANSPORTS),
            ("load", self.load, ADVICE),
            ("store", self.store, ADVICE),
            ("passes", self.passes, PASSES),
            ("ranked", self.ranked, RANKED),
        ):
            if value not in taken:
                raise ValueError(f"{name} is {' or '.join(map(str, taken))}, not {value!r}")
        if self.cta_rows > HEAD_DIM:
            raise ValueError(
                f"{self.passes} x {self.warps} warps of {self.warp_rows} rows are {self.cta_rows};"
                f" a state has {HEAD_DIM}"
            )
        if self.started and not self.ranked:
            raise ValueError(f"started is {self.started} without ranked; only ranked plans have a first part")
        for name, count in (
            ("ctas_per_sm", self.ctas_per_sm),
            ("resident", self.resident),
            ("started", self.started),
        ):
            if count < 0:
                raise ValueError(f"{name} is {count}; it is a count, or 0 for no limit")

    @property
    def warp_rows(self) -> int:
        return GROUPS * self.rows

    @property
    def row_step(self) -> int:
        """Distance between successive rows of a group, in rows."""
        return GROUPS if self.spread else 1

    @property
    def tile_rows(self) -> int:
        return self.warp_rows * self.warps

    @property
    def cta_rows(self) -> int:
        return self.tile_rows * self.passes

    @property
    def tiles(self) -> int:
        """CTAs per state."""
        return HEAD_DIM // self.cta_rows

    @property
    def threads(self) -> int:
        return WARP * self.warps

    def tile_bytes(self, state_dtype: str) -> int:
        """Bytes that a pass reads from the pool, and writes per token; all of them are in flight at once."""
        return self.tile_rows * HEAD_DIM * STATE_BYTES[state_dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's operands in a warp's shared memory: rows of q and k, and the warp's elements of
        v."""
        return 2 * (2 * HEAD_DIM + self.warp_rows * self.passes)

    def operand_bytes(self, tokens: int) -> int:
        """Bytes of the operands of all warps and tokens."""
        return self.warps * tokens * self.token_bytes

    @property
    def barriers(self) -> int:
        """mbarriers per warp: one for the operands and one per pass of a bulk copy."""
        return 1 + self.passes

    def used_bytes(self, tokens: int, state_dtype: str) -> int:
        """Bytes of operands, of all passes if they use shared memory, and of mbarriers."""
        tiles = self.passes * self.tile_bytes(state_dtype) if self.transport != "registers" else 0
        return tiles + self.operand_bytes(tokens) + self.barriers * self.warps * BARRIER_BYTES

    def shared_bytes(self, tokens: int, state_dtype: str) -> int:
        """The used bytes. With `resident` they are increased so that no further CTA fits, whatever the
        shared-memory carveout."""
        used = self.used_bytes(tokens, state_dtype)
        if not self.resident:
            return used
        return max(used, (SM_SMEM // (self.resident + 1) - CTA_SMEM) // SMEM_STEP * SMEM_STEP + SMEM_STEP)

    @property
    def options(self) -> dict[str, int | str | bool]:
        """The plan as options of a `Source`."""
        return {
            "rows": self.rows,
            "warps": self.warps,
            "transport": self.transport,
            "load": self.load,
            "store": self.store,
            "ctas_per_sm": self.ctas_per_sm,
            "pdl": self.pdl,
            "passes": self.passes,
            "resident": self.resident,
            "spread": self.spread,
            "ranked": self.ranked,
            "started": self.started,
        }


STARTS = DecodePlan(load="none", pdl=True)
"""Base of the default plans: the fastest cache hints and launch mode at every size."""

SMALL = replace(STARTS, rows=2, warps=1)
"""For calls of which all CTAs are resident at once: the most and shortest CTAs."""
MIDDLE = replace(STARTS, rows=2, warps=2, transport="bulk_in", passes=4, resident=4)
"""For calls with few CTAs per SM. `resident` keeps their number equal on all SMs: with `pdl` CTAs start
wherever those of the previous call leave room."""
MIDDLE_BF16 = replace(STARTS, rows=4, warps=4, transport="bulk", passes=2, resident=4)
"""For calls of which all CTAs are resident at once: one CTA per state, which loads all of it at once."""
LARGE = replace(STARTS, rows=2, warps=1, transport="bulk_in", passes=2)
LARGE_BF16 = replace(STARTS, rows=4, warps=1, transport="bulk_in", passes=2)
"""8 KB of states per CTA of one warp; the passes share slot, gates and norms."""
BY_SLOT: Mapping[str, tuple[DecodePlan, DecodePlan, DecodePlan]] = {
    "float32": (
        replace(MIDDLE, ranked=2, started=2 * H200_SMS),
        replace(MIDDLE, ranked=8, started=2 * H200_SMS),
        replace(MIDDLE, ranked=16, started=2 * H200_SMS),
    ),
    "bfloat16": (
        replace(LARGE_BF16, ranked=2, started=8 * H200_SMS),
        replace(LARGE_BF16, ranked=8, started=8 * H200_SMS),
        replace(LARGE_BF16, ranked=16),
    ),
}
"""By dtype, in place of the large plans for up to 64, 256 and 512 sequences: memory is 3 % faster where
neighbouring slots are processed at the same time."""
BY_SLOT_STATES = (64 * 32, 65 * 32, 257 * 32)
"""The fewest states for which each is chosen."""
DRAFTED = replace(STARTS, rows=4, warps=2, transport="bulk_in")
"""For several tokens: each pass recomputes a token's operands, so a warp has many rows and few passes."""
SMALL_CTAS = 24
"""SMALL is chosen up to this many CTAs per SM: as many as 80 registers per thread allow."""
MIDDLE_CTAS = {"float32": 16, "bfloat16": 4}
"""The middle plan is chosen up to this many CTAs per SM: 4 x `resident` with fp32, `resident` with bf16."""


def default_plans(state_dtype: str, tokens: int) -> tuple[DecodePlan, ...]:
    """The plans for few, medium and many states, then those in the order of slots."""
    if tokens > 1:
        return SMALL, DRAFTED, DRAFTED
    if state_dtype == "float32":
        return SMALL, MIDDLE, LARGE, *BY_SLOT[state_dtype]
    return SMALL, MIDDLE_BF16, LARGE_BF16, *BY_SLOT[state_dtype]


def default_plan(
    batch: int,
    value_heads: int,
    state_dtype: str,
    tokens: int,
    multiprocessors: int,
    small_ctas: int = SMALL_CTAS,
    by_slot: bool = True,
) -> DecodePlan:
    """The default plan of a call; docs/gdn_decode.md has the reasons. `small_ctas`: CTAs of the small plan
    that an SM has registers for. `by_slot`: whether the plan may process sequences in the order of their
    slots."""
    states = batch * value_heads
    small, middle, large, *ranked = default_plans(state_dtype, tokens)
    if states * small.tiles <= small_ctas * multiprocessors:
        return small
    if states * middle.tiles <= MIDDLE_CTAS[state_dtype] * multiprocessors:
        return middle
    if by_slot and ranked:
        for plan, least in zip(ranked, BY_SLOT_STATES, strict=True):
            if states >= least and batch <= WARP * plan.ranked:
                return plan
    return large


def candidate_plans(batch: int, value_heads: int, state_dtype: str, tokens: int) -> tuple[DecodePlan, ...]:
    """Plans worth measuring for such a call, starting with an H200's default."""
    first = default_plan(batch, value_heads, state_dtype, tokens, H200_SMS)
    swept = _few() if first == SMALL else _many(state_dtype)
    return tuple(dict.fromkeys((first, *swept)))


def _few() -> Iterator[DecodePlan]:
    """Plans for a call whose CTAs are all resident at once, where the latency from launch to store
    decides."""
    yield from (replace(STARTS, rows=2, warps=warps) for warps in (1, 2, 4))
    yield replace(STARTS, rows=2, warps=1, pdl=False)


def _many(state_dtype: str) -> Iterator[DecodePlan]:
    """Plans for a memory-bound call, which vary the size of CTAs and the number of resident ones."""
    long = LARGE if state_dtype == "float32" else LARGE_BF16
    yield from (long, *(replace(long, resident=resident) for resident in (8, 12, 16)))
    yield from (
        replace(long, passes=1),
        replace(long, passes=4, resident=8),
        replace(long, warps=2, passes=4),
    )
    yield replace(long, transport="bulk")
    if state_dtype == "float32":
        yield from (MIDDLE, replace(MIDDLE, resident=5))
    else:
        yield from (MIDDLE_BF16, replace(STARTS, rows=8, warps=2, transport="bulk_in", passes=2, resident=4))
    yield SMALL
