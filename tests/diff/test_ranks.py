# SPDX-License-Identifier: Apache-2.0
"""Runs of several ranks: the same rank's records are compared, in whatever order the processes came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdnbench.diff.pairs import pair
from gdnbench.record import RecordDraft
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter

Processes = Sequence[Mapping[str, Any]]


def kept(path: Path, drafts: list[RecordDraft], processes: Processes) -> Store:
    """A store of one segment a process, in this order, each with one record a draft."""
    for order, process in enumerate(processes):
        with StoreWriter(
            path, kind="capture", segment=f"{order}-1-a", process=process, durable=False
        ) as writer:
            writer.write("0", drafts)
    return Store.open(path)


def test_records_of_one_rank_belong_together(tmp_path: Path, drafts: list[RecordDraft]) -> None:
    with (
        kept(tmp_path / "a", drafts[1:], [{"rank": 0}, {"rank": 1}, {"rank": None}]) as a,
        kept(tmp_path / "b", drafts[1:], [{"rank": None}, {"rank": 1}, {"rank": 0}]) as b,
    ):
        pairs = pair(a, b)
    assert pairs.matched == ((0, 4), (1, 5), (2, 2), (3, 3), (4, 0), (5, 1))
    assert pairs.only_a == pairs.only_b == ()


def test_a_rank_that_is_missing_is_said_and_none_takes_its_place(
    tmp_path: Path, drafts: list[RecordDraft]
) -> None:
    parallel = [{"rank": 0, "parallel": {"dp": [group, 2]}} for group in (0, 1)]
    with (
        kept(tmp_path / "a", drafts[1:2], parallel) as a,
        kept(tmp_path / "b", drafts[1:2], parallel[1:]) as b,
    ):
        pairs = pair(a, b)
    assert (pairs.matched, pairs.only_a, pairs.only_b) == (((1, 0),), (0,), ())


def test_a_rank_that_was_started_again_comes_in_its_order(tmp_path: Path, drafts: list[RecordDraft]) -> None:
    with (
        kept(tmp_path / "a", drafts[1:2], [{"rank": 0}, {"rank": 0}, {"rank": 1}]) as a,
        kept(tmp_path / "b", drafts[1:2], [{"rank": 1}, {"rank": 0}, {"rank": 0}]) as b,
    ):
        assert pair(a, b).matched == ((0, 1), (1, 2), (2, 0))


def test_without_ranks_on_one_side_the_order_decides(tmp_path: Path, drafts: list[RecordDraft]) -> None:
    with (
        kept(tmp_path / "a", drafts[1:2], [{"rank": 1}, {"rank": 0}]) as a,
        kept(tmp_path / "b", drafts[1:2], [{}, {}]) as b,
    ):
        assert pair(a, b).matched == ((0, 0), (1, 1))
