# SPDX-License-Identifier: Apache-2.0
"""Narrowing a line of candidates: the right one, with as few questions as there can be."""

from __future__ import annotations

import math
import random

import pytest

from gdnbench.bisect.search import Span, first_bad
from gdnbench.bisect.verdict import State
from tests.messages import wording
from tests.seeds import drawn, fresh

SEEDS = [1, 2, 3, fresh(drawn("bisect search"))]


@pytest.mark.parametrize("count", [2, 3, 4, 30, 1000])
def test_every_change_is_found_in_as_many_questions_as_bits(count: int) -> None:
    for change in range(1, count):
        asked: list[int] = []

        def ask(candidate: int, change: int = change, asked: list[int] = asked) -> State:
            asked.append(candidate)
            return State.BAD if candidate >= change else State.GOOD

        assert first_bad(0, count - 1, ask) == Span(change - 1, change)
        assert len(asked) == len(set(asked)) <= math.ceil(math.log2(count - 1)) if count > 2 else not asked


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_skipped_is_asked_once_and_said(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        count = rng.randrange(2, 40)
        change = rng.randrange(1, count)
        skips = {one for one in range(1, count - 1) if rng.random() < 0.4}
        asked: list[int] = []

        def ask(
            candidate: int, change: int = change, skips: set[int] = skips, asked: list[int] = asked
        ) -> State:
            asked.append(candidate)
            if candidate in skips:
                return State.SKIP
            return State.BAD if candidate >= change else State.GOOD

        span = first_bad(0, count - 1, ask)
        assert len(asked) == len(set(asked))
        assert span.good < change <= span.bad
        assert span.good not in skips
        assert span.bad not in skips
        assert span.skipped == tuple(range(span.good + 1, span.bad))
        assert set(span.skipped) <= skips


def test_ends_that_are_no_line() -> None:
    with pytest.raises(ValueError, match=wording("bisect.range-reversed")):
        first_bad(3, 3, lambda one: State.GOOD)
