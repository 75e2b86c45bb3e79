# SPDX-License-Identifier: Apache-2.0
"""Chains of states in logs of the tiny engine: no false accusation, and bugs are found where they struck."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import UNKNOWN, AccessFlag
from tests.lineage.logs import SHAPES, Engine, Options, subset
from tests.lineage.streams import online_findings

PLAIN, DRAFTS, COPIES = Options(), Options(drafts=True), Options(drafts=True, copies=True)
BUGS = {
    "never-written": (PLAIN, DRAFTS),
    "overwritten": (PLAIN, DRAFTS, COPIES),
    "older-version": (PLAIN, DRAFTS, COPIES),
    "written-twice": (PLAIN, DRAFTS),
    "position-gap": (PLAIN, DRAFTS, COPIES),
    "position-overlap": (PLAIN,),
    "accepted-count": (DRAFTS,),
    "rejected-draft": (COPIES,),
    "padding": (PLAIN, DRAFTS, COPIES),
    "wrong-prefix": (PLAIN, DRAFTS),
    "shared-slot": (PLAIN, DRAFTS),
    "unexplained": (PLAIN, DRAFTS),
}


def findings_of(table: AccessTable) -> list[Finding]:
    return [finding for chain in table.by_chain() for finding in check_chain(chain).findings]


def check_right(seed: int, options: Options) -> None:
    """A right log has no break: complete, cut in front or behind, and with any calls missing."""
    table = Engine(seed, options).run(60).table()
    chosen = random.Random(seed)
    first, last = sorted(chosen.sample(range(60), 2))
    for kept in (
        lambda call: True,
        lambda call: first <= call < last,
        lambda call: chosen.random() < 0.9,
        lambda call: chosen.random() < 0.5,
    ):
        part = subset(table, kept)
        if len(part.rows):
            assert findings_of(part) == []
            assert online_findings(part) == []


def check_poor(seed: int, options: Options) -> None:
    """A right log has no break if what computes prompts is not captured, so that its calls count no steps, or
    if some claims or digests are missing."""
    engine = Engine(seed, options).run(60)
    chosen = np.random.default_rng(seed)
    decodes = subset(engine.table(), lambda call: call not in engine.prefills)
    for table in (engine.table(), decodes):
        rows = table.rows.copy()
        rows["step"] = np.unique(rows["step"], return_inverse=True)[1]
        for poorer in (None, "request", "position", "slot", "digest", "prefix"):
            some = chosen.random(len(rows)) < 0.1
            part = rows.copy()
            if poorer == "digest":
                part["flags"][some] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
                part["digest"][some] = chosen.integers(1, 1 << 62, size=(int(some.sum()), 2))
            elif poorer is not None:
                part[poorer][some] = 0 if poorer == "prefix" else UNKNOWN
            poor = AccessTable(table.process, part, table.layers, table.chains, table.requests, whole=True)
            assert findings_of(poor) == []
            assert online_findings(poor) == []


def check_found(seed: int, options: Options) -> bool:
    """Whether the bug struck; then its break comes first, with the call that did the damage."""
    engine = Engine(seed, options).run(110)
    if engine.planted is None or engine.planted.call > engine.calls - 10:
        return False
    table = engine.table()
    found = findings_of(table)
    first = [one for one in found if one.damage.call == found[0].damage.call]
    assert first[0].damage.call == engine.planted.call
    named = {
        (one.kind.value, table.requests[access.request])
        for one in first
        for access in (one.found, one.damage)
        if access.request >= 0
    }
    kinds = {engine.planted.kind}
    if engine.planted.kind == "unexplained":
        kinds.add("never-written")  # a state had been copied to a slot that no record wrote
    assert not named.isdisjoint((kind, engine.planted.request) for kind in kinds)
    return True


@pytest.mark.parametrize("options", SHAPES)
def test_a_right_log_has_no_break(options: Options) -> None:
    check_right(1, options)


@pytest.mark.parametrize("options", SHAPES[:3])
def test_a_right_log_with_less_has_no_break(options: Options) -> None:
    check_poor(1, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", SHAPES)
def test_many_right_logs_with_less_have_no_break(options: Options) -> None:
    for seed in range(40):
        check_poor(seed, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", SHAPES)
def test_many_right_logs_have_no_break(options: Options) -> None:
    for seed in range(100, 300):
        check_right(seed, options)


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_is_found(kind: str) -> None:
    assert any(check_found(seed, replace(BUGS[kind][0], bug=kind)) for seed in (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_is_always_found(kind: str) -> None:
    for options in BUGS[kind]:
        assert sum(check_found(seed, replace(options, bug=kind)) for seed in range(30)) >= 20


@pytest.mark.parametrize("kind", ["overwritten", "wrong-prefix"])
def test_the_online_check_agrees(kind: str) -> None:
    check_agreement(3, replace(PLAIN, bug=kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUGS)
def test_the_online_check_agrees_on_many_logs(kind: str) -> None:
    for seed in range(5):
        for options in BUGS[kind]:
            check_agreement(seed, replace(options, bug=kind))


def check_agreement(seed: int, options: Options) -> None:
    """The check in arrays and the check in dictionaries find the same breaks, with calls missing too."""
    chosen = random.Random(seed)
    table = Engine(seed, options).run(80).table()
    for part in (table, subset(table, lambda call: chosen.random() < 0.9)):
        whole, online = (
            {
                (one.kind, one.damage.call, one.damage.kind, one.found.call, one.found.sequence)
                for one in found
            }
            for found in (findings_of(part), online_findings(part))
        )
        assert whole == online


def test_what_is_forgotten_is_not_accused() -> None:
    table = Engine(4, DRAFTS).run(80).table()
    for remembered in (1, 3, 10, 50):
        assert online_findings(table, remembered) == []
