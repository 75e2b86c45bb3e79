# SPDX-License-Identifier: Apache-2.0
"""Copies of a call's tensors that later writes cannot change, with their metadata."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gdnbench.capture.adapter import Seen
from gdnbench.record import TensorDraft, TensorMeta

# Fake, distributed and quantised tensors do not hold their elements in this process.
_PLAIN = (Tensor, torch.nn.Parameter)
_SHARED_FROM = 64 << 10
_WORTH_SHARING = 4 << 20


class Copied(NamedTuple):
    """A tensor for the journal. From a GPU, `data` is filled once the copy has been made."""

    data: Tensor  # contiguous, CPU, in the contract's shape
    caller_shape: torch.Size
    caller_strides: tuple[int, ...]
    caller_offset: int
    device: str

    def draft(self, axes: tuple[str, ...], data: Tensor | None = None) -> TensorDraft:
        """The tensor to store; `data` replaces the elements where `Finish` dropped some."""
        data = self.data if data is None else data
        return TensorDraft(data, _meta(data.dtype, data.shape, axes, *self[1:]))


class Form(NamedTuple):
    """A tensor's shape, strides and device, without its elements."""

    shape: tuple[int, ...]  # the contract's
    caller_shape: torch.Size
    caller_strides: tuple[int, ...]
    caller_offset: int
    device: str

    @classmethod
    def from_seen(cls, seen: Seen) -> Form:
        caller = seen.tensor if seen.caller is None else seen.caller
        return cls(
            shape=tuple(seen.tensor.shape) if seen.shape is None else seen.shape,
            caller_shape=caller.shape,
            caller_strides=caller.stride(),
            caller_offset=int(caller.storage_offset()),
            device="cpu" if caller.is_cpu else str(caller.device),
        )

    def copied(self, data: Tensor) -> Copied:
        """`data` holds the elements, contiguous on the CPU."""
        return Copied(data.view(self.shape), *self[1:])

    def rows(self, data: Tensor) -> Copied:
        """`data` holds some rows of a pool, and has its own shape."""
        return Copied(data, *self[1:])


@lru_cache(maxsize=1024)  # a layer's tensors repeat their metadata from step to step
def _meta(
    dtype: torch.dtype,
    shape: torch.Size,
    axes: tuple[str, ...],
    caller_shape: torch.Size,
    caller_strides: tuple[int, ...],
    caller_offset: int,
    device: str,
) -> TensorMeta:
    return TensorMeta(
        dtype=str(dtype).removeprefix("torch."),
        shape=tuple(shape),
        axes=axes,
        caller_shape=tuple(caller_shape),
        caller_strides=caller_strides,
        caller_offset=caller_offset,
        device=device,
    )


def _copy(tensor: Tensor) -> Tensor:
    """A contiguous copy of a tensor on the CPU.

    For larger tensors torch divides a copy among its threads. Waiting until they are scheduled takes
    milliseconds, so copies of 64 KiB to 4 MiB use memmove in this thread.
    """
    if not _SHARED_FROM <= tensor.nbytes <= _WORTH_SHARING or not tensor.is_contiguous():
        return tensor.clone(memory_format=torch.contiguous_format)
    data = torch.empty_like(tensor)
    ctypes.memmove(data.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    return data


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor's elements are in this process, in strided form."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided


def detached_elements(tensor: Tensor) -> Tensor:
    """The tensor detached from its autograd graph, so that a copy neither keeps the graph alive nor joins it.

    TypeError for tensors whose elements are not in this process in strided form.
    """
    if not is_plain(tensor):
        raise TypeError(f"a {type(tensor).__name__} of layout {tensor.layout} cannot be copied bit for bit")
    return tensor.detach() if tensor.requires_grad else tensor


def snapshot(seen: Seen, *, reused: bool, kept: Tensor | None = None) -> Copied:
    """Copy the elements of a tensor on the CPU. TypeError as for `detached_elements`.

    `reused`: the caller may write to the tensor before the copy is stored. An output of a CPU call is
    journalled before the caller sees it, so a contiguous one is not copied. `kept` is an existing copy to
    use.
    """
    tensor = detached_elements(seen.tensor)
    if kept is None:
        kept = _copy(tensor) if reused else tensor.contiguous()
    return Form.from_seen(seen).copied(kept)
