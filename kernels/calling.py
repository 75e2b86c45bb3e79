"""Calls this package's own kernels, which return outputs by name. Nothing is poisoned or isolated."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Call, Kernel, Operation, Role


def run_kernel(
    operation: Operation, name: str, call: Call, stages: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Outputs and mutated tensors of kernel `name`, in the call's conventions; the call stays as it is.

    `stages`, if given, is filled by a kernel that has stages, in the kernel's conventions.
    """
    entry = operation.kernels[name]
    current = operation.default_conventions | dict(call.conventions)
    target = {}
    for convention, value in current.items():
        accepted = entry.conventions.get(convention, (operation.default_conventions[convention],))
        target[convention] = value if value in accepted else accepted[0]
    converted = operation.convert(call, target)
    mutated = {
        spec.name: converted.tensors[spec.name].clone()
        for spec in operation.tensors
        if spec.role is Role.MUTATED
    }
    module, function = entry.target.split(":")
    kernel: Kernel = getattr(importlib.import_module(module), function)
    given: dict[str, Any] = {**converted.tensors, **mutated, **converted.scalars, **converted.conventions}
    if stages is not None:
        given["stages"] = stages
    parameters = inspect.signature(kernel).parameters
    returned = kernel(**{name: value for name, value in given.items() if name in parameters})
    return operation.convert_outputs({**mutated, **returned}, converted.conventions, current)
