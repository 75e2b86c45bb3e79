# SPDX-License-Identifier: Apache-2.0
"""Narrows a line of candidates, good ones before bad ones, with as few probes as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Span:
    """The change from good to bad is after `good` and at or before `bad`. Candidates between them, if any,
    could not be judged and are `skipped`."""

    good: int
    bad: int
    skipped: tuple[int, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is a single candidate."""
        return not self.skipped


def first_bad(good: int, bad: int, ask: Callable[[int], State]) -> Span:
    """Narrows the change between a good and a bad candidate. `ask` is called at most once for each candidate
    between them: log2 of their number if none is skipped.

    If a candidate is skipped, its nearest neighbours are tried, alternately on both sides. If good and bad
    candidates do not come in order, one of the changes from good to bad is found.
    """
    if not good < bad:
        raise ValueError(f"candidate {good} is not before {bad}")
    skipped: set[int] = set()
    while True:
        left = [one for one in range(good + 1, bad) if one not in skipped]
        if not left:
            return Span(good, bad, tuple(range(good + 1, bad)))
        middle = (good + bad) // 2
        one = min(left, key=lambda candidate: (abs(candidate - middle), candidate))
        match ask(one):
            case State.GOOD:
                good = one
            case State.BAD:
                bad = one
            case State.SKIP:
                skipped.add(one)
