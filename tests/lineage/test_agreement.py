# SPDX-License-Identifier: Apache-2.0
"""The check call by call finds what the check in arrays finds, also in logs that are damaged in any way."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import UNKNOWN, AccessFlag
from tests.lineage.logs import SHAPES, Engine
from tests.lineage.streams import online_findings
from tests.lineage.test_odd_engines import Sequenced, X, Y, table_of
from tests.lineage.test_odd_engines import findings_of as both_findings_of
from tests.lineage.test_states import BUGS, findings_of
from tests.seeds import drawn, fresh

LOGS = 12
"""Of one seed."""


def damaged(table: AccessTable, prefills: Iterable[int], chosen: random.Random) -> AccessTable:
    """The table without some calls, and with wrong, fewer or other claims and contents."""
    numbers = np.random.default_rng(chosen.randrange(1 << 32))
    rows = table.rows.copy()
    if chosen.random() < 0.3:
        rows = rows[
            np.isin(rows["call"], [call for call in np.unique(rows["call"]) if chosen.random() < 0.9])
        ]
    if chosen.random() < 0.2:
        rows = rows[~np.isin(rows["call"], list(prefills))]
    for _ in range(chosen.randrange(4)):
        some = numbers.random(len(rows)) < chosen.choice([0.02, 0.1, 0.5, 1])
        match chosen.choice(["unknown", "content", "zeros", "flag", "request", "tokens", "prefix"]):
            case "unknown":
                rows[chosen.choice(["request", "position", "slot", "accepted"])][some] = UNKNOWN
            case "content" if len(rows):
                rows["digest"][some] = rows["digest"][numbers.integers(0, len(rows), int(some.sum()))]
            case "zeros":
                rows["digest"][some] = 0
            case "flag":
                flags = (AccessFlag.PADDING, AccessFlag.DIGEST_UNKNOWN, AccessFlag.DRAFT, AccessFlag.RECENT)
                rows["flags"][some] |= np.uint8(chosen.choice(flags))
            case "request":
                rows["request"][some] = chosen.choice([0, 1, UNKNOWN])
            case "tokens":
                rows["tokens"][some] = chosen.choice([0, 1, 4, UNKNOWN])
            case "prefix":
                rows["prefix"][some] = 0
    return AccessTable(table.process, rows, table.layers, table.chains, table.requests, whole=True)


def keys(found: Iterable[Finding]) -> set[tuple[Any, ...]]:
    """Everything about breaks: their kinds, and the calls, kinds and sequences of the accesses they name."""
    named = [(one.kind, one.damage, one.found, one.own, one.source) for one in found]
    return {
        (kind, *(None if one is None else (one.call, one.kind, one.sequence) for one in accesses))
        for kind, *accesses in named
    }


def check(seed: int) -> None:
    """The check call by call may find fewer, as it learns the prefix of a state only when its request has
    read the state."""
    breaks = 0
    for number in range(LOGS):
        chosen = random.Random(f"{seed} {number}")
        bug = chosen.choice([None, *BUGS])
        shapes = SHAPES if bug is None else BUGS[bug]
        options = replace(chosen.choice(shapes), bug=bug, prefixes=chosen.random() < 0.7)
        engine = Engine(chosen.randrange(10**6), options).run(chosen.choice([20, 60]))
        table = damaged(engine.table(), engine.prefills, chosen)
        whole, online = keys(findings_of(table)), keys(online_findings(table))
        breaks += len(whole)
        if options.prefixes:
            assert online <= whole, (seed, number)
        else:
            assert online == whole, (seed, number)
    assert breaks > 0


@pytest.mark.parametrize("seed", [0, fresh(drawn("agreement of damaged logs"))])
def test_damaged_logs(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_many_damaged_logs() -> None:
    for seed in range(1, 60):
        check(seed)


def hit(prefix: int, rows: list[tuple[int, int, int]], table: AccessTable) -> AccessTable:
    """The table with a prefix of the accesses `rows`: call, sequence and kind."""
    for call, sequence, kind in rows:
        places = (table.rows["call"] == call) & (table.rows["sequence"] == sequence)
        table.rows["prefix"][places & (table.rows["kind"] == kind)] = prefix
    return table


ZEROS: tuple[list[Sequenced], ...] = (
    [(X, 1, 0, 2, 0, 10)], [(X, 1, 2, 2, 10, 0)], [(X, 1, 4, 1, 0, 11)], [(Y, 2, 4, 2, 0, 20)],
    [(Y, 2, 6, 1, 99, 21)],
)  # fmt: skip


def test_zeros_are_no_prefix_hit() -> None:
    """Y begins at 4, as after a hit on the state of X there, which is zeros. Nobody knows whether it is that
    state or a slot that nobody wrote, so Y is not followed, and its next state may have come from
    elsewhere."""
    table = hit(77, [(2, 0, 0), (3, 0, 0)], table_of(ZEROS, "state"))
    assert both_findings_of(table) == ([], [])


NO_PROMPT: tuple[list[Sequenced], ...] = (
    [(X, 1, 0, 1, 0, 10)], [(Y, 2, 4, 2, 20, 21)], [(X, 1, 1, 1, 10, 11)], [(X, 1, 2, 1, 99, 12)]
)  # fmt: skip


def test_a_prompt_is_one_if_its_read_has_claims() -> None:
    """Otherwise nothing says that the call of Y began at 4, and that prompts are recorded."""
    table = table_of(NO_PROMPT, "state")
    read = (table.rows["call"] == 1) & (table.rows["kind"] == 0)
    table.rows["request"][read] = UNKNOWN
    assert both_findings_of(table) == ([], [])


def test_the_prompt_of_that_test_counts_otherwise() -> None:
    for found in both_findings_of(table_of(NO_PROMPT, "state")):
        assert [(one.kind.value, one.found.step) for one in found] == [("unexplained", 3)]
