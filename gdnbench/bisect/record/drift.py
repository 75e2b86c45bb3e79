# SPDX-License-Identifier: Apache-2.0
"""Where the error of carried states is too large: the rule that `gdnbench_kernels.gdn_decode.drift` has.

The relative error of the states of a lane, as the root mean square over every 16 of its calls, may be k
times that of torch's kernel carried in the same way, and half an ULP; of all heads together and of each.
Where it is within that everywhere, it may not grow faster than torch's. With a tolerance instead, every
element of every state is held to the oracle's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.drift import FACTOR, GROWTH, STRETCH, growth_exponent, rms_by_stretch

__all__ = ["STRETCH", "Entry", "Grows", "Over", "first_growth", "first_over"]

Entry = Mapping[str, Any]
"""What `carried.block` says of a state that a call leaves."""


@dataclass(frozen=True, slots=True)
class Over:
    """The first state of a lane whose error is over its bound. `head` None: of all heads."""

    number: int
    lane: str
    step: int  # calls of the lane before it
    head: int | None
    error: float
    limit: float
    torch: float | None

    def __str__(self) -> str:
        what = "state" if self.head is None else f"state of head {self.head}"
        if self.torch is None:
            return f"{what} {self.error:.3g} times its tolerance off"
        return f"{what} off by {self.error:.3g} over {self.limit:.3g} (torch's {self.torch:.3g})"


@dataclass(frozen=True, slots=True)
class Grows:
    """A lane that keeps its bound and gets worse faster than torch's."""

    lane: str
    last: int
    head: int | None
    slope: float

    def __str__(self) -> str:
        what = "its state" if self.head is None else f"its state of head {self.head}"
        return (
            f"the error of {what} over torch's grows like t^{self.slope:.2f}; at most t^{GROWTH:g} is a"
            " matter of chance"
        )


def lanes_of(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(str(entry["lane"]), []).append(entry)
    return found


def first_over(
    entries: Sequence[Entry], k: float | None, tolerance: bool, order: Sequence[int]
) -> Over | None:
    """Of all lanes, in the order of the calls."""
    found = [
        over
        for lane, members in lanes_of(entries).items()
        if (over := _tolerance(lane, members) if tolerance else _bound(lane, members, k)) is not None
    ]
    return min(found, key=lambda over: order.index(over.number), default=None)


def _tolerance(lane: str, entries: Sequence[Entry]) -> Over | None:
    for step, entry in enumerate(entries):
        if not entry["beyond"] <= 1:
            return Over(entry["number"], lane, step, None, entry["beyond"], 1.0, None)
    return None


def _bound(lane: str, entries: Sequence[Entry], k: float | None) -> Over | None:
    own, torchs = _curves(entries)
    factor, rounding = FACTOR if k is None else k, entries[0]["eps"] / 2
    found: list[Over] = []
    for column in range(own.shape[1]):
        for start in _starts(len(entries)):
            part = slice(start, start + STRETCH)
            mine, theirs = (one[part, column].square().mean().sqrt() for one in (own, torchs))
            limit = float(factor * theirs + rounding)
            if not float(mine) <= limit:
                over = ~(own[part, column] <= limit)
                step = start + int(over.nonzero()[0])
                head = None if column == 0 else column - 1
                error = float(own[step, column])
                found.append(Over(entries[step]["number"], lane, step, head, error, limit, float(theirs)))
                break
    return min(found, key=lambda over: over.step, default=None)


def _starts(count: int) -> list[int]:
    """Where whole stretches begin; the last one ends with the lane, if it is as long as one."""
    if count <= STRETCH:
        return [0]
    return list(dict.fromkeys([*range(0, count - STRETCH + 1, STRETCH), count - STRETCH]))


def first_growth(entries: Sequence[Entry]) -> Grows | None:
    """Of lanes of two stretches or more."""
    for lane, members in lanes_of(entries).items():
        if len(members) < 2 * STRETCH:
            continue
        own, torchs = _curves(members)
        for column in range(own.shape[1]):
            mine, theirs = rms_by_stretch(own[:, column]), rms_by_stretch(torchs[:, column])
            if not bool((mine > 0).all() and (theirs > 0).all()):
                continue
            if (slope := growth_exponent(mine, theirs)) > GROWTH:
                return Grows(lane, members[-1]["number"], None if column == 0 else column - 1, slope)
    return None


def _curves(entries: Sequence[Entry]) -> tuple[Tensor, Tensor]:
    """Errors [T, 1 + heads] of the kernel and of torch: of the state, then of each head."""
    return tuple(  # type: ignore[return-value]
        torch.tensor([entry[who] for entry in entries], dtype=torch.float64) for who in ("own", "torch")
    )
