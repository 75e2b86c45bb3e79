# SPDX-License-Identifier: Apache-2.0
"""Finds the operations: every folder of `gdnbench_kernels` with a `contract` module."""

from __future__ import annotations

import importlib.util
import pkgutil
from functools import cache

import gdnbench_kernels
from gdnbench.errors import BadInputError
from gdnbench.near_names import nearest_first
from gdnbench.record import ACCESS_LOG
from gdnbench_kernels.contract import Operation


@cache
def operations() -> dict[str, Operation]:
    """All operations by name, in name order."""
    found: dict[str, Operation] = {}
    for folder in sorted(pkgutil.iter_modules(gdnbench_kernels.__path__), key=lambda info: info.name):
        contract = f"gdnbench_kernels.{folder.name}.contract"
        if folder.ispkg and importlib.util.find_spec(contract) is not None:
            operation: Operation = importlib.import_module(contract).OPERATION
            found[operation.name] = operation
    return found


def operation(name: str) -> Operation:
    """The operation called `name`; BadInputError, which lists the operations, if there is none."""
    if name == ACCESS_LOG:
        raise BadInputError(
            "an access log of capture --digests has no tensors of calls; `gdnbench lineage` reads it"
        )
    try:
        return operations()[name]
    except KeyError:
        there = nearest_first(name, operations())
        raise BadInputError(f"operation {name!r} is not known; there are {there}") from None
