# SPDX-License-Identifier: Apache-2.0
"""Windows of the convolution: right chains are right, from the prompt over drafts that are rejected; planted
breaks are found; equal windows of other requests accuse nobody; calls of the states prove nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.lineage.check import check_chain, check_stores, tables_of
from gdnbench.lineage.finding import Finding, Unknown
from gdnbench.lineage.online import OnlineLineage
from gdnbench.lineage.table import AccessTable, access_of
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from gdnbench.store.reader import Store
from tests.capture.stand_in import StandInStreams, capturing_stand_in
from tests.lineage.conv_engine import ConvEngine, Request
from tests.lineage.logs import Engine, Options, subset
from tests.subset import quick

WAYS = ["records", "digests", "digests on a device"]


def served(
    path: Path, way: str, serve: Callable[[ConvEngine], None], drafts: bool = True
) -> tuple[list[Finding], int, Counter[Unknown]]:
    """Findings, right reads, and reads of which nothing is known."""
    engine = ConvEngine(drafts)
    options = CaptureOptions(digests=way != "records")
    if way == "digests on a device":
        with capturing_stand_in(path, StandInStreams(), options) as counts:
            serve(engine)
    else:
        with capturing(path, options) as counts:
            serve(engine)
    assert (counts.failures, counts.first_failure) == (0, None)
    with Store.open(path) as store:
        report = check_stores([store])
    (chain,) = report.processes[0].chains
    return chain.findings, chain.right, report.unknown


def drafted(engine: ConvEngine, damage: Callable[[ConvEngine], None] | None = None, at: int = 0) -> None:
    """Two prompts, one of them in two chunks, and three steps with drafts, most of which are rejected.

    `damage` is called before step `at`.
    """
    engine.prefill("a", 1, [1, 2, 3, 4, 5])
    engine.prefill("b", 2, [6, 7])
    engine.prefill("b", 2, [8, 9, 10])
    for number, accepted in enumerate(({"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 3, "b": 2})):
        if damage is not None and number == at:
            damage(engine)
        first = 11 + 6 * number
        engine.step({"a": range(first, first + 3), "b": range(first + 3, first + 6)}, accepted)


@pytest.mark.parametrize("way", quick(WAYS, 0, 2))
def test_windows_of_drafts_are_right(tmp_path: Path, way: str) -> None:
    """The second chunk of a prompt reads, and two requests in three steps."""
    assert served(tmp_path / "run.zarr", way, drafted) == ([], 7, Counter())


@pytest.mark.parametrize("way", quick(WAYS, 0, 2))
def test_a_slot_that_is_given_away_before_a_step_with_drafts(tmp_path: Path, way: str) -> None:
    """Call 3 computes another prompt in the slot of a request that waits for its first step."""
    given_away = served(
        tmp_path / "run.zarr",
        way,
        lambda engine: drafted(engine, lambda one: one.prefill("c", 1, [30, 31, 29])),
    )
    (found,) = given_away[0]
    assert (found.kind, found.damage.call, found.found.call) == ("overwritten", 3, 4)
    assert given_away[1:] == (6, Counter())


@pytest.mark.parametrize("at", quick([1, 2], 0))
@pytest.mark.parametrize("way", quick(WAYS, 1))
def test_a_wrong_count(tmp_path: Path, way: str, at: int) -> None:
    def miscounts(engine: ConvEngine) -> None:
        engine.requests["a"].accepted = engine.requests["a"].accepted % 3 + 1

    (found,), right, unknown = served(
        tmp_path / "run.zarr", way, lambda engine: drafted(engine, miscounts, at)
    )
    assert (found.kind, found.found.sequence, found.found.call) == ("accepted-count", 0, 3 + at)
    assert (right, unknown) == (6, Counter())


@pytest.mark.parametrize("way", quick(WAYS, 0))
def test_a_slot_that_nobody_recorded_writes(tmp_path: Path, way: str) -> None:
    def spoils(engine: ConvEngine) -> None:
        engine.pool[2] += 1

    (found,), right, unknown = served(tmp_path / "run.zarr", way, lambda engine: drafted(engine, spoils, 2))
    assert (found.kind, found.found.sequence, found.found.call) == ("unexplained", 1, 5)
    assert (right, unknown) == (6, Counter())


def test_a_break_keeps_the_calls_around_it(tmp_path: Path) -> None:
    triggered = []
    for name, damage in (("right", None), ("wrong", lambda one: one.prefill("c", 1, [30, 31, 29]))):
        with capturing(tmp_path / f"{name}.zarr", CaptureOptions(on_lineage=True)) as counts:
            drafted(ConvEngine(), damage)
        assert (counts.failures, counts.first_failure) == (0, None)
        triggered.append(counts.triggered)
    assert triggered == [0, 1]


@pytest.mark.parametrize("way", quick(WAYS, 0))
def test_equal_windows_of_other_requests_accuse_nobody(tmp_path: Path, way: str) -> None:
    """`b` goes on from position 7 of another process: its latest tokens are those of `a` at position 5."""

    def serve(engine: ConvEngine) -> None:
        engine.prefill("a", 1, [1, 2, 3, 4, 5])
        engine.pool[3] = engine.pool[1]
        engine.requests["b"] = Request("b", 3, done=7)
        engine.step({"b": [8]})
        engine.step({"b": [7]})

    findings, right, unknown = served(tmp_path / "run.zarr", way, serve, drafts=False)
    assert (findings, right, unknown) == ([], 1, Counter({Unknown.FIRST_SEEN: 1}))


def any_schedule(engine: ConvEngine, chosen: random.Random) -> None:
    """Requests of two kinds of tokens, so that many windows are equal: prompts in chunks, slots that are used
    again, names that begin anew or from a cached state of another request, steps with drafts or without."""
    cached: dict[tuple[int, ...], torch.Tensor] = {}
    tokens: dict[str, list[int]] = {}
    for _ in range(30):
        live = list(tokens)
        if len(live) < 3 or chosen.random() < 0.3:
            if len(live) == 3:
                name = chosen.choice(live)
                del tokens[name], engine.requests[name]
            name = chosen.choice([one for one in "abcdef" if one not in tokens])
            slot = chosen.choice(
                [n for n in range(1, 8) if all(n != one.slot for one in engine.requests.values())]
            )
            tokens[name] = []
            if cached and chosen.random() < 0.4:
                prefix, window = chosen.choice(list(cached.items()))
                tokens[name] = list(prefix)
                engine.requests[name] = Request(name, slot, done=len(prefix))
                engine.pool[slot, :, :3] = window
            for _ in range(chosen.randint(1, 2)):
                ids = chosen.choices((1, 2), k=chosen.randint(1, 4))
                engine.prefill(name, slot, ids)
                tokens[name] += ids
            cached[tuple(tokens[name])] = engine.pool[slot, :, :3].clone()
        else:
            names = chosen.sample(live, chosen.randint(1, 3))
            ids = {name: chosen.choices((1, 2), k=3 if engine.drafts else 1) for name in names}
            accepted = {name: chosen.randint(1, len(ids[name])) for name in names}
            engine.step(ids, accepted)
            for name in names:
                tokens[name] += ids[name][: accepted[name]]


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("seed", quick(range(10), 3))
def test_a_right_schedule_is_not_accused(tmp_path: Path, seed: int, drafts: bool) -> None:
    """Complete, and with any calls missing."""
    chosen = random.Random(seed)
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=True)) as counts:
        any_schedule(ConvEngine(drafts), chosen)
    assert (counts.failures, counts.first_failure) == (0, None)
    with Store.open(tmp_path / "run.zarr") as store:
        (table,) = tables_of(store)
    (chain,) = table.by_chain()
    result = check_chain(chain)
    assert result.findings == []
    assert result.right > result.reads / 2
    for share in (0.9, 0.7, 0.4):
        part = subset(table, lambda _, share=share: chosen.random() < share)  # type: ignore[misc]
        assert [one for chain in part.by_chain() for one in check_chain(chain).findings] == []


@pytest.mark.parametrize("way", quick(WAYS, 0))
def test_a_stale_window(tmp_path: Path, way: str) -> None:
    """The slot gets back what it had a step earlier, while its states go on."""
    kept: list[torch.Tensor] = []

    def serve(engine: ConvEngine) -> None:
        engine.prefill("a", 1, [1, 2, 3, 4, 5])
        for number, token in enumerate((6, 7, 8, 9)):
            kept.append(engine.pool[1].clone())
            if number == 2:
                engine.pool[1] = kept[1]
            engine.step({"a": [token]})

    (found,), right, unknown = served(tmp_path / "run.zarr", way, serve, drafts=False)
    assert (found.kind, found.found.call) == ("older-version", 3)
    assert (right, unknown) == (3, Counter())


@pytest.mark.parametrize("way", quick(WAYS, 0))
def test_drafts_that_are_committed_by_a_kernel_without_a_record(tmp_path: Path, way: str) -> None:
    """As SGLang verifies: a call shifts the windows by all drafts, and a later kernel puts back those after
    the accepted ones. Reads of a window that no record wrote are unknown."""
    chosen, accepted = random.Random(4), []

    def serve(engine: ConvEngine) -> None:
        engine.prefill("a", 1, [1, 2, 3, 4, 5])
        engine.prefill("b", 2, [6, 7, 8])
        for _ in range(14):
            before = engine.pool.clone()
            ids = {name: chosen.choices(range(32), k=3) for name in "ab"}
            counts = {name: chosen.randint(1, 3) for name in "ab"}
            engine.step(ids, counts)
            for name, tokens in ids.items():
                slot, first = engine.requests[name].slot, counts[name]
                inputs = torch.cat([before[slot], engine.embedding[tokens].T], dim=1)
                engine.pool[slot] = inputs[:, first : first + 3]
            accepted.append(counts)

    findings, right, unknown = served(tmp_path / "run.zarr", way, serve, drafts=False)
    assert findings == []
    assert right == 2 + sum(count == 3 for counts in accepted[:-1] for count in counts.values())
    assert right + unknown.total() == 28
    assert set(unknown) <= {Unknown.FIRST_SEEN, Unknown.FROM_ELSEWHERE}


def test_states_that_are_committed_by_a_kernel_without_a_record() -> None:
    """The same of states, which a verification only reads; the slot is another request's later."""
    rows, call = [], itertools.count()

    def log(kind: AccessKind, request: int, position: int, tokens: int, content: int) -> None:
        number = next(call)
        rows.append(
            (number, number, 0, 0, kind, 0, 0, request, position, 3, UNKNOWN, tokens, 0, (content, content))
        )

    for request in range(3):
        log(AccessKind.WRITE, request, 5, 5, 100 * request + 5)
        position = 5
        for accepted in (2, 3, 1, 1, 3, 2):
            log(AccessKind.READ, request, position, 3, 100 * request + position)
            position += accepted
    table = AccessTable(
        "made", np.array(rows, dtype=ROW), ("layer",), ("state",), ("a", "b", "c"), whole=True
    )
    (chain,) = table.by_chain()
    result = check_chain(chain)
    assert (result.findings, result.right, result.unknown) == ([], 3, Counter({Unknown.FIRST_SEEN: 15}))


