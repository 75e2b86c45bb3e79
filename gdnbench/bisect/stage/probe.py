# SPDX-License-Identifier: Apache-2.0
"""Probes of one record; the facts of their verdicts are plain JSON.

`inspect_kernel` lists what the kernel can show. `chained` judges the kernel's own stages and outputs. `alone`
judges one step on exact stages, rounded as the kernel rounds them, against fp64 and torch's step on the same
stages, so that errors of the input do not count. `grafted` judges the outputs with some stages exact and the
kernel's later steps after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from torch import Tensor

from gdnbench.bisect.cache_key import open_unchanged
from gdnbench.bisect.stage.chain import chain, check_steps, run_step
from gdnbench.bisect.stage.explain import (
    added_errors,
    carried_errors,
    exact_steps,
    hidden_stages,
    own_stages,
)
from gdnbench.bisect.stage.one_record import RecordUnderKernel, as_dtype, on_cpu
from gdnbench.bisect.stage.place import as_facts
from gdnbench.bisect.trial import STATES, ResultDigest, Trial, run_trial, with_schedule
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError
from gdnbench.judge import calls
from gdnbench.judge.error_attribution import put_counted
from gdnbench.judge.record import Judge, compared_tensors
from gdnbench.judge.rule import Bound, make_rule
from gdnbench.judge.stages import in_named_dtype, judge_stages, stage_subject
from gdnbench.ops import operation as operation_of
from gdnbench.poison import same_bits
from gdnbench.replay.call import takes_stages
from gdnbench.replay.execute import device_of, execute
from gdnbench.replay.failure import classify, describe
from gdnbench.replay.kernels import load
from gdnbench.replay.run import folder_kept, kernel_errors
from gdnbench.replay.simulated import SIM, simulated
from gdnbench.replay.taps import Replacement, replacing
from gdnbench.report.outcome import Outcome
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call, ContractError, Cut, Operation, Step

AFTER = "state after"
"""What a chunk hands to the next, where each was run by itself."""


def inspect_kernel(*, store: str, kernel: str, on: str, record: int) -> Verdict:
    """The facts: the operation's stages, whether the kernel shows them, and the kernel's steps."""
    with open_store(store) as opened:
        one = opened.records[record]
        op = operation_of(one.info.op)
        try:
            with simulated(on):
                loaded = load(kernel, op)
            check_steps(loaded, op)
        except BAD_INPUT_ERRORS:
            raise
        except kernel_errors() as error:
            return _failure(error)
        facts = {
            "op": op.name,
            "stages": [stage.tensor.name for stage in op.stages],
            "carried": "" if op.cut is None else op.cut.needs[0],
            "shows": bool(op.stages) and takes_stages(loaded),
            "tapped": list(loaded.tapped),
            "steps": [_as_json(step) for step in loaded.steps],
            "exact_steps": [_as_json(step) for step in exact_steps(op)],
        }
        return Verdict(State.GOOD, str(Outcome.PASS), facts=facts)


def _as_json(step: Step) -> dict[str, Any]:
    return {"name": step.name, "takes": list(step.takes), "gives": list(step.gives)}


def chained(
    *,
    store: str,
    kernel: str,
    on: str,
    record: int,
    content: str,
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    compare_steps: bool = False,
) -> Verdict:
    """Judges the kernel's own stages and outputs, all of one run. If one fails, also says of each stage what
    it adds and how far its error carries, see `explain`, and whether the kernel's steps leave the same bits;
    with `compare_steps` the latter in any case. A kernel that passes under every schedule is bad if its bits
    differ."""

    def once(one: RecordUnderKernel) -> Verdict:
        shows = takes_stages(one.kernel)
        execution = execute(one.record, one.operation, one.kernel, one.on, shows, keep_going=one.on == SIM)
        digest = ResultDigest()
        digest.add_result(one.record, one.operation, execution)
        outputs, stages = execution.outputs, dict(execution.stages)
        by_steps: dict[str, Tensor] = {}
        if one.kernel.steps and (not stages or compare_steps):
            by_steps = _by_steps(one)
            stages = stages or {name: by_steps[name] for name in one.stages() if name in by_steps}
        given = one.given()
        oracle = one.exact(given, {}, [*one.stages(), *outputs])
        facts = [*_judged_stages(one, given, stages, oracle), *one.judged_outputs(outputs)]
        failing = {entry["tensor"] for entry in facts if not entry["passed"]}
        same = None
        if one.kernel.steps and (failing or compare_steps):
            same = _same_outputs(one, by_steps or _by_steps(one), outputs)
        more = {"same_bits": same, **_explained(one, given, stages, oracle, outputs, failing)}
        return replace(_verdict(facts, list(execution.faults), more), digest=digest.hexdigest())

    return _probe(store, kernel, on, record, content, k, tol, schedules, once)


def replayed(*, kernel: str, on: str, trial: Mapping[str, Any]) -> Verdict:
    """Judges a trial of the kernel as any worker does, in a process that has compiled the kernel already."""
    return run_trial(Trial.from_json(trial))


def _explained(
    one: RecordUnderKernel,
    given: Call,
    stages: Mapping[str, Tensor],
    oracle: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    failing: Set[str],
) -> dict[str, Any]:
    """Facts on how far the errors of the kernel's own stages carry, if any of its tensors is `failing`: see
    `explain`. For a kernel without steps also what each stage adds, and which hidden stages it stands for."""
    found: dict[str, Any] = {"added": [], "carried": {}, "hidden": {}}
    if not failing or not exact_steps(one.operation):
        return found
    own = own_stages(one, given, stages, oracle)
    recorded = calls.conventions_of(one.record, one.operation)
    in_kernels = one.operation.convert_outputs(outputs, recorded, given.conventions)
    if not one.kernel.steps:
        found["added"] = added_errors(one, given, own, in_kernels)
        found["hidden"] = {name: hidden_stages(one.operation, name, own) for name in own}
    found["carried"] = carried_errors(one, given, own, in_kernels, failing & set(outputs))
    return found


def _by_steps(one: RecordUnderKernel) -> dict[str, Tensor]:
    """What the kernel's steps leave, one after another."""
    with simulated(one.on, keep_going=one.on == SIM):
        return on_cpu(chain(one.kernel, one.operation, one.exact_call(), {}))


