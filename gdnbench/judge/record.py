# SPDX-License-Identifier: Apache-2.0
"""Judges a kernel's results on one record: every output and mutated tensor, under the given rule.

A kernel that takes other conventions than the recorded call is handed converted values: replay normalises q
and k and rounds them to bf16, for example. The kernel is judged on the values that it was handed. The oracle
and torch's kernel compute from the same ones. How far their exact result is from the recorded call's is shown
as a result of the side `conversion`, which passes or fails nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gdnbench.judge import calls
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.by_tensor import ByTensor
from gdnbench.judge.metrics import Comparison
from gdnbench.judge.quick_check import quick_errors
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bitwise, Bound, Rule
from gdnbench.judge.selection import compare_selections, judge_selection
from gdnbench.judge.tensor import (
    Subject,
    judge,
    judge_against_target,
    judge_briefly,
    missing_tensor,
    show_difference,
    yardstick_of,
)
from gdnbench.judge.valid_rows import clear_stale
from gdnbench.judge.yardstick import Yardstick
from gdnbench.poison import poisoned
from gdnbench.record import When
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation, Role
from gdnbench_kernels.run import run_kernel

ORACLE = "reference"
YARDSTICK = "torch"

Conventions = tuple[tuple[str, str], ...]
"""The conventions of a call, sorted by name."""


@dataclass(slots=True)
class _Exact:
    """Oracle and yardstick results of the last record, computed once for several kernels: by the kernel and
    the conventions in which it was handed the call."""

    record: StoredRecord | None = None
    outputs: dict[tuple[str, Conventions], dict[str, Tensor]] = field(default_factory=dict)
    errors: dict[tuple[str, Conventions], Comparison | None] = field(default_factory=dict)
    """The yardstick's errors by tensor and conventions, for quick checks."""
    yardsticks: dict[tuple[str, Conventions], Yardstick] = field(default_factory=dict)
    """By tensor and conventions."""
    leeways: dict[tuple[str, Conventions], Tensor | None] = field(default_factory=dict)
    """What the contract's leeway allows, in the record's conventions, by tensor and conventions."""

    def forget(self, record: StoredRecord) -> None:
        """Start anew with `record`."""
        self.record = record
        for known in (self.outputs, self.errors, self.yardsticks, self.leeways):
            known.clear()


