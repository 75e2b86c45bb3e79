# SPDX-License-Identifier: Apache-2.0
"""Memory that kernels reach by an address the program asked for: a pointer argument, or a number in a
tensor.

`Tensor.data_ptr()` says which tensor an address belongs to; a `cute.Pointer` made of it later does not. So
the call itself is noted, with a weak reference to the tensor's storage: a tensor that the program frees is
not kept alive, and a kernel that still accesses it gets a fault with its name.

Programs ask for addresses for other reasons too, such as to check their alignment, and a launch that may
access all of that memory would hide accesses out of bounds. So a launch may access what it can find: the
tensors with an address inside them in its parameters, in its arguments, or in such a tensor.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gdnbench.sim.host import cute_tensors
from gdnbench.sim.host.arguments import NamedTensor, Region, region_of
from gdnbench.sim.host.patching import patched

Values = npt.NDArray[np.uint64]

SEARCHED = 1 << 20
"""How many bytes from the start of an argument are searched for addresses."""

REMEMBERED = 4096
"""How many freed allocations are kept for the messages of faults."""

_PACKAGES = ("torch", "cutlass", "gdnbench", "tvm_ffi", "numpy")


@dataclass(slots=True)
class AskedMemory:
    """Allocations whose address was asked for, each with a weak reference to its owner."""

    _asked: dict[tuple[int, int], tuple[str, weakref.ref[Any]]] = field(default_factory=dict)

    def note(self, name: str, address: int, size: int, owner: Any) -> None:
        """Let later launches access [address, address + size) while `owner` lives."""
        if size <= 0:
            return
        self._asked.pop((address, size), None)  # to the end of the order
        self._asked[address, size] = name, weakref.ref(owner)
        if len(self._asked) > 2 * REMEMBERED:
            self._forget()

    def note_tensor(self, tensor: Tensor, how: str) -> None:
        """`note` for a torch tensor on the CPU. `how` is the call that gave its address away."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return
        shape = ", ".join(map(str, tensor.shape))
        name = f"the {str(tensor.dtype).removeprefix('torch.')}[{shape}] of {how}{_caller()}"
        region = region_of(NamedTensor(name, tensor))
        self.note(name, region.address, region.size, tensor.untyped_storage())

    def live(self) -> list[Region]:
        """The allocations that are not freed, each with a reference that keeps it so."""
        return [region for region in self._regions() if region.keeper is not None]

    def found_in(self, params: Sequence[bytes], arguments: Sequence[Region]) -> list[Region]:
        """The live allocations that a launch with these parameters and arguments can find."""
        left = self.live()
        found: list[Region] = []
        unread = [*params, *map(_start, arguments)]
        while left and unread:
            addresses = _addresses(unread.pop(), left)
            reached = [region for region in left if _points_into(addresses, region)]
            left = [region for region in left if region not in reached]
            found += reached
            unread += map(_start, reached)
        return found

    def freed(self) -> list[Region]:
        """The freed allocations."""
        return [region for region in self._regions() if region.keeper is None]

    def _regions(self) -> list[Region]:
        return [
            Region(name, address, size, owner())
            for (address, size), (name, owner) in list(self._asked.items())
        ]

    def _forget(self) -> None:
        """Forget all but the last freed allocations."""
        freed = [key for key, (_, owner) in self._asked.items() if owner() is None]
        for key in freed[:-REMEMBERED]:
            del self._asked[key]


def _start(region: Region) -> bytes:
    return ctypes.string_at(region.address, min(region.size, SEARCHED))


def _addresses(data: bytes, regions: Sequence[Region]) -> Values:
    """The aligned 64-bit numbers in `data` between the first and the last of `regions`."""
    words = np.frombuffer(data, np.uint64, len(data) // 8)
    low = min(region.address for region in regions)
    high = max(region.address + region.size for region in regions)
    return words[(words >= np.uint64(low)) & (words < np.uint64(high))]


def _points_into(addresses: Values, region: Region) -> bool:
    low, high = np.uint64(region.address), np.uint64(region.address + region.size)
    return bool(((addresses >= low) & (addresses < high)).any())


@contextmanager
def addresses_noted(asked: AskedMemory) -> Iterator[None]:
    """Inside this block `Tensor.data_ptr()` notes its tensor in `asked`, and `from_dlpack` of CuTe DSL its
    own."""
    from cutlass.cute.runtime import _Tensor

    asks, initialise = Tensor.data_ptr, _Tensor.__init__

    def data_ptr(tensor: Tensor) -> int:
        address: int = asks(tensor)
        if address:
            asked.note_tensor(tensor, "data_ptr()")
        return address

    def init(cute_tensor: Any, tensor: object, *args: Any, **kwargs: Any) -> None:
        initialise(cute_tensor, tensor, *args, **kwargs)
        if isinstance(tensor, Tensor):
            asked.note_tensor(tensor, "from_dlpack()")
        else:
            name = f"the tensor of from_dlpack(){_caller()}"
            asked.note(name, *cute_tensors.span_of(cute_tensor), cute_tensor)

    with patched(Tensor, data_ptr=data_ptr), patched(_Tensor, __init__=init):
        yield


def _caller() -> str:
    """The line of the program that asked, as ` at FILE:LINE`: the innermost outside of libraries."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _PACKAGES:
            return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
