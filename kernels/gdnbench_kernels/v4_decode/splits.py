"""How many CTAs share the entries of a query, and which tiles of entries each of them attends to.

A kernel divides the entries of a query into tiles: those of the window, then those of the extra segment; no
tile has entries of both. The splits of a query take equal shares of the tiles that its lengths leave. The
host does not read lengths: it chooses the number of splits by the tiles that the tables have room for, and
each CTA computes its own share.

With one split the attention kernel writes o and lse. With n > 1 it writes, for split i and R = B S H rows,

    o_part   [n, R, 512] float32    o of the split's entries alone, divided by their own sum, without the sink
    lse_part [n, R]      float32    log2 of the split's sum; -inf where it attends to nothing

and `kernel_merge` adds them up. Where lse_part is -inf, o_part need not be written.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_SPLITS = 32
"""A lane of the merging kernel weighs a split."""
CTA_COST = 1
"""What a CTA needs besides its tiles, in units of the time of a tile: it reads its queries and writes o."""
MERGE_COST = 2
"""What a merge adds, in the same unit: a launch, and reading the partial outputs. An assumption; the choice
changes only where it is within that of another."""


def query_tiles(window: int, extra: int, tile: int) -> int:
    """Tiles of a query with up to `window` and `extra` entries, `tile` entries each."""
    return -(-window // tile) + -(-extra // tile)


def first_tile(split: Any, splits: Any, tiles: Any) -> Any:
    """The first of `tiles` tiles that belongs to `split`; that of the next split is the one after its last.
    It may exceed `tiles`: later splits then have none. Takes integers and those of CuTe DSL."""
    return split * ((tiles + splits - 1) // splits)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The splits of every query of a call."""

    splits: int

    def __post_init__(self) -> None:
        if not 1 <= self.splits <= MAX_SPLITS:
            raise ValueError(f"splits is {self.splits}; it must be 1 to {MAX_SPLITS}")

    def tiles_of(self, split: int, tiles: int) -> range:
        """The tiles of that split in a query of `tiles` tiles."""
        first, after = (first_tile(one, self.splits, tiles) for one in (split, split + 1))
        return range(min(first, tiles), min(after, tiles))

    @staticmethod
    def choose(ctas: int, slots: int, tiles: int) -> SplitPlan:
        """The fewest splits of the least estimated time.

        ctas: B S times the CTAs among which the heads of a query are divided, without splits. slots: CTAs
        that run at once. tiles: what `query_tiles` says of the tables. With n splits the CTAs run in
        ceil(ctas n / slots) waves, each of which takes the time of ceil(tiles / n) tiles and `CTA_COST`.
        """
        if slots < 1:
            raise ValueError(f"slots is {slots}; at least one CTA must run at once")

        def time(splits: int) -> int:
            waves = -(-ctas * splits // slots)
            return waves * (-(-tiles // splits) + CTA_COST) + (MERGE_COST if splits > 1 else 0)

        return SplitPlan(min(range(1, max(1, min(tiles, MAX_SPLITS)) + 1), key=time))
