"""Narrows a graph of commits, as `git bisect` does: which next is git's to say, by what halves best."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdnbench.bisect.commit.repository import Repository
from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The change is in `bad`, or, where some were skipped, in one of `candidates`, which `bad` is the last
    of: none comes before its parents."""

    bad: str
    good: tuple[str, ...]
    candidates: tuple[str, ...]

    @property
    def found(self) -> bool:
        """Whether it is one commit."""
        return len(self.candidates) == 1


def narrow_commits(
    repository: Repository, bad: str, good: Iterable[str], ask: Callable[[str], State]
) -> Narrowed:
    """Where the change from good to bad is, among what `bad` has and none of `good` has. `ask` is called at
    most once for each commit.

    After one that says nothing, the next is drawn from all that are left, the best more often: neighbours of
    a commit that does not build seldom do.
    """
    bad_now, good_now, skipped = bad, list(good), set[str]()
    while True:
        candidates = repository.candidates(bad_now, good_now)
        left = [one for one in candidates if one not in skipped and one != bad_now]
        if not left:
            return Narrowed(bad_now, tuple(good_now), tuple(repository.history(bad_now, good_now)))
        one = left[0]
        if candidates[0] in skipped:
            one = left[int(len(left) * random.Random(len(skipped)).random() ** 1.5)]
        match ask(one):
            case State.GOOD:
                good_now.append(one)
            case State.BAD:
                bad_now = one
            case State.SKIP:
                skipped.add(one)
