"""Probes of one record; the facts of their verdicts are plain JSON.

`inspect_kernel` lists what the kernel can show. `chained` judges the kernel's own stages and outputs. `alone`
judges one step on exact stages, rounded as the kernel rounds them, against fp64 and torch's step on the same
stages, so that errors of the input do not count. `grafted` judges the outputs with some stages exact and the
kernel's later steps after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench.bisect.cache_key import open_unchanged
from gdnbench.bisect.stage.chain import chain, chain_of, check_steps, run_step
from gdnbench.bisect.stage.place import as_facts
from gdnbench.bisect.trial import STATES, with_schedule
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError
from gdnbench.judge import calls
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.record import ORACLE, YARDSTICK, Judge, compared_tensors, run_as_handed, subject_of
from gdnbench.judge.result import LimitCheck, TensorResult
from gdnbench.judge.rule import Bound, Rule, make_rule
from gdnbench.judge.stages import (
    STAGED_ORACLE,
    in_named_dtype,
    judge_against_exact,
    judge_stage,
    judge_stages,
    stage_subject,
)
from gdnbench.ops import operation as operation_of
from gdnbench.poison import same_bits
from gdnbench.replay import bind
from gdnbench.replay.call import conversion, takes_stages
from gdnbench.replay.execute import device_of, execute
from gdnbench.replay.failure import classify, describe
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.simulated import SIM, simulated
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import StoredRecord
from gdnbench.store.recover import open_store
from gdnbench_kernels.contract import Call, ContractError, Cut, Operation, Role, Step

AFTER = "state after"
"""What a chunk hands to the next, where each was run by itself."""


@dataclass(frozen=True, slots=True)
class _One:
    """A record under one kernel. Stages are judged by `bound`, outputs by `rule`."""

    record: StoredRecord
    operation: Operation
    kernel: LoadedKernel
    on: str
    bound: Bound
    rule: Rule

    def exact_call(self) -> Call:
        """As the caller made it, in conventions that the kernel takes, where the kernel runs. What steps
        change in place they get copies of: pools are then of the stored slots alone."""
        if any(spec.role is Role.MUTATED for spec in self.operation.tensors):
            return self.given()
        made = bind.exact(self.record, self.operation, device_of(self.on)).call
        return self.operation.convert(made, conversion(made, self.operation, self.kernel).target)

    def given(self) -> Call:
        """The same, contiguous: what oracle and yardstick get."""
        compact = calls.compact_call(self.record, self.operation, device_of(self.on))
        return self.operation.convert(compact, conversion(compact, self.operation, self.kernel).target)

    def stages(self) -> list[str]:
        return [stage.tensor.name for stage in self.operation.stages]


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
        except Exception as error:
            return _failure(error)
        facts = {
            "op": op.name,
            "stages": [stage.tensor.name for stage in op.stages],
            "carried": "" if op.cut is None else op.cut.needs[0],
            "shows": bool(op.stages) and takes_stages(loaded),
            "steps": [
                {"name": step.name, "takes": list(step.takes), "gives": list(step.gives)}
                for step in loaded.steps
            ],
        }
        return Verdict(State.GOOD, str(Outcome.PASS), facts=facts)


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
) -> Verdict:
    """Judges the kernel's own stages and outputs, and whether its steps leave the same bits."""

    def once(one: _One) -> Verdict:
        shows = takes_stages(one.kernel)
        execution = execute(one.record, one.operation, one.kernel, one.on, shows)
        stages = dict(execution.stages)
        same: bool | None = None
        if one.kernel.steps:
            call = one.exact_call()
            with simulated(one.on):
                made = _on_cpu(chain(one.kernel, one.operation, call, {}))
            outputs = {name: made[name] for name in compared_tensors(one.operation, call) if name in made}
            outputs = one.operation.convert_outputs(
                outputs, call.conventions, calls.conventions_of(one.record, one.operation)
            )
            same = all(
                name not in execution.outputs or same_bits(tensor, execution.outputs[name])
                for name, tensor in outputs.items()
            )
            if not stages:
                stages = {name: made[name] for name in one.stages() if name in made}
        given = one.given()
        oracle = chain_of(
            STAGED_ORACLE, one.operation, one.operation.stage_call(given), {}, [*stages, *execution.outputs]
        )
        facts = [
            as_facts(
                result,
                stage_subject(one.operation, given, result.tensor),
                in_named_dtype(one.operation, result.tensor, stages[result.tensor]),
                oracle[result.tensor],
            )
            for result in judge_stages(one.operation, given, stages, one.bound)
        ]
        facts += _judged_outputs(one, execution.outputs)
        faults = list(execution.faults)
        return _verdict(facts, faults, {"same_bits": same})

    return _probe(store, kernel, on, record, content, k, tol, schedules, once)


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

    def once(one: _One) -> Verdict:
        (found,) = [candidate for candidate in one.kernel.steps if candidate.name == step]
        call, given = one.exact_call(), one.given()
        exact = chain_of(STAGED_ORACLE, one.operation, one.operation.stage_call(given), {}, one.stages())
        taken = {name: _as(exact[name], dtypes[name]) for name in found.takes}
        with simulated(one.on):
            made = _on_cpu(run_step(one.kernel, found, one.operation, call, taken))
        facts = _judged(one, given, taken, made)
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
    """Judges the outputs with the stages `exact` replaced by exact values; every later step is the
    kernel's."""

    def once(one: _One) -> Verdict:
        call, given = one.exact_call(), one.given()
        true = chain_of(STAGED_ORACLE, one.operation, one.operation.stage_call(given), {}, one.stages())
        put = {name: _as(true[name], dtypes[name]) for name in exact}
        cut = one.operation.cut
        outputs = compared_tensors(one.operation, call)
        with simulated(one.on):
            if cut is not None and set(cut.needs) & set(exact):
                put |= _carried_exactly(one, call, true, put)
            made = _on_cpu(chain(one.kernel, one.operation, call, put, [*outputs]))
        found = {name: made[name] for name in outputs if name in made}
        found = one.operation.convert_outputs(
            found, call.conventions, calls.conventions_of(one.record, one.operation)
        )
        return _verdict(_judged_outputs(one, found), [], {})

    return _probe(store, kernel, on, record, content, k, tol, schedules, once)


