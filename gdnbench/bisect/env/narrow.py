# SPDX-License-Identifier: Apache-2.0
"""Delta debugging: reduces a set of changes that together are bad to a smallest set that still is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gdnbench.bisect.ddmin import fewest
from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Needed:
    """A set of `changes` of which none can be left out; without those in `unsure` no verdict was possible."""

    changes: tuple[str, ...]
    unsure: tuple[str, ...]


def smallest_bad_set(changes: Sequence[str], ask: Callable[[frozenset[str]], State]) -> Needed:
    """A subset of `changes` that is bad and cannot lose an element. All changes together must be bad, none of
    them good."""
    states: dict[frozenset[str], State] = {frozenset(): State.GOOD, frozenset(changes): State.BAD}

    def state(chosen: Iterable[str]) -> State:
        key = frozenset(chosen)
        if key not in states:
            states[key] = ask(key)
        return states[key]

    kept = fewest(len(changes), lambda units: state(changes[unit] for unit in units) is State.BAD)
    left = [changes[unit] for unit in kept]
    unsure = [one for one in left if state([other for other in left if other != one]) is State.SKIP]
    return Needed(tuple(left), tuple(unsure))