@dataclass(frozen=True, slots=True)
class _Handed:
    """The outputs of one side; the call as it was recorded and as that side was handed it, both on the stored
    slots; and the exact and torch's results of the latter. Outputs and results are in the record's
    conventions."""

    outputs: Mapping[str, Tensor]
    recorded: Call
    call: Call
    oracle: Mapping[str, Tensor]
    yardstick: Mapping[str, Tensor]

    @property
    def conventions(self) -> Conventions:
        return tuple(sorted(self.call.conventions.items()))


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the outputs of records. Runs oracle and yardstick on `device` if the rule needs them.

    `brief`: compute only whether outputs pass, on `device` if possible. `grids`: results include errors by
    chunk and head.
    """

    rule: Rule | ByTensor
    device: torch.device
    brief: bool = False
    grids: bool = False
    _last: _Exact = field(default_factory=_Exact, repr=False, compare=False)

    def tensors(
        self,
        record: StoredRecord,
        operation: Operation,
        outputs: Mapping[str, Tensor],
        other: Mapping[str, Tensor] | None,
        *,
        handed: Mapping[str, str] | None = None,
        other_handed: Mapping[str, str] | None = None,
    ) -> tuple[TensorResult, ...]:
        """Results for `outputs`, and for `other` if given; `other` None: compare with the oracle.

        `handed`, `other_handed`: the conventions in which each side was handed the call, the record's own
        unless given. Outputs are in the record's conventions.
        """
        if isinstance(self.rule, ByTensor):
            return self.rule.pick(
                operation.name,
                lambda rule: replace(self, rule=rule).tensors(
                    record, operation, outputs, other, handed=handed, other_handed=other_handed
                ),
            )
        compact = calls.compact_call(record, operation, self.device)
        main = self._handed(record, operation, compact, outputs, handed, oracle=other is None)
        beside = None
        if other is not None:
            beside = self._handed(record, operation, compact, other, other_handed, oracle=False)
        results: list[TensorResult] = []
        for name in compared_tensors(operation, compact):
            subject = replace(subject_of(record, operation, compact, name), grid=self.grids)
            if name not in outputs:  # a kernel returns all of them; a record may lack some
                results.append(
                    missing_tensor(name, subject.when, subject.side, "it is not among the outputs")
                )
                continue
            if name in operation.selections:
                results += _selected(operation, subject, main, beside, self.rule)
            elif isinstance(self.rule, Bound):
                results += self._bounded(operation, subject, main, beside, self.rule)
            else:
                target = main.oracle if beside is None else beside.outputs
                results.append(_held(subject, main.outputs[name], target, self.rule))
        if not self.brief:
            results += self._conversion_losses(record, operation, compact, main)
        return tuple(results)

    def continue_with(self, record: StoredRecord) -> None:
        """Says that `record` has the content of the record that was judged last, perhaps in a store that was
        opened anew: oracle and yardstick are not run again for it."""
        self._last.record = record

    def _handed(
        self,
        record: StoredRecord,
        operation: Operation,
        compact: Call,
        outputs: Mapping[str, Tensor],
        handed: Mapping[str, str] | None,
        *,
        oracle: bool,
    ) -> _Handed:
        """`oracle`: the exact result is needed whatever the rule."""
        conventions = tuple(sorted({**compact.conventions, **(handed or {})}.items()))
        bound = isinstance(self.rule, Bound)
        given = operation.convert(compact, dict(conventions))
        exact = self._run(ORACLE, record, operation, compact, given) if oracle or bound else {}
        torchs = self._run(YARDSTICK, record, operation, compact, given) if bound else {}
        return _Handed(clear_stale(operation, compact, outputs), compact, given, exact, torchs)

    def _run(
        self, kernel: str, record: StoredRecord, operation: Operation, compact: Call, given: Call
    ) -> dict[str, Tensor]:
        """The results of `kernel` on `given`, which is `compact` in other conventions, in those of
        `compact`."""
        if self._last.record is not record:
            self._last.forget(record)
        found, key = self._last.outputs, (kernel, tuple(sorted(given.conventions.items())))
        if key not in found:
            results = _run_on(operation, kernel, given, compact)
            found[key] = {name: tensor if self.brief else tensor.cpu() for name, tensor in results.items()}
        return found[key]

    def _bounded(
        self, operation: Operation, subject: Subject, main: _Handed, beside: _Handed | None, bound: Bound
    ) -> list[TensorResult]:
        name = subject.name
        tensor = main.outputs[name]
        if self.brief and beside is None and name not in operation.tolerances:
            found = self._briefly(subject, main, bound)
            if found is not None and found.passed:
                return [found]
        results = [
            _with_unwritten(_judge_output(operation, subject, main, bound, self._last), subject, tensor)
        ]
        if beside is None:
            return results
        if name not in beside.outputs:
            return [
                *results,
                missing_tensor(name, subject.when, Side.AGAINST, "not among the outputs compared with"),
            ]
        against = replace(subject, side=Side.AGAINST)
        results.append(_judge_output(operation, against, beside, bound, self._last))
        difference = replace(subject, side=Side.DIFFERENCE)
        results.append(show_difference(difference, Memory(tensor), Memory(beside.outputs[name])))
        return results

    def _briefly(self, subject: Subject, main: _Handed, bound: Bound) -> TensorResult | None:
        """The result of a quick check; None if only a full comparison can decide."""
        oracle, yardstick = main.oracle[subject.name], main.yardstick[subject.name]
        known, key = self._last.errors, (subject.name, main.conventions)
        if key not in known:
            known[key] = quick_errors(yardstick, oracle, subject.partition, subject.axes)
        torchs = known[key]
        if torchs is None:
            return None
        tensor = main.outputs[subject.name].to(oracle.device)
        return judge_briefly(subject, tensor, oracle, yardstick, torchs, bound)

    def _conversion_losses(
        self, record: StoredRecord, operation: Operation, compact: Call, main: _Handed
    ) -> list[TensorResult]:
        """How far the exact result of the values that the kernel was handed is from that of the recorded
        call; empty if no conversion rounded."""
        rounding = {convention.name for convention in operation.conventions if convention.rounds}
        recorded = tuple(sorted(compact.conventions.items()))
        if not main.oracle or not rounding & {name for name, _ in set(main.conventions) - set(recorded)}:
            return []
        exact = self._run(ORACLE, record, operation, compact, compact)
        found = []
        for name in compared_tensors(operation, compact):
            if name in operation.selections:
                continue
            subject = replace(subject_of(record, operation, compact, name), side=Side.CONVERSION)
            found.append(show_difference(subject, Memory(main.oracle[name].cpu()), Memory(exact[name].cpu())))
        return found


def run_as_handed(
    operation: Operation, kernel: str, call: Call, handed: Mapping[str, str]
) -> dict[str, Tensor]:
    """The results, in the conventions of `call`, of one of the operation's kernels on the values of `call`
    converted to the conventions `handed`."""
    return _run_on(operation, kernel, operation.convert(call, handed), call)


def _run_on(operation: Operation, kernel: str, given: Call, call: Call) -> dict[str, Tensor]:
    """The results of one of the operation's kernels on `given`, in the conventions of `call`, with zeros in
    elements that may hold anything."""
    results = run_kernel(operation, kernel, given)
    own = operation.convert_outputs(results, given.conventions, call.conventions)
    return clear_stale(operation, call, own)


def judge_call(
    operation: Operation, call: Call, outputs: Mapping[str, Tensor], rule: Rule, handed: Mapping[str, str]
) -> tuple[TensorResult, ...]:
    """Results for `outputs` of a call outside any record, compared with the oracle; all on the CPU. A kernel
    left the outputs, in the call's conventions; it was handed the call in the conventions `handed`."""
    given = operation.convert(call, handed)
    oracle = _run_on(operation, ORACLE, given, call)
    bound = isinstance(rule, Bound)
    yardstick = _run_on(operation, YARDSTICK, given, call) if bound else {}
    main = _Handed(clear_stale(operation, call, outputs), call, given, oracle, yardstick)
    results: list[TensorResult] = []
    for name in compared_tensors(operation, call):
        subject = _subject(operation, call, name, None)
        if name in operation.selections:
            results += _selected(operation, subject, main, None, rule)
        elif isinstance(rule, Bound):
            result = _judge_output(operation, subject, main, rule, _Exact())
            results.append(_with_unwritten(result, subject, main.outputs[name]))
        else:
            results.append(_held(subject, main.outputs[name], oracle, rule))
    return tuple(results)


