# SPDX-License-Identifier: Apache-2.0
"""Narrows a graph of commits as `git bisect` does: git chooses the commit that halves the candidates best."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdnbench.bisect.commit.repository import Repository
from gdnbench.bisect.verdict import State


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The change is in `bad`. If commits were skipped, it is in one of `candidates`, of which `bad` is the
    last; parents come before children."""

    bad: str
    good: tuple[str, ...]
    candidates: tuple[str, ...]

    @property
    def found(self) -> bool:
        """Whether there is a single candidate."""
        return len(self.candidates) == 1


def narrow_commits(
    repository: Repository, bad: str, good: Iterable[str], ask: Callable[[str], State]
) -> Narrowed:
    """Narrows the change from good to bad among the ancestors of `bad` that are no ancestors of `good`. `ask`
    is called at most once for each commit.

    After a commit that is skipped, the next one is drawn at random from all that are left, with a preference
    for those that halve best: neighbours of a commit that does not build rarely build.
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
