# SPDX-License-Identifier: Apache-2.0
"""Packs tensors of a device into one block of memory, so that a single copy moves them all to the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 256  # the allocator's own alignment, which keeps copy kernels on their fast path


class Fill(NamedTuple):
    """A tensor to pack: dtype, shape and device, and the function that writes it into a contiguous view of
    that shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    write: Callable[[Tensor], object]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def copy_fill(tensor: Tensor) -> Fill:
    return Fill(tensor.dtype, tuple(tensor.shape), tensor.device, lambda view: view.copy_(tensor))


class Part(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Bundle:
    memory: Tensor  # uint8 [n]
    parts: Mapping[str, Part]

    def clone(self) -> Bundle:
        """A copy, queued on the current stream."""
        return Bundle(self.memory.clone(), self.parts)

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors in a copy of `memory`, as contiguous views: one torch call per tensor."""
        return views(self.parts, memory)


def views(parts: Mapping[str, Part], memory: Tensor) -> dict[str, Tensor]:
    """The parts of `memory` (uint8 [n]) as contiguous tensors."""
    words = {dtype: memory.view(dtype) for dtype in {part.dtype for part in parts.values()}}
    return {
        name: words[part.dtype].as_strided(
            part.shape,
            _contiguous(part.shape),
            words[part.dtype].storage_offset() + part.start // part.dtype.itemsize,
        )
        for name, part in parts.items()
    }


def lay_out(
    wanted: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], start: int = 0
) -> tuple[dict[str, Part], int]:
    """Places for tensors of these dtypes and shapes behind byte `start`, and the byte behind them all."""
    parts = {}
    for name, (dtype, shape) in wanted.items():
        stop = start + math.prod(shape) * dtype.itemsize
        parts[name] = Part(dtype, shape, start, stop)
        start = _aligned(stop)
    return parts, start


@lru_cache(maxsize=1024)
def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides; for axes of size 0 or 1 the same as torch's."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))[: len(shape)]


def pack(fills: Mapping[str, Fill]) -> list[Bundle]:
    """Queue the copies on the current streams; returns one bundle for each device."""
    parts: dict[torch.device, dict[str, Part]] = {}
    for name, fill in fills.items():
        there = parts.setdefault(fill.device, {})
        last = next(reversed(there.values())).stop if there else 0
        start = _aligned(last)
        there[name] = Part(fill.dtype, fill.shape, start, start + fill.nbytes)
    bundles = []
    for device, there in parts.items():
        size = _aligned(next(reversed(there.values())).stop)  # a multiple of every element size
        bundle = Bundle(torch.empty(size, dtype=torch.uint8, device=device), there)
        for name, view in bundle.views(bundle.memory).items():
            if view.numel():
                fills[name].write(view)
        bundles.append(bundle)
    return bundles


def packed_bytes(fills: Mapping[str, Fill]) -> int:
    """An upper limit of the bytes that `pack` allocates."""
    return sum(_aligned(fill.nbytes) for fill in fills.values())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
