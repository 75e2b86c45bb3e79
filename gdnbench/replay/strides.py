# SPDX-License-Identifier: Apache-2.0
"""Gives a recorded tensor the strides and storage offset that the caller's had, for a kernel to see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gdnbench.bits import to_bits
from gdnbench.poison import poison, same_bits
from gdnbench.record import TensorMeta

STORAGE_BYTES = 1 << 30
"""A view into a larger buffer is rebuilt within a buffer of at most this size, or the tensor's own."""

ALIGNMENT = 256
"""An offset that the budget has no room for is reduced modulo this many elements: alignment is kept."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor as the caller held it, in the contract's shape; `note` says what could not be rebuilt."""

    tensor: Tensor
    note: str | None = None


def as_held(data: Tensor, meta: TensorMeta, device: torch.device) -> Held:
    """`data` (contiguous, on the CPU) on `device` with the caller's strides and offset, where memory allows.

    Elements of the storage that the caller's view does not reach are poisoned. Overlapping and expanded
    strides are rebuilt too: the recorded values agree wherever elements share memory.
    """
    shape, strides, offset = meta.caller_shape, meta.caller_strides, meta.caller_offset
    if offset == 0 and strides == _contiguous(shape):
        return Held(data.to(device))
    if math.prod(shape) != data.numel():
        reason = f"the caller held {list(shape)}, recorded as {list(data.shape)}"
        return Held(data.to(device), f"strides {list(strides)} not rebuilt: {reason}")
    extent = _extent(shape, strides)
    limit = max(STORAGE_BYTES, data.nbytes) // data.element_size()
    note = None
    if offset + extent > limit:
        note = f"storage offset {offset} reduced to {offset % ALIGNMENT} to save memory"
        offset %= ALIGNMENT
    if offset + extent > limit:
        return Held(data.to(device), f"strides {list(strides)} not rebuilt: {extent} elements of storage")
    storage = poison(torch.empty(offset + extent, dtype=data.dtype))
    if data.numel():
        # numpy, because torch refuses to write through a view whose elements share memory.
        bits = to_bits(storage)[offset:]
        byte_strides = tuple(stride * bits.itemsize for stride in strides)
        np.lib.stride_tricks.as_strided(bits, shape, byte_strides)[...] = to_bits(data).reshape(shape)
    view = storage.to(device).as_strided(shape, strides, offset)
    try:
        held = view.view(data.shape)
    except RuntimeError:
        reason = f"no view of {list(shape)} has shape {list(data.shape)}"
        return Held(data.to(device), f"strides {list(strides)} not rebuilt: {reason}")
    if not same_bits(held.cpu(), data):
        return Held(data.to(device), f"strides {list(strides)} not rebuilt: overlapping elements differ")
    return Held(held, note)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last that a view reaches."""
    if math.prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
