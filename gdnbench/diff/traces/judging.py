# SPDX-License-Identifier: Apache-2.0
"""When two values of a register are no longer the same: other bits, or numbers further apart than a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.diff.traces.rounding import decoded, is_float, ulp
from gdnbench.errors import BadInputError
from gdnbench.trace.reader import Region

Row = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

MARGIN = 1 << 20
"""Bytes around a tensor in which an address is still taken for one of its: kernels compute some that they do
not use. Host addresses are far above what else a kernel counts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Numbers pass at |x - y| <= absolute + relative |y|, or within `ulps` units in the last place of the
    larger one. Without either, and for what is no floating-point number, bits must be equal."""

    tolerance: tuple[float, float] | None = None
    ulps: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and self.ulps is not None:
            raise BadInputError("choose one of --tol and --ulp, not both")
        given = [*(self.tolerance or ()), *(() if self.ulps is None else (self.ulps,))]
        if not all(0 <= number < float("inf") for number in given):
            raise BadInputError(f"a bound of {', '.join(map(str, given))}: numbers of 0 or more")

    def __str__(self) -> str:
        if self.tolerance is not None:
            return f"floating-point numbers |x - y| <= {self.tolerance[0]:g} + {self.tolerance[1]:g} |y|"
        return "equal bits" if self.ulps is None else f"floating-point numbers within {self.ulps:g} ULPs"

    def apart(self, x: Row, y: Row, kind: str, other: str) -> Mask:
        """Where two rows of these formats, bits [lanes] each, are no longer the same."""
        differs: Mask = x != y
        free = self.tolerance is None and self.ulps is None
        if free or kind != other or not is_float(kind) or not differs.any():
            return differs
        a, b = decoded(x, kind), decoded(y, kind)
        # A difference that overflows is infinite, one of infinities or NaNs is NaN: neither is <= a bound.
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(a - b)
            if self.tolerance is not None:
                allowed = self.tolerance[0] + self.tolerance[1] * np.abs(b)
            else:
                allowed = (self.ulps or 0.0) * ulp(np.maximum(np.abs(a), np.abs(b)), kind)
            same = (
                (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(difference) & (difference <= allowed))
            )
        beyond: Mask = ~same.all(axis=1)
        return differs & beyond


class Addresses:
    """Where tensors of one launch lie in the other: what points to one of them is the same in both."""

    def __init__(self, a: Iterable[Region], b: Iterable[Region]) -> None:
        there = dict(_numbered(b))
        pairs = [(one, there[key]) for key, one in _numbered(a) if key in there]
        self._moved = [(one, other) for one, other in pairs if one.address != other.address]

    def same(self, x: Row, y: Row) -> Mask:
        """Where x of the first launch and y of the second are one place of one tensor."""
        found = np.zeros(x.shape, np.bool_)
        for one, other in self._moved:
            low, high = max(one.address - MARGIN, 0), one.address + one.size + MARGIN
            near = (x >= np.uint64(low)) & (x < np.uint64(min(high, (1 << 64) - 1)))
            found |= near & (y - x == np.uint64((other.address - one.address) % (1 << 64)))
        return found


def _numbered(regions: Iterable[Region]) -> Iterable[tuple[tuple[str, int], Region]]:
    """Regions by name; those of one name in their order."""
    seen: Counter[str] = Counter()
    for region in regions:
        yield (region.name, seen[region.name]), region
        seen[region.name] += 1
