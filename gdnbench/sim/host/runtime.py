# SPDX-License-Identifier: Apache-2.0
"""A mock CUDA runtime for one host object: answers its queries and records its launches.

CuTe DSL's host code calls these symbols (`_cuda...` wrappers of the runtime API, declared in its LLVM dialect
modules). The numbers are those of the CUDA runtime API reference. Launches run once the host code has ended,
so that what only orders them or frees something does nothing here; host code that waits for its own launches
is refused, since it would read what they have not written yet.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gdnbench.sim.errors import ExportError, FaultKind, KernelFault, LaunchError, SimError, UnsupportedError
from gdnbench.sim.host.device import MULTIPROCESSORS, Device, multiprocessors_asked
from gdnbench.sim.host.elf import Elf, cubin_at
from gdnbench.sim.host.encode_tiled import encode_tiled
from gdnbench.sim.host.request import Dim3, LaunchAttributes, LaunchRequest

SUCCESS = 0
INVALID_VALUE = 1
UNKNOWN = 999  # cudaErrorUnknown, for what the simulator itself refuses; the real error is raised afterwards

# cudaError_t; other numbers are named by their number.
ERROR_NAMES = {
    SUCCESS: "cudaSuccess",
    INVALID_VALUE: "cudaErrorInvalidValue",
    2: "cudaErrorMemoryAllocation",
    9: "cudaErrorInvalidConfiguration",
    98: "cudaErrorInvalidDeviceFunction",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    218: "cudaErrorInvalidPtx",
    400: "cudaErrorInvalidResourceHandle",
    500: "cudaErrorSymbolNotFound",
    700: "cudaErrorIllegalAddress",
    701: "cudaErrorLaunchOutOfResources",
    710: "cudaErrorAssert",
    716: "cudaErrorMisalignedAddress",
    719: "cudaErrorLaunchFailure",
    801: "cudaErrorNotSupported",
    UNKNOWN: "cudaErrorUnknown",
}

SHARED_SIZE_BYTES = 1  # of CUfunction_attribute
REFUSED = (
    b"refused by the simulated runtime"  # for callers that need a message; the real error is raised later
)

ATTRIBUTE_BYTES = 72  # a cudaLaunchAttribute: number, padding, 64 bytes of value
ATTRIBUTE_VALUE = 8
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION, PREFERRED_CLUSTER_DIMENSION = 2, 4, 6, 11
# cudaLaunchAttributeID values that change when or where a grid runs, not what it computes: none, access
# policy window, synchronisation policy, cluster scheduling policy, priority, memory synchronisation domain
# map and domain, preferred shared memory carveout.
HARMLESS = (0, 1, 3, 5, 8, 9, 10, 14)


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
    _handles: int = 0

    def get_device(self, out: int) -> int:
        ctypes.c_int32.from_address(out).value = 0
        return SUCCESS

    def device_count(self, out: int) -> int:
        ctypes.c_int32.from_address(out).value = 1
        return SUCCESS

    def device_handle(self, out: int, device: int) -> int:
        """cuDeviceGet: the handle of device 0 is 0."""
        return self.get_device(out) if device == 0 else INVALID_VALUE

    def set_device(self, device: int) -> int:
        return SUCCESS if device == 0 else INVALID_VALUE

    def device_attribute(self, out: int, attribute: int, device: int) -> int:
        if attribute not in self.device.attributes:
            return self._refuse(f"host code that asks for device attribute {attribute}")
        if attribute == MULTIPROCESSORS:
            multiprocessors_asked()
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

    def occupancy(self, out: int, kernel: int, threads: int, shared_bytes: int) -> int:
        """cudaOccupancyMaxActiveBlocksPerMultiprocessor."""
        if threads < 1:
            return INVALID_VALUE
        found = self._kernels[kernel - 1]
        ctypes.c_int32.from_address(out).value = self.device.blocks_per_multiprocessor(
            threads,
            found.cubin.registers(found.name) or 0,
            found.cubin.static_shared(found.name) + shared_bytes,
        )
        return SUCCESS

    def make_handle(self, out: int, *flags: int) -> int:
        """Create a stream or an event: a handle that no call looks into."""
        self._handles += 1
        ctypes.c_void_p.from_address(out).value = self._handles
        return SUCCESS

    def order_launches(self, *handles: int) -> int:
        """Does nothing: launches run in the order in which they are requested."""
        return SUCCESS

    def wait_for_launches(self, *handles: int) -> int:
        if self.launches:
            return self._refuse("host code that waits for its own launches: they run when it has ended")
        return SUCCESS

    def assert_success(self, status: int) -> None:
        """What `cuda.result.assert_success` of the DSL lowers to. The DSL's library prints the error and
        aborts; here the call ends with it once the host code has returned."""
        if status != SUCCESS:
            self._fail(
                LaunchError(f"the kernel's host code asserts that a CUDA call succeeds: {_error(status)}")
            )

    def print_on_error(self, status: int) -> None:
        if status != SUCCESS:
            print(f"CUDA error: {_error(status)}", file=sys.stderr)

    def error_name(self, status: int) -> int:
        return _error_text(status)

    def launch_plain(
        self,
        kernel: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        params: int,
        shared_bytes: int,
        stream: int | None,
    ) -> int:
        """cudaLaunchKernel with its two dim3 as six numbers."""
        config = LaunchConfig()
        config.grid[:], config.block[:] = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        config.dynamic_shared, config.stream = shared_bytes, stream
        return self.launch(ctypes.addressof(config), kernel, params)

    def launch(self, config_address: int, kernel: int, params: int) -> int:
        config = LaunchConfig.from_address(config_address)
        found = self._kernels[kernel - 1]
        try:
            attributes = launch_attributes(config)
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
                cluster=attributes.cluster,
                shared_bytes=config.dynamic_shared,
                params=tuple(ctypes.string_at(slot, size) for slot, size in zip(slots, sizes, strict=True)),
                registers=found.cubin.registers(found.name),
                stream=config.stream or 0,
                preferred_cluster=attributes.preferred_cluster,
                programmatic=attributes.programmatic,
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


def _error(status: int) -> str:
    return f"{ERROR_NAMES.get(status, 'CUDA error')} ({status})"


@functools.cache
def _error_buffer(status: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(ERROR_NAMES.get(status, f"CUDA error {status}").encode())


def _error_text(status: int) -> int:
    """The address of an error's name, which stays where it is."""
    return ctypes.addressof(_error_buffer(status))


def _dim3(values: Sequence[int]) -> Dim3:
    return values[0], values[1], values[2]


def launch_attributes(config: LaunchConfig) -> LaunchAttributes:
    """The attributes of a launch. Raises UnsupportedError for those that would change a result.
    CUlaunchConfig has its attributes where cudaLaunchConfig_t has them."""
    found = LaunchAttributes()
    for index in range(config.attribute_count):
        at = config.attributes + index * ATTRIBUTE_BYTES
        number = ctypes.c_int32.from_address(at).value
        value = (ctypes.c_uint32 * 3).from_address(at + ATTRIBUTE_VALUE)
        if number == CLUSTER_DIMENSION:
            found = replace(found, cluster=(value[0], value[1], value[2]))
        elif number == PREFERRED_CLUSTER_DIMENSION:
            found = replace(found, preferred_cluster=(value[0], value[1], value[2]))
        elif number == PROGRAMMATIC_STREAM_SERIALIZATION:
            found = replace(found, programmatic=bool(value[0]))
        elif number == COOPERATIVE:
            if value[0]:
                raise UnsupportedError("a cooperative launch")
        elif number not in HARMLESS:
            raise UnsupportedError(f"launch attribute {number}")
    return found
