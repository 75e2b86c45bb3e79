# SPDX-License-Identifier: Apache-2.0
"""Ranges of a tensor, for `Operation.ranges`."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from gdnbench_kernels.contract import Ranges


def extremes(name: str, label: str, values: Tensor, unit: str = "") -> Ranges | None:
    """The minimum and maximum of `values`; NaN if one of them is NaN; None without values."""
    if not values.numel():
        return None
    return Ranges(name, label, {"min": float(values.min()), "max": float(values.max())}, unit)


def sizes(name: str, label: str, values: Iterable[Tensor]) -> Ranges | None:
    """RMS and largest magnitude of all elements of `values`; NaN if one of them is NaN; None without
    elements.

    `values` are processed one after another: a pool's states in fp64 may exceed the memory.
    """
    count, squares, largest = 0, 0.0, torch.zeros((), dtype=torch.float64)
    for part in values:
        wide = part.double().flatten()
        if wide.numel():
            count += wide.numel()
            squares += float(wide @ wide)
            largest = torch.maximum(largest, wide.abs().max())
    if not count:
        return None
    return Ranges(name, label, {"rms": math.sqrt(squares / count), "max abs": float(largest)})


def present_ranges(ranges: Iterable[Ranges | None]) -> tuple[Ranges, ...]:
    """The ranges that are not None."""
    return tuple(one for one in ranges if one is not None)
