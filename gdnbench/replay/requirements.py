# SPDX-License-Identifier: Apache-2.0
"""Prepares the tensors of a call as a kernel's attribute `requires` says, and says what was prepared.

    kernel.requires = {"*": "contiguous", "g": "float32", "initial_state": "present"}

The keys are names of input tensors, `*` for all inputs that the call has; a value is one word or several:

    contiguous    a contiguous tensor whose address is a multiple of 32 bytes; another one is copied
    present       an optional tensor; where the call leaves it out it is made: zeros for an initial state
    float32 ...   a dtype to which every value converts exactly
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.replay.kernels import LoadedKernel
from gdnbench_kernels.arguments import contiguous_aligned
from gdnbench_kernels.contract import Call, Operation, Role
from gdnbench_kernels.validate import dtype_name

ALL = "*"
CONTIGUOUS = "contiguous"
PRESENT = "present"
ALIGN = 32  # bytes: the largest alignment that a published kernel requires
WIDER = {"float32": ("bfloat16", "float16"), "int64": ("int32",)}
"""A dtype, and those that convert to it exactly."""


def prepared(call: Call, operation: Operation, kernel: LoadedKernel) -> tuple[Call, tuple[str, ...]]:
    """The call as `kernel` requires it, and a text for each change. Raises BadInputError for a requirement
    that means nothing, NotImplementedError for a dtype to which values do not convert exactly."""
    if not kernel.requires:
        return call, ()
    inputs = [spec.name for spec in operation.tensors if spec.role is Role.INPUT]
    _check(kernel, operation, inputs)
    tensors, texts = dict(call.tensors), []
    for name in inputs:
        words = {*kernel.requires.get(ALL, ()), *kernel.requires.get(name, ())}
        if name not in tensors and PRESENT in words and name in operation.absent:
            tensors[name] = operation.absent[name](call)
            texts.append(f"{name} made: the call leaves it out")
        if name not in tensors:
            continue
        tensors[name], changes = _converted(name, tensors[name], words - {PRESENT}, kernel)
        texts += changes
    return Call(tensors, call.scalars, call.conventions), tuple(texts)


def _converted(name: str, tensor: Tensor, words: set[str], kernel: LoadedKernel) -> tuple[Tensor, list[str]]:
    texts = []
    for wanted in sorted(words - {CONTIGUOUS}):
        found = dtype_name(tensor.dtype)
        if found != wanted:
            if found not in WIDER[wanted]:
                raise NotImplementedError(f"{kernel.name} takes {name} as {wanted}, not as {found}")
            tensor = tensor.to(getattr(torch, wanted))
            texts.append(f"{name} as {wanted}")
    if CONTIGUOUS in words:
        copied = contiguous_aligned(tensor, ALIGN)
        if copied.data_ptr() != tensor.data_ptr():
            texts.append(f"{name} copied: contiguous, aligned to {ALIGN} bytes")
        tensor = copied
    return tensor, texts


def _check(kernel: LoadedKernel, operation: Operation, inputs: list[str]) -> None:
    known = (CONTIGUOUS, PRESENT, *WIDER)
    for name, words in kernel.requires.items():
        if name != ALL and name not in inputs:
            raise BadInputError(
                f"{kernel.name} requires something of {name!r}; the inputs of {operation.name} are"
                f" {', '.join(inputs)}"
            )
        for word in words:
            if word not in known:
                raise BadInputError(
                    f"{kernel.name} requires {name} to be {word!r}; it may require {', '.join(known)}"
                )
