# SPDX-License-Identifier: Apache-2.0
"""Calls a kernel as the contract says: by name, in conventions it takes, with buffers to fill."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench.bits import DTYPES
from gdnbench.near_names import nearest_first
from gdnbench.poison import poison
from gdnbench.replay.kernels import LoadedKernel
from gdnbench.replay.requirements import prepared
from gdnbench_kernels.contract import Call, Operation, Role
from gdnbench_kernels.run import mutated_names

STAGES = "stages"
"""The parameter by which a kernel takes the dict that it fills with its intermediates."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What must be converted for a kernel to take a call: target conventions, and a text for each change."""

    target: dict[str, str]
    texts: tuple[str, ...]


class WrongReturn(TypeError):
    """A kernel returned something that the contract has no place for."""


def conversion(call: Call, operation: Operation, kernel: LoadedKernel) -> Conversion:
    """The conventions to call `kernel` in: the call's own wherever it takes them."""
    target, texts = dict(call.conventions), []
    for convention in operation.conventions:
        accepted = kernel.conventions.get(convention.name, convention.values[:1])
        current = call.conventions[convention.name]
        if current not in accepted:
            target[convention.name] = accepted[0]
            what = operation.conversions.get((convention.name, current, accepted[0]), "not possible")
            texts.append(f"{convention.name} {current} -> {accepted[0]}: {what}")
    return Conversion(target, tuple(texts))


def call_kernel(
    call: Call, operation: Operation, kernel: LoadedKernel, stages: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Outputs and mutated tensors that `kernel` leaves of `call`, which is in conventions that it takes.

    Outputs are poisoned before the call, mutated tensors written in place. `stages`, if given, is filled with
    the kernel's intermediates. Raises what the kernel raises, WrongReturn for a bad return value or stage,
    NotImplementedError if stages are asked of a kernel that has none.
    """
    device = next((tensor.device for tensor in call.tensors.values()), torch.device("cpu"))
    buffers = {
        name: poison(torch.empty(shape, dtype=dtype, device=device))
        for name, (shape, dtype) in operation.outputs(call).items()
    }
    with torch.no_grad():
        returned = kernel.function(**arguments(kernel, operation, call, buffers, stages))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # an error of the device belongs to this call
    if stages is not None:
        _check_stages(stages, operation, kernel)
    mutated = {name: call.tensors[name] for name in mutated_names(operation, call)}
    return {**buffers, **mutated, **by_name(returned, list(buffers), kernel, operation)}


def arguments(
    kernel: LoadedKernel,
    operation: Operation,
    call: Call,
    buffers: Mapping[str, Tensor],
    stages: dict[str, Tensor] | None,
) -> dict[str, Any]:
    """Keyword arguments: of what there is to pass, what the kernel has parameters for."""
    call, _ = prepared(call, operation, kernel)
    scalars = {spec.name: call.scalars.get(spec.name, spec.default) for spec in operation.scalars}
    offered: dict[str, Any] = {**call.conventions, **scalars, **call.tensors, **buffers}
    parameters = inspect.signature(kernel.function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if stages is not None:
        if not operation.stages:
            raise NotImplementedError(f"{operation.name} has no stages")
        if not takes_all and STAGES not in parameters:
            raise NotImplementedError(f"{kernel.name} shows no stages: it has no parameter {STAGES!r}")
        offered[STAGES] = stages
    if takes_all:
        return offered
    for name, parameter in parameters.items():
        if (
            parameter.default is parameter.empty
            and name not in offered
            and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise NotImplementedError(_no_argument(name, kernel, operation))
    return {name: value for name, value in offered.items() if name in parameters}


def _no_argument(name: str, kernel: LoadedKernel, operation: Operation) -> str:
    """Why a call has no argument for a parameter: it lacks an optional one, or there is none of that name."""
    known = [spec.name for spec in operation.tensors]
    known += [spec.name for spec in operation.scalars]
    known += [convention.name for convention in operation.conventions]
    if name in (*known, STAGES):
        return f"{kernel.name} needs {name!r}, which this call of {operation.name} does not have"
    there = nearest_first(name, known)
    return f"{kernel.name} needs {name!r}, which {operation.name} does not have; it has {there}"


def takes_stages(kernel: LoadedKernel) -> bool:
    """Whether a kernel shows stages if it is asked to."""
    parameters = inspect.signature(kernel.function).parameters
    return STAGES in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _check_stages(stages: Mapping[str, Tensor], operation: Operation, kernel: LoadedKernel) -> None:
    known = [stage.tensor.name for stage in operation.stages]
    if not stages:
        raise NotImplementedError(f"{kernel.name} filled none of the stages {', '.join(known)}")
    for name, value in stages.items():
        if name not in known:
            there = nearest_first(name, known)
            raise WrongReturn(f"{kernel.name} filled stage {name!r}; {operation.name} has {there}")
        if not isinstance(value, Tensor):
            raise WrongReturn(f"{kernel.name} filled stage {name} with {type(value).__name__}, not a tensor")


def by_name(
    returned: Any, outputs: list[str], kernel: LoadedKernel, operation: Operation
) -> dict[str, Tensor]:
    """What a kernel returned, by contract name; None in place of an output leaves its buffer."""
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        known = {spec.name for spec in operation.tensors if spec.role is not Role.INPUT}
        if unknown := [name for name in returned if name not in known]:
            there = nearest_first(unknown[0], sorted(known))
            raise WrongReturn(f"{kernel.name} returned {unknown[0]!r}; {operation.name} has {there}")
        pairs = list(returned.items())
    else:
        values = list(returned) if isinstance(returned, tuple | list) else [returned]
        while len(values) > len(outputs) and values[-1] is None:
            values.pop()
        if len(values) > len(outputs):
            raise WrongReturn(
                f"{kernel.name} returned {len(values)} values; this call of {operation.name} has the outputs"
                f" {', '.join(outputs)}"
            )
        pairs = list(zip(outputs, values, strict=False))
    for name, value in pairs:
        if value is not None and not isinstance(value, Tensor):
            raise WrongReturn(f"{kernel.name} returned {type(value).__name__} for {name}, not a tensor")
        if value is not None and (kind := _unreadable(value)):
            raise WrongReturn(f"{kernel.name} returned {kind} tensor for {name}; its elements cannot be read")
    return {name: value.resolve_neg() for name, value in pairs if value is not None}


def _unreadable(tensor: Tensor) -> str:
    """The kind of a tensor that neither a file nor a judge can take, such as "a torch.complex64"; else
    empty."""
    if tensor.is_meta:
        return "a meta"
    if tensor.layout is not torch.strided:
        return f"a {tensor.layout}"
    return "" if str(tensor.dtype).removeprefix("torch.") in DTYPES else f"a {tensor.dtype}"


def in_contract_dtype(results: Mapping[str, Tensor], call: Call, operation: Operation) -> dict[str, Tensor]:
    """fp64 results of an oracle rounded to the dtypes that the contract has for this call."""
    dtypes = {name: dtype for name, (_, dtype) in operation.outputs(call).items()}
    for spec in operation.tensors:
        if spec.role is Role.MUTATED and spec.name in call.tensors:
            dtypes[spec.name] = call.tensors[spec.name].dtype
    return {name: tensor.to(dtypes[name]) for name, tensor in results.items()}
