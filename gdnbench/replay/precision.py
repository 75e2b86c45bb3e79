# SPDX-License-Identifier: Apache-2.0
"""Replays records on the simulator with the kernel's own arithmetic in fp64: which errors are rounding.

The kernel runs in this process on the interpreter, with every float shadowed in double. Its results, and the
stages it fills, are compared with the exact ones of the values that it was handed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench.errors import Exit
from gdnbench.judge import calls
from gdnbench.judge.precision import Cause, Precision, precisions
from gdnbench.judge.record import ORACLE
from gdnbench.judge.stages import STAGED_ORACLE
from gdnbench.judge.valid_rows import keep_valid_rows
from gdnbench.ops import operation
from gdnbench.replay import bind, call
from gdnbench.replay.failure import Failure, classify, describe
from gdnbench.replay.kernels import LoadedKernel, check_name, load
from gdnbench.replay.requirements import prepared
from gdnbench.replay.run import folder_kept, kernel_errors
from gdnbench.replay.simulated import SIM, notes_of, simulated, skipped_faults
from gdnbench.report.outcome import worst_exit_code
from gdnbench.sim import Fp64Shadows, LostShadows, active
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.run import run_kernel

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PrecisionResult:
    """One record: its tensors, or why there are none. `constants` are f32 constants of the kernel with the
    numbers that stood for them; `faults` are those after which launches went on."""

    number: int
    op: str
    tensors: tuple[Precision, ...] = ()
    lost: tuple[LostShadows, ...] = ()
    constants: Mapping[float, float] | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def exit_code(self) -> Exit:
        """1 if an error is the formula's or amplified rounding, or the kernel failed; 3 if it could not run,
        or an error is of elements without a shadow."""
        if self.failure is not None:
            return self.failure.outcome.exit_code
        causes = {one.cause for one in self.tensors}
        if self.faults or causes & {Cause.FORMULA, Cause.UNSTABLE}:
            return Exit.MISMATCH
        return Exit.CANNOT_RUN if Cause.UNKNOWN in causes else Exit.PASS

    def as_json(self) -> dict[str, Any]:
        return {
            "record": self.number,
            "op": self.op,
            "failure": None if self.failure is None else self.failure.reason,
            "tensors": [one.as_json() for one in self.tensors],
            "lost": [one.as_json() for one in self.lost],
            "constants": [{"f32": f32, "meant": meant} for f32, meant in (self.constants or {}).items()],
            "notes": list(self.notes),
            "faults": list(self.faults),
            "seconds": self.seconds,
        }


def exit_code(results: Sequence[PrecisionResult]) -> Exit:
    """The exit code of a command over several records: 1 beats 3 beats 2 beats 0."""
    return worst_exit_code(one.exit_code for one in results)


def replay_precision(
    store: Store,
    numbers: Sequence[int],
    kernel: str,
    *,
    stages: bool = False,
    keep_going: bool = False,
    progress: Progress | None = None,
) -> list[PrecisionResult]:
    """The records with these numbers through `kernel`; with `keep_going` launches go on after faults that can
    be skipped. BadInputError for an unknown kernel, CannotRunError
    for one that is not simulated."""
    check_name(kernel, SIM)
    loaded: dict[str, LoadedKernel] = {}
    found = []
    for number in numbers:
        found.append(_replay_one(store.records[number], number, kernel, loaded, stages, keep_going))
        if progress is not None:
            progress(len(found), len(numbers))
    return found


def _replay_one(
    record: StoredRecord,
    number: int,
    kernel: str,
    loaded: dict[str, LoadedKernel],
    stages: bool,
    keep_going: bool,
) -> PrecisionResult:
    op = operation(record.info.op)
    try:
        calls.check_record(record, op)
        with contextlib.redirect_stdout(sys.stderr), folder_kept():
            if op.name not in loaded:
                with simulated(SIM):
                    loaded[op.name] = load(kernel, op)
            return _shadowed(record, number, op, loaded[op.name], stages, keep_going)
    except kernel_errors() as error:
        return PrecisionResult(number, op.name, failure=Failure(classify(error), describe(error)))


def _shadowed(
    record: StoredRecord, number: int, op: Operation, kernel: LoadedKernel, stages: bool, keep_going: bool
) -> PrecisionResult:
    cpu = torch.device("cpu")
    bound = bind.exact(record, op, cpu)
    plan = call.conversion(bound.call, op, kernel)
    given = op.convert(bound.call, plan.target) if plan.texts else bound.call
    given, made = prepared(given, op, kernel)
    shadows = Fp64Shadows(_numbers_of(given))
    filled: dict[str, Tensor] | None = {} if stages else None
    with (
        active() as around,
        active(replace(around.settings, watch=shadows)),
        simulated(SIM, keep_going=keep_going) as session,
    ):
        assert session is not None
        start = time.perf_counter()
        returned = call.call_kernel(given, op, kernel, filled)
        seconds = time.perf_counter() - start
    notes = (*plan.texts, *made, *bound.notes, *notes_of(session, kernel.name))
    own, fp64, where = {}, {}, {}
    for name, tensor in {**(filled or {}), **returned}.items():
        if not tensor.is_floating_point():
            continue
        rows = calls.slots_of(record, name) if name in returned else None
        own[name] = tensor
        fp64[name], where[name] = shadows.numbers(tensor)
        if rows is not None:
            chosen = torch.tensor(rows, dtype=torch.long)
            own[name], fp64[name], where[name] = (one[name][chosen] for one in (own, fp64, where))
    compact = op.convert(calls.compact_call(record, op, cpu), plan.target)
    exact = _exact(op, compact, stages)
    counted = [keep_valid_rows(op, compact, tensors) for tensors in (own, fp64, where, exact)]
    names = [stage.tensor.name for stage in op.stages]
    return PrecisionResult(
        number,
        op.name,
        precisions(counted[0], counted[1], counted[2], counted[3], names),
        tuple(shadows.losses()),
        dict(shadows.constants.used),
        notes,
        tuple(skipped_faults(session)),
        seconds,
    )


def _numbers_of(given: Call) -> list[float]:
    """The scalars of a call that may stand behind f32 parameters."""
    return [value for value in given.scalars.values() if isinstance(value, float)]


def _exact(op: Operation, given: Call, stages: bool) -> dict[str, Tensor]:
    """The exact outputs and, if asked for, stages in fp64. No stage is rounded, unlike in `exact_stages`:
    fp64 arithmetic has none of the roundings that the contract has."""
    filled: dict[str, Tensor] = {}
    if stages:
        run_kernel(op, STAGED_ORACLE, given, filled)
    return {**filled, **run_kernel(op, ORACLE, given)}
