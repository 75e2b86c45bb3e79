"""Checks shared by calls of compiled kernels. They look at shapes, dtypes and addresses, never at values on a
device.

The errors name the argument: NotImplementedError for what another kernel could take, ValueError and TypeError
for what no kernel could.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.validate import LARGEST, dtype_name

Span = tuple[int, int]
"""Addresses of a tensor's first byte and of the byte after its last."""


def dtypes_of(names: Sequence[str]) -> tuple[torch.dtype, ...]:
    """torch's dtypes of those names."""
    return tuple(getattr(torch, name) for name in names)


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """The subject of an operation's error messages ("the compiled kernels take"), and the tensor whose device
    is the call's."""

    takes: str
    first: str

    def __call__(
        self,
        name: str,
        tensor: Tensor,
        shape: Sequence[int],
        dtypes: Sequence[torch.dtype],
        device: torch.device,
    ) -> None:
        """Raises NotImplementedError for another dtype, ValueError for another shape or device."""
        self.dtype(name, tensor.dtype, dtypes)
        if tensor.shape != tuple(shape):
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be {list(shape)}")
        if tensor.device != device:
            raise ValueError(
                f"{name} is on {tensor.device}, {self.first} on {device}; all must be on one device"
            )

    def dtype(self, name: str, dtype: torch.dtype, taken: Sequence[torch.dtype]) -> None:
        """Raises NotImplementedError for a dtype that is not in `taken`."""
        if dtype not in taken:
            names = " or ".join(map(dtype_name, taken))
            raise NotImplementedError(f"{self.takes} {name} as {names}, not as {dtype_name(dtype)}")


def check_own_elements(name: str, tensor: Tensor) -> None:
    """Raises ValueError for an output in which two elements could have one address."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ValueError(f"{name} has strides {list(tensor.stride())}: its elements share memory")
        reach += (size - 1) * stride


def finite_number(name: str, value: float) -> float:
    """A number that float32 can represent. Raises TypeError for a tensor, because reading it would wait for
    the device."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a number")
    if not abs(value) <= LARGEST:
        raise ValueError(f"{name} must be finite, in float32 too")
    return float(value)


def memory_span(name: str, tensor: Tensor) -> Span:
    """The addresses of a tensor, gaps included; (0, 0) without elements. Raises ValueError for a tensor
    without memory."""
    if not tensor.numel():
        return 0, 0
    start = tensor.data_ptr()
    if not start:
        raise ValueError(f"{name} has no memory, as on meta or while a call is traced; give it some")
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def check_apart(outputs: Sequence[str], spans: Mapping[str, Span]) -> None:
    """Raises ValueError for an output in the memory of another tensor, which later CTAs still read or
    write."""
    rest = dict(spans)
    for name in outputs:
        start, stop = rest.pop(name, (0, 0))
        for other, (first, last) in rest.items():
            if start < last and first < stop:
                raise ValueError(f"{name} shares memory with {other}; give it memory of its own")
