# SPDX-License-Identifier: Apache-2.0
"""Runs a schedule with or without a planted bug, and holds what `gdnbench lineage` finds to the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.online import OnlineLineage
from gdnbench.lineage.table import AccessTable, access_of
from tests.lineage.serving.access_table import TableWriter
from tests.lineage.serving.bugs import Bug
from tests.lineage.serving.engine import Engine, Model
from tests.lineage.serving.schedule import Schedule, make_schedule
from tests.lineage.serving.states import Request
from tests.lineage.serving.truth import Truth


class Event(NamedTuple):
    """A break of a chain: `damage` is the call that did it, `found` the call that shows it, in `sequence`."""

    damage: int
    found: int
    sequence: int
    kind: str
    certain: bool  # a checker can know it


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule that was served. `events`: by layer, what is wrong, in order."""

    schedule: Schedule
    finished: list[Request]
    expected: dict[tuple[int, ...], list[int]]
    events: list[list[Event]]
    table: AccessTable

    @property
    def certain(self) -> list[Event]:
        """The events of all layers whose class a checker can know."""
        return [event for events in self.events for event in events if event.certain]

    @property
    def wrong_outputs(self) -> list[str]:
        """Requests whose tokens are not those of the plain model."""
        return [
            request.id
            for request in self.finished
            if request.output != self.expected[request.prompt][: request.new_tokens]
        ]


def serve(model: Model, seed: int, bug: type[Bug] | None = None, **fixed: object) -> Run:
    """Serves the schedule of the seed; with a bug, with what it needs to happen."""
    if bug is None:
        schedule = make_schedule(seed, **fixed)
    else:
        schedule = make_schedule(seed, **{"forms": KNOWN_FORMS, "claim_prefixes": True, **bug.fixed, **fixed})
    expected: dict[tuple[int, ...], list[int]] = {}
    for arrival in schedule.arrivals:
        most = max(one.new_tokens for one in schedule.arrivals if one.prompt == arrival.prompt)
        if arrival.prompt not in expected:
            expected[arrival.prompt] = model.generate(arrival.prompt, most)
    engine = (bug or Engine)(schedule, model, expected)
    truth, writer = Truth(), TableWriter(schedule.claim_prefixes)
    engine.states.watchers += [truth, writer]
    finished = engine.run()
    events = [_events(truth, engine, layer) for layer in range(model.layers)]
    return Run(schedule, finished, expected, events, writer.table(model.layers))


KNOWN_FORMS = ("none", "slots", "scratch", "replay")
"""Forms of drafts in which every state of a request is written by a recorded call."""


def _events(truth: Truth, engine: Engine, layer: int) -> list[Event]:
    found: set[Event] = set()
    for wrong in truth.wrong:
        if wrong.touch.layer == layer:
            assert isinstance(engine, Bug), f"a loop without a bug read a wrong state: {wrong}"
            kind, damage = engine.event_of(wrong)
            found.add(Event(damage, wrong.touch.call, wrong.touch.sequence, kind, wrong.certain))
    for one, other in truth.twice:
        if one.layer == layer and (one.request is not None or other.request is not None):
            kind = "padding" if one.request is None or other.request is None else "written-twice"
            shown = other if one.request is None else one
            found.add(Event(one.call, one.call, shown.sequence, kind, True))
    return sorted(found)


def left_out(table: AccessTable, how: str, rng: random.Random) -> AccessTable:
    """The table as if a part of the calls had not been recorded. `how`: "some" of them here and there, a
    "span", those "before" or "after" a moment."""
    calls = np.unique(table.rows["call"])
    cut = sorted(rng.sample(range(len(calls) + 1), 2))
    kept = {
        "some": np.array([rng.random() < 0.8 for _ in calls]),
        "span": ~((np.arange(len(calls)) >= cut[0]) & (np.arange(len(calls)) < cut[1])),
        "before": np.arange(len(calls)) >= cut[0],
        "after": np.arange(len(calls)) < cut[1],
    }[how]
    rows = table.rows[np.isin(table.rows["call"], calls[kept])]
    return replace(table, rows=rows, whole=table.whole and bool(kept[:1].all()))


def events_of(findings: Sequence[Finding]) -> list[Event]:
    """The same of what the checker found in one chain."""
    return sorted(
        {Event(one.damage.call, one.found.call, one.found.sequence, one.kind.value, True) for one in findings}
    )


def differences(want: Sequence[Event], found: Sequence[Event]) -> list[Event]:
    """What is in only one of two lists of events, but for reads of which a checker cannot know the class."""
    free = {event[1:3] for event in want if not event.certain}
    wanted, given = (
        {event[:4]: event for event in events if event[1:3] not in free} for events in (want, found)
    )
    return sorted(wanted[key] if key in wanted else given[key] for key in wanted.keys() ^ given.keys())


def findings_of(table: AccessTable) -> dict[str, list[Finding]]:
    """By layer, what the checker finds."""
    return {chain.layer: check_chain(chain).findings for chain in table.by_chain()}


def found_in(table: AccessTable) -> list[list[Event]]:
    """By layer, what the checker finds, in order."""
    return [events_of(findings) for findings in findings_of(table).values()]


def found_online(table: AccessTable, remembered: int = 50_000) -> list[list[Event]]:
    """The same by the check that runs beside a program, call by call."""
    online = OnlineLineage(remembered)
    found: dict[int, list[Finding]] = {number: [] for number in range(len(table.layers))}
    for call in np.split(table.rows, np.flatnonzero(np.diff(table.rows["call"])) + 1):
        layer, step = int(call["layer"][0]), int(call["step"][0])
        accesses = {"state": [access_of(row) for row in call]}
        found[layer] += online.add_call(table.layers[layer], step, accesses)
    return [events_of(findings) for findings in found.values()]


LEFT_OUT = ("some", "span", "before", "after")


def false_accusations(run: Run) -> list[str]:
    """Findings before anything went wrong, with a part of the calls left out of the table."""
    wrong = []
    for how in LEFT_OUT:
        table = left_out(run.table, how, random.Random(run.schedule.seed))
        for layer, findings in findings_of(table).items():
            first = min(
                (event.damage for event in run.events[int(layer.removeprefix("layer"))]), default=None
            )
            for event in events_of(findings):
                if first is None or event.found < first:
                    wrong.append(f"{how}: {layer} {event}")
    return wrong
