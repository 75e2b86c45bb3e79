# SPDX-License-Identifier: Apache-2.0
"""Ranks as segments tell them, whoever wrote the segment."""

from __future__ import annotations

import pytest

from gdnbench.errors import BadInputError
from gdnbench.store.ranks import Rank
from tests.messages import wording


@pytest.mark.parametrize(
    ("process", "shown"),
    [
        ({}, ""),
        ({"rank": None}, ""),
        ({"rank": 0, "world_size": 1}, "0"),
        ({"rank": 3, "parallel": {"tp": [1, 2], "pp": [0, 1], "dp": [1, 2]}}, "3 dp1 tp1"),
        ({"rank": "3", "parallel": [1]}, ""),
        ({"rank": True, "parallel": {"tp": [1], "dp": [-1, 2], "pp": "12"}}, ""),
        ({"rank": -1, "parallel": {"tp": [0, 2]}}, "tp0"),
    ],
)
def test_what_a_process_says_of_its_rank(process: dict[str, object], shown: str) -> None:
    assert str(Rank.from_process(process)) == shown
    assert Rank.from_process(process).is_known is bool(shown)


def test_a_rank_is_chosen_by_any_part_of_it() -> None:
    rank = Rank.from_process({"rank": 3, "parallel": {"tp": [1, 2], "dp": [1, 2]}})
    assert all(rank.matches(Rank.parse(text)) for text in ("3", "tp1", "dp1,tp1", str(rank)))
    assert not any(rank.matches(Rank.parse(text)) for text in ("1", "tp0", "pp0", "dp1 tp0", "2 tp1"))


@pytest.mark.parametrize("text", ["", " , ", "tp", "-1", "3 4", "3x", "\u00b3"])
def test_what_is_no_rank(text: str) -> None:
    with pytest.raises(BadInputError, match=wording("store.rank-wrong")):
        Rank.parse(text)
