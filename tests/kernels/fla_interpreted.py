# SPDX-License-Identifier: Apache-2.0
"""Runs flash-linear-attention as a kernel on the CPU: `fla_interpreted.py IN OUT`, in a process of its own.

IN is a list of [operation, tensors, scalars, conventions] of calls in conventions that the kernel takes, OUT
a list of what it leaves. Triton's interpreter has to be chosen before Triton is imported, and
flash-linear-attention warns that there is no GPU.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from triton.runtime.autotuner import Autotuner

from gdnbench_kernels.peers import fla_module


def first_config(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Instead of a time: all configurations are equal, so the first is taken. There is nothing to measure."""
    return [0.0]


def counted(*bounds: Any) -> Iterator[Any]:
    """`range` of a kernel that asks its counter for a dtype, as on a GPU: the interpreter's are ints."""
    for i in builtins.range(*(int(bound) for bound in bounds)):
        yield tl.full((), i, tl.int32)


def main(given: str, left: str) -> None:
    Autotuner._bench = first_config
    fla_module("ops.common.chunk_delta_h").range = counted  # type: ignore[attr-defined]
    found = []
    for operation, tensors, scalars, conventions in torch.load(given):
        kernel = import_module(f"gdnbench_kernels.{operation}.fla").fla
        offered = {**tensors, **scalars, **conventions}
        takes = inspect.signature(kernel).parameters
        returned = kernel(**{name: value for name, value in offered.items() if name in takes})
        found.append({**returned, **({"state": tensors["state"]} if "state" in tensors else {})})
    torch.save(found, left)


if __name__ == "__main__":
    main(*sys.argv[1:])
