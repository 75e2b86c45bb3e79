# SPDX-License-Identifier: Apache-2.0
"""Asks the questions of the record axis, in order, and draws the conclusion.

Bad calls need not come after one another: a call that is bad by itself says nothing of the next. So calls are
looked at one by one, in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gdnbench.bisect import cache_key, endpoints
from gdnbench.bisect.flakiness import Steadiness
from gdnbench.bisect.record import rollout
from gdnbench.bisect.record.drift import STRETCH, Entry, Grows, Over, first_growth, first_over
from gdnbench.bisect.record.links import Links, Row, links_of
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import SCHEDULES, STATES, Trial, kernel_sources, toolchain
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.verdict_cache import Question, key_of
from gdnbench.bisect.workers import ProbeWorker, TrialWorker
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.ops import operation
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import StoredRecord
from gdnbench.store.recover import open_store

PROBES = "gdnbench.bisect.record.rollout:"
OPTIONS = (
    *("kernel", "on", "k", "tol", "bitwise", "stages", "schedules"),
    *("check", "symptom", "tensor", "known"),
)
"""Those of a trial that a verdict on a call depends on."""
AT_ONCE = 16
"""Calls that are asked about together."""
APART = "fails beside other calls and passes by itself"
"""The kind of a call whose verdict is not its own: it changes by chance, or with what ran before it."""


@dataclass(frozen=True, slots=True)
class One:
    """A call: which it is, and what its verdict depends on."""

    number: int
    key: str
    op: str
    layer: str
    layer_index: int | None
    step: int
    order: tuple[int, int]
    content: str
    bytes: int

    def __str__(self) -> str:
        layer = self.layer if self.layer_index is None else f"layer {self.layer_index}"
        return f"{layer}, step {self.step} (record {self.number}, {self.op})"


@dataclass(frozen=True, slots=True)
class Carry:
    """What following the states came to. `alone`: why the call `over` is bad from the exact state too; empty
    where it is not. `starts`: the first call that is, at or before `over`."""

    calls: int
    lanes: int
    over: Over | None = None
    grows: Grows | None = None
    starts: int | None = None
    alone: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    kernel: str
    looked: int
    skipped: tuple[str, ...] = ()
    first: One | None = None
    reason: str = ""
    kind: str = ""
    in_order: bool = True
    flaky: str = ""
    by_schedule: str = ""
    linked: int = 0  # calls whose state an earlier one left
    before: tuple[int, ...] = ()  # the calls that the first bad one's states come from
    unchosen: tuple[int, ...] = ()  # calls that left a state to it or to those, and were not to be looked at
    carry: Carry | None = None
    stateless: tuple[str, ...] = ()  # operations that were looked at whose calls leave no state
    ones: Mapping[int, One] | None = None

    @property
    def bad(self) -> bool:
        if self.first is not None:
            return True
        carry = self.carry
        return carry is not None and bool(carry.over or carry.grows or carry.failed)


@dataclass(frozen=True, slots=True)
class RecordBisection:
    """`layer`: its name or number. `any`: whichever is found soonest, cheapest first. `carry`: follow the
    states where every call passes by itself."""

    trial: Trial
    layer: str | None = None
    any: bool = False
    carry: bool = False


def find_bad_call(asked: RecordBisection, session: Session) -> Found:
    """BadInputError for a layer that is not there, CannotRunError where no call could be replayed."""
    trial = asked.trial
    with open_store(trial.store) as store:
        chosen = range(len(store.records)) if trial.records is None else sorted(trial.records)
        records = [store.records[number] for number in chosen]
        records = [record for record in records if asked.layer is None or _of_layer(record, asked.layer)]
        if not store.records:
            raise BadInputError(f"{trial.store} holds no records; capture some")
        if not records:
            there = sorted({str(store.records[number].info.layer) for number in chosen})
            raise BadInputError(f"--layer {asked.layer}: there are {', '.join(there) or 'no records'}")
        ones = {record.number: _one(record) for record in records}
        order = sorted(ones, key=lambda number: ones[number].order)
        links = links_of([store.records[number] for number in order])
    return _Finding(asked, session, ones, order, links).find_bad_call()


def _named_in(block: Sequence[One], verdict: Verdict) -> One:
    """The call of a block that its verdict is about."""
    states = [STATES.get(Outcome(one["outcome"])) for one in verdict.facts.get("records", ())]
    return block[states.index(verdict.state) if verdict.state in states else 0]


def _unseen(together: State, alone: Sequence[State]) -> bool:
    """Whether what calls came to beside one another shows in none of them by itself."""
    return State.BAD not in alone and (together is State.BAD or State.SKIP not in alone)


def _of_layer(record: StoredRecord, layer: str) -> bool:
    return layer in (record.info.layer, str(record.info.layer_index))


def _order(record: StoredRecord) -> tuple[int, int]:
    return record.info.call, record.number


def _one(record: StoredRecord) -> One:
    info = record.info
    return One(
        record.number,
        record.key,
        info.op,
        info.layer,
        info.layer_index,
        info.step,
        _order(record),
        cache_key.digest_records([record]),
        sum(handle.nbytes for handle in record.before.values()),
    )


class _Finding:
    def __init__(
        self,
        asked: RecordBisection,
        session: Session,
        ones: Mapping[int, One],
        order: Sequence[int],
        links: Links,
    ) -> None:
        self._asked, self._session, self._ones, self._order, self._links = asked, session, ones, order, links
        trial = asked.trial
        every = trial.on == SIM and not trial.only_schedules
        self._trial = replace(trial, schedules=SCHEDULES) if every else trial
        options = self._trial.to_json()
        self._base = {
            **{name: options[name] for name in OPTIONS},
            "code": cache_key.digest_code(kernel_sources(trial.kernel)),
            **toolchain(trial.on),
        }

    def find_bad_call(self) -> Found:
        asked, order = self._asked, list(self._order)
        if asked.any:
            order.sort(key=lambda number: self._ones[number].bytes)
        skipped: list[str] = []
        linked = len({number for number, _ in self._links.before})
        stateless = tuple(
            sorted({one.op for one in self._ones.values() if operation(one.op).carries is None})
        )
        found = Found(
            asked.trial.kernel,
            0,
            linked=linked,
            stateless=stateless,
            ones=self._ones,
            in_order=not asked.any,
        )
        with closing(TrialWorker()) as trials, closing(ProbeWorker()) as probes:
            for looked, (one, verdict) in enumerate(self._verdicts(trials, order), 1):
                found = replace(found, looked=looked, skipped=tuple(skipped))
                if verdict.state is State.SKIP:
                    skipped.append(f"{one}: {verdict.kind}: {verdict.reason}")
                elif verdict.state is State.BAD:
                    found = replace(found, first=one, reason=verdict.reason, kind=verdict.kind)
                    if verdict.kind == APART:
                        return replace(found, flaky=f"{APART}: {verdict.reason}")
                    return self._with_origin(found, replace(self._trial, records=(one.number,)), probes)
            if len(skipped) == len(order):
                raise CannotRunError(f"no call could be replayed: {skipped[0]}")
            found = replace(found, skipped=tuple(skipped))
            if asked.carry:
                if not linked:
                    what = "no call gets a state that an earlier one left"
                    if len(stateless) == len({one.op for one in self._ones.values()}):
                        what = (
                            f"a call of {', '.join(stateless)} leaves no state, it reads a cache as recorded"
                        )
                    raise BadInputError(f"--carry: {what}; leave it out")
                return replace(found, carry=self._carry(probes, self._lanes()))
        return found

    def _verdicts(self, trials: TrialWorker, order: Sequence[int]) -> Iterator[tuple[One, Verdict]]:
        """Of one call after the other. On the CPU, where a replay is shorter than asking for one, several
        calls are asked about at once, and each of them only where not all pass."""
        at_once = AT_ONCE if self._trial.on == "cpu" else 1
        for start in range(0, len(order), at_once):
            block = [self._ones[number] for number in order[start : start + at_once]]
            if len(block) > 1:
                trial = replace(self._trial, records=tuple(one.number for one in block))
                label = f"{len(block)} calls from {block[0]}"
                question = {**self._base, CONTENT: cache_key.combine_digests([one.content for one in block])}
                together = self._session.find_or_probe(label, question, partial(trials.run_trial, trial))
                if together.state is State.GOOD:
                    yield from ((one, together) for one in block)
                    continue
            states: list[State] = []
            for one in block:
                trial = replace(self._trial, records=(one.number,))
                verdict = self._session.find_or_probe(
                    str(one), self._question(one), partial(trials.run_trial, trial)
                )
                states.append(verdict.state)
                yield one, verdict
            if len(block) > 1 and _unseen(together.state, states):
                yield _named_in(block, together), replace(together, kind=APART)

    def _question(self, one: One) -> Question:
        return {**self._base, CONTENT: one.content}

    def _with_origin(self, found: Found, trial: Trial, probes: ProbeWorker) -> Found:
        """The first bad call: is it steady, and does it need the states of the calls before it to be bad?"""
        one = found.first
        assert one is not None
        first = replace(trial, schedules=trial.schedules[:1])
        asked = {**self._question(one), "schedules": list(first.schedules)}
        end = endpoints.replay_endpoint(self._session, str(one), asked, first, TrialWorker)
        if end.steadiness is Steadiness.FLAKY:
            return replace(found, flaky=end.spread)
        if end.steadiness is Steadiness.STEADY and end.verdict.kind != found.kind:
            return replace(found, flaky=f"{found.kind} at first, then {end.verdict.kind} again and again")
        if end.steadiness is Steadiness.BY_SCHEDULE:
            found = replace(found, by_schedule=end.spread)
            if trial.symptom is not None and (failing := end.failing_schedule()) is not None:
                self._trial = replace(trial, records=None, schedules=(failing,))
                self._base["schedules"] = [failing]
        before = tuple(number for number in self._links.ancestors(one.number) if number in self._ones)
        found = replace(found, unchosen=self._unchosen(one, before))
        if not before or found.kind != "numeric mismatch":
            return replace(found, before=before)
        calls = [number for number in self._order if number in (*before, one.number)]
        starts, alone = self._from_exact(probes, calls, [one.number])
        carry = self._carry(probes, calls[:-1], own_doing=False)
        return replace(found, before=before, carry=replace(carry, starts=starts, alone=alone))

    def _unchosen(self, one: One, before: Sequence[int]) -> tuple[int, ...]:
        """Calls that left a state to one of these, and were not to be looked at."""
        if self._asked.trial.records is None:  # a state does not leave its layer
            return ()
        with open_store(self._trial.store) as store:
            last = store.records[one.number]
            lane = [
                record
                for record in store.records
                if record.segment.name == last.segment.name and record.info.layer == last.info.layer
            ]
            lane.sort(key=_order)
            links = links_of(lane[: 1 + [record.number for record in lane].index(one.number)])
        left = {earlier for (at, _), (earlier, _) in links.before.items() if at in (one.number, *before)}
        return tuple(sorted(left - self._ones.keys()))

    def _lanes(self) -> list[int]:
        """Calls that get or leave a state."""
        return [number for number in self._order if operation(self._ones[number].op).carries is not None]

    def _carry(self, probes: ProbeWorker, calls: Sequence[int], own_doing: bool = True) -> Carry:
        """Follows the states of `calls`, up to the first that is over its bound; `own_doing`: and whether it,
        or one before it, is so from the exact state."""
        entries: list[Entry] = []
        trial = self._trial
        blocks = [list(calls[start : start + STRETCH]) for start in range(0, len(calls), STRETCH)]
        file: str | None = None
        for block in blocks:
            verdict, kept = self._block(probes, calls, block, file)
            entries += verdict.facts.get("entries", ())
            if verdict.state is not State.GOOD:
                return Carry(len(calls), 0, failed=f"{verdict.kind}: {verdict.reason}")
            over = first_over(entries, trial.k, trial.tol is not None, self._order)
            if over is not None and own_doing:
                return self._own_doing(probes, calls, entries, over)
            if over is not None:
                return Carry(len(calls), 0, over)
            file = kept
        lanes = len({str(entry["lane"]) for entry in entries})
        return Carry(len(calls), lanes, grows=None if trial.tol is not None else first_growth(entries))

    def _own_doing(
        self, probes: ProbeWorker, calls: Sequence[int], entries: Sequence[Entry], over: Over
    ) -> Carry:
        """Whether a call at or before the one that is over its bound is bad from the exact state."""
        last = self._order.index(over.number)
        until = [number for number in calls if self._order.index(number) <= last]
        lanes = len({str(entry["lane"]) for entry in entries})
        starts, alone = self._from_exact(probes, calls, until)
        return Carry(len(calls), lanes, over, starts=starts, alone=alone)

    def _from_exact(
        self, probes: ProbeWorker, calls: Sequence[int], judged: Sequence[int]
    ) -> tuple[int | None, str]:
        """The first of the calls `judged` that is bad from the exact state, and why."""
        trial = self._trial
        label = f"{self._ones[judged[-1]]} from the exact state"
        if len(judged) > 1:
            label = f"each of {len(judged)} calls up to {label}"
        digest = cache_key.combine_digests([self._ones[number].content for number in calls])
        links = self._links.to_json(calls)
        verdict = self._session.find_or_probe(
            label,
            {
                "probe": "record from exact",
                **self._base,
                CONTENT: digest,
                "judged": [calls.index(number) for number in judged],
                "named": self._named(calls, links),
            },
            lambda: probes.run_probe(
                PROBES + "steps",
                store=trial.store,
                kernel=trial.kernel,
                on=trial.on,
                calls=list(calls),
                links=links,
                judged=list(judged),
                k=trial.k,
                tol=trial.tol,
                schedules=list(trial.schedules),
                content=digest,
                keep_going=trial.keep_going,
                tensor=trial.tensor,
            ),
        )
        if verdict.state is State.GOOD:
            return None, ""
        bad = next(
            (entry["number"] for entry in verdict.facts.get("steps", ()) if entry["reason"]), judged[-1]
        )
        return bad, verdict.reason

    def _named(self, calls: Sequence[int], links: Mapping[str, Any], keep: Sequence[Row] = ()) -> str:
        """Digest of what calls are named by in a verdict on their states: the same ones in another store, or
        among others, have other numbers."""
        keys = [self._ones[number].key for number in calls]
        return key_of({"calls": list(calls), "keys": keys, "links": links, "keep": list(map(list, keep))})

    def _block(
        self, probes: ProbeWorker, calls: Sequence[int], block: Sequence[int], file: str | None
    ) -> tuple[Verdict, str]:
        """Runs a block of calls, or knows what came of it; the file has the states that it left."""
        trial = self._trial
        until = calls[: calls.index(block[-1]) + 1]
        there, later = set(until), set(calls[len(until) :])
        keep = sorted(
            {earlier for at, earlier in self._links.before.items() if at[0] in later and earlier[0] in there}
        )
        question = {"probe": "record carried", **self._base, "block": len(block)}
        question["named"] = self._named(until, self._links.to_json(until), keep)
        question[CONTENT] = cache_key.combine_digests([self._ones[number].content for number in until])
        kept = self._session.folder / f"states-{key_of(question)[:16]}.pt"
        label = f"{len(until)} calls on their own states, to {self._ones[block[-1]]}"

        def probe() -> Verdict:
            return probes.run_probe(
                PROBES + "block",
                store=trial.store,
                kernel=trial.kernel,
                on=trial.on,
                calls=list(block),
                links=self._links.to_json(block),
                keep=keep,
                tol=trial.tol,
                schedules=list(trial.schedules),
                content=cache_key.combine_digests([self._ones[number].content for number in block]),
                load_from=file,
                save_to=str(kept.resolve()),
                keep_going=trial.keep_going,
            )

        verdict = self._session.find_or_probe(label, question, probe)
        if verdict.state is State.GOOD and rollout.of_states(kept) != verdict.facts["states"]:
            verdict = probe()  # known from a bisection that kept its states elsewhere, or they are damaged
        return verdict, str(kept.resolve())


def as_json(found: Found) -> dict[str, Any]:
    carry = found.carry
    return {
        "axis": "record",
        "kernel": found.kernel,
        "looked": found.looked,
        "skipped": list(found.skipped),
        "first": None if found.first is None else _json_of(found.first),
        "kind": found.kind or None,
        "reason": found.reason or None,
        "flaky": found.flaky or None,
        "by_schedule": found.by_schedule or None,
        "linked": found.linked,
        "before": list(found.before),
        "unchosen": list(found.unchosen),
        "carry": None
        if carry is None
        else {
            "calls": carry.calls,
            "lanes": carry.lanes,
            "over": None
            if carry.over is None
            else {
                "record": carry.over.number,
                "lane": carry.over.lane,
                "step": carry.over.step,
                "head": carry.over.head,
                "error": carry.over.error,
                "limit": carry.over.limit,
                "torch": carry.over.torch,
            },
            "grows": None if carry.grows is None else {"lane": carry.grows.lane, "slope": carry.grows.slope},
            "starts": carry.starts,
            "alone": carry.alone or None,
            "failed": carry.failed or None,
        },
    }


def _json_of(one: One) -> dict[str, Any]:
    return {"record": one.number, "key": one.key, "op": one.op, "layer": one.layer, "step": one.step}
