"""Judges a kernel's results on one record: every output and mutated tensor, under the given rule."""

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
from gdnbench.judge.tensor import (
    Subject,
    judge,
    judge_against_target,
    judge_briefly,
    missing_tensor,
    show_difference,
)
from gdnbench.poison import poisoned
from gdnbench.record import When
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation, Role
from gdnbench_kernels.run import run_kernel

ORACLE = "reference"
YARDSTICK = "torch"


@dataclass(slots=True)
class _Exact:
    """Oracle and yardstick results of the last record, computed once for several kernels."""

    record: StoredRecord | None = None
    outputs: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    errors: dict[str, Comparison | None] = field(default_factory=dict)  # the yardstick's, for quick checks


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
    ) -> tuple[TensorResult, ...]:
        """Results for `outputs`, and for `other` if given; `other` None: compare with the oracle."""
        if isinstance(self.rule, ByTensor):
            return self.rule.pick(
                operation.name,
                lambda rule: replace(self, rule=rule).tensors(record, operation, outputs, other),
            )
        compact = calls.compact_call(record, operation, self.device)
        needs_oracle = isinstance(self.rule, Bound) or other is None
        oracle = self._run(ORACLE, record, operation, compact) if needs_oracle else {}
        yardstick = self._run(YARDSTICK, record, operation, compact) if isinstance(self.rule, Bound) else {}
        results: list[TensorResult] = []
        for name in compared_tensors(operation, compact):
            subject = replace(subject_of(record, operation, compact, name), grid=self.grids)
            if name not in outputs:  # a kernel returns all of them; a record may lack some
                results.append(
                    missing_tensor(name, subject.when, subject.side, "it is not among the outputs")
                )
                continue
            tolerance = operation.tolerances.get(name)
            if isinstance(self.rule, Bound) and tolerance is not None:
                rule = Tolerance(tolerance.absolute, tolerance.relative)
                exact = {name: oracle[name].cpu()}
                results += _tolerated(subject, outputs, other, exact, rule)
            elif isinstance(self.rule, Bound):
                results += self._bounded(subject, outputs, other, oracle[name], yardstick[name], self.rule)
            else:
                target = {key: tensor.cpu() for key, tensor in (oracle if other is None else other).items()}
                results.append(_held(subject, outputs[name], target, self.rule))
        return tuple(results)

    def _run(
        self, kernel: str, record: StoredRecord, operation: Operation, compact: Call
    ) -> dict[str, Tensor]:
        if self._last.record is not record:
            self._last.record, self._last.outputs, self._last.errors = record, {}, {}
        found = self._last.outputs
        if kernel not in found:
            results = run_kernel(operation, kernel, compact)
            found[kernel] = {name: tensor if self.brief else tensor.cpu() for name, tensor in results.items()}
        return found[kernel]

    def _bounded(
        self,
        subject: Subject,
        outputs: Mapping[str, Tensor],
        other: Mapping[str, Tensor] | None,
        oracle: Tensor,
        yardstick: Tensor,
        bound: Bound,
    ) -> list[TensorResult]:
        name = subject.name
        if self.brief and other is None:
            found = self._briefly(subject, outputs[name], oracle, yardstick, bound)
            if found is not None:
                return [_with_unwritten(found, subject, outputs[name])]
        oracle, yardstick = oracle.cpu(), yardstick.cpu()
        results = [
            _with_unwritten(judge(subject, outputs[name], oracle, yardstick, bound), subject, outputs[name])
        ]
        if other is None:
            return results
        if name not in other:
            return [
                *results,
                missing_tensor(name, subject.when, Side.AGAINST, "not among the outputs compared with"),
            ]
        results.append(judge(replace(subject, side=Side.AGAINST), other[name], oracle, yardstick, bound))
        difference = replace(subject, side=Side.DIFFERENCE)
        results.append(show_difference(difference, Memory(outputs[name]), Memory(other[name])))
        return results

    def _briefly(
        self, subject: Subject, tensor: Tensor, oracle: Tensor, yardstick: Tensor, bound: Bound
    ) -> TensorResult | None:
        """The result of a quick check; None if only a full comparison can decide."""
        known = self._last.errors
        if subject.name not in known:
            known[subject.name] = quick_errors(yardstick, oracle, subject.partition, subject.axes)
        torchs = known[subject.name]
        if torchs is None:
            return None
        return judge_briefly(subject, tensor.to(oracle.device), oracle, torchs, bound)


def judge_call(
    operation: Operation, call: Call, outputs: Mapping[str, Tensor], rule: Rule
) -> tuple[TensorResult, ...]:
    """Results for `outputs` of a call outside any record, compared with the oracle; all on the CPU."""
    oracle = run_kernel(operation, ORACLE, call)
    yardstick = run_kernel(operation, YARDSTICK, call) if isinstance(rule, Bound) else {}
    results: list[TensorResult] = []
    for name in compared_tensors(operation, call):
        axes = operation.spec(name).axes_in(call.conventions)
        subject = Subject(name, When.AFTER, operation.partition(call, name), axes)
        tolerance = operation.tolerances.get(name)
        if isinstance(rule, Bound) and tolerance is not None:
            given = Tolerance(tolerance.absolute, tolerance.relative)
            results += _tolerated(subject, outputs, None, oracle, given)
        elif isinstance(rule, Bound):
            result = judge(subject, outputs[name], oracle[name], yardstick[name], rule)
            results.append(_with_unwritten(result, subject, outputs[name]))
        else:
            results.append(_held(subject, outputs[name], oracle, rule))
    return tuple(results)


def _tolerated(
    subject: Subject,
    outputs: Mapping[str, Tensor],
    other: Mapping[str, Tensor] | None,
    oracle: Mapping[str, Tensor],
    rule: Tolerance,
) -> list[TensorResult]:
    """Compare both sides with the oracle under the contract's tolerance for this output."""
    name = subject.name
    results = [_held(subject, outputs[name], oracle, rule)]
    if other is None:
        return results
    if name not in other:
        return [
            *results,
            missing_tensor(name, subject.when, Side.AGAINST, "not among the outputs compared with"),
        ]
    exact = _with_overflows(oracle[name], other[name].dtype)
    results.append(
        judge_against_target(replace(subject, side=Side.AGAINST), Memory(other[name]), Memory(exact), rule)
    )
    difference = replace(subject, side=Side.DIFFERENCE)
    return [*results, show_difference(difference, Memory(outputs[name]), Memory(other[name]))]


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
    axes = operation.spec(name).axes_in(compact.conventions)
    return Subject(
        name, When.AFTER, operation.partition(compact, name), axes, rows=calls.slots_of(record, name)
    )


def _held(
    subject: Subject, tensor: Tensor, targets: Mapping[str, Tensor], rule: Bitwise | Tolerance
) -> TensorResult:
    if subject.name not in targets:
        return missing_tensor(subject.name, subject.when, Side.AGAINST, "not among the outputs compared with")
    target = targets[subject.name]
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
