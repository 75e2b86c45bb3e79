# SPDX-License-Identifier: Apache-2.0
"""Says which element of which tensor differs between two runs, with both values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host import cute_tensors
from gdnbench.sim.host.arguments import DTYPES, Region, address_of
from gdnbench.sim.virtual.device_memory import Bytes
from gdnbench.sim.virtual.memory_snapshot import Difference


def located(found: Difference, regions: Sequence[Region], against: str, schedule: str) -> tuple[str, str]:
    """The name of the memory that differs, and a text of the first place: an element with its values under
    `against` and under `schedule` if it is a tensor's, else a byte."""
    for region in regions:
        form = _StridedTensor.of_keeper(region.keeper)
        element = None if form is None else form.element_at(found.address)
        if form is None or element is None:
            continue
        index, start = element
        one, other = (_value(data, start - found.start, form.dtype) for data in (found.before, found.now))
        if one is not None and other is not None:
            where = f"element {list(index)} is" if index else "it is"
            return region.name, f"{where} {one} under {against} and {other} under {schedule}"
    there = [one for one in regions if one.address <= found.address < one.address + one.size]
    region = there[0] if there else Region("memory", 0, 0, None)
    offset = found.address - found.start
    values = f"{found.before[offset]:#04x} under {against} and {found.now[offset]:#04x} under {schedule}"
    return region.name, f"byte {found.address - region.address} is {values}"


@dataclass(frozen=True, slots=True)
class _StridedTensor:
    """Where a tensor's elements are: strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of_keeper(cls, keeper: object) -> _StridedTensor | None:
        """The layout of a tensor of torch or of CuTe's runtime; None for any other owner of memory, and for
        element types that torch does not have."""
        if isinstance(keeper, Tensor):
            return cls(address_of(keeper), tuple(keeper.shape), keeper.stride(), keeper.dtype)
        if not cute_tensors.is_cute_tensor(keeper):
            return None
        try:
            (dtype, *_) = DTYPES[cute_tensors.type_of("a tensor", keeper).dtype]
        except (LaunchError, KeyError):
            return None
        address, _ = cute_tensors.span_of(keeper)
        shape, strides = keeper.shape, keeper.stride  # type: ignore[attr-defined]  # it is a cute tensor
        return cls(address, tuple(shape), tuple(strides), dtype)

    def element_at(self, address: int) -> tuple[tuple[int, ...], int] | None:
        """Index and address of the element that holds the byte at `address`; None if no element does, or if
        the strides do not tell which."""
        number = (address - self.address) // self.dtype.itemsize
        left, index = number, [0] * len(self.shape)
        for step, dim in sorted(((step, dim) for dim, step in enumerate(self.strides)), reverse=True):
            if step > 0 and self.shape[dim] > 1:
                index[dim], left = divmod(left, step)
        inside = all(at < extent for at, extent in zip(index, self.shape, strict=True))
        if number < 0 or left or not inside:
            return None
        return tuple(index), self.address + number * self.dtype.itemsize


def _value(data: Bytes, offset: int, dtype: torch.dtype) -> str | None:
    """The element at `offset` as text; None if it is not whole in `data`."""
    if offset < 0 or offset + dtype.itemsize > len(data):
        return None
    try:
        value = torch.frombuffer(bytearray(data[offset : offset + dtype.itemsize]), dtype=dtype).item()
    except (RuntimeError, NotImplementedError):  # dtypes that have no item()
        return None
    return f"{value:.9g}" if isinstance(value, float) else str(value)
