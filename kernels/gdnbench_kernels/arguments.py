"""Tensors as a compiled kernel can be given them, contiguous and aligned; and the GPU that they are on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

B200_SMS = 148


@cache
def multiprocessors(device: torch.device) -> int:
    """SMs of a CUDA device, those of a B200 where there is none."""
    if device.type != "cuda":
        return B200_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count


def fits(tensor: Tensor, align: int) -> bool:
    """Whether a kernel can be given this tensor, its first element aligned to `align` bytes."""
    return tensor.is_contiguous() and tensor.data_ptr() % align == 0


def held(tensor: Tensor, align: int) -> Tensor:
    """The tensor as a kernel can be given it: itself, or a copy."""
    return tensor if fits(tensor, align) else tensor.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to fill, and the caller's, which may be one that a kernel cannot write to."""

    buffer: Tensor
    given: Tensor | None

    @classmethod
    def of(
        cls,
        given: Tensor | None,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        align: int,
    ) -> Output:
        """The caller's, which has that shape, dtype and device, else a new one."""
        if given is not None and fits(given, align):
            return cls(given, given)
        return cls(torch.empty(tuple(shape), dtype=dtype, device=device), given)

    def finish(self) -> Tensor:
        """The caller's tensor, filled; else ours."""
        if self.given is None or self.given is self.buffer:
            return self.buffer
        return self.given.copy_(self.buffer)
