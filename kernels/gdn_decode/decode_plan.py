"""How a decode call is dealt to CTAs and moved: what may be swept, and what is chosen without being told.

A CTA has `tile_rows` of the 128 rows (value dims) of one state. A group of 8 lanes has `rows` rows next to
one another, and a lane 16 of each row's 128 elements. Which lane has which element, and the order of every
sum, are the same in every plan: a plan changes no bit of a result.
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

Transport = Literal["registers", "bulk"]
"""Loads and stores of 16 bytes a lane, or a bulk copy a warp, each way, through shared memory."""
Advice = Literal["none", "no_allocate", "evict_first"]
"""To the caches: nothing; not into L1; not into L1 and first out of L2."""
TRANSPORTS: tuple[str, ...] = get_args(Transport)
ADVICE: tuple[str, ...] = get_args(Advice)
ROWS = (2, 4, 8)
WARPS = (1, 2, 4, 8)

H200_SMS = 132
MOST_WARPS = 24
"""Of an SM, that 80 registers a thread allow: what the least of plans take."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """rows: of a group of lanes. warps: of a CTA. load, store: advice. ctas_per_sm: what registers are held
    to, 0 to nothing. pdl: the next kernel of the stream may start before this one is done, and waits for it
    before it reads."""

    rows: int = 4
    warps: int = 4
    transport: Transport = "registers"
    load: Advice = "no_allocate"
    store: Advice = "none"
    ctas_per_sm: int = 0
    pdl: bool = False

    def __post_init__(self) -> None:
        for name, value, taken in (
            ("rows", self.rows, ROWS),
            ("warps", self.warps, WARPS),
            ("transport", self.transport, TRANSPORTS),
            ("load", self.load, ADVICE),
            ("store", self.store, ADVICE),
        ):
            if value not in taken:
                raise ValueError(f"{name} is {' or '.join(map(str, taken))}, not {value!r}")
        if self.tile_rows > HEAD_DIM:
            raise ValueError(
                f"{self.warps} warps of {self.warp_rows} rows are {self.tile_rows}; a state has {HEAD_DIM}"
            )
        if self.ctas_per_sm < 0:
            raise ValueError(f"ctas_per_sm is {self.ctas_per_sm}; it is a count, or 0 to hold to nothing")

    @property
    def warp_rows(self) -> int:
        return GROUPS * self.rows

    @property
    def tile_rows(self) -> int:
        return self.warp_rows * self.warps

    @property
    def tiles(self) -> int:
        """CTAs of a state."""
        return HEAD_DIM // self.tile_rows

    @property
    def threads(self) -> int:
        return WARP * self.warps

    def tile_bytes(self, state_dtype: str) -> int:
        """What a CTA reads of the pool, and writes a token; all of it is in flight at once."""
        return self.tile_rows * HEAD_DIM * STATE_BYTES[state_dtype]

    @property
    def token_bytes(self) -> int:
        """Of a token's operands in a warp's shared memory: rows of q and k, the warp's elements of v."""
        return 2 * (2 * HEAD_DIM + self.warp_rows)

    def operand_bytes(self, tokens: int) -> int:
        """Of all warps' and tokens' operands."""
        return self.warps * tokens * self.token_bytes

    def shared_bytes(self, tokens: int, state_dtype: str) -> int:
        """Operands, the tile where it goes through shared memory, and two mbarriers a warp."""
        tile = self.tile_bytes(state_dtype) if self.transport == "bulk" else 0
        return tile + self.operand_bytes(tokens) + 2 * self.warps * BARRIER_BYTES

    def carveout(self, tokens: int, state_dtype: str) -> int:
        """Percent of the L1 cache that become shared memory: as much as the CTAs that registers allow take,
        `ctas_per_sm` of them or else MOST_WARPS warps. The rest serves loads."""
        ctas = self.ctas_per_sm or MOST_WARPS // self.warps
        return min(100, -(-100 * ctas * (self.shared_bytes(tokens, state_dtype) + CTA_SMEM) // SM_SMEM))

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
        }


SMALL = DecodePlan(rows=2, warps=4)
"""As long as all of it is resident at once: the most threads for the bytes."""
MIDDLE = DecodePlan(rows=4, warps=2)
"""As long as an SM gets few CTAs: small ones, dealt more evenly."""
LARGE = DecodePlan(rows=4, warps=4)
LARGE_BF16 = DecodePlan(rows=8, warps=2)
"""Of one token: half the bytes a row are in flight as with fp32, and twice the rows make up for it."""
SMALL_CTAS, FEW_CTAS = 6, 32
"""Of an SM: as many of SMALL as 80 registers a thread allow; four times as many of MIDDLE as are resident."""


def chosen(state_dtype: str, tokens: int) -> tuple[DecodePlan, DecodePlan, DecodePlan]:
    """The plans of calls from few states to many."""
    return SMALL, MIDDLE, LARGE_BF16 if state_dtype == "bfloat16" and tokens == 1 else LARGE


def choose(batch: int, value_heads: int, state_dtype: str, tokens: int, multiprocessors: int) -> DecodePlan:
    """The plan of a call unless it is told one; docs/gdn_decode.md says why."""
    states = batch * value_heads
    small, middle, large = chosen(state_dtype, tokens)
    if states * small.tiles <= SMALL_CTAS * multiprocessors:
        return small
    return middle if states * middle.tiles <= FEW_CTAS * multiprocessors else large


def candidates(batch: int, value_heads: int, state_dtype: str, tokens: int) -> tuple[DecodePlan, ...]:
    """Plans worth measuring for such a call, that of an H200 first."""
    first = choose(batch, value_heads, state_dtype, tokens, H200_SMS)
    return tuple(dict.fromkeys((first, *_swept(first))))


def _swept(first: DecodePlan) -> Iterator[DecodePlan]:
    """Each asks one question: how rows are dealt and moved, of what is chosen the advice, and when it starts.

    Plans whose registers are held to fewer are left out where these spill, see `gdnbench compile`."""
    for rows, warps in ((2, 2), (2, 4), (2, 8), (4, 1), (4, 2), (4, 4), (4, 8), (8, 2), (8, 4)):
        yield DecodePlan(rows=rows, warps=warps)
    for rows, warps in ((2, 4), (4, 2), (4, 4), (4, 8)):
        yield DecodePlan(rows=rows, warps=warps, transport="bulk")
        yield DecodePlan(rows=rows, warps=warps, transport="bulk", load="evict_first", store="evict_first")
    advice: tuple[tuple[Advice, Advice], ...] = (
        ("none", "none"),
        ("evict_first", "none"),
        ("no_allocate", "evict_first"),
        ("evict_first", "evict_first"),
    )
    for load, store in advice:
        yield replace(first, load=load, store=store)
    yield replace(first, pdl=True)
    yield replace(first, transport="bulk", pdl=True)
