"""How a decode call is dealt to CTAs and moved: what may be swept, and what is chosen without being told.

A CTA has `cta_rows` of the 128 rows (value dims) of one state, `tile_rows` of them in each of its passes. A
group of 8 lanes has `rows` rows of a pass, and a lane 16 of each row's 128 elements. Which of them, and the
order of every sum, are the same in every plan: a plan changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.plan import BARRIER_BYTES, CTA_SMEM, SM_SMEM, WARP

ROW_LANES = 8
"""Lanes that share a row."""
LANE_ELEMENTS = HEAD_DIM // ROW_LANES
GROUPS = WARP // ROW_LANES
"""Rows that a warp works on at once."""
STATE_BYTES = {"float32": 4, "bfloat16": 2}
"""Of an element."""

Transport = Literal["registers", "bulk_in", "bulk"]
"""Loads and stores of 16 bytes a lane; or a bulk copy a warp, through shared memory: in, or each way."""
Advice = Literal["none", "no_allocate", "evict_first"]
"""To the caches: nothing; not into L1; not into L1 and first out of L2."""
TRANSPORTS: tuple[str, ...] = get_args(Transport)
ADVICE: tuple[str, ...] = get_args(Advice)
ROWS = (2, 4, 8)
WARPS = (1, 2, 4, 8)
PASSES = (1, 2, 4, 8)

SMEM_STEP = 128
"""Bytes that a CTA's shared memory is a multiple of."""
H200_SMS = 132


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """rows: of a group of lanes. warps: of a CTA. load, store: advice. ctas_per_sm: what registers are held
    to, 0 to nothing. pdl: it may start before the kernel in front of it is done, waits for that before it
    reads or writes, and lets the next kernel of the stream do the same. passes: of a CTA, each one after
    another. resident: CTAs that an SM may have at once, by what they take of shared memory; 0 for as many as
    there is room for. spread: the rows of a group are GROUPS apart, so that a load of a warp is of rows next
    to one another, and not those of the group."""

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

    def __post_init__(self) -> None:
        for name, value, taken in (
            ("rows", self.rows, ROWS),
            ("warps", self.warps, WARPS),
            ("transport", self.transport, TRANSPORTS),
            ("load", self.load, ADVICE),
            ("store", self.store, ADVICE),
            ("passes", self.passes, PASSES),
        ):
            if value not in taken:
                raise ValueError(f"{name} is {' or '.join(map(str, taken))}, not {value!r}")
        if self.cta_rows > HEAD_DIM:
            raise ValueError(
                f"{self.passes} x {self.warps} warps of {self.warp_rows} rows are {self.cta_rows};"
                f" a state has {HEAD_DIM}"
            )
        for name, count in (("ctas_per_sm", self.ctas_per_sm), ("resident", self.resident)):
            if count < 0:
                raise ValueError(f"{name} is {count}; it is a count, or 0 to hold to nothing")

    @property
    def warp_rows(self) -> int:
        return GROUPS * self.rows

    @property
    def row_step(self) -> int:
        """From a row of a group to its next."""
        return GROUPS if self.spread else 1

    @property
    def tile_rows(self) -> int:
        return self.warp_rows * self.warps

    @property
    def cta_rows(self) -> int:
        return self.tile_rows * self.passes

    @property
    def tiles(self) -> int:
        """CTAs of a state."""
        return HEAD_DIM // self.cta_rows

    @property
    def threads(self) -> int:
        return WARP * self.warps

    def tile_bytes(self, state_dtype: str) -> int:
        """What a pass reads of the pool, and writes a token; all of it is in flight at once."""
        return self.tile_rows * HEAD_DIM * STATE_BYTES[state_dtype]

    @property
    def token_bytes(self) -> int:
        """Of a token's operands in a warp's shared memory: rows of q and k, the warp's elements of v."""
        return 2 * (2 * HEAD_DIM + self.warp_rows * self.passes)

    def operand_bytes(self, tokens: int) -> int:
        """Of all warps' and tokens' operands."""
        return self.warps * tokens * self.token_bytes

    @property
    def barriers(self) -> int:
        """Of a warp: one for the operands and one for each pass of a bulk copy."""
        return 1 + self.passes

    def used_bytes(self, tokens: int, state_dtype: str) -> int:
        """Operands, all passes where they go through shared memory, and mbarriers."""
        tiles = self.passes * self.tile_bytes(state_dtype) if self.transport != "registers" else 0
        return tiles + self.operand_bytes(tokens) + self.barriers * self.warps * BARRIER_BYTES

    def shared_bytes(self, tokens: int, state_dtype: str) -> int:
        """What is used; with `resident` as much more as leaves no room for one CTA more, however much of an
        SM's memory is shared memory."""
        used = self.used_bytes(tokens, state_dtype)
        if not self.resident:
            return used
        return max(used, (SM_SMEM // (self.resident + 1) - CTA_SMEM) // SMEM_STEP * SMEM_STEP + SMEM_STEP)

    @property
    def options(self) -> dict[str, int | str | bool]:
        """As a `Source` takes them."""
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
        }


STARTS = DecodePlan(load="none", pdl=True)
"""What measured best of advice and of starts, at every size."""

SMALL = replace(STARTS, rows=2, warps=1)
"""As long as all of it is resident at once: the most CTAs, and the shortest, for the bytes."""
MIDDLE = replace(STARTS, rows=2, warps=2, transport="bulk_in", passes=4, resident=4)
"""As long as an SM gets few CTAs: no more at once than are dealt evenly, since under `pdl` the CTAs of a call
begin wherever those of the call before have left room."""
MIDDLE_BF16 = replace(STARTS, rows=4, warps=4, transport="bulk", passes=2, resident=4)
"""As long as all of it is resident at once: a CTA a state, all of which is asked for at once."""
LARGE = replace(STARTS, rows=2, warps=1, transport="bulk_in", passes=2)
LARGE_BF16 = replace(STARTS, rows=4, warps=1, transport="bulk_in", passes=2)
"""8 KB of states a CTA, of one warp; passes pay for slot, gates and norms once."""
DRAFTED = replace(STARTS, rows=4, warps=2, transport="bulk_in")
"""Of several tokens: what a token multiplies with is made anew in each pass, and a warp of many rows makes it
seldom."""
SMALL_CTAS = 24
"""Of an SM, as many as 80 registers a thread allow."""
MIDDLE_CTAS = {"float32": 16, "bfloat16": 4}
"""Of an SM: four times as many as are resident; as many as are."""


def chosen(state_dtype: str, tokens: int) -> tuple[DecodePlan, DecodePlan, DecodePlan]:
    """The plans of calls from few states to many."""
    if tokens > 1:
        return SMALL, DRAFTED, DRAFTED
    wide = state_dtype == "float32"
    return SMALL, MIDDLE if wide else MIDDLE_BF16, LARGE if wide else LARGE_BF16


def choose(batch: int, value_heads: int, state_dtype: str, tokens: int, multiprocessors: int) -> DecodePlan:
    """The plan of a call unless it is told one; docs/gdn_decode.md says why."""
    states = batch * value_heads
    small, middle, large = chosen(state_dtype, tokens)
    if states * small.tiles <= SMALL_CTAS * multiprocessors:
        return small
    return middle if states * middle.tiles <= MIDDLE_CTAS[state_dtype] * multiprocessors else large


def candidates(batch: int, value_heads: int, state_dtype: str, tokens: int) -> tuple[DecodePlan, ...]:
    """Plans worth measuring for such a call, that of an H200 first."""
    first = choose(batch, value_heads, state_dtype, tokens, H200_SMS)
    swept = _few() if first == SMALL else _many(state_dtype)
    return tuple(dict.fromkeys((first, *swept)))


def _few() -> Iterator[DecodePlan]:
    """Of a call that is resident at once, of which the chain from launch to store is the time."""
    yield from (replace(STARTS, rows=2, warps=warps) for warps in (1, 2, 4))
    yield replace(STARTS, rows=2, warps=1, pdl=False)


def _many(state_dtype: str) -> Iterator[DecodePlan]:
    """Of a call that memory bounds: the grain of CTAs, and how many are resident."""
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