def _carried_exactly(
    one: _One, call: Call, true: Mapping[str, Tensor], put: Mapping[str, Tensor]
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


def _judged(
    one: _One, given: Call, taken: Mapping[str, Tensor], made: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """What a step made, against fp64 and torch's step on the very stages that it took."""
    op = one.operation
    oracle = chain_of(STAGED_ORACLE, op, op.stage_call(given), taken, made)
    yardstick = chain_of(YARDSTICK, op, given, taken, made)
    facts, stages = [], one.stages()
    for name, tensor in made.items():
        subject = stage_subject(op, given, name)
        held = in_named_dtype(op, name, tensor)
        if name in stages or isinstance(one.rule, Bound):
            limit = op.stage_limit(given, name)
            result = judge_stage(subject, held, oracle[name], yardstick[name], one.bound, limit)
        else:
            result = _with_limit(judge_against_exact(subject, held, oracle[name], one.rule), one.rule)
        facts.append(as_facts(replace(result, stage=name in stages), subject, held, oracle[name]))
    return facts


def _judged_outputs(one: _One, outputs: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    judge = Judge(one.rule, device_of(one.on))
    compact = calls.compact_call(one.record, one.operation, device_of(one.on))
    handed = conversion(compact, one.operation, one.kernel).target
    oracle = _on_cpu(run_as_handed(one.operation, ORACLE, compact, handed))
    return [
        as_facts(
            _with_limit(result, one.rule),
            subject_of(one.record, one.operation, compact, result.tensor),
            outputs[result.tensor],
            oracle[result.tensor],
        )
        for result in judge.tensors(one.record, one.operation, outputs, None, handed=handed)
        if result.tensor in outputs and result.judged
    ]


def _with_limit(result: TensorResult, rule: Rule) -> TensorResult:
    """A result of a tolerance, with what its farthest element was held to."""
    worst = result.worst
    if not isinstance(rule, Tolerance) or result.errors is None or worst is None:
        return result
    error, limit, at = abs(worst.x - worst.y), rule.abs + rule.rel * abs(worst.y), worst.at
    return replace(result, held=(LimitCheck("largest", error, limit, at.sequence, at.chunk, at.head),))


def _apart(
    one: _One, cut: Cut, step: Step, taken: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """What a step makes of every chunk by itself; nothing where it cannot be called so."""
    call, given = (cut.of(each, exact) for each in (one.exact_call(), one.given()))
    rows = {name: cut.rows(call, name, tensor) for name, tensor in taken.items()}
    try:
        with simulated(one.on):
            made = _on_cpu(run_step(one.kernel, step, one.operation, call, rows))
    except NotImplementedError:
        return []
    whole = one.given()
    return [_as_in_call(entry, one.operation, cut, whole) for entry in _judged(one, given, rows, made)]


def _as_in_call(entry: dict[str, Any], operation: Operation, cut: Cut, whole: Call) -> dict[str, Any]:
    """A tensor of the cut call, its place as the call itself has it."""
    named, at = entry["tensor"] if entry["stage"] else cut.needs[0], entry["at"]
    if at is not None and at["sequence"] is not None:
        region = operation.partition(whole, named).regions[at["sequence"]]
        token = None if at["token"] is None else (region.token or 0) + at["token"]
        at = {**at, "sequence": region.sequence, "chunk": region.chunk, "token": token}
    return {**entry, "tensor": entry["tensor"] if entry["stage"] else AFTER, "at": at}


def _as(exact: Tensor, dtype: str) -> Tensor:
    return exact.to(getattr(torch, dtype))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _verdict(facts: Iterable[dict[str, Any]], faults: list[str], more: Mapping[str, Any]) -> Verdict:
    tensors = list(facts)
    wrong = [f"{entry['tensor']}: {entry['reason']}" for entry in tensors if not entry["passed"]]
    reasons = [*faults, *wrong]
    found = {"tensors": tensors, "faults": faults, **more}
    if reasons:
        return Verdict(State.BAD, str(Outcome.MISMATCH), reasons[0], facts=found)
    return Verdict(State.GOOD, str(Outcome.PASS), facts=found)


def _failure(error: Exception) -> Verdict:
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
    once: Callable[[_One], Verdict],
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
        found: Verdict | None = None
        for schedule in schedules if on == SIM else schedules[:1]:
            try:
                with simulated(on):
                    loaded = load(kernel, op)
                with with_schedule(on, schedule):
                    verdict = once(_One(chosen, op, loaded, on, bound, rule))
            except BAD_INPUT_ERRORS:
                raise
            except ContractError as error:
                raise BadInputError(str(error)) from None
            except Exception as error:
                verdict = _failure(error)
            if found is None or verdict.state is not State.GOOD:
                found = verdict
            if found.state is not State.GOOD:
                break
    assert found is not None
    facts = {**found.facts, CONTENT: content}
    return replace(found, facts=facts, seconds=time.monotonic() - begin)
