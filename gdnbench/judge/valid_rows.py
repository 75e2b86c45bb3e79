# SPDX-License-Identifier: Apache-2.0
"""Selects what counts of a kernel's tensors: padding rows and stale elements may differ between two runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation


def wrong_shapes(operation: Operation, call: Call, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A line for each output and mutated tensor of `call` that lacks the contract's shape. Its rows cannot be
    selected."""
    shapes = {name: tuple(shape) for name, (shape, _) in operation.outputs(call).items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in call.tensors.items() if name not in shapes}
    return tuple(
        f"{name}: shape {list(tensor.shape)} against {list(shapes[name])}"
        for name, tensor in tensors.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    )


def keep_valid_rows(operation: Operation, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of outputs and stages of `call`, by name, with zeros in rows of no region, in a chunk's rows
    past its last token, and in stale elements."""
    found = {}
    for name, tensor in clear_stale(operation, call, tensors).items():
        kept = torch.zeros_like(tensor)
        for region in operation.partition(call, name).regions:
            rows = slice(region.start, region.stop)
            places = (rows,) if region.tokens is None else (rows, slice(None), slice(region.tokens))
            kept[places] = tensor[places]
        found[name] = kept
    return found


def clear_stale(operation: Operation, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors`, outputs of `call` by name, with zeros in elements that may hold anything. A tensor of
    another shape stays as it is."""
    found = dict(tensors)
    for name, (shape, _) in operation.outputs(call).items():
        if name not in found or tuple(found[name].shape) != tuple(shape):
            continue
        stale = operation.stale(call, name, tuple(shape))
        if stale is not None:
            found[name] = found[name].masked_fill(stale.to(found[name].device), 0)
    return found