def _same_outputs(one: RecordUnderKernel, made: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> bool:
    call = one.exact_call()
    found = {name: made[name] for name in compared_tensors(one.operation, call) if name in made}
    return all(
        name not in outputs or same_bits(tensor, outputs[name])
        for name, tensor in one.as_recorded(found, call.conventions).items()
    )


def _judged_stages(
    one: RecordUnderKernel, given: Call, stages: Mapping[str, Tensor], oracle: dict[str, Tensor]
) -> list[dict[str, Any]]:
    return [
        as_facts(
            result,
            stage_subject(one.operation, given, result.tensor),
            in_named_dtype(one.operation, result.tensor, stages[result.tensor]),
            oracle[result.tensor],
        )
        for result in judge_stages(one.operation, given, stages, one.bound, oracle=oracle)
    ]


def alone(
    *,
    store: str,
    kernel: str,
    on: str,
    record: int,
    content: str,
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    step: str,
    dtypes: Mapping[str, str],
) -> Verdict:
    """Judges one step on exact stages of the dtypes `dtypes`. If the step carries a state from chunk to
    chunk, also judges it on every chunk alone."""

    def once(one: RecordUnderKernel) -> Verdict:
        (found,) = [candidate for candidate in one.kernel.steps if candidate.name == step]
        call, given = one.exact_call(), one.given()
        exact = one.exact(given, {}, one.stages())
        taken = {name: as_dtype(exact[name], dtypes[name]) for name in found.takes}
        with simulated(one.on, keep_going=one.on == SIM):
            made = on_cpu(run_step(one.kernel, found, one.operation, call, taken))
        facts = one.judged_step(given, taken, made)
        cut, apart = one.operation.cut, []
        if cut is not None and set(cut.needs) <= set(found.gives):
            apart = _apart(one, cut, found, taken, exact)
        return _verdict([*facts, *apart], [], {"whole": facts, "apart": apart})

    return _probe(store, kernel, on, record, content, k, tol, schedules, once)


def grafted(
    *,
    store: str,
    kernel: str,
    on: str,
    record: int,
    content: str,
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    exact: Sequence[str],
    dtypes: Mapping[str, str],
) -> Verdict:
    """Judges the outputs with the stages `exact` replaced by exact values; every later step is the kernel's.
    A kernel without steps replaces them in its taps."""

    def once(one: RecordUnderKernel) -> Verdict:
        call, given = one.exact_call(), one.given()
        true = one.exact(given, {}, one.stages())
        if not one.kernel.steps:
            with replacing({name: _replacement(one, given, name, true[name]) for name in exact}):
                execution = execute(
                    one.record, one.operation, one.kernel, one.on, True, keep_going=one.on == SIM
                )
            return _verdict(one.judged_outputs(execution.outputs), [], {})
        put = {name: as_dtype(true[name], dtypes[name]) for name in exact}
        cut = one.operation.cut
        outputs = compared_tensors(one.operation, call)
        with simulated(one.on, keep_going=one.on == SIM):
            if cut is not None and set(cut.needs) & set(exact):
                put |= _carried_exactly(one, call, true, put)
            made = on_cpu(chain(one.kernel, one.operation, call, put, [*outputs]))
        found = {name: made[name] for name in outputs if name in made}
        return _verdict(one.judged_outputs(one.as_recorded(found, call.conventions)), [], {})

    return _probe(store, kernel, on, record, content, k, tol, schedules, once)


def _replacement(one: RecordUnderKernel, given: Call, name: str, exact: Tensor) -> Replacement:
    """The exact stage `name`, except in elements that belong to no token."""
    partition = one.operation.partition(given, name)
    return lambda left: put_counted(exact, left.double(), partition).to(left.dtype)


def _carried_exactly(
    one: RecordUnderKernel, call: Call, true: Mapping[str, Tensor], put: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the carrying step makes of every chunk by itself, in the places of the whole call."""
    op, cut = one.operation, one.operation.cut
    assert cut is not None
    (step,) = [each for each in one.kernel.steps if set(cut.needs) & set(each.gives)]
    before = chain(one.kernel, op, call, put, step.takes)
    cut_call = cut.of(call, true)
    rows = {name: cut.rows(cut_call, name, before[name]) for name in step.takes}
    made = run_step(one.kernel, step, op, cut_call, rows)
    return {name: tensor for name, tensor in cut.back(call, made).items() if name not in put}


def _apart(
    one: RecordUnderKernel, cut: Cut, step: Step, taken: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """What a step makes of every chunk by itself; nothing where it cannot be called so."""
    call, given = (cut.of(each, exact) for each in (one.exact_call(), one.given()))
    rows = {name: cut.rows(call, name, tensor) for name, tensor in taken.items()}
    try:
        with simulated(one.on, keep_going=one.on == SIM):
            made = on_cpu(run_step(one.kernel, step, one.operation, call, rows))
    except NotImplementedError:
        return []
    whole = one.given()
    return [_as_in_call(entry, one.operation, cut, whole) for entry in one.judged_step(given, rows, made)]


def _as_in_call(entry: dict[str, Any], operation: Operation, cut: Cut, whole: Call) -> dict[str, Any]:
    """A tensor of the cut call, its place as the call itself has it."""
    named, at = entry["tensor"] if entry["stage"] else cut.needs[0], entry["at"]
    if at is not None and at["sequence"] is not None:
        region = operation.partition(whole, named).regions[at["sequence"]]
        token = None if at["token"] is None else (region.token or 0) + at["token"]
        at = {**at, "sequence": region.sequence, "chunk": region.chunk, "token": token}
    return {**entry, "tensor": entry["tensor"] if entry["stage"] else AFTER, "at": at}


def _verdict(facts: Iterable[dict[str, Any]], faults: list[str], more: Mapping[str, Any]) -> Verdict:
    tensors = list(facts)
    wrong = [f"{entry['tensor']}: {entry['reason']}" for entry in tensors if not entry["passed"]]
    reasons = [*wrong, *faults]
    found = {"tensors": tensors, "faults": faults, **more}
    if reasons:
        return Verdict(State.BAD, str(Outcome.MISMATCH), reasons[0], facts=found)
    return Verdict(State.GOOD, str(Outcome.PASS), facts=found)


def _failure(error: BaseException) -> Verdict:
    outcome = classify(error)
    if outcome is Outcome.REFUSED:
        raise error
    return Verdict(STATES[outcome], str(outcome), describe(error))


def _probe(
    store: str,
    kernel: str,
    on: str,
    record: int,
    content: str,
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    once: Callable[[RecordUnderKernel], Verdict],
) -> Verdict:
    """`once`, on the simulator under each schedule until it is bad. StoreError if the record is not the one
    of digest `content`, before or after."""
    bound = make_rule(k)
    assert isinstance(bound, Bound)
    rule = bound if tol is None else make_rule(tol=(tol[0], tol[1]))
    begin = time.monotonic()
    with open_unchanged(store, lambda _: [record], content) as (opened, _, _):
        chosen = opened.records[record]
        op = operation_of(chosen.info.op)
        judge = Judge(rule, device_of(on))
        found: Verdict | None = None
        for schedule in schedules if on == SIM else schedules[:1]:
            try:
                calls.check_record(chosen, op)
                with simulated(on), folder_kept():
                    loaded = load(kernel, op)
                with with_schedule(on, schedule), folder_kept():
                    verdict = once(RecordUnderKernel(chosen, op, loaded, on, bound, rule, judge))
            except BAD_INPUT_ERRORS:
                raise
            except ContractError as error:
                raise BadInputError(str(error)) from None
            except kernel_errors() as error:
                verdict = _failure(error)
            if found is None or verdict.state is not State.GOOD:
                found = verdict
                found = replace(found, facts={**found.facts, "schedule": schedule if on == SIM else ""})
            if found.state is not State.GOOD:
                break
    assert found is not None
    facts = {**found.facts, CONTENT: content}
    return replace(found, facts=facts, seconds=time.monotonic() - begin)
