# SPDX-License-Identifier: Apache-2.0
"""What a tensor is judged by: the exact result and torch's, without the elements that do not count, and
torch's errors. It is the same for every kernel on a record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.judge.limits import ExactLines, exact_lines
from gdnbench.judge.metrics import Comparison, compare
from gdnbench.judge.row_source import Memory
from gdnbench_kernels.contract import Partition


@dataclass(frozen=True, slots=True)
class Yardstick:
    """- oracle, torchs: the exact result (fp64) and torch's, NaN where an element is not `usable`
    - rounded: the exact result rounded to the dtype of the results, fp64
    - usable: bool, whether the rounded and torch's element are finite; counts: whether the element belongs to
      a sequence, broadcastable to `usable`
    - largest: max |oracle| over the elements that are usable and count
    - errors: torch's; lines: None if lines are not judged
    """

    oracle: Tensor
    torchs: Tensor
    rounded: Tensor
    usable: Tensor
    counts: Tensor
    largest: float
    errors: Comparison
    lines: ExactLines | None


def measure_yardstick(
    oracle: Tensor,
    torchs: Tensor,
    partition: Partition,
    axes: tuple[str, ...],
    dtype: torch.dtype,
    *,
    by_line: bool,
) -> Yardstick:
    """The yardstick of results of `dtype`, on the CPU. `torchs` has that dtype, or is in fp64 if it was moved
    with the exact result."""
    counts = _owned(partition, oracle)
    rounded = oracle.to(dtype).double()  # double: fp8 lacks isnan
    usable = torch.isfinite(rounded) & torch.isfinite(torchs.double())
    largest = float(oracle.abs().where(usable & counts, 0.0).max()) if oracle.numel() else 0.0
    if not bool(usable.all()):
        oracle = oracle.where(usable, torch.nan)
        torchs = torchs.where(usable, torch.nan) if torchs.is_floating_point() else torchs
    errors = compare(Memory(torchs), Memory(oracle), partition, axes)
    lines = exact_lines(torchs, oracle, partition, dtype) if by_line and dtype.is_floating_point else None
    return Yardstick(oracle, torchs, rounded, usable, counts, largest, errors, lines)


def _owned(partition: Partition, like: Tensor) -> Tensor:
    """A mask, broadcastable to `like`, of the elements that count."""
    by_token = any(region.tokens is not None for region in partition.regions)  # [rows, Hv, C, ...]
    size = like.shape[2] if by_token else 1
    owned = torch.zeros(len(like), 1, size, dtype=torch.bool)
    for region in partition.regions:
        owned[region.start : region.stop, :, : size if region.tokens is None else region.tokens] = True
    return owned.view(-1, *((1, size, *(1,) * (like.ndim - 3)) if by_token else (1,) * (like.ndim - 1)))
