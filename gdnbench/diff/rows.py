"""Tensors as sources of rows, so that one in memory and one in a store are compared by the same code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class RowSource(Protocol):
    """A tensor of at least one axis, read by rows of axis 0."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def digest(self) -> str | None:
        """Content address; equal digests mean equal bits. None where it was never computed."""

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop), contiguous on the CPU."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor that is in memory already; a 0-d one counts as one row."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape) or (1,)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def digest(self) -> str | None:
        return None

    def read_rows(self, start: int, stop: int) -> Tensor:
        tensor = self.tensor.reshape(1) if self.tensor.ndim == 0 else self.tensor
        return tensor[start:stop].cpu().contiguous()
