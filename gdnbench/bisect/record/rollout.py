# SPDX-License-Identifier: Apache-2.0
"""Runs calls one after another, each on the states that the same kernel left before: the kernel under test,
the fp64 oracle, and torch's kernel each on their own states.

These are probes, each in a worker process. States go from one probe to the next in a file.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from gdnbench.bisect.cache_key import open_unchanged
from gdnbench.bisect.record.links import Links
from gdnbench.bisect.trial import BIT_DIFFERENCE, STATES, with_schedule
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bits import as_integers
from gdnbench.errors import BAD_INPUT_ERRORS, StoreError
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.calls import compact_call
from gdnbench.judge.record import ORACLE, YARDSTICK, judge_call, run_as_handed
from gdnbench.judge.rule import Rule, make_rule
from gdnbench.ops import operation as operation_of
from gdnbench.replay.call import call_kernel, conversion
from gdnbench.replay.execute import device_of
from gdnbench.replay.failure import classify, describe
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.run import kernel_errors
from gdnbench.replay.simulated import SIM, simulated
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.run import run_kernel

OWN, EXACT, TORCH = "own", "exact", "torch"
Carried = dict[tuple[int, int], dict[str, Tensor]]
"""States by (record, row) and by whose they are."""
ENDLESS = 1e300
"""What an error that is not finite counts as."""


class _ScheduleShowsError(Exception):
    """A call leaves other bits under another schedule."""


@dataclass(frozen=True, slots=True)
class RecordKernel:
    """A kernel on records, where it runs; on the simulator under each of `schedules`, and with `keep_going`
    on after faults that can be skipped."""

    name: str
    on: str
    schedules: Sequence[str]
    keep_going: bool = field(default=False, kw_only=True)

    def loaded(self, op: Operation) -> LoadedKernel:
        with simulated(self.on):
            return load(self.name, op)

    def handed(self, op: Operation, call: Call) -> dict[str, str]:
        """The conventions in which the kernel is handed `call`."""
        return conversion(call, op, self.loaded(op)).target

    def run_call(self, op: Operation, call: Call) -> dict[str, Tensor]:
        """Outputs and what is mutated, on the CPU, in the conventions of `call`, which stays as it is."""
        left = list(self.each(op, call))
        _agree(left)
        return left[0][1]

    def each(self, op: Operation, call: Call) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """What it leaves under one schedule after the other."""
        for schedule in self.schedules if self.on == SIM else self.schedules[:1]:
            with with_schedule(self.on, schedule):
                yield schedule, self._once(op, call)

    def _once(self, op: Operation, call: Call) -> dict[str, Tensor]:
        kernel = self.loaded(op)
        device = device_of(self.on)
        tensors = {name: tensor.to(device, copy=True) for name, tensor in call.tensors.items()}
        moved = Call(tensors, call.scalars, call.conventions)
        given = op.convert(moved, conversion(moved, op, kernel).target)
        with simulated(self.on, keep_going=self.keep_going):
            returned = call_kernel(given, op, kernel)
        found = op.convert_outputs(returned, given.conventions, call.conventions)
        return {name: tensor.detach().cpu() for name, tensor in found.items()}


def _agree(left: Sequence[tuple[str, Mapping[str, Tensor]]]) -> None:
    """_ScheduleShowsError if a call leaves other bits under one schedule than under the first."""
    (first, kept), *others = left
    for schedule, other in others:
        for name, tensor in kept.items():
            if not torch.equal(as_integers(tensor.contiguous()), as_integers(other[name].contiguous())):
                raise _ScheduleShowsError(f"schedule {schedule} leaves other bits of {name} than {first}")


def block(
    *,
    store: str,
    kernel: str,
    on: str,
    calls: Sequence[int],
    links: Mapping[str, Any],
    keep: Sequence[tuple[int, int]],
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    content: str,
    load_from: str | None,
    save_to: str,
    keep_going: bool = False,
) -> Verdict:
    """Runs `calls` after the block that left `load_from`, and leaves the states `keep`. Facts: an entry for
    each state that a call leaves, with its relative error and that of torch's, of all heads and of each; and
    the digest of the file. StoreError if the calls are not those of digest `content`."""
    begin = time.monotonic()
    found: list[dict[str, Any]] = []
    with open_unchanged(store, lambda _: calls, content) as (opened, _, _):
        linked, carried = Links.from_json(links), _load(load_from)
        runs = RecordKernel(kernel, on, schedules, keep_going=keep_going)
        for number in calls:
            try:
                found += advance(opened.records[number], linked, carried, runs, tol)
            except (*BAD_INPUT_ERRORS, StoreError):
                raise
            except kernel_errors() as error:
                verdict = failure(error, f"record {opened.records[number].key}")
                return replace(verdict, facts={"entries": found, "failed": number})
        _save(save_to, {(number, row): carried[number, row] for number, row in keep})
    facts = {"entries": found, "states": of_states(Path(save_to))}
    return Verdict(State.GOOD, str(Outcome.PASS), facts=facts, seconds=time.monotonic() - begin)


def of_states(path: Path) -> str:
    """BLAKE3 of a file of states; empty if it is not there."""
    try:
        return blake3(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def steps(
    *,
    store: str,
    kernel: str,
    on: str,
    calls: Sequence[int],
    links: Mapping[str, Any],
    judged: Sequence[int],
    k: float | None,
    tol: tuple[float, float] | None,
    schedules: Sequence[str],
    content: str,
    keep_going: bool = False,
    tensor: str | None = None,
) -> Verdict:
    """Each of the calls `judged` from the exact state, carried by the oracle and rounded to what it is kept
    in, until one is bad: under any schedule, or as its bits differ between them. With `tensor` only that one
    is judged. Facts: an entry a call. StoreError if the calls are not those of digest `content`."""
    begin = time.monotonic()
    rule, reason = make_rule(k, None, tol), ""
    made: list[dict[str, Any]] = []
    with open_unchanged(store, lambda _: calls, content) as (opened, _, _):
        linked = Links.from_json(links)
        runs = RecordKernel(kernel, on, schedules, keep_going=keep_going)
        carried: Carried = {}
        for number in calls[: max(calls.index(one) for one in judged) + 1]:
            record = opened.records[number]
            op = operation_of(record.info.op)
            reason = ""
            if number in judged:
                reason = _alone(record, op, linked, carried, runs, rule, tensor)
                made.append({"number": number, "reason": reason})
            if reason:
                break
            left = run_kernel(op, ORACLE, _with_states(record, op, linked, carried, EXACT))[_left(op)]
            for row in range(len(left)):
                carried[number, row] = {EXACT: left[row]}
    outcome = Outcome.MISMATCH if reason else Outcome.PASS
    return Verdict(
        State.BAD if reason else State.GOOD,
        str(outcome),
        reason,
        facts={"steps": made},
        seconds=time.monotonic() - begin,
    )


def _alone(
    record: StoredRecord,
    op: Operation,
    links: Links,
    carried: Carried,
    kernel: RecordKernel,
    rule: Rule,
    tensor: str | None,
) -> str:
    """Why a call is bad from the exact state; empty where it passes."""
    call = _with_states(record, op, links, carried, EXACT, rounded=True)
    left = []
    try:
        for schedule, outputs in kernel.each(op, call):
            left.append((schedule, outputs))
            results = judge_call(op, call, outputs, rule, kernel.handed(op, call))
            under = f" under {schedule}" if schedule != kernel.schedules[0] else ""
            for one in results:
                for reason in one.reasons if tensor in (None, one.tensor) else ():
                    return f"{one.tensor}: {reason}{under}"
        _agree(left)
    except (*BAD_INPUT_ERRORS, StoreError):
        raise
    except kernel_errors() as error:
        return failure(error, "").reason
    return ""


def advance(
    record: StoredRecord,
    links: Links,
    carried: Carried,
    kernel: RecordKernel,
    tol: tuple[float, float] | None,
) -> Iterator[dict[str, Any]]:
    """Runs one call on each side's own states, keeps what they leave, and measures it."""
    op = operation_of(record.info.op)
    name = _left(op)
    own = kernel.run_call(op, _with_states(record, op, links, carried, OWN))[name]
    call = compact_call(record, op, torch.device("cpu"))
    handed = kernel.handed(op, call)
    exact = run_as_handed(op, ORACLE, _with_states(record, op, links, carried, EXACT), handed)[name]
    torchs = run_as_handed(op, YARDSTICK, _with_states(record, op, links, carried, TORCH), handed)[name]
    pooled = op.spec(name).pool_index is not None
    written = {
        row: region.sequence
        for region in op.partition(call, name).regions
        for row in range(region.start, region.stop)
        if region.token is not None or not pooled
    }
    for row in range(len(exact)):
        carried[record.number, row] = {OWN: own[row], EXACT: exact[row], TORCH: torchs[row]}
    for row, sequence in sorted(written.items()):
        mine, theirs = (_relative(one[row], exact[row]) for one in (own, torchs))
        yield {
            "number": record.number,
            "row": row,
            "sequence": sequence,
            "lane": links.lanes.get((record.number, row), f"state {row} from record {record.number}"),
            "own": mine,
            "torch": theirs,
            "eps": torch.finfo(own.dtype).eps,
            "beyond": None if tol is None else _beyond(own[row], exact[row], Tolerance(*tol)),
        }


