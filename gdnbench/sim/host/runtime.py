"""A mock CUDA runtime for one host object: answers its queries and records its launches.

CuTe DSL's host code calls these symbols (`_cuda...` wrappers of the runtime API, declared in its LLVM dialect
modules). The numbers are those of the CUDA runtime API reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gdnbench.sim.errors import ExportError, FaultKind, KernelFault, SimError, UnsupportedError
from gdnbench.sim.host.device import Device
from gdnbench.sim.host.elf import Elf, cubin_at
from gdnbench.sim.host.encode_tiled import encode_tiled
from gdnbench.sim.host.request import Dim3, LaunchRequest

SUCCESS = 0
INVALID_VALUE = 1
UNKNOWN = 999  # cudaErrorUnknown, for what the simulator itself refuses; the real error is raised afterwards

SHARED_SIZE_BYTES = 1  # of CUfunction_attribute
REFUSED = (
    b"refused by the simulated runtime"  # for callers that need a message; the real error is raised later
)

ATTRIBUTE_BYTES = 72  # a cudaLaunchAttribute: number, padding, 64 bytes of value
ATTRIBUTE_VALUE = 8
COOPERATIVE, CLUSTER_DIMENSION = 2, 4
# cudaLaunchAttributeID values that change when or where a grid runs, not what it computes: none, access
# policy window, synchronisation policy, cluster scheduling policy, programmatic stream serialisation,
# priority, memory synchronisation domain map and domain, preferred shared memory carveout.
HARMLESS = (0, 1, 3, 5, 6, 8, 9, 10, 14)


class LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


@dataclass(slots=True)
class _Kernel:
    """A kernel handle: its name and the cubin it comes from."""

    name: str
    cubin: Elf


@dataclass(slots=True)
class Runtime:
    """The functions that a host object can call. Handles of libraries and kernels are list positions, from 1.

    `param_sizes` returns the parameter sizes of a kernel by its name.
    """

    ptx: str
    device: Device
    param_sizes: Callable[[str], Sequence[int]]
    launches: list[LaunchRequest] = field(default_factory=list)
    error: Exception | None = None
    _libraries: list[Elf] = field(default_factory=list)
    _kernels: list[_Kernel] = field(default_factory=list)

    def get_device(self, out: int) -> int:
        ctypes.c_int32.from_address(out).value = 0
        return SUCCESS

    def set_device(self, device: int) -> int:
        return SUCCESS if device == 0 else INVALID_VALUE

    def device_attribute(self, out: int, attribute: int, device: int) -> int:
        if attribute not in self.device.attributes:
            return self._refuse(f"host code that asks for device attribute {attribute}")
        ctypes.c_int32.from_address(out).value = self.device.attributes[attribute]
        return SUCCESS

    def load_library(self, out: int, code: int, *options: int) -> int:
        try:
            self._libraries.append(cubin_at(code))
        except ValueError as error:
            return self._refuse(f"host code that loads something else than a cubin: {error}")
        ctypes.c_void_p.from_address(out).value = len(self._libraries)
        return SUCCESS

    def library_kernel(self, out: int, library: int | None, name: bytes) -> int:
        if library is None or library > len(self._libraries):
            return INVALID_VALUE
        self._kernels.append(_Kernel(name.decode(), self._libraries[library - 1]))
        ctypes.c_void_p.from_address(out).value = len(self._kernels)
        return SUCCESS

    def kernel_attribute(self, out: int, attribute: int, kernel: int, device: int) -> int:
        if attribute != SHARED_SIZE_BYTES:
            return self._refuse(f"host code that asks for kernel attribute {attribute}")
        found = self._kernels[kernel - 1]
        ctypes.c_int32.from_address(out).value = found.cubin.static_shared(found.name)
        return SUCCESS

    def set_attribute(self, *values: int) -> int:
        """Does nothing: kernel attributes are limits that the simulator checks at launch."""
        return SUCCESS

    def launch(self, config_address: int, kernel: int, params: int) -> int:
        config = LaunchConfig.from_address(config_address)
        found = self._kernels[kernel - 1]
        try:
            cluster = _cluster(config)
            sizes = self.param_sizes(found.name)
        except SimError as error:
            return self._fail(error)
        slots = (ctypes.c_void_p * len(sizes)).from_address(params) if sizes else ()
        self.launches.append(
            LaunchRequest(
                ptx=self.ptx,
                entry=found.name,
                grid=_dim3(config.grid),
                block=_dim3(config.block),
                cluster=cluster,
                shared_bytes=config.dynamic_shared,
                params=tuple(ctypes.string_at(slot, size) for slot, size in zip(slots, sizes, strict=True)),
                registers=found.cubin.registers(found.name),
                stream=config.stream or 0,
            )
        )
        return SUCCESS

    def encode_tensor_map(self, *arguments: int) -> int:
        try:
            encode_tiled(*arguments)
        except SimError as error:
            return self._fail(error)
        return SUCCESS

    def initialise_once(self, state: int, init: int, load: int, set_error: int) -> int:
        """Do what the DSL's runtime library does before a first launch: load the library, look up its
        kernels."""
        done = ctypes.c_void_p.from_address(state)
        if done.value:
            return SUCCESS
        library = ctypes.c_void_p()
        storage = ctypes.addressof(library)
        status = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(init)(storage)
        if status == SUCCESS:
            status = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)(load)(storage, 0)
        if status == SUCCESS:
            done.value = library.value
            return SUCCESS
        if self.error is None:
            self._fail(ExportError(f"the kernel's host code cannot be set up: CUDA error {status}"))
        # void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message)
        ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(set_error)(b"RuntimeError", REFUSED)
        return UNKNOWN

    def raise_cuda_error(self, set_raised: int, status: int) -> int:
        """A tvm-ffi entry calls this before it fails; `set_raised` must receive a reason."""
        if self.error is None:
            self._fail(ExportError(f"the kernel's host code ends with CUDA error {status}"))
        return self._raise(set_raised)

    def raise_launch_error(self, set_raised: int, *grid_and_block: int) -> int:
        """Like `raise_cuda_error`, where the entry itself finds a launch over the device's limits."""
        grid, block = grid_and_block[:3], grid_and_block[3:]
        message = f"grid {grid}, block {block} or the shared memory is over what the device has"
        self._fail(KernelFault(FaultKind.BUDGET, message))
        return self._raise(set_raised)

    def _raise(self, set_raised: int) -> int:
        # void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count)
        parts = (ctypes.c_char_p * 1)(REFUSED)
        kinds = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
        ctypes.CFUNCTYPE(None, *kinds)(set_raised)(b"RuntimeError", parts, 1)
        return UNKNOWN

    def _refuse(self, what: str) -> int:
        return self._fail(UnsupportedError(what))

    def _fail(self, error: Exception) -> int:
        """Keep `error` for later: an exception cannot pass through compiled code."""
        self.error = self.error or error
        return UNKNOWN


def _dim3(values: Sequence[int]) -> Dim3:
    return values[0], values[1], values[2]


def _cluster(config: LaunchConfig) -> Dim3:
    """The cluster's shape, 1 CTA by default. Refuses attributes that would change a result."""
    cluster = (1, 1, 1)
    for index in range(config.attribute_count):
        at = config.attributes + index * ATTRIBUTE_BYTES
        number = ctypes.c_int32.from_address(at).value
        value = (ctypes.c_uint32 * 3).from_address(at + ATTRIBUTE_VALUE)
        if number == CLUSTER_DIMENSION:
            cluster = (value[0], value[1], value[2])
        elif number == COOPERATIVE:
            if value[0]:
                raise UnsupportedError("a cooperative launch")
        elif number not in HARMLESS:
            raise UnsupportedError(f"launch attribute {number}")
    return cluster
