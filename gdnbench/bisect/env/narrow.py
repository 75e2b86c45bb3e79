"""Delta debugging: of many changes that together make something bad, as few as still do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gdnbench.bisect.ddmin import fewest
from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Needed:
    """All of `changes` are needed to make it bad, except that nothing could be told without those in
    `unsure`."""

    changes: tuple[str, ...]
    unsure: tuple[str, ...]


def smallest_bad_set(changes: Sequence[str], ask: Callable[[frozenset[str]], State]) -> Needed:
    """Of `changes`, all of which are bad and none of which is good, a set that cannot lose one."""
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