def _selected(
    operation: Operation, subject: Subject, main: _Handed, beside: _Handed | None, rule: Rule
) -> list[TensorResult]:
    """Results for an output that is a set of indices. Under a bound, and without `beside`, it is judged by
    the candidates of the call, whose values are exact; else it must select what `beside` selects."""
    name = subject.name
    tensor, selection = main.outputs[name].cpu(), operation.selections[name](main.call)
    against = None if beside is None else replace(subject, side=Side.AGAINST)
    if beside is not None and name not in beside.outputs:
        missing = missing_tensor(name, subject.when, Side.AGAINST, "not among the outputs compared with")
        if not isinstance(rule, Bound):
            return [missing]
        return [_with_unwritten(judge_selection(subject, tensor, selection), subject, tensor), missing]
    if beside is None or isinstance(rule, Bound):
        results = [_with_unwritten(judge_selection(subject, tensor, selection), subject, tensor)]
        if against is not None and beside is not None:
            theirs = beside.outputs[name].cpu()
            results.append(judge_selection(against, theirs, operation.selections[name](beside.call)))
            difference = replace(subject, side=Side.DIFFERENCE)
            shown = compare_selections(difference, Memory(tensor), Memory(theirs), selection)
            if shown.errors is not None:
                shown = replace(shown, reasons=(), judged=False)
            results.append(shown)
        return results
    tolerance = rule if isinstance(rule, Tolerance) else None
    theirs = beside.outputs[name].cpu()
    found = compare_selections(subject, Memory(tensor), Memory(theirs), selection, tolerance)
    return [_with_unwritten(found, subject, tensor)]


