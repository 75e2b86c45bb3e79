"""The objects behind handles of the CUDA API: modules, kernels, memory, events. Both APIs of cuda-python
share them.

Kernels come from PTX text alone: a cubin has machine code, which is not simulated.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.runtime import HARMLESS
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.ptx.ir import Kernel, Module
from gdnbench.sim.virtual.device_memory import Bytes
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.refusals import refusal

ELF, FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"
CLUSTER, COOPERATIVE = 4, 2  # of CUlaunchAttributeID
STATIC_SHARED, MAX_DYNAMIC_SHARED, REGISTERS, MAX_THREADS = 1, 8, 4, 0  # of CUfunction_attribute


@dataclass(slots=True)
class Function:
    """A kernel of a loaded module, with the attributes that the program set."""

    module: Module
    kernel: Kernel
    attributes: dict[int, int] = field(default_factory=dict)

    def attribute(self, number: int) -> int:
        """A CUfunction_attribute. Raises UnsupportedError for one that only ptxas knows."""
        known = {MAX_THREADS: 1024, STATIC_SHARED: self.kernel.shared_size, MAX_DYNAMIC_SHARED: 48 << 10}
        known |= {2: 0, 3: 0, 5: 100, 6: 100, 7: 0, 9: -1}  # constant, local memory; versions; no preference
        if self.kernel.maxnreg is not None:
            known[REGISTERS] = self.kernel.maxnreg
        value = (known | self.attributes).get(number)
        if value is None:
            raise refusal(f"attribute {number} of {self.kernel.name}, which ptxas would know, not the PTX")
        return value


@dataclass(slots=True)
class CudaObjects:
    """The objects of one GPU by handle, and its raw memory by address."""

    gpu: VirtualGpu
    objects: dict[int, Any] = field(default_factory=dict)
    memory: dict[int, Bytes] = field(default_factory=dict)
    events: dict[int, float] = field(default_factory=dict)
    _handles: itertools.count[int] = field(default_factory=lambda: itertools.count(0x10000, 16))

    def add(self, value: Any) -> int:
        """A new handle."""
        handle = next(self._handles)
        self.objects[handle] = value
        return handle

    def get(self, handle: Any, kind: type, what: str) -> Any:
        """The object of a handle. Raises LaunchError for a handle that is none."""
        found = self.objects.get(int(handle))
        if not isinstance(found, kind):
            raise LaunchError(f"handle {int(handle):#x} is no {what} of the virtual GPU")
        return found

    def load(self, image: Any) -> Module:
        """The module of PTX: bytes, text, or the address of either with a null at its end."""
        if isinstance(image, int) or hasattr(image, "getPtr"):
            address = image if isinstance(image, int) else image.getPtr()
            head = ctypes.string_at(address, 4)
            image = head if head in (ELF, FATBIN) else ctypes.string_at(address)
        data = image.encode() if isinstance(image, str) else bytes(image)
        if data[:4] in (ELF, FATBIN):
            kind = "a cubin" if data[:4] == ELF else "a fat binary"
            raise refusal(f"{kind} without PTX: have the program load PTX, e.g. from nvrtcGetPTX")
        return self.gpu.load_module(data.rstrip(b"\0").decode())

    def function(self, module: Module, name: Any) -> Function:
        """A kernel of a module by name. Raises LaunchError if it has none of that name."""
        text = name.decode() if isinstance(name, bytes) else str(name)
        if text not in module.kernels:
            have = ", ".join(module.kernels) or "none"
            raise LaunchError(f"no kernel {text!r} in the module; it has {have}")
        return Function(module, module.kernels[text])

    def launch(
        self,
        handle: Any,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: Any,
        extra: Any,
        attributes: Sequence[Any] = (),
    ) -> None:
        """A launch as cuLaunchKernel[Ex] is given it."""
        function = self.get(handle, Function, "kernel")
        if extra:
            raise refusal("cuLaunchKernel with its argument `extra`: pass kernelParams")
        sizes = [param.size for param in function.kernel.params]
        self.gpu.launch(
            function.module,
            function.kernel.name,
            grid,
            block,
            parameter_bytes(params, sizes, function.kernel.name),
            shared_bytes,
            _cluster(attributes),
        )

    def allocate(self, size: int) -> int:
        """New memory; its address."""
        block = self.gpu.memory.allocate(max(size, 1))
        address = int(block.ctypes.data)
        self.memory[address] = block
        return address

    def free(self, address: Any) -> None:
        """Free memory. Raises LaunchError for an address that is not allocated."""
        if int(address) and self.memory.pop(int(address), None) is None:
            raise LaunchError(f"{int(address):#x} was not allocated on the virtual GPU, or was freed before")

    def copy(self, to: Any, source: Any, size: int) -> None:
        """Copy bytes between addresses, of the device or the host; device memory is checked by the caller."""
        self._do(lambda: ctypes.memmove(address_of(to), address_of(source), size))

    def check(self, address: Any, size: int) -> None:
        """Raises LaunchError unless the bytes are in one live allocation."""
        if size:
            self.gpu.memory.span(int(address), size)

    def fill(self, address: Any, value: int, count: int, width: int) -> None:
        """Fill `count` elements of `width` bytes."""
        self.check(address, count * width)
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]

        def fill() -> None:
            room = self.gpu.memory.span(int(address), count * width)
            room.view(kind)[:] = value

        if count:
            self._do(fill)

    def record(self, event: Any) -> None:
        """Note the host's time."""
        self.events[int(event)] = time.perf_counter()

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds of the host between two events. Raises LaunchError if one was not recorded."""
        if int(start) not in self.events or int(end) not in self.events:
            raise LaunchError("the time between events that were not recorded")
        return (self.events[int(end)] - self.events[int(start)]) * 1e3

    def _do(self, operation: Callable[[], object]) -> None:
        if self.gpu.recorder is not None:
            self.gpu.recorder.add(operation)
        operation()


def parameter_bytes(params: Any, sizes: Sequence[int], kernel: str) -> list[bytes]:
    """The bytes of each parameter, from what cuda-python takes: the address of an array of pointers, or a
    tuple (values, types) with ctypes' types, None for an object with getPtr()."""
    if not sizes:
        return []
    if isinstance(params, tuple):
        values, types = params
        values = values if isinstance(values, tuple | list) else (values,)
        types = types if isinstance(types, tuple | list) else (types,)
        if len(values) != len(sizes):
            raise LaunchError(f"{kernel} has {len(sizes)} parameters, {len(values)} were given")
        return [_value_bytes(*one, kernel) for one in zip(values, types, sizes, strict=True)]
    address = address_of(params)
    if not address:
        raise LaunchError(f"{kernel} has {len(sizes)} parameters, none were given")
    slots = (ctypes.c_void_p * len(sizes)).from_address(address)
    return [ctypes.string_at(slot, size) for slot, size in zip(slots, sizes, strict=True)]


