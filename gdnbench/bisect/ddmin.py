# SPDX-License-Identifier: Apache-2.0
"""Delta debugging (Zeller and Hildebrandt, 2002): the fewest units that still fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

SUBSETS_UP_TO = 8
"""Parts are tried alone as long as there are no more than these: beyond, one that fails alone is rare, and
what is left without it is tried all the same."""


def fewest(
    units: int,
    fails: Callable[[Sequence[int]], bool],
    least: int = 1,
    parts: int | None = None,
    suspect: int | None = None,
) -> list[int]:
    """Of all `units`, which fail together, some that still do: ascending, at least `least` of them.

    The unit `suspect` alone first, if one is given. Then halves, then quarters, and so on: each part alone,
    then all without it. With `parts` None in the end no single unit can go; else none of so many parts of
    what is left. `fails` is asked once of each set of units.
    """
    known: dict[tuple[int, ...], bool] = {}

    def still(kept: Sequence[int]) -> bool:
        if len(kept) < least:
            return False
        if tuple(kept) not in known:
            known[tuple(kept)] = fails(kept)
        return known[tuple(kept)]

    left = list(range(units))
    if suspect is not None and units > 1 and still([suspect]):
        left = [suspect]
    if still([]):
        return []
    count = 2
    while len(left) > max(1, least) and count <= (parts or len(left)):
        cuts = [len(left) * part // count for part in range(count + 1)]
        pieces = [left[start:stop] for start, stop in pairwise(cuts)]
        alone = next((piece for piece in pieces if count <= SUBSETS_UP_TO and still(piece)), None)
        if alone is not None:
            left, count = alone, 2
            continue
        without = next((rest for rest in _each_without_one(pieces) if still(rest)), None)
        if without is not None:
            left, count = without, max(2, count - 1)
        elif count == len(left):
            break
        else:
            count = min(len(left), 2 * count)
    return left


def _each_without_one(pieces: Sequence[Sequence[int]]) -> list[list[int]]:
    return [
        [unit for other, piece in enumerate(pieces) if other != gone for unit in piece]
        for gone in range(len(pieces))
    ]