def _with_states(
    record: StoredRecord, op: Operation, links: Links, carried: Carried, whose: str, rounded: bool = False
) -> Call:
    """The call with the states that one side left before in place of those that were recorded."""
    call = compact_call(record, op, torch.device("cpu"))
    name = op.carries[0] if op.carries is not None else ""
    if name not in call.tensors:
        return call
    states = call.tensors[name].clone()
    kept = states.dtype
    if whose == EXACT and not rounded:
        states = states.double()
    for row in range(len(states)):
        earlier = links.before.get((record.number, row))
        if earlier is not None and earlier in carried:
            states[row] = carried[earlier][whose].to(states.dtype)
    assert rounded or whose == EXACT or states.dtype == kept
    return Call({**call.tensors, name: states}, call.scalars, call.conventions)


def _left(op: Operation) -> str:
    assert op.carries is not None
    return op.carries[1]


def _relative(state: Tensor, exact: Tensor) -> list[float]:
    """|S - S64| / |S64|: of the state, then of each head."""
    wrong, size = (state.double() - exact).flatten(1).norm(dim=1), exact.flatten(1).norm(dim=1)
    both = [(float(wrong.norm()), float(size.norm())), *zip(wrong.tolist(), size.tolist(), strict=True)]
    return [_ratio(error, norm) for error, norm in both]