def _value_bytes(value: Any, kind: Any, size: int, kernel: str) -> bytes:
    if kind is None:
        address = value.getPtr() if hasattr(value, "getPtr") else ctypes.addressof(value)
        return ctypes.string_at(address, size)
    number: Any = value
    if not isinstance(value, int | float | bool):
        number = getattr(value, "value", None)
        number = int(value) if number is None else number
    data = bytes(kind(number))
    if len(data) != size:
        raise LaunchError(f"{kernel}: {kind.__name__} of {len(data)} bytes for a parameter of {size}")
    return data


def address_of(value: Any) -> int:
    """An address from an integer, a handle, bytes or an object with the buffer protocol."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if hasattr(value, "getPtr") and not hasattr(value, "__int__"):
        return int(value.getPtr())
    try:
        return int(value)
    except (TypeError, ValueError):
        return int(np.frombuffer(value, np.uint8).ctypes.data)


def _cluster(attributes: Sequence[Any]) -> Dim3:
    """The cluster of launch attributes. Refuses those that would change a result."""
    cluster = (1, 1, 1)
    for attribute in attributes:
        number = int(attribute.id)
        if number == CLUSTER:
            dims = attribute.value.clusterDim
            cluster = (dims.x, dims.y, dims.z)
        elif number == COOPERATIVE:
            if attribute.value.cooperative:
                raise refusal("a cooperative launch")
        elif number not in HARMLESS:
            raise refusal(f"launch attribute {number}")
    return cluster
