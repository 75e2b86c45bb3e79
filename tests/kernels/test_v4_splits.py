# SPDX-License-Identifier: Apache-2.0
"""Splits of a query's entries: how many, and which tiles each has."""

from __future__ import annotations

import pytest

from gdnbench_kernels.v4_decode.splits import MAX_SPLITS, SplitPlan, query_tiles


@pytest.mark.parametrize(
    ("window", "extra", "tile", "tiles"),
    [(128, 0, 128, 1), (1, 0, 128, 1), (128, 2048, 128, 17), (100, 129, 128, 3), (128, 512, 64, 10)],
)
def test_no_tile_has_entries_of_both_segments(window: int, extra: int, tile: int, tiles: int) -> None:
    assert query_tiles(window, extra, tile) == tiles


@pytest.mark.parametrize(
    ("ctas", "slots", "tiles", "splits"),
    [
        # waves x (tiles a split + 1), and 2 with a merge; worked out by hand
        (2, 264, 17, 17),  # one request: 1 x 2 + 2 = 4, and 18 in one
        (264, 264, 17, 1),  # the GPU is full: 18, and 2 x 10 + 2 in two
        (100, 264, 17, 2),  # 1 x 10 + 2 = 12; in three 2 x 7 + 2 = 16
        (2, 264, 65, 22),  # 1 x 4 + 2 with 3 tiles each, which 22 splits are the fewest for
        (140, 264, 3, 1),  # 4; in three 2 x 2 + 2
        (1, 100, 4, 4),  # 5, 5 in two, 6 in three, 4 in four
        (1, 100, 3, 1),  # 4, 5 in two, 4 in three: the fewest
        (1, 1, 40, 1),
        (0, 264, 17, 1),
        (5, 264, 0, 1),
    ],
)
def test_the_number_of_splits(ctas: int, slots: int, tiles: int, splits: int) -> None:
    assert SplitPlan.choose(ctas, slots, tiles).splits == splits


def test_there_are_no_more_splits_than_the_merge_takes() -> None:
    assert SplitPlan.choose(1, 10_000, 10_000).splits <= MAX_SPLITS == 32


def test_some_cta_must_run() -> None:
    with pytest.raises(ValueError, match="slots is 0; at least one CTA must run at once"):
        SplitPlan.choose(1, 0, 1)


@pytest.mark.parametrize(
    ("splits", "tiles", "shares"),
    [
        (1, 3, [[0, 1, 2]]),
        (3, 7, [[0, 1, 2], [3, 4, 5], [6]]),
        (4, 5, [[0, 1], [2, 3], [4], []]),
        (3, 0, [[], [], []]),
        (3, 2, [[0], [1], []]),
    ],
)
def test_the_tiles_of_a_split(splits: int, tiles: int, shares: list[list[int]]) -> None:
    plan = SplitPlan(splits)
    assert [list(plan.tiles_of(split, tiles)) for split in range(splits)] == shares
