"""Delta debugging: of many changes that together make something bad, as few as still do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Needed:
    """All of `changes` are needed to make it bad, except that nothing could be told without those in
    `unsure`."""

    changes: tuple[str, ...]
    unsure: tuple[str, ...]


def needed(changes: Sequence[str], ask: Callable[[frozenset[str]], State]) -> Needed:
    """Of `changes`, all of which are bad and none of which is good, a set that cannot lose one."""
    left, parts = list(changes), min(2, len(changes))
    told: dict[frozenset[str], State] = {frozenset(): State.GOOD, frozenset(changes): State.BAD}

    def state(chosen: Sequence[str]) -> State:
        key = frozenset(chosen)
        if key not in told:
            told[key] = ask(key)
        return told[key]

    while len(left) > 1:
        cuts = [left[len(left) * i // parts : len(left) * (i + 1) // parts] for i in range(parts)]
        rests = [[one for one in left if one not in cut] for cut in cuts]
        smaller = next((cut for cut in cuts if state(cut) is State.BAD), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        rest = next((rest for rest in rests if state(rest) is State.BAD), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    unsure = [one for one in left if state([other for other in left if other != one]) is State.SKIP]
    return Needed(tuple(left), tuple(unsure))
