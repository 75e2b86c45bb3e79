# SPDX-License-Identifier: Apache-2.0
"""The launcher of Triton's kernels on a virtual GPU, and how it packs their arguments."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gdnbench.sim.host.arguments import Region
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine import tensormap
from gdnbench.sim.virtual.refusals import refusal

if TYPE_CHECKING:
    from gdnbench.sim.ptx.ir import Module
    from gdnbench.sim.virtual.gpu import VirtualGpu

# What Triton's own launcher passes for each type: the C type of an integer, as a `struct` code.
INTEGERS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
}
FLOATS = ("fp16", "bf16", "fp32", "f32", "fp64")

_TENSOR_DESCRIPTOR = re.compile(r"tensordesc\w*<[^\[>]*\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of a loaded module."""

    module: Module
    entry: str


class Launcher:
    """Packs a kernel's arguments and launches it; takes the place of Triton's `CudaLauncher`."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._signature = dict(source.signature)
        self._metadata = metadata

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: LoadedKernel,
        packed_metadata: Sequence[int],
        launch_metadata: Any,
        enter_hook: Callable[[Any], object] | None,
        exit_hook: Callable[[Any], object] | None,
        *args: Any,
    ) -> None:
        from triton.backends.nvidia.driver import make_tensordesc_arg
        from triton.runtime import driver

        gpu: VirtualGpu = driver.active.gpu
        metadata = self._metadata
        if metadata.launch_cooperative_grid:
            raise refusal("a cooperative launch (launch_cooperative_grid of Triton)")
        ctas = getattr(metadata, "num_ctas", 1)
        count = grid_x * grid_y * grid_z * ctas
        keep = [self._scratch("global", count, stream), self._scratch("profile", count, stream)]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if count > 0:
            pack = _Packing(gpu.allocations())
            descriptors = iter(getattr(metadata, "tensordesc_meta", None) or ())
            for index, ((name, type_), value) in enumerate(zip(self._signature.items(), args, strict=True)):
                if isinstance(type_, str) and type_.startswith("tensordesc"):
                    pack.note_tensor(str(name), value.base)
                    pack.descriptor(type_, make_tensordesc_arg(value, next(descriptors, None)))
                else:
                    pack.add(type_, value, index, str(name))
            for buffer in keep[: 1 + hasattr(metadata, "profile_scratch_size")]:
                pack.add("*i8", buffer)
            request = LaunchRequest(
                ptx="",
                entry=function.entry,
                grid=(grid_x * ctas, grid_y, grid_z),
                block=(32 * packed_metadata[0], 1, 1),
                cluster=(ctas, 1, 1) if ctas > 1 else None,
                shared_bytes=metadata.shared,
                params=tuple(pack.params),
                registers=None,
                stream=stream,
                programmatic=bool(getattr(metadata, "launch_pdl", False)),
            )
            gpu.run(function.module, [request], pack.tensors)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _scratch(self, kind: str, count: int, stream: int) -> Any:
        """Memory for a launch of `count` CTAs from the allocator that Triton's user set, None if the kernel
        needs none."""
        from triton.runtime import _allocation

        size = getattr(self._metadata, f"{kind}_scratch_size", 0)
        if not size:
            return None
        allocator = _allocation._allocator if kind == "global" else _allocation._profile_allocator
        if hasattr(allocator, "get"):  # Triton 3.4 keeps the allocator itself
            allocator = allocator.get()
        return allocator(count * size, getattr(self._metadata, f"{kind}_scratch_align"), stream)


class _Packing:
    """Makes the bytes of a kernel's parameters. `allocations` is the memory of the GPU; `tensors` are those
    of the arguments by their names, at their addresses."""

    def __init__(self, allocations: Sequence[Region]) -> None:
        self.params: list[bytes] = []
        self.tensors: list[Region] = []
        self._allocations = allocations

    def add(self, type_: str | Sequence[Any], value: Any, index: int = -1, name: str = "") -> None:
        """An argument by its type in Triton; constants are compiled in. A tuple's elements follow one
        another. `index` and `name` are those of the kernel's parameter, if it is the caller's argument."""
        if not isinstance(type_, str):
            for i, (each, element) in enumerate(zip(type_, value, strict=True)):
                self.add(each, element, index, f"{name}[{i}]")
        elif type_ == "constexpr":
            pass
        elif type_.startswith("*"):
            self.params.append(struct.pack("<Q", self._address(value, index)))
            self.note_tensor(name, value)
        elif type_ in INTEGERS:
            self.params.append(_integer(INTEGERS[type_], value))
        elif type_ in FLOATS:
            self.params.append(_float(type_, value))
        else:
            raise refusal(f"a Triton kernel's argument of type {type_}")

    def note_tensor(self, name: str, value: Any) -> None:
        """A report names the memory of this argument `name`."""
        if name and hasattr(value, "data_ptr"):
            self.tensors.append(Region(name, value.data_ptr(), 0, value))

    def descriptor(self, type_: str, values: Sequence[Any]) -> None:
        """A tensor descriptor, which Triton expands to `values`: either a tensor map, or the tensor, its
        extents, strides and flags; then extents and strides."""
        shape = _TENSOR_DESCRIPTOR.match(type_)
        if shape is None:
            raise refusal(f"a Triton kernel's argument of type {type_}")
        rank = shape[1].count(",") + 1
        first, *rest = values
        flags = len(rest) - 4 * rank
        if hasattr(first, "tma_desc_cpu_ptr"):  # Triton 3.4
            first = ctypes.string_at(first.tma_desc_cpu_ptr(), tensormap.TENSORMAP_BYTES)
        if isinstance(first, bytes):
            self.params.append(first)
            types = []
        else:
            self.add("*i8", first)
            types = ["i64"] * 2 * rank + ["i1"] * flags
        for each, value in zip([*types, *["i32"] * rank, *["i64"] * rank], rest, strict=True):
            self.add(each, value)

    def _address(self, value: Any, index: int) -> int:
        """As Triton takes a pointer: an integer, None, or an object whose memory is the GPU's."""
        if value is None or isinstance(value, int):
            return value or 0
        if not hasattr(value, "data_ptr"):
            raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
        address: int = value.data_ptr()
        there = (one.address <= address < one.address + max(one.size, 1) for one in self._allocations)
        if address and not any(there):
            raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
        return address


def _integer(code: str, value: Any) -> bytes:
    """Signed values have to fit, unsigned ones are cut, as Python's C interface has it."""
    value = int(value)
    if code.isupper():
        return struct.pack("<" + code, value & (1 << 8 * struct.calcsize(code)) - 1)
    try:
        return struct.pack("<" + code, value)
    except struct.error:
        raise OverflowError(f"{value} does not fit {8 * struct.calcsize(code)} signed bits") from None


def _float(type_: str, value: Any) -> bytes:
    """The bytes of a double in the type: rounded to nearest, but cut to bf16, as Triton's launcher has it."""
    value = float(value)
    if type_ == "fp64":
        return struct.pack("<d", value)
    if type_ == "fp16":
        return struct.pack("<e", value)
    with np.errstate(over="ignore"):
        single = np.float32(value).tobytes()
    return single[2:] if type_ == "bf16" else single
