"""Runs the probes of the stage axis, in order, and draws the conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gdnbench.bisect import cache_key, endpoints
from gdnbench.bisect.flakiness import RepeatedRun, Steadiness, describe_spread
from gdnbench.bisect.record.links import Links
from gdnbench.bisect.session import Session
from gdnbench.bisect.stage.probe import AFTER
from gdnbench.bisect.stage.rollout import calls_before
from gdnbench.bisect.symptom import Symptom
from gdnbench.bisect.trial import (
    BIT_DIFFERENCE,
    SCHEDULES,
    Trial,
    kernel_sources,
    toolchain,
    trial_question,
)
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.workers import ProbeWorker, TrialWorker
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.store.recover import open_store

PROBES = "gdnbench.bisect.stage.probe:"
CARRIED = "gdnbench.bisect.stage.rollout:carried"
Tensor = Mapping[str, Any]
"""Facts of a judged tensor, see `place.as_facts`."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stage or output. `chained`: as the kernel computes it. `alone` shows what it adds: as its step
    computes it from exact stages; without steps, as the kernel does, against the exact step on its stages.

    `carried`: whether the outputs pass that exact steps compute from the kernel's stages up to this one, see
    `explain`; None where that cannot be computed. `hidden`: stages before it that the kernel does not show.
    """

    name: str
    stage: bool
    chained: Tensor | None
    alone: Tensor | None
    step: str = ""
    crash: str = ""  # why its step left nothing
    inherits: bool = False  # whether a stage that it is made of is off
    carried: Mapping[str, Any] | None = None
    hidden: tuple[str, ...] = ()

    @property
    def adds(self) -> bool:
        return bool(self.crash) or (self.alone is not None and not self.alone["passed"])

    @property
    def wrong(self) -> bool:
        return self.chained is not None and not self.chained["passed"]

    @property
    def explains(self) -> bool:
        """Whether its error and those before it suffice for that of the outputs, as far as is known."""
        return self.carried is None or not self.carried["passed"] if self.stage else self.wrong


@dataclass(frozen=True, slots=True)
class Graft:
    """The outputs with the stages `exact` replaced by exact values."""

    exact: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Chain:
    """The record and the `before` calls that its state comes from, on the kernel's own states: as the kernel
    is, and with the stage `exact` so in each."""

    before: int
    exact: str
    own: Verdict
    mended: Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """The result. `label` names the bad record; None if every record passes. `flaky` is the spread of a flaky
    one."""

    kernel: str
    label: str | None
    rows: tuple[Row, ...] = ()
    grafts: tuple[Graft, ...] = ()
    chain: Chain | None = None
    outputs: Verdict | None = None
    steps: bool = False
    tolerance: bool = False  # whether outputs are held to one
    same_bits: bool | None = None
    flaky: str = ""
    by_schedule: str = ""
    passing: int = 0
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Row | None:
        """The first stage in the order of the contract that adds more error than its bound and explains that
        of the outputs. If none does: of those that add, the first that moves the outputs most."""
        adding = [row for row in self.rows if row.adds]
        explaining = next((row for row in adding if row.explains), None)
        return explaining or max(adding, key=self._moves, default=None)

    def _moves(self, row: Row) -> float:
        """By how much the stage raises the error of the outputs over its limit."""
        ratio = before = 0.0
        for one in self.rows:
            if one.carried is not None:
                before, ratio = ratio, float(one.carried["ratio"])
            if one is row:
                return ratio - before if one.carried is not None else 0.0
        return 0.0


def find_bad_stage(trial: Trial, session: Session, carry: bool = False) -> Found:
    """Examines `trial.records` in order up to the first bad one; with `carry` also the calls that its state
    comes from. Without the symptom `numbers`, faults make a record bad too where no record has wrong numbers.
    BadInputError for an operation or a kernel without stages, or without steps where they are needed;
    CannotRunError if a record cannot be judged."""
    with open_store(trial.store) as store:
        chosen = range(len(store.records)) if trial.records is None else trial.records
        labels = {number: store.records[number].key for number in chosen}
        digests = {number: cache_key.digest_records([store.records[number]]) for number in chosen}
        ops = {number: store.records[number].info.op for number in chosen}
    base = {
        "kernel": trial.kernel,
        "on": trial.on,
        "k": trial.k,
        "tol": trial.tol,
        "code": cache_key.digest_code(kernel_sources(trial.kernel)),
    }
    base |= toolchain(trial.on)
    with closing(ProbeWorker()) as probes:
        shown: dict[str, Mapping[str, Any]] = {}
        faulty: tuple[_Asking, Verdict, Mapping[str, Any], int] | None = None
        for passing, number in enumerate(chosen):
            if ops[number] not in shown:
                verdict = probes.run_probe(
                    PROBES + "inspect_kernel",
                    store=trial.store,
                    kernel=trial.kernel,
                    on=trial.on,
                    record=number,
                )
                shown[ops[number]] = _can_show(trial.kernel, ops[number], verdict)
            facts = shown[ops[number]]
            if carry and not facts["steps"]:
                raise BadInputError(f"--carry: {trial.kernel} lists no steps; leave it out")
            every = trial.on == SIM and not trial.only_schedules
            schedules = SCHEDULES if every else trial.schedules
            one = replace(trial, records=(number,), stages=bool(facts["shows"]), schedules=schedules)
            asking = _Asking(session, probes, one, {**base, CONTENT: digests[number]}, labels[number])
            verdict = asking.whole()
            if verdict.state is State.SKIP:
                raise CannotRunError(f"record {labels[number]}: {verdict.kind}: {verdict.reason}")
            if verdict.state is State.BAD and _of_numbers(verdict):
                return _examined(asking, verdict, facts, passing, carry)
            if verdict.state is State.BAD and faulty is None and trial.symptom is not Symptom.NUMBERS:
                faulty = asking, verdict, facts, passing
        if faulty is not None:
            return _examined(*faulty, carry)
    return Found(trial.kernel, None, passing=len(chosen))


def _of_numbers(verdict: Verdict) -> bool:
    """Whether a stage or output fails, or the kernel ended before it left any; not only its faults, or bits
    that depend on the schedule."""
    tensors = verdict.facts.get("tensors")
    return tensors is None or any(not entry["passed"] for entry in tensors)


def _examined(asking: _Asking, own: Verdict, facts: Mapping[str, Any], passing: int, carry: bool) -> Found:
    found = replace(asking.found(own, facts), passing=passing)
    return replace(found, chain=asking.chain(found)) if carry else found


def _can_show(kernel: str, op: str, verdict: Verdict) -> Mapping[str, Any]:
    if verdict.state is State.SKIP:
        raise CannotRunError(f"{kernel}: {verdict.kind}: {verdict.reason}")
    if verdict.state is State.BAD:
        raise CannotRunError(f"{kernel} cannot be imported: {verdict.reason}")
    if not verdict.facts["stages"]:
        raise BadInputError(
            f"{op} has no stages: what lies between its inputs and outputs stays in a kernel's registers; use"
            " `bisect record`, `bisect input` or `bisect instruction`"
        )
    if not verdict.facts["shows"] and not verdict.facts["steps"]:
        raise BadInputError(
            f"{kernel} has no parameter `stages` and lists no steps, so nothing between its inputs and"
            " outputs can be seen; use `bisect input` or `bisect instruction`"
        )
    return verdict.facts


@dataclass(frozen=True, slots=True)
class _Asking:
    """Probes of one bad record."""

    session: Session
    probes: ProbeWorker
    trial: Trial
    question: Mapping[str, Any]
    label: str

    def whole(self) -> Verdict:
        """Whether the record fails, in its stages and outputs: the verdict under the first schedule that
        makes numbers wrong, else under the first that is bad. Bad too if all pass and leave other bits."""
        runs: list[Verdict] = []
        for schedule in self.trial.schedules if self.trial.on == SIM else self.trial.schedules[:1]:
            runs.append(self._under(schedule))
            if runs[-1].state is State.SKIP or (runs[-1].state is State.BAD and _of_numbers(runs[-1])):
                return runs[-1]
        found = next((run for run in runs if run.state is State.BAD), runs[0])
        if found.state is State.GOOD and len({run.digest for run in runs}) > 1:
            reason = f"it leaves other bits under another schedule than under {self.trial.schedules[0]}"
            return replace(found, state=State.BAD, kind=BIT_DIFFERENCE, reason=reason)
        return found

    def _under(self, schedule: str) -> Verdict:
        under = f" under {schedule}" if self.trial.on == SIM else ""
        return self._ask(f"its own stages{under}", "chained", (schedule,))

    def found(self, own: Verdict, facts: Mapping[str, Any]) -> Found:
        """`own`: the verdict of `whole`."""
        base = Found(
            self.trial.kernel,
            self.label,
            steps=bool(facts["steps"]),
            tolerance=self.trial.tol is not None,
        )
        steadiness, spread = self._steadiness(own)
        if steadiness is Steadiness.FLAKY:
            return replace(base, flaky=spread)
        if steadiness is Steadiness.BY_SCHEDULE:
            base = replace(base, by_schedule=spread)
        schedules = (own.facts.get("schedule") or self.trial.schedules[0],)
        tensors = {entry["tensor"]: entry for entry in own.facts.get("tensors", ())}
        dtypes = {name: entry["dtype"] for name, entry in tensors.items()}
        base = replace(base, same_bits=own.facts.get("same_bits"), faults=tuple(own.facts.get("faults", ())))
        if own.state is not State.GOOD and own.kind not in (Outcome.MISMATCH, BIT_DIFFERENCE):
            base = replace(base, notes=(f"as a whole: {own.kind}: {own.reason}",))
        alone: dict[str, Tensor] = {entry["tensor"]: entry for entry in own.facts.get("added", ())}
        crashes: dict[str, str] = {}
        for step in facts["steps"]:
            taken = {name: dtypes.get(name, "float32") for name in step["takes"]}
            verdict = self._ask(
                f"step {step['name']} of exact stages",
                "alone",
                schedules,
                step=step["name"],
                dtypes=taken,
            )
            if verdict.state is not State.GOOD and verdict.kind != Outcome.MISMATCH:
                crashes |= dict.fromkeys(step["gives"], f"{verdict.kind}: {verdict.reason}")
            alone |= _decisive(verdict.facts, facts["carried"])
        rows = _rows(facts, tensors, alone, crashes, own.facts)
        outputs = [row for row in rows if not row.stage]
        base = replace(base, rows=rows, outputs=own)
        if not any(row.wrong for row in outputs):
            return base
        if not facts["steps"]:  # what is replaced is what its taps show
            dtypes = {name: dtype for name, dtype in dtypes.items() if name in facts["tapped"]}
        return replace(base, grafts=self._grafts(base, dtypes, schedules))

    def _steadiness(self, own: Verdict) -> tuple[Steadiness, str]:
        """Whether the record's verdict and bits change from run to run, and how, in one line.

        On the simulator a run is an exact function of the kernel, its host code and the schedule. So the
        process that has compiled the kernel repeats the run once and runs the record under other schedules.
        """
        if self.trial.on != SIM:
            one = replace(self.trial, schedules=self.trial.schedules[:1])
            if one.tol is not None:
                one = replace(one, k=None)  # of stages, which a trial holds to the tolerance as well
            question = trial_question(one)
            end = endpoints.replay_endpoint(self.session, self.label, question, one, TrialWorker)
            return end.steadiness, end.spread
        first = str(own.facts.get("schedule"))
        runs = [RepeatedRun(0, first, own)]
        for schedule in dict.fromkeys((first, *self.trial.schedules)):
            one = replace(self.trial, schedules=(schedule,), symptom=Symptom.NUMBERS, only_schedules=True)
            ask = partial(
                self.probes.run_probe, PROBES + "replayed", kernel=one.kernel, on=one.on, trial=one.to_json()
            )
            question = {"probe": "stage replayed", **trial_question(one)}
            verdict = self.session.find_or_probe(f"{self.label}, again under {schedule}", question, ask)
            runs.append(RepeatedRun(0, schedule, verdict))
        left = [run.verdict.digest or run.verdict.kind for run in runs]
        if left[0] != left[1]:
            return Steadiness.FLAKY, describe_spread(runs[:2])
        if len(set(left)) > 1:
            return Steadiness.BY_SCHEDULE, describe_spread(runs[1:])
        return Steadiness.STEADY, ""

    def _grafts(
        self, found: Found, dtypes: Mapping[str, str], schedules: tuple[str, ...]
    ) -> tuple[Graft, ...]:
        """The stage that explains the outputs, made exact, with those that are computed from the same hidden
        stages; then the others that add too, until the outputs pass."""
        first = found.first
        if first is None or not first.stage or first.name not in dtypes:
            return ()
        adding = [row for row in found.rows if row.stage and row.adds and row.name in dtypes]
        exact = [row.name for row in adding if row is first or set(row.hidden) & set(first.hidden)]
        others = [row.name for row in adding if row.name not in exact]
        grafts: list[Graft] = []
        for count in range(len(others) + 1):
            put = [*exact, *others[:count]]
            kept = {name: dtypes[name] for name in put}
            label = f"outputs with exact {', '.join(put)}"
            verdict = self._ask(label, "grafted", schedules, exact=put, dtypes=kept)
            grafts.append(Graft(tuple(put), verdict))
            if verdict.state is State.GOOD:
                break
        return tuple(grafts)

    def chain(self, found: Found) -> Chain | None:
        """None where no stage adds, or no earlier call left the state."""
        first, number = found.first, (self.trial.records or (0,))[0]
        before, links = calls_before(self.trial.store, number)
        if first is None or not first.stage or first.chained is None or not before:
            return None
        run = partial(self._carried, [*before, number], links)
        dtype = str(first.chained["dtype"])
        return Chain(len(before), first.name, run({}), run({first.name: dtype}))

    def _carried(self, calls: Sequence[int], links: Links, exact: Mapping[str, str]) -> Verdict:
        """`exact`: stages that are so in each call, and their dtypes."""
        trial = self.trial
        with open_store(trial.store) as store:
            records = cache_key.digest_records([store.records[one] for one in calls])
        given: dict[str, Any] = {"on": trial.on, "k": trial.k, "tol": trial.tol}
        given |= {"schedules": list(trial.schedules), "exact": dict(exact)}
        with_exact = "".join(f", exact {name}" for name in exact)
        return self.session.find_or_probe(
            f"{self.label}, {len(calls)} calls on their own states{with_exact}",
            {"probe": "stage carried", **self.question, **given, CONTENT: records},
            lambda: self.probes.run_probe(
                CARRIED,
                store=trial.store,
                kernel=trial.kernel,
                calls=list(calls),
                links=links.to_json(calls),
                content=records,
                **given,
            ),
        )

    def _ask(self, label: str, probe: str, schedules: Sequence[str], **more: Any) -> Verdict:
        trial = self.trial
        tol = None if trial.tol is None else list(trial.tol)
        given = {"on": trial.on, "k": trial.k, "tol": tol, "schedules": list(schedules), **more}
        return self.session.find_or_probe(
            f"{self.label}, {label}",
            {"probe": f"stage {probe}", **self.question, **given},
            lambda: self.probes.run_probe(
                PROBES + probe,
                store=trial.store,
                kernel=trial.kernel,
                record=(trial.records or (0,))[0],
                content=self.question[CONTENT],
                **given,
            ),
        )


def _decisive(facts: Mapping[str, Any], carried: str) -> dict[str, Tensor]:
    """Of what a step gives: what it makes of the call; but where it is off on chunks by themselves, what it
    makes of those, since each of them got an exact state. What a chunk hands on wrongly is blamed on the
    stage `carried`, or on the outputs where no chunk comes after it."""
    found = {entry["tensor"]: entry for entry in facts.get("whole", ())}
    apart: dict[str, Tensor] = {}
    for entry in facts.get("apart", ()):
        if entry["tensor"] not in apart or not entry["passed"]:
            apart[entry["tensor"]] = entry
    if all(entry["passed"] for entry in apart.values()):
        return found
    after = apart.pop(AFTER, None)
    outputs = [name for name in found if name not in apart]
    in_chunks = {**found, **apart}
    for name in outputs:
        del in_chunks[name]
    if after is not None and not after["passed"]:
        if found[carried]["passed"]:
            in_chunks |= {name: {**after, "tensor": name} for name in outputs}
        elif apart[carried]["passed"]:
            in_chunks[carried] = {**after, "tensor": carried, "carried": True}
    return in_chunks


def _rows(
    facts: Mapping[str, Any],
    chained: Mapping[str, Tensor],
    alone: Mapping[str, Tensor],
    crashes: Mapping[str, str],
    own: Mapping[str, Any],
) -> tuple[Row, ...]:
    """In the contract's order, outputs last. `own`: the facts of the kernel's own stages."""
    names = dict.fromkeys([*facts["stages"], *chained, *alone, *crashes])
    makers = {name: step for step in facts["steps"] for name in step["gives"]}
    exact_makers = {name: step for step in facts["exact_steps"] for name in step["gives"]}
    carried, hidden = own.get("carried", {}), own.get("hidden", {})
    rows: list[Row] = []
    for name in names:
        if name not in chained and name not in alone and name not in crashes:
            continue
        step = (makers or exact_makers).get(name)
        taken = step["takes"] if step is not None else ()
        inherits = any(not chained[one]["passed"] for one in taken if one in chained)
        rows.append(
            Row(
                name,
                name in facts["stages"],
                chained.get(name),
                alone.get(name),
                makers[name]["name"] if name in makers else "",
                crashes.get(name, ""),
                inherits,
                carried.get(name),
                tuple(hidden.get(name, ())),
            )
        )
    return tuple(rows)
