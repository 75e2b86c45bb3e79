# SPDX-License-Identifier: Apache-2.0
"""Chains of windows: no false accusation, and stale rows are found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind
from tests.lineage.logs import subset
from tests.lineage.windows import WindowEngine


def findings_of(table: AccessTable) -> list[Finding]:
    return [finding for chain in table.by_chain() for finding in check_chain(chain).findings]


def check_right(seed: int, drafts: int) -> None:
    table = WindowEngine(seed, drafts).run(80).table()
    chosen = random.Random(seed)
    for share in (1.0, 0.9, 0.5):
        assert findings_of(subset(table, lambda call, share=share: chosen.random() < share)) == []  # type: ignore[misc]


@pytest.mark.parametrize("drafts", [1, 3])
def test_right_windows_are_not_accused(drafts: int) -> None:
    check_right(1, drafts)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [1, 3])
def test_many_right_windows_are_not_accused(drafts: int) -> None:
    for seed in range(100):
        check_right(seed, drafts)


def check_stale(seed: int, bug: str) -> bool:
    engine = WindowEngine(seed, bug=bug).run(80)
    if engine.planted is None:
        return False
    found = findings_of(engine.table())
    assert [one.kind.value for one in found[:1]] == ["stale-page"]
    assert found[0].damage.call == engine.planted
    return True


@pytest.mark.parametrize("bug", ["skipped", "overwritten"])
def test_a_stale_row_is_found(bug: str) -> None:
    assert any(check_stale(seed, bug) for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["skipped", "overwritten"])
def test_a_stale_row_is_always_found(bug: str) -> None:
    assert sum(check_stale(seed, bug) for seed in range(40)) >= 20


def test_windows_in_another_order_are_not_judged() -> None:
    """A ring in order of its slots: what stands last is not the query's token."""
    table = WindowEngine(1).run(60).table()
    rows = table.rows.copy()
    for call in np.unique(rows["call"]):
        for sequence in np.unique(rows["sequence"][rows["call"] == call]):
            place = np.flatnonzero((rows["call"] == call) & (rows["sequence"] == sequence))
            order = np.argsort(rows["slot"][place])
            rows["slot"][place], rows["digest"][place] = (
                rows["slot"][place][order],
                rows["digest"][place][order],
            )
    shuffled = AccessTable(table.process, rows, table.layers, table.chains, table.requests)
    assert findings_of(shuffled) == []


@pytest.mark.parametrize("tokens", [5, 60, 400])
def test_rows_that_do_not_depend_on_the_position_are_not_judged(tokens: int) -> None:
    """The first layer of a model without positional encoding: the slot may well have held the same token."""
    for seed in range(4):
        assert findings_of(WindowEngine(seed, tokens=tokens).run(60).table()) == []


def ring_log(length: int, tokens: list[int]) -> AccessTable:
    """Requests one after another, of so many tokens each, whose rows are in one ring of `length` slots that
    every query reads in the order of the slots."""
    chosen = random.Random(1)
    rows, call = [], 0
    for request, count in enumerate(tokens):
        ring: list[tuple[int, int]] = []
        for position in range(count):
            row = chosen.getrandbits(64), chosen.getrandbits(64)
            ring[position % length : position % length + 1] = [row]
            for slot, content in enumerate(ring):
                claimed = position + slot - (len(ring) - 1)
                rows.append(
                    (call, call, 0, 0, AccessKind.READ, AccessFlag.WINDOW, 0, request, claimed, slot, -1, 1,
                     0, content)
                )  # fmt: skip
            call += 1
    names = tuple(map(str, range(len(tokens))))
    return AccessTable("made", np.array(rows, dtype=ROW), ("layer",), ("window",), names)


def test_a_ring_in_the_order_of_its_slots_is_not_accused() -> None:
    """Only one request comes round, so that the windows of the chain seem to fit together."""
    (chain,) = ring_log(8, [7, 8, 8, 10, 7, 8]).by_chain()
    result = check_chain(chain)
    assert result.findings == []
    assert result.right == sum(count * (count - 1) // 2 for count in (7, 8, 8, 8, 7, 8))
