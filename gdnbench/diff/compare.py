# SPDX-License-Identifier: Apache-2.0
"""Compares two stores record by record, tensor by tensor, in memory that does not grow with them.

By default two tensors pass only when their bits are equal: two stores have no reference between them that
could say how far apart they may be. Outputs that are sets of indices are equal in any order, and if they
select equal values. A tolerance is given by hand, or `oracle` judges both sides by the fp64 oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from gdnbench.bits import logical
from gdnbench.diff.pairs import pair
from gdnbench.errors import BAD_INPUT_ERRORS, BadInputError, StoreError
from gdnbench.judge import calls
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.location import whole_tensor
from gdnbench.judge.record import Judge
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.row_source import Memory, RowSource, Stored
from gdnbench.judge.rule import Bitwise, Bound, Rule, describe_rule, make_rule
from gdnbench.judge.selection import compare_selections
from gdnbench.judge.tensor import Subject, judge_against_target, missing_tensor
from gdnbench.ops import operation
from gdnbench.record import When
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import DiffReport, RecordResult
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench_kernels.contract import Call, ContractError, Operation, Partition, Role, Selection

Progress = Callable[[int, int, RecordResult], None]


def diff(
    a: Store,
    b: Store,
    *,
    tol: tuple[float, float] | None = None,
    oracle: bool = False,
    k: float | None = None,
    k_by_tensor: Mapping[str, float] | None = None,
    op: str | None = None,
    grids: bool = False,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare `a` with `b`; a record or tensor that one of them lacks is a mismatch.

    `tol` = (abs, rel) replaces bit equality. `oracle` judges the outputs of both by the fp64 oracle instead,
    with `k` (2 unless given) times the error of torch's kernel; it needs the inputs in one of the two and
    holds one record in memory. `grids`: results have their errors by chunk and head. BadInputError if the
    options contradict each other or there is no record to compare.
    """
    if oracle and tol is not None:
        raise BadInputError("choose one of tol and oracle, not both")
    if not oracle and (k is not None or k_by_tensor):
        raise BadInputError("k multiplies torch's error by the oracle, which is looked at with oracle alone")
    rule = make_rule(k, k_by_tensor, tol, bitwise=not oracle and tol is None)
    pairs = pair(a, b, op)
    total = len(pairs.matched) + len(pairs.only_a) + len(pairs.only_b)
    if not total:
        raise BadInputError(f"neither {a.path} nor {b.path} has a record" + (f" of {op}" if op else ""))
    results: list[RecordResult] = []

    def add(result: RecordResult) -> None:
        results.append(result)
        if progress is not None:
            progress(len(results), total, result)

    for i, j in pairs.matched:
        add(_compared(a.records[i], b.records[j], rule, grids))
    for store, numbers, name in ((a, pairs.only_a, "A"), (b, pairs.only_b, "B")):
        for number in numbers:
            reason = f"only {name} ({store.path}) has this record"
            add(RecordResult.from_record(store.records[number], Outcome.MISMATCH, reason))
    return DiffReport(str(a.path), str(b.path), describe_rule(rule), tuple(results))


def _compared(a: StoredRecord, b: StoredRecord, rule: Rule, grids: bool) -> RecordResult:
    try:
        op = operation(a.info.op)
        if isinstance(rule, Bound):
            return _by_oracle(a, b, op, rule, grids)
        notes: list[str] = []
        tensors = tuple(_tensors(a, b, op, rule, grids, notes))
        return _settled(a, b, tensors, tuple(_strangers(a, b, op)), tuple(notes))
    except (*BAD_INPUT_ERRORS, ContractError, StoreError) as error:
        return replace(RecordResult.from_record(a, Outcome.REFUSED, str(error)), other=b.key)


def _settled(
    a: StoredRecord,
    b: StoredRecord,
    tensors: tuple[TensorResult, ...],
    faults: tuple[str, ...],
    notes: tuple[str, ...],
) -> RecordResult:
    reasons = [*faults, *(f"{t.tensor}: {reason}" for t in tensors for reason in t.reasons)]
    outcome = Outcome.MISMATCH if reasons else Outcome.PASS
    result = RecordResult.from_record(a, outcome, reasons[0] if reasons else "")
    return replace(result, other=b.key, tensors=tensors, faults=faults, notes=notes)


def _tensors(
    a: StoredRecord, b: StoredRecord, op: Operation, rule: Bitwise | Tolerance, grids: bool, notes: list[str]
) -> Iterator[TensorResult]:
    """Every tensor that both records hold, and a failing result for an output that one lacks. Stages are
    compared, ahead of outputs, where both runs kept them (`replay --stages --save`)."""
    owners = _Owners(a, op, notes)
    conventions = calls.conventions_of(a, op)
    stages = [stage.tensor.name for stage in op.stages]
    names = [*stages, *(spec.name for spec in op.tensors)]
    for when, left, right in ((When.BEFORE, a.before, b.before), (When.AFTER, a.after, b.after)):
        for name in (name for name in names if name in left or name in right):
            if name in left and name in right:
                axes = op.spec(name).axes_in(conventions)
                rows = calls.slots_of(a, name)
                partition = owners.partition_of(name, when, left[name])
                subject = Subject(name, when, partition, axes, Side.DIFFERENCE, rows, grids)
                sides = owners.sides(name, when, left[name], right[name])
                if when is When.AFTER and name in op.selections:
                    tolerance = rule if isinstance(rule, Tolerance) else None
                    found = compare_selections(subject, *sides, _selection_of(a, b, op, name), tolerance)
                else:
                    found = judge_against_target(subject, *sides, rule)
                yield replace(found, stage=name in stages)
            elif name in stages:
                notes.append(f"stage {name}: only {'A' if name in left else 'B'} has it")
            elif when is When.AFTER:
                yield missing_tensor(
                    name, when, Side.DIFFERENCE, f"only {'A' if name in left else 'B'} has it"
                )