def _ratio(error: float, size: float) -> float:
    if error == 0:
        return 0.0
    found = error / size if size > 0 else math.inf
    return found if math.isfinite(found) else ENDLESS


def _beyond(state: Tensor, exact: Tensor, rule: Tolerance) -> float:
    """Most that |x - y| is of ABS + REL |y|."""
    allowed = rule.abs + rule.rel * exact.abs()
    found = float(((state.double() - exact).abs() / allowed.clamp(min=1e-300)).max())
    return found if math.isfinite(found) else ENDLESS


def failure(error: BaseException, where: str) -> Verdict:
    if isinstance(error, _ScheduleShowsError):
        return Verdict(State.BAD, BIT_DIFFERENCE, f"{where}: {error}" if where else str(error))
    outcome = classify(error)
    if outcome is Outcome.REFUSED:
        raise error
    text = describe(error)
    return Verdict(STATES[outcome], str(outcome), f"{where}: {text}" if where else text)


def _load(path: str | None) -> Carried:
    if path is None:
        return {}
    found: Carried = torch.load(path, weights_only=True)
    return found


def _save(path: str, kept: Carried) -> None:
    beside = Path(f"{path}.{os.getpid()}")  # another bisection may write the same
    torch.save({at: {who: x.clone() for who, x in one.items()} for at, one in kept.items()}, beside)
    beside.replace(path)
