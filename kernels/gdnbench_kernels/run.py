"""Runs this package's own kernels, which return outputs by name. Does not poison buffers or isolate the
process."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Call, Kernel, Operation, Role, Step


def run_kernel(
    operation: Operation, name: str, call: Call, stages: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Outputs and mutated tensors of kernel `name`, in the call's conventions; the call is not changed.

    A kernel with stages fills `stages`, if given, in the kernel's conventions.
    """
    entry = operation.kernels[name]
    current = operation.default_conventions | dict(call.conventions)
    target = {}
    for convention, value in current.items():
        accepted = entry.conventions.get(convention, (operation.default_conventions[convention],))
        target[convention] = value if value in accepted else accepted[0]
    converted = operation.convert(call, target)
    given = _arguments(operation, converted)
    if stages is not None:
        given["stages"] = stages
    kernel = _imported(entry.target)
    parameters = inspect.signature(kernel).parameters
    returned = kernel(**{name: value for name, value in given.items() if name in parameters})
    mutated = {name: given[name] for name in mutated_names(operation, call)}
    return operation.convert_outputs({**mutated, **returned}, converted.conventions, current)


def run_step(operation: Operation, step: Step, call: Call, taken: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The results of a step on this call and the stages `taken`, in the call's conventions, which the kernel
    accepts; neither is changed. Optional outputs that the call does not request are left out."""
    function = step.target if callable(step.target) else _imported(step.target)
    given = _arguments(operation, call)
    returned: dict[str, Tensor] = function(**given, **({"stages": dict(taken)} if step.takes else {}))
    return {name: returned[name] for name in step.gives if name in returned}


def mutated_names(operation: Operation, call: Call) -> list[str]:
    """The tensors of the call that it updates in place."""
    return [
        spec.name for spec in operation.tensors if spec.role is Role.MUTATED and spec.name in call.tensors
    ]


def _arguments(operation: Operation, call: Call) -> dict[str, Any]:
    """Tensors, scalars and conventions by name; tensors that the call mutates are copies."""
    mutated = {name: call.tensors[name].clone() for name in mutated_names(operation, call)}
    return {**call.tensors, **mutated, **call.scalars, **call.conventions}


def _imported(target: str) -> Kernel:
    """The function named "package.module:object.function"."""
    module, path = target.split(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    kernel: Kernel = found
    return kernel
