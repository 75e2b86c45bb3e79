"""Selects the valid rows of a kernel's tensors: padding rows may differ between two runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation


def keep_valid_rows(operation: Operation, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of outputs and stages of `call`, by name, with zeros in rows of no region, and in a chunk's rows
    past its last token."""
    found = {}
    for name, tensor in tensors.items():
        kept = torch.zeros_like(tensor)
        for region in operation.partition(call, name).regions:
            rows = slice(region.start, region.stop)
            places = (rows,) if region.tokens is None else (rows, slice(None), slice(region.tokens))
            kept[places] = tensor[places]
        found[name] = kept
    return found