def _selection_of(a: StoredRecord, b: StoredRecord, op: Operation, name: str) -> Selection | None:
    """What set output `name` selects from, if one of the records holds the call's inputs."""
    for record in (a, b):
        if _has_inputs(record):
            calls.check_record(record, op)
            return op.selections[name](calls.compact_call(record, op, torch.device("cpu")))
    return None


@dataclass(slots=True)
class _Owners:
    """Which sequence, chunk and head own the rows of a record's tensors, from its index tensors."""

    record: StoredRecord
    op: Operation
    notes: list[str]
    call: Call | None = None

    def partition_of(self, name: str, when: When, handle: TensorHandle) -> Partition:
        rows = handle.meta.shape[0] if handle.meta.shape else 1
        if self.op.spec(name).role is Role.INPUT:
            return whole_tensor(rows)
        try:
            if self.call is None:
                self.call = calls.outline_call(self.record, self.op)
            return self.op.partition(self.call, name)
        except KeyError as error:
            self.notes.append(f"{name}: all rows compared, because {error} is not recorded")
            return whole_tensor(rows)

    def sides(
        self, name: str, when: When, left: TensorHandle, right: TensorHandle
    ) -> tuple[RowSource, RowSource]:
        """Both tensors of a name, with zeros in elements that may hold anything; those are known once the
        tensor has a partition of its own."""
        stale = None
        same = left.meta.shape == right.meta.shape
        if when is When.AFTER and self.call is not None and same and self.op.spec(name).role is Role.OUTPUT:
            stale = self.op.stale(self.call, name, left.meta.shape)
        if stale is None:
            return Stored(left), Stored(right)
        return Memory(left.read().masked_fill(stale, 0)), Memory(right.read().masked_fill(stale, 0))


def _strangers(a: StoredRecord, b: StoredRecord, op: Operation) -> Iterator[str]:
    """Why two records are not the same call: operation, conventions, scalars, or the bits of an input."""
    if a.info.op != b.info.op:
        yield f"operation {a.info.op} against {b.info.op}"
    elif (left_way := calls.conventions_of(a, op)) != (right_way := calls.conventions_of(b, op)):
        yield f"conventions {left_way} against {right_way}"
    if a.info.scalars != b.info.scalars:
        yield f"scalars {dict(a.info.scalars)} against {dict(b.info.scalars)}"
    left, right = _digests(a), _digests(b)
    for name in sorted(left.keys() | right.keys()):
        if name in a.before and name in b.before:
            continue  # compared element by element
        if name not in left or name not in right:
            yield f"input {name}: only {'A' if name in left else 'B'} has it"
        elif left[name] != right[name]:
            yield f"input {name}: different bits, by digest"


def _digests(record: StoredRecord) -> dict[str, str]:
    """Digests of the inputs of a record; a replayed one remembers those of what it replayed."""
    recorded: Mapping[str, str] = record.info.run.get("inputs", {})
    return {**recorded, **{name: handle.digest for name, handle in record.before.items()}}


def _by_oracle(a: StoredRecord, b: StoredRecord, op: Operation, bound: Bound, grids: bool) -> RecordResult:
    source = next((record for record in (a, b) if _has_inputs(record)), None)
    if source is None:
        reason = "neither store holds the inputs: the oracle needs one of them to be a capture"
        return replace(RecordResult.from_record(a, Outcome.NOT_COMPARABLE, reason), other=b.key)
    faults = [
        *_strangers(a, b, op),
        *(
            f"input {name}: different bits, by digest"
            for name in a.before.keys() & b.before.keys()
            if a.before[name].digest != b.before[name].digest
        ),
    ]
    if faults:
        return _settled(a, b, (), tuple(faults), ())
    for side, record in (("A", a), ("B", b)):
        if not record.after:
            reason = f"{side} has no outputs: its call never finished, or its capture kept the inputs alone"
            return replace(RecordResult.from_record(a, Outcome.NOT_COMPARABLE, reason), other=b.key)
    calls.check_record(source, op)
    outputs = {name: handle.read() for name, handle in a.after.items()}
    other = {name: handle.read() for name, handle in b.after.items()}
    judge = Judge(bound, torch.device("cpu"), grids=grids)
    tensors = judge.tensors(source, op, outputs, other, handed=_handed(a), other_handed=_handed(b))
    return _settled(a, b, tensors, (), ())


def _handed(record: StoredRecord) -> dict[str, str]:
    """The conventions in which the kernel of a run was handed the call; a capture's are its own."""
    found = record.info.run.get("handed", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadInputError(f"record {record.number}: the run's `handed` is no table of conventions")
    return found


def _has_inputs(record: StoredRecord) -> bool:
    """Whether a record holds more of its inputs than index tensors."""
    return any(logical(handle.meta.dtype).torch_dtype.is_floating_point for handle in record.before.values())
