"""Tensors packed into one stretch of memory on their device, so that one copy takes them all to the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 256  # what the allocator gives a tensor of its own: no copy kernel takes a slower path


class Fill(NamedTuple):
    """A tensor that is about to be packed: its form, and what writes it into a contiguous view so formed."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    write: Callable[[Tensor], object]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def copied(tensor: Tensor) -> Fill:
    return Fill(tensor.dtype, tuple(tensor.shape), tensor.device, lambda view: view.copy_(tensor))


class _Part(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Bundle:
    memory: Tensor  # uint8 [n]
    parts: Mapping[str, _Part]

    def views(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors in a copy of `memory`: contiguous views of it."""
        return {
            name: memory[part.start : part.stop].view(part.dtype).view(part.shape)
            for name, part in self.parts.items()
        }


def pack(fills: Mapping[str, Fill]) -> list[Bundle]:
    """Queue the copies on the current streams: a bundle for each device."""
    parts: dict[torch.device, dict[str, _Part]] = {}
    for name, fill in fills.items():
        there = parts.setdefault(fill.device, {})
        last = next(reversed(there.values())).stop if there else 0
        start = -(-last // _ALIGNMENT) * _ALIGNMENT
        there[name] = _Part(fill.dtype, fill.shape, start, start + fill.nbytes)
    bundles = []
    for device, there in parts.items():
        size = next(reversed(there.values())).stop
        bundle = Bundle(torch.empty(size, dtype=torch.uint8, device=device), there)
        for name, view in bundle.views(bundle.memory).items():
            if view.numel():
                fills[name].write(view)
        bundles.append(bundle)
    return bundles


def packed_bytes(fills: Mapping[str, Fill]) -> int:
    """What `pack` takes, at most."""
    return sum(-(-fill.nbytes // _ALIGNMENT) * _ALIGNMENT for fill in fills.values())
