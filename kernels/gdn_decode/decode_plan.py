"""How a decode call is dealt to CTAs and moved: what may be swept, and what is chosen without being told.

A CTA has `tile_rows` of the 128 rows (value dims) of one state. A group of 8 lanes has `rows` rows next to
one another, and a lane 16 of each row's 128 elements. Which lane has which element, and the order of every
sum, are the same in every plan: a plan changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.plan import BARRIER_BYTES, WARP

ROW_LANES = 8
"""Lanes that share a row."""
LANE_ELEMENTS = HEAD_DIM // ROW_LANES
GROUPS = WARP // ROW_LANES
"""Rows that a warp works on at once."""
STATE_BYTES = {"float32": 4, "bfloat16": 2}
"""Of an element."""

Transport = Literal["registers", "bulk"]
"""Loads and stores of 16 bytes a lane, or a bulk copy a warp, each way, through shared memory."""
Advice = Literal["none", "no_allocate", "streaming", "evict_first"]
"""To the caches: nothing; not into L1; first out of L1; not into L1 and first out of L2."""
TRANSPORTS: tuple[str, ...] = get_args(Transport)
ADVICE: tuple[str, ...] = get_args(Advice)
ROWS = (2, 4, 8)
WARPS = (1, 2, 4, 8)

SM_REGISTERS = 65_536
MAX_REGISTERS = 255
"""Of a thread."""


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


def choose(batch: int, value_heads: int, state_dtype: str, tokens: int, multiprocessors: int) -> DecodePlan:
    """The plan of a call unless it is told one."""
    states = batch * value_heads
    # As long as tiles of 32 rows leave no SM two of them, they are what spreads the bytes.
    if states * (HEAD_DIM // 32) <= multiprocessors:
        return DecodePlan(rows=2)
    return DecodePlan(rows=4)


def candidates(batch: int, value_heads: int, state_dtype: str, tokens: int) -> tuple[DecodePlan, ...]:
    """Plans worth measuring for such a call, the default first."""
    return tuple(dict.fromkeys((choose(batch, value_heads, state_dtype, tokens, 132), *_swept())))


def _swept() -> Iterator[DecodePlan]:
    """One question after another, each about an otherwise plain plan."""
    for rows, warps in product((2, 4), (2, 4, 8)):
        if GROUPS * rows * warps <= HEAD_DIM:
            yield DecodePlan(rows=rows, warps=warps)
            yield DecodePlan(rows=rows, warps=warps, transport="bulk")
