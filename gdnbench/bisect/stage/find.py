# SPDX-License-Identifier: Apache-2.0
"""Runs the probes of the stage axis, in order, and draws the conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from gdnbench.bisect import cache_key
from gdnbench.bisect.flakiness import Steadiness
from gdnbench.bisect.session import Session
from gdnbench.bisect.stage.probe import AFTER
from gdnbench.bisect.stage.record_probes import PROBES, RecordProbes, fails_by_numbers
from gdnbench.bisect.stage.result import Chain, Graft, Row, StageResult, TensorFacts
from gdnbench.bisect.stage.rollout import calls_before
from gdnbench.bisect.symptom import Symptom
from gdnbench.bisect.trial import BIT_DIFFERENCE, SCHEDULES, Trial, kernel_sources, toolchain
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.workers import ProbeWorker
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.store.recover import open_store


def find_bad_stage(trial: Trial, session: Session, carry: bool = False) -> StageResult:
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
    with closing(ProbeWorker()) as worker:
        shown: dict[str, Mapping[str, Any]] = {}
        faulty: tuple[RecordProbes, Verdict, Mapping[str, Any], int] | None = None
        for passing, number in enumerate(chosen):
            if ops[number] not in shown:
                verdict = worker.run_probe(
                    PROBES + "inspect_kernel",
                    store=trial.store,
                    kernel=trial.kernel,
                    on=trial.on,
                    record=number,
                )
                shown[ops[number]] = _can_show(trial.kernel, ops[number], verdict)
            facts = shown[ops[number]]
            if carry and not facts["steps"]:
                raise BadInputError(f"--carry: {trial.kernel} lists no steps; omit --carry")
            every = trial.on == SIM and not trial.only_schedules
            schedules = SCHEDULES if every else trial.schedules
            one = replace(trial, records=(number,), stages=bool(facts["shows"]), schedules=schedules)
            probes = RecordProbes(session, worker, one, {**base, CONTENT: digests[number]}, labels[number])
            verdict = probes.judge_whole()
            if verdict.state is State.SKIP:
                raise CannotRunError(f"record {labels[number]}: {verdict.kind}: {verdict.reason}")
            if verdict.state is State.BAD and fails_by_numbers(verdict):
                return _examine(probes, verdict, facts, passing, carry)
            if verdict.state is State.BAD and faulty is None and trial.symptom is not Symptom.NUMBERS:
                faulty = probes, verdict, facts, passing
        if faulty is not None:
            return _examine(*faulty, carry)
    return StageResult(trial.kernel, None, passing=len(chosen))


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


def _examine(
    probes: RecordProbes, own: Verdict, facts: Mapping[str, Any], passing: int, carry: bool
) -> StageResult:
    """The result for a bad record after `passing` good ones. `own`: the verdict of `judge_whole`; `facts`:
    those of `inspect_kernel`."""
    trial = probes.trial
    result = StageResult(
        trial.kernel,
        probes.label,
        steps=bool(facts["steps"]),
        tolerance=trial.tol is not None,
        passing=passing,
    )
    steadiness, spread = probes.steadiness(own)
    if steadiness is Steadiness.FLAKY:
        return replace(result, flaky=spread)
    if steadiness is Steadiness.BY_SCHEDULE:
        result = replace(result, by_schedule=spread)
    if own.state is not State.GOOD and own.kind not in (Outcome.MISMATCH, BIT_DIFFERENCE):
        result = replace(result, notes=(f"as a whole: {own.kind}: {own.reason}",))
    schedules = (own.facts.get("schedule") or trial.schedules[0],)
    chained = {entry["tensor"]: entry for entry in own.facts.get("tensors", ())}
    dtypes = {name: entry["dtype"] for name, entry in chained.items()}
    added, crashes = _errors_of_steps(probes, own, facts, dtypes, schedules)
    result = replace(
        result,
        rows=_rows(facts, chained, added, crashes, own.facts),
        outputs=own,
        same_bits=own.facts.get("same_bits"),
        faults=tuple(own.facts.get("faults", ())),
    )
    if any(row.wrong for row in result.rows if not row.stage):
        if not facts["steps"]:  # only what its taps show can be replaced
            dtypes = {name: dtype for name, dtype in dtypes.items() if name in facts["tapped"]}
        result = replace(result, grafts=_grafts(probes, result, dtypes, schedules))
    return replace(result, chain=_chain(probes, result)) if carry else result


def _errors_of_steps(
    probes: RecordProbes,
    own: Verdict,
    facts: Mapping[str, Any],
    dtypes: Mapping[str, str],
    schedules: Sequence[str],
) -> tuple[dict[str, TensorFacts], dict[str, str]]:
    """What each stage adds, by its name: as its step computes it from exact stages, or, for a kernel without
    steps, as the probe of the whole record says. And why steps left nothing, by each stage that they give."""
    added: dict[str, TensorFacts] = {entry["tensor"]: entry for entry in own.facts.get("added", ())}
    crashes: dict[str, str] = {}
    for step in facts["steps"]:
        taken = {name: dtypes.get(name, "float32") for name in step["takes"]}
        verdict = probes.judge_step(step["name"], taken, schedules)
        if verdict.state is not State.GOOD and verdict.kind != Outcome.MISMATCH:
            crashes |= dict.fromkeys(step["gives"], f"{verdict.kind}: {verdict.reason}")
        added |= _decisive(verdict.facts, facts["carried"])
    return added, crashes


def _grafts(
    probes: RecordProbes, result: StageResult, dtypes: Mapping[str, str], schedules: Sequence[str]
) -> tuple[Graft, ...]:
    """The stage that explains the outputs, made exact, with those that are computed from the same hidden
    stages; then the others that add too, until the outputs pass."""
    first = result.first
    if first is None or not first.stage or first.name not in dtypes:
        return ()
    adding = [row for row in result.rows if row.stage and row.adds and row.name in dtypes]
    exact = [row.name for row in adding if row is first or set(row.hidden) & set(first.hidden)]
    others = [row.name for row in adding if row.name not in exact]
    grafts: list[Graft] = []
    for count in range(len(others) + 1):
        replaced = {name: dtypes[name] for name in (*exact, *others[:count])}
        verdict = probes.judge_with_exact(replaced, schedules)
        grafts.append(Graft(tuple(replaced), verdict))
        if verdict.state is State.GOOD:
            break
    return tuple(grafts)


def _chain(probes: RecordProbes, result: StageResult) -> Chain | None:
    """None where no stage adds, or no earlier call left the state."""
    first, number = result.first, probes.record
    before, links = calls_before(probes.trial.store, number)
    if first is None or not first.stage or first.chained is None or not before:
        return None
    judge = partial(probes.judge_chain, [*before, number], links)
    dtype = str(first.chained["dtype"])
    return Chain(len(before), first.name, judge({}), judge({first.name: dtype}))


def _decisive(facts: Mapping[str, Any], carried: str) -> dict[str, TensorFacts]:
    """Of what a step gives: what it makes of the call; but where it is off on chunks by themselves, what it
    makes of those, since each of them got an exact state. What a chunk hands on wrongly is blamed on the
    stage `carried`, or on the outputs where no chunk comes after it."""
    found = {entry["tensor"]: entry for entry in facts.get("whole", ())}
    apart: dict[str, TensorFacts] = {}
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
    chained: Mapping[str, TensorFacts],
    alone: Mapping[str, TensorFacts],
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