def beside(states: AccessTable, windows: AccessTable, flag: int = AccessFlag.APART) -> AccessTable:
    """Both chains in one layer, with steps of their own."""
    first, second = states.rows.copy(), windows.rows.copy()
    second["chain"] = 1
    second["flags"] |= np.uint8(flag)
    second["request"][second["request"] >= 0] += len(states.requests)
    rows = np.concatenate([first, second])
    rows = rows[np.argsort(rows["step"], kind="stable")]
    names = (*states.requests, *(f"{name} of the convolution" for name in windows.requests))
    return AccessTable("made", rows, ("layer",), ("state", "conv_state"), names, whole=states.whole)


def findings_of(table: AccessTable) -> list[tuple[str, str]]:
    return [(chain.name, one.kind) for chain in table.by_chain() for one in check_chain(chain).findings]


def online_findings_of(table: AccessTable) -> list[tuple[str, str]]:
    lineage, found = OnlineLineage(), []
    for (step, chain), rows in groupby(table.rows, lambda row: (int(row["step"]), int(row["chain"]))):
        calls = {table.chains[chain]: [access_of(row) for row in rows]}
        found += lineage.add_call("layer", step, calls, apart=chain == 1)
    return [(one.chain, one.kind) for one in found]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_call_that_is_missing_is_no_other_chains(swapped: bool) -> None:
    """Calls of one chain are missing, and none of the other, whose steps have the same numbers: nobody is
    accused, while with steps in common somebody would be."""
    accused = 0
    for seed in range(4):
        chosen = random.Random(seed).sample(range(45), 36)
        whole = Engine(seed, Options(drafts=True)).run(45).table()
        part = subset(Engine(seed + 50, Options(drafts=True)).run(45).table(), chosen.__contains__)
        tables = (part, whole) if swapped else (whole, part)
        assert findings_of(beside(*tables)) == online_findings_of(beside(*tables)) == []
        accused += bool(findings_of(beside(*tables, flag=0)))
    assert accused


@pytest.mark.parametrize("swapped", [False, True])
def test_missing_calls_of_the_other_chain_hide_no_break(swapped: bool) -> None:
    broken = Engine(3, Options(bug="overwritten")).run(60)
    rare = subset(Engine(53, Options()).run(60).table(), lambda call: call % 7 == 0)
    tables = (rare, broken.table()) if swapped else (broken.table(), rare)
    table = beside(*tables)
    assert (("state", "conv_state")[swapped], "overwritten") in findings_of(table)
    assert sorted(set(online_findings_of(table))) == sorted(set(findings_of(table)))
