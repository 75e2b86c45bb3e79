# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's steps on one call: all of them in order, or some of them on given stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench.judge.record import compared_tensors
from gdnbench.poison import poison
from gdnbench.replay.call import WrongReturn, arguments, conversion
from gdnbench.replay.kernels import LoadedKernel, load, load_step
from gdnbench_kernels.contract import Call, ContractError, Operation, Role, Step


def chain(
    kernel: LoadedKernel,
    operation: Operation,
    call: Call,
    given: Mapping[str, Tensor],
    wanted: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Stages and outputs by name: those `given`, and what the steps make of them, `given` going before. Only
    the steps run that `wanted` needs, or all. `call` is in conventions that the kernel takes.

    Raises what a step raises, WrongReturn if it does not give what it is to.
    """
    found = dict(given)
    for step in _needed(kernel.steps, given, wanted):
        made = run_step(kernel, step, operation, call, {name: found[name] for name in step.takes})
        found |= {name: tensor for name, tensor in made.items() if name not in given}
    return found


def _needed(steps: tuple[Step, ...], given: Mapping[str, Tensor], wanted: Iterable[str] | None) -> list[Step]:
    if wanted is None:
        return list(steps)
    names, chosen = set(wanted) - set(given), []
    for step in reversed(steps):
        if names & set(step.gives):
            chosen.append(step)
            names = (names | set(step.takes)) - set(given)
    return chosen[::-1]


def run_step(
    kernel: LoadedKernel, step: Step, operation: Operation, call: Call, taken: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What a step gives of the call, which stays as it is, and of the stages `taken`."""
    loaded = load_step(step, kernel)
    device = next((tensor.device for tensor in call.tensors.values()), torch.device("cpu"))
    buffers = {
        name: poison(torch.empty(shape, dtype=dtype, device=device))
        for name, (shape, dtype) in operation.outputs(call).items()
        if name in step.gives
    }
    mutated = {
        spec.name: call.tensors[spec.name].clone()
        for spec in operation.tensors
        if spec.role is Role.MUTATED and spec.name in step.gives
    }
    own = replace(call, tensors={**call.tensors, **mutated})
    stages = {name: tensor.to(device) for name, tensor in taken.items()}
    given = arguments(loaded, operation, own, buffers, stages if step.takes else None)
    with torch.no_grad():
        returned = loaded.function(**given)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if not isinstance(returned, Mapping):
        raise WrongReturn(f"{loaded.name} returned {type(returned).__name__}; a step returns a dict by name")
    found = {**buffers, **mutated, **returned}
    outputs = operation.outputs(call)
    for name in step.gives:
        left_out = name not in outputs and operation.spec(name).optional
        if name not in found and not left_out:
            raise WrongReturn(f"{loaded.name} did not give {name}")
    wrong = next((name for name, value in found.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise WrongReturn(f"{loaded.name} gave {type(found[wrong]).__name__} for {wrong}, not a tensor")
    return {name: found[name] for name in step.gives if name in found}


def chain_of(
    name: str, operation: Operation, call: Call, given: Mapping[str, Tensor], wanted: Iterable[str]
) -> dict[str, Tensor]:
    """`chain` of a listed kernel, whatever conventions `call` is in; on the CPU."""
    kernel = load(name, operation)
    converted = operation.convert(call, conversion(call, operation, kernel).target)
    found = chain(kernel, operation, converted, given, wanted)
    outputs = {name: found[name] for name in compared_tensors(operation, call) if name in found}
    found |= operation.convert_outputs(outputs, converted.conventions, call.conventions)
    return {name: tensor.cpu() for name, tensor in found.items()}


def check_steps(kernel: LoadedKernel, operation: Operation) -> None:
    """ContractError for steps that take what none gives, or give what is no stage or output."""
    known = {stage.tensor.name for stage in operation.stages} | {
        spec.name for spec in operation.tensors if spec.role is not Role.INPUT
    }
    there: set[str] = set()
    for step in kernel.steps:
        if strange := [name for name in (*step.takes, *step.gives) if name not in known]:
            raise ContractError(
                f"step {step.name} of {kernel.name}: {operation.name} has no stage or output {strange[0]!r}"
            )
        if early := [name for name in step.takes if name not in there]:
            raise ContractError(
                f"step {step.name} of {kernel.name} takes {early[0]}, which no step before gives"
            )
        there |= set(step.gives)
