# SPDX-License-Identifier: Apache-2.0
"""Tensors in the form that compiled kernels take, contiguous and aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def is_contiguous_aligned(tensor: Tensor, align: int) -> bool:
    """Whether a kernel can take this tensor: contiguous, with its first element aligned to `align` bytes."""
    return tensor.is_contiguous() and tensor.data_ptr() % align == 0


def contiguous_aligned(tensor: Tensor, align: int) -> Tensor:
    """The tensor itself if a kernel can take it, else a contiguous, aligned copy."""
    return (
        tensor
        if is_contiguous_aligned(tensor, align)
        else tensor.clone(memory_format=torch.contiguous_format)
    )


@dataclass(frozen=True, slots=True)
class Output:
    """An output tensor that the kernel writes, and the caller's tensor, which the kernel may not be able to
    write directly."""

    buffer: Tensor
    given: Tensor | None

    @classmethod
    def allocate(
        cls,
        given: Tensor | None,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        align: int,
    ) -> Output:
        """Use `given`, which has that shape, dtype and device, or allocate a new tensor if it is None."""
        if given is not None and is_contiguous_aligned(given, align):
            return cls(given, given)
        return cls(torch.empty(tuple(shape), dtype=dtype, device=device), given)

    def finish(self) -> Tensor:
        """Copy the result to the caller's tensor if necessary, and return the caller's tensor or the new
        one."""
        if self.given is None or self.given is self.buffer:
            return self.buffer
        return self.given.copy_(self.buffer)