def _judge_output(
    operation: Operation, subject: Subject, handed: _Handed, bound: Bound, last: _Exact
) -> TensorResult:
    """Judge an output of one side by its tolerance, if the contract gives it one, else by `bound`. An output
    that fails is judged once more without the part of its error that the contract's leeway covers. `last`
    keeps what is the same for every kernel."""
    name = subject.name
    key = (name, handed.conventions)
    tensor, exact, torchs = handed.outputs[name], handed.oracle[name].cpu(), handed.yardstick[name].cpu()

    def judged(exact: Tensor, torchs: Tensor, known: Yardstick | None = None) -> TensorResult:
        tolerance = operation.tolerances.get(name)
        if tolerance is None:
            return judge(subject, tensor, exact, torchs, bound, known=known)
        rule = Tolerance(tolerance.absolute, tolerance.relative)
        return judge_against_target(
            subject, Memory(tensor), Memory(_with_overflows(exact, tensor.dtype)), rule
        )

    if key not in last.yardsticks and name not in operation.tolerances:
        last.yardsticks[key] = yardstick_of(subject, exact, torchs, torchs.dtype)
    result = judged(exact, torchs, last.yardsticks.get(key))
    if result.passed or result.errors is None:
        return result
    if key not in last.leeways:
        last.leeways[key] = _leeway(operation, name, handed)
    covered = covered_by(last.leeways[key], handed.outputs[name].double() - exact)
    if covered is None:
        return result
    # Torch's error stays what it was: its result moves with the exact one.
    lenient = judged(exact + covered, torchs.double() + covered)
    return replace(result, reasons=lenient.reasons, held=lenient.held)


def _leeway(operation: Operation, name: str, handed: _Handed) -> Tensor | None:
    """What the contract's leeway allows each element of an output; None if it gives none."""
    leeway = operation.leeway(handed.call, name)
    if leeway is None:
        return None
    target = handed.recorded.conventions
    return operation.convert_outputs({name: leeway}, handed.call.conventions, target)[name].cpu()


def covered_by(leeway: Tensor | None, error: Tensor) -> Tensor | None:
    """The part of an error that a leeway covers, element by element; None if there is none. Zero where the
    error is not finite."""
    if leeway is None:
        return None
    return torch.where(error.isfinite(), error.clamp(-leeway, leeway), 0.0)


def compared_tensors(operation: Operation, call: Call) -> tuple[str, ...]:
    """The tensors of a call that are compared: its outputs and what it mutates, in contract order."""
    outputs = operation.outputs(call)
    return tuple(
        spec.name
        for spec in operation.tensors
        if spec.name in outputs or (spec.role is Role.MUTATED and spec.name in call.tensors)
    )


def subject_of(record: StoredRecord, operation: Operation, compact: Call, name: str) -> Subject:
    """The subject for output or mutated tensor `name` of a record."""
    return _subject(operation, compact, name, calls.slots_of(record, name))


def _subject(operation: Operation, call: Call, name: str, rows: tuple[int, ...] | None) -> Subject:
    return Subject(
        name,
        When.AFTER,
        operation.partition(call, name),
        operation.spec(name).axes_in(call.conventions),
        rows=rows,
        cut_operands=operation.cut_operands,
        line_factors=operation.line_factors,
    )


def _held(
    subject: Subject, tensor: Tensor, targets: Mapping[str, Tensor], rule: Bitwise | Tolerance
) -> TensorResult:
    if subject.name not in targets:
        return missing_tensor(subject.name, subject.when, Side.AGAINST, "not among the outputs compared with")
    target = targets[subject.name].cpu()
    if target.dtype == torch.float64:
        bitwise = isinstance(rule, Bitwise)
        target = target.to(tensor.dtype) if bitwise else _with_overflows(target, tensor.dtype)
    return _with_unwritten(
        judge_against_target(subject, Memory(tensor), Memory(target), rule), subject, tensor
    )


def _with_overflows(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """`exact` (fp64) with infinity where rounding to `dtype` gives infinity: no tolerance reaches from
    there."""
    rounded = exact.to(dtype).double()
    return torch.where(rounded.isinf(), rounded, exact)


def _with_unwritten(result: TensorResult, subject: Subject, tensor: Tensor) -> TensorResult:
    """Add to a failing result how many elements still hold the poison."""
    if result.passed:
        return result
    unwritten = poisoned(tensor.reshape(tuple(tensor.shape) or (1,)))  # of any shape
    count = sum(int(unwritten[region.start : region.stop].sum()) for region in subject.partition.regions)
    if not count:
        return result
    return replace(
        result, reasons=(f"{count} of {result.elements} elements were never written", *result.reasons)
    )
