# SPDX-License-Identifier: Apache-2.0
"""Row access to tensors in memory and in a store, so that the same code compares both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gdnbench.bits import logical
from gdnbench.store.reader import TensorHandle


class RowSource(Protocol):
    """A tensor of at least one axis, read by rows of axis 0."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def digest(self) -> str | None:
        """Content hash; equal digests mean equal bits. None if it was never computed."""

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop), contiguous on the CPU."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor in memory; a 0-d tensor counts as one row."""

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


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a store, read during the comparison; a 0-d tensor counts as one row."""

    handle: TensorHandle

    @property
    def shape(self) -> tuple[int, ...]:
        return self.handle.meta.shape or (1,)

    @property
    def dtype(self) -> torch.dtype:
        return logical(self.handle.meta.dtype).torch_dtype

    @property
    def digest(self) -> str | None:
        return self.handle.digest

    def read_rows(self, start: int, stop: int) -> Tensor:
        if not self.handle.meta.shape:
            return self.handle.read().reshape(1)[start:stop]
        return self.handle.read_rows(start, stop)
