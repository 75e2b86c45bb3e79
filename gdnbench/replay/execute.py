# SPDX-License-Identifier: Apache-2.0
"""Runs one kernel on one record and sees what it did: outputs, and everything it should have left alone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gdnbench import phases
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.judge.calls import slots_of
from gdnbench.replay import bind, call, side_effects
from gdnbench.replay.kernels import LoadedKernel
from gdnbench.replay.predicting import predicting
from gdnbench.replay.requirements import prepared
from gdnbench.replay.simulated import SIM, notes_of, simulated, skipped_faults
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation, Role

if TYPE_CHECKING:
    from gdnbench.sim import Finding, LaunchReport, Questions
    from gdnbench.sim.predict import PredictedTime, Predictor

DEVICES = ("cpu", "cuda", SIM)


@dataclass(frozen=True, slots=True)
class Execution:
    """What a kernel left: outputs and mutated tensors by name (stored slots only, CPU, the record's
    conventions).

    `faults` says, one line each, what it wrote that it must not; `notes` what was converted or not rebuilt.
    `stages` are its intermediates by name, as it computed them in `conventions`; empty unless asked for.
    `launches` are those that were simulated, `checked` what the checker found in them, None if it was not
    asked; `predicted` is how long they take on a GPU that was asked for.
    """

    outputs: dict[str, Tensor]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    stages: dict[str, Tensor] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)
    launches: tuple[LaunchReport, ...] = ()
    checked: tuple[Finding, ...] | None = None
    predicted: PredictedTime | None = None


def device_of(on: str) -> torch.device:
    """Where the tensors of the device named `on` are; BadInputError if that is no device, CannotRunError if
    this machine has none."""
    if on not in DEVICES:
        raise BadInputError(
            f"--on {on!r} is no device; there are {', '.join(DEVICES[:-1])} and {DEVICES[-1]}"
        )
    if on == "cuda" and not torch.cuda.is_available():
        built = "this torch has no CUDA" if torch.version.cuda is None else "no CUDA device is visible"
        raise CannotRunError(
            f"--on cuda needs an NVIDIA GPU with its driver and a CUDA build of torch: {built}"
        )
    return torch.device("cpu" if on == SIM else on)


def _empty(call: Call, operation: Operation) -> bool:
    """Whether no output that every call has is given an element: there are no tokens."""
    shapes = {name: shape for name, (shape, _) in operation.outputs(call).items()}
    always = [spec for spec in operation.tensors if spec.role is Role.OUTPUT and not spec.optional]
    return all(0 in shapes[spec.name] for spec in always)


def execute(
    record: StoredRecord,
    operation: Operation,
    kernel: LoadedKernel,
    on: str,
    stages: bool = False,
    checked: list[Finding] | None = None,
    *,
    keep_going: bool = False,
    questions: Questions | None = None,
    predict: str | None = None,
) -> Execution:
    """Run `kernel` on the device `on`, on `record` as it was called, converted to what it takes; keep its
    `stages` too if asked; `checked`, `keep_going` and `questions` as for `simulated`, `predict` is the
    machine of `predicting`. Raises what the kernel raises, and ContractError for an impossible conversion."""
    if on not in kernel.devices:
        raise CannotRunError(f"kernel {kernel.name} runs on {' or '.join(kernel.devices)}, not on {on}")
    bound = bind.exact(record, operation, device_of(on))
    plan = call.conversion(bound.call, operation, kernel)
    given = operation.convert(bound.call, plan.target) if plan.texts else bound.call
    given, made = prepared(given, operation, kernel)
    before = side_effects.inputs_of(record, given, operation)
    filled: dict[str, Tensor] = {}
    with (
        predicting(predict) as predictor,
        simulated(on, checked, keep_going=keep_going, questions=questions) as session,
    ):
        if session is None:
            phases.enter("run the kernel")
        start = time.perf_counter()
        owner = os.getpid()
        try:
            returned = call.call_kernel(given, operation, kernel, filled if stages else None)
        finally:
            if os.getpid() != owner:  # a process that the kernel forked and did not end: it writes no results
                os._exit(0)
        seconds = time.perf_counter() - start
    ran = [] if session is None else notes_of(session, kernel.name, _empty(given, operation))
    faults = [] if session is None else skipped_faults(session)
    faults += side_effects.written_inputs(given, before) + side_effects.written_pools(
        record, operation, given
    )
    results = operation.convert_outputs(returned, given.conventions, bound.call.conventions)
    if kernel.fp64:
        results = call.in_contract_dtype(results, bound.call, operation)
    else:
        faults += side_effects.written_slots(record, operation, bound.call, results)
    outputs = {}
    for name, tensor in results.items():
        rows = slots_of(record, name)
        if rows is not None:
            tensor = tensor[torch.tensor(rows, device=tensor.device, dtype=torch.long)]
        outputs[name] = tensor.detach().cpu().contiguous()
    return Execution(
        outputs,
        tuple(faults),
        (*plan.texts, *made, *bound.notes, *ran),
        seconds,
        {name: tensor.detach().cpu().contiguous() for name, tensor in filled.items()},
        plan.target,
        () if session is None else tuple(one for report in session.reports for one in report.launches),
        None if checked is None else tuple(checked),
        _predicted(kernel, predictor),
    )


def _predicted(kernel: LoadedKernel, predictor: Predictor | None) -> PredictedTime | None:
    if predictor is None:
        return None
    from gdnbench.sim.predict import PredictedTime

    return PredictedTime.of(kernel.name, predictor)
