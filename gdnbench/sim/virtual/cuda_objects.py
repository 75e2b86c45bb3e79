# SPDX-License-Identifier: Apache-2.0
"""The objects behind handles of the CUDA APIs, which share them: modules, kernels, memory, events.

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

from gdnbench.sim.errors import LaunchError, PtxSyntaxError
from gdnbench.sim.host.request import NO_ATTRIBUTES, LaunchAttributes
from gdnbench.sim.launch_order import ANY_STREAM
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.ptx.ir import Kernel, Module, Variable
from gdnbench.sim.virtual.device_memory import Bytes
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.refusals import refusal

# The first bytes of a cubin, of a fat binary, and of the structure in which nvcc wraps one.
BINARIES = {
    b"\x7fELF": "a cubin",
    b"\x50\xed\x55\xba": "a fat binary",
    b"\xb1\x43\x62\x46": "a fat binary",
}
END, BUFFER_POINTER, BUFFER_SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_...
STATIC_SHARED, MAX_DYNAMIC_SHARED, REGISTERS, MAX_THREADS = 1, 8, 4, 0  # of CUfunction_attribute
NON_PORTABLE_CLUSTERS = 14
PORTABLE_CLUSTER = 8  # the most CTAs of a cluster without that attribute


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
        # A cluster size that must be set; the required width, height and depth; scheduling policy.
        width, height, depth = self.kernel.cluster or (0, 0, 0)
        known |= {10: 0, 11: width, 12: height, 13: depth, NON_PORTABLE_CLUSTERS: 0, 15: 0}
        if self.kernel.maxnreg is not None:
            known[REGISTERS] = self.kernel.maxnreg
        value = (known | self.attributes).get(number)
        if value is None:
            raise refusal(f"attribute {number} of {self.kernel.name}, which ptxas would know, not the PTX")
        return value


@dataclass(slots=True)
class CudaObjects:
    """The objects of one GPU by handle, and its raw memory by address. `host` is memory of the host that the
    GPU can access, `registered` such memory of the program's own; `managed` are addresses of managed memory.
    There is one `context` and one memory `pool`, which have handles alone."""

    gpu: VirtualGpu
    objects: dict[int, Any] = field(default_factory=dict)
    memory: dict[int, Bytes] = field(default_factory=dict)
    host: dict[int, Bytes] = field(default_factory=dict)
    registered: dict[int, Bytes] = field(default_factory=dict)
    managed: set[int] = field(default_factory=set)
    events: dict[int, float] = field(default_factory=dict)
    context: int = 0
    pool: int = 0
    _handles: itertools.count[int] = field(default_factory=lambda: itertools.count(0x10000, 16))
    _functions: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context, self.pool = self.add("context"), self.add("pool")

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
            image = head if head in BINARIES else ctypes.string_at(address)
        data = image.encode() if isinstance(image, str) else bytes(image)
        if data[:4] in BINARIES:
            kind = BINARIES[data[:4]]
            raise refusal(f"{kind} without PTX: have the program load PTX, e.g. from nvrtcGetPTX")
        try:
            text = data.rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise PtxSyntaxError(f"no PTX: byte {error.start} of the module is not UTF-8") from None
        return self.gpu.load_module(text)

    def function(self, module: Module, name: Any) -> Function:
        """A kernel of a module by name. Raises LaunchError if it has none of that name."""
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if text not in module.kernels:
            have = ", ".join(module.kernels) or "none"
            raise LaunchError(f"no kernel {text!r} in the module; it has {have}")
        return Function(module, module.kernels[text])

    def function_handle(self, module: Module, name: Any) -> int:
        """The handle of a kernel, which is the same each time."""
        function = self.function(module, name)
        key = id(module), function.kernel.name
        if key not in self._functions:
            self._functions[key] = self.add(function)
        return self._functions[key]

    def handle_of(self, module: Module) -> int:
        """The handle of a loaded module. Raises LaunchError if it was unloaded."""
        found = [handle for handle, value in self.objects.items() if value is module]
        if not found:
            raise LaunchError("the module of the kernel was unloaded")
        return found[0]

    def launch(
        self,
        handle: Any,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: Any,
        extra: int,
        attributes: LaunchAttributes = NO_ATTRIBUTES,
        stream: int = ANY_STREAM,
    ) -> None:
        """A launch as cuLaunchKernel[Ex] is given it: `params` is the address of an array of pointers to the
        parameters, or cuda-python's tuple; `extra` is 0, or the address of an array with a buffer of them."""
        function = self.get(handle, Function, "kernel")
        name, variables = function.kernel.name, function.kernel.params
        ctas = attributes.largest_cluster
        if ctas > PORTABLE_CLUSTER and not function.attribute(NON_PORTABLE_CLUSTERS):
            raise LaunchError(
                f"{name} in clusters of {ctas} CTAs: more than {PORTABLE_CLUSTER} need its attribute"
                " NON_PORTABLE_CLUSTER_SIZE_ALLOWED (cuFuncSetAttribute)"
            )
        if extra:
            given = _buffer_bytes(extra, variables, name)
        else:
            given = parameter_bytes(params, [variable.size for variable in variables], name)
        self.gpu.launch(
            function.module,
            name,
            grid,
            block,
            given,
            shared_bytes,
            attributes,
            stream=stream,
        )

    def allocate(self, size: int) -> int:
        """New memory; its address. Raises MemoryError."""
        block = self.gpu.memory.allocate(max(size, 1))
        address = int(block.ctypes.data)
        self.memory[address] = block
        return address

    def free(self, address: Any) -> None:
        """Free memory. Raises LaunchError for an address that is not allocated."""
        if int(address) and self.memory.pop(int(address), None) is None:
            raise _not_allocated(int(address))
        self.managed.discard(int(address))

    def allocate_host(self, size: int) -> int:
        """New memory of the host, which the GPU can access; its address. Raises MemoryError."""
        block = self.gpu.memory.allocate(max(size, 1))
        address = int(block.ctypes.data)
        self.host[address] = block
        return address

    def free_host(self, address: int) -> None:
        """Free it. Raises LaunchError for an address that is not allocated."""
        if address and self.host.pop(address, None) is None:
            raise _not_allocated(address)

    def register(self, address: int, size: int) -> None:
        """Let the GPU access the program's own memory."""
        self.registered[address] = self.gpu.memory.adopt(address, size, None)

    def allocation_at(self, address: int) -> tuple[int, int] | None:
        """Address and size of the allocation, or the registered memory, that has the byte at `address`."""
        for start, block in self.registered.items():
            if start <= address < start + block.size:
                return start, block.size
        return self.gpu.memory.allocation_at(address)

    def copy(self, to: Any, source: Any, size: int) -> None:
        """Copy bytes between addresses, of the device or the host; device memory is checked by the caller.
        Raises LaunchError for a null pointer."""
        if size and not (address_of(to) and address_of(source)):
            raise LaunchError(f"a copy of {size} bytes from or to a null pointer")
        self.do(lambda: ctypes.memmove(address_of(to), address_of(source), size))

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
            self.do(fill)

    def record(self, event: Any) -> None:
        """Note the host's time."""
        self.events[int(event)] = time.perf_counter()

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds of the host between two events. Raises LaunchError if one was not recorded."""
        if int(start) not in self.events or int(end) not in self.events:
            raise LaunchError("the time between events that were not recorded")
        return (self.events[int(end)] - self.events[int(start)]) * 1e3

    def do(self, operation: Callable[[], object]) -> None:
        """Run an operation, which a graph that is being captured records."""
        self.gpu.order.forget()
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


def _buffer_bytes(extra: int, variables: Sequence[Variable], kernel: str) -> list[bytes]:
    """The bytes of each parameter, from cuLaunchKernel's `extra`: pairs of a number and a pointer."""
    found: dict[int, int] = {}
    while (number := ctypes.c_uint64.from_address(extra).value) != END:
        if number not in (BUFFER_POINTER, BUFFER_SIZE):
            raise LaunchError(f"{kernel}: {number} in cuLaunchKernel's `extra`, which is no CU_LAUNCH_PARAM")
        found[number] = ctypes.c_uint64.from_address(extra + 8).value
        extra += 16
    size = ctypes.c_size_t.from_address(found[BUFFER_SIZE]).value if BUFFER_SIZE in found else 0
    needed = max((variable.offset + variable.size for variable in variables), default=0)
    if size < needed:
        raise LaunchError(f"{kernel} has {needed} bytes of parameters; cuLaunchKernel's `extra` has {size}")
    return [
        ctypes.string_at(found[BUFFER_POINTER] + variable.offset, variable.size) for variable in variables
    ]


def _not_allocated(address: int) -> LaunchError:
    return LaunchError(f"{address:#x} was not allocated on the virtual GPU, or was freed before")


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
