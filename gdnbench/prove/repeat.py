# SPDX-License-Identifier: Apache-2.0
"""Tests whether a kernel gives the same bits each time that it is called.

All records run in order, then in reverse order, in one process. So every record is run twice with other
records between, and what an earlier call left in a cache, a buffer or a counter is not the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge import calls
from gdnbench.judge.selection import selected_values
from gdnbench.judge.valid_rows import keep_valid_rows, wrong_shapes
from gdnbench.ops import operation
from gdnbench.prove.result import Check, Section
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.replay import runner
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call, Operation

BITS = "same bits"


def repeat_order(count: int) -> list[int]:
    """0 .. count - 1, then back. The last one runs a third time: its first two runs have nothing between."""
    forward = list(range(count))
    return [*forward, *reversed(forward), *forward[-1:]]


def check_repeats(
    store: Store,
    *,
    kernel: str,
    on: str,
    isolate: bool | None = None,
    timeout: float | None = None,
    found: Callable[[Check], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run all records of `store` repeatedly; `found` takes a check for each after its last run. Rows that
    belong to no sequence may differ. Raises as `replay` does."""
    order = repeat_order(len(store.records))
    last = {number: place for place, number in enumerate(order)}
    first: dict[int, dict[str, Tensor]] = {}
    checks: dict[int, Check] = {}
    with closing(runner(store, kernel, on, isolate=isolate, timeout=timeout)) as running:
        for place, number in enumerate(order):
            record = store.records[number]
            of = operation(record.info.op)
            subject = f"{number} {record.info.layer}"
            known = checks.get(number, Check(Section.REPEAT, BITS, subject, Outcome.PASS, runs=0))
            begin = time.monotonic()
            left = running.run_record(record, of) if known.passed else None
            reasons: tuple[str, ...] = ()
            outcome = known.outcome
            if isinstance(left, Failure):
                outcome, reasons = left.outcome, (left.reason,)
            elif isinstance(left, Execution):
                call = calls.compact_call(record, of, torch.device("cpu"))
                reasons = wrong_shapes(of, call, left.outputs)
                if not reasons:
                    results = _values_of_sets(of, call, keep_valid_rows(of, call, left.outputs))
                    reasons = _unequal(first.setdefault(number, results), results)
                outcome = Outcome.MISMATCH if reasons else outcome
            checks[number] = Check(
                Section.REPEAT,
                BITS,
                subject,
                outcome,
                (*known.reasons, *reasons),
                runs=known.runs + (left is not None),
                seconds=known.seconds + time.monotonic() - begin,
            )
            progress(place + 1, len(order))
            if last[number] == place:
                found(checks[number])
                first.pop(number, None)


def _values_of_sets(of: Operation, call: Call, results: dict[str, Tensor]) -> dict[str, Tensor]:
    """`results` with the selected values, in descending order, in place of sets of indices: their order and
    the choice between equal values may differ from run to run."""
    found = dict(results)
    for name, selection_of in of.selections.items():
        if name in results:
            selection = selection_of(call)
            _, found[name] = selected_values(selection, torch.arange(len(selection.count)), results[name])
    return found


def _unequal(one: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[str, ...]:
    """A line for each tensor whose bits differ between two runs."""
    lines = []
    for name, x in one.items():
        y = other.get(name)
        if y is None or x.shape != y.shape or x.dtype != y.dtype:
            lines.append(f"{name}: another shape or dtype in a second run")
            continue
        wrong = as_integers(x) != as_integers(y)
        if bool(wrong.any()):
            at = tuple(int(i) for i in wrong.nonzero()[0])
            lines.append(
                f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ in a second run, first"
                f" {list(at)}: {float(x[at]):.9g} and {float(y[at]):.9g}"
            )
    return tuple(lines)
