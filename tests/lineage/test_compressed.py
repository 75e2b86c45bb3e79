# SPDX-License-Identifier: Apache-2.0
"""Chains of compressed rows: no false accusation, and wrong rows are found."""

from __future__ import annotations

import random

import pytest

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import AccessTable
from tests.lineage.compressed import CompressedEngine
from tests.lineage.logs import subset

RIGHT = [(1, True), (3, True), (1, False), (3, False)]


def findings_of(table: AccessTable) -> list[Finding]:
    return [finding for chain in table.by_chain() for finding in check_chain(chain).findings]


def check_right(seed: int, drafts: int, sorted_rows: bool) -> None:
    table = CompressedEngine(seed, drafts, sorted_rows=sorted_rows).run(80).table()
    chosen = random.Random(seed)
    for share in (1.0, 0.9, 0.5):
        assert findings_of(subset(table, lambda call, share=share: chosen.random() < share)) == []  # type: ignore[misc]


@pytest.mark.parametrize(("drafts", "sorted_rows"), RIGHT)
def test_right_rows_are_not_accused(drafts: int, sorted_rows: bool) -> None:
    check_right(1, drafts, sorted_rows)


@pytest.mark.slow
@pytest.mark.parametrize(("drafts", "sorted_rows"), RIGHT)
def test_many_right_rows_are_not_accused(drafts: int, sorted_rows: bool) -> None:
    for seed in range(100):
        check_right(seed, drafts, sorted_rows)


KINDS = {"skipped": "stale-page", "overwritten": "stale-page", "twice": "shared-slot"}
LEAST = {"skipped": 10, "overwritten": 20, "twice": 35}
"""Of 40 loops, in how many a bug strikes: a row that is not written must have been read at another place."""


def check_wrong(seed: int, bug: str) -> bool:
    engine = CompressedEngine(seed, bug=bug).run(80)
    if engine.planted is None:
        return False
    found = findings_of(engine.table())
    assert [one.kind.value for one in found[:1]] == [KINDS[bug]]
    assert found[0].damage.call == engine.planted
    return True


@pytest.mark.parametrize("bug", KINDS)
def test_a_wrong_row_is_found(bug: str) -> None:
    assert any(check_wrong(seed, bug) for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("bug", KINDS)
def test_a_wrong_row_is_always_found(bug: str) -> None:
    assert sum(check_wrong(seed, bug) for seed in range(40)) >= LEAST[bug]


def test_what_a_right_loop_counts() -> None:
    """All rows are read again unchanged, but for those that are new."""
    (chain,) = CompressedEngine(1).run(80).table().by_chain()
    result = check_chain(chain, explain=True)
    assert result.right > result.reads // 2
    assert result.right + sum(result.unknown.values()) == result.reads == len(result.verdicts)
