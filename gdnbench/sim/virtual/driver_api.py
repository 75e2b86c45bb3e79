"""What the functions of the CUDA driver API do on the virtual GPU.

`driver_functions(gpu)["cuMemAlloc"]` takes the parameters of the function that go in, in C's order, without
those that `driver_signatures.py` marks as of no effect: handles and addresses as integers, strings as bytes.
It returns the value that goes out, a tuple of several, or None.

Two callers have them: `libcuda.py` for C, `cuda_driver.py` for cuda-python.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.device import MULTIPROCESSORS
from gdnbench.sim.host.encode_tiled import encode_tiled, replace_address
from gdnbench.sim.host.request import LaunchAttributes
from gdnbench.sim.host.runtime import LaunchConfig, launch_attributes
from gdnbench.sim.machine.engine_interface import MAX_CLUSTER, Dim3
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.virtual.cuda_objects import (
    NON_PORTABLE_CLUSTERS,
    PORTABLE_CLUSTER,
    CudaObjects,
    Function,
)
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.refusals import note_refusal, refusal

Functions = dict[str, Callable[..., Any]]

VERSION = 13000  # CUDA 13.0

# CUresult.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE, NOT_FOUND = 0, 1, 2, 100, 101, 500
ERROR_NAMES = {
    SUCCESS: "CUDA_SUCCESS",
    INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    NO_DEVICE: "CUDA_ERROR_NO_DEVICE",
    INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    218: "CUDA_ERROR_INVALID_PTX",
    301: "CUDA_ERROR_FILE_NOT_FOUND",
    400: "CUDA_ERROR_INVALID_HANDLE",
    NOT_FOUND: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    710: "CUDA_ERROR_ASSERT",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}

# cudaDeviceAttr and CUdevice_attribute have the same numbers.
_MORE_ATTRIBUTES = {
    9: 64 << 10,  # constant memory
    11: 2**31 - 1,  # pitch of copies
    13: 1_965_000,  # clock, kHz
    14: 512,  # alignment of textures
    15: 1,  # copies while a kernel runs
    17: 0,  # no run-time limit on kernels
    18: 0,  # not integrated
    19: 1,  # memory of the host can be mapped
    20: 0,  # compute mode: default
    31: 1,  # concurrent kernels
    32: 1,  # error-correcting memory
    33: 0,  # PCI bus, device
    34: 0,
    35: 0,  # no TCC driver
    36: 3_996_000,  # memory clock, kHz
    37: 8192,  # bits of the memory bus
    40: 3,  # copy engines
    41: 1,  # unified addressing
    50: 0,  # PCI domain
    69: 1 << 28,  # texels of a 1D texture in linear memory
    78: 1,  # stream priorities
    79: 1,  # global, local memory in L1
    80: 1,
    83: 1,  # managed memory
    84: 0,  # no board of several GPUs
    85: 0,
    87: 2,  # fp32 performance over fp64
    88: 0,  # no access to pageable memory
    89: 1,  # managed memory while a kernel runs
    90: 1,  # preemption
    91: 1,  # registered memory at the host's address
    96: 0,  # no launches on several devices
    99: 1,  # registration of the host's memory
    100: 0,  # no page tables of the host
    101: 0,
    102: 0,  # no virtual memory management, nor handles of memory to export
    103: 0,
    104: 0,
    105: 0,
    107: 0,  # no compressible memory
    110: 0,  # no GPUDirect RDMA
    112: 0,  # no sparse arrays
    115: 1,  # memory pools
    116: 0,
    119: 0,  # pools are not shared by processes
    124: 0,  # no dma_buf, IPC events
    125: 0,
    127: 1,  # tensor maps
    128: 0,
    129: 0,  # no unified function pointers
    132: 0,  # no multicast
    133: 0,  # no MPS
    142: 0,  # no pools of the host's memory
    144: 0,
}
# CUlimit: stack of a thread, printf's buffer, malloc's heap, with CUDA's defaults in bytes.
_LIMITS = {0: 1 << 10, 1: 1 << 20, 2: 8 << 20}

# CUpointer_attribute, and the types of the results that are not 64 bits wide.
_CONTEXT, _MEMORY_TYPE, _DEVICE_POINTER, _HOST_POINTER, _BUFFER_ID = 1, 2, 3, 4, 7
_IS_MANAGED, _ORDINAL, _START, _SIZE, _MAPPED, _POOL = 8, 9, 11, 12, 13, 17
_NARROW = {_MEMORY_TYPE: "I", _IS_MANAGED: "B", _ORDINAL: "i", _MAPPED: "B"}
_ON_HOST, _ON_DEVICE = 1, 2  # CUmemorytype

# CUmemPool_attribute: three rules of reuse, then bytes.
_POOL_RULES, _THRESHOLD, _RESERVED, _USED = (1, 2, 3), 4, (5, 6), (7, 8)

# What needs no work: everything runs at once, in the one context that there is.
_NOTHING = """
cuInit cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset cuDevicePrimaryCtxSetFlags cuDeviceSetMemPool
cuCtxDestroy cuCtxSetCurrent cuCtxPushCurrent cuCtxSetCacheConfig
cuKernelSetCacheConfig cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncLoad
cuMemAdvise cuMemPrefetchAsync cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAccess cuPointerSetAttribute
cuStreamDestroy cuStreamQuery cuStreamWaitEvent cuThreadExchangeStreamCaptureMode
cuEventDestroy cuEventQuery cuProfilerStart cuProfilerStop
"""
_WAIT = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
"""What waits for launches: they have run, but a launch is not dependent on one that was waited for."""


class DriverError(Exception):
    """A result that CUDA documents for a call, such as for a device that there is not: no refusal and no
    mistake that is worth a message. `code` is a CUresult."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(ERROR_NAMES[code])


def objects_of(gpu: VirtualGpu) -> CudaObjects:
    """The objects of a GPU, which all its APIs share."""
    if not (_objects and _objects[-1].gpu is gpu):
        _objects[:] = [CudaObjects(gpu)]
    return _objects[-1]


_objects: list[CudaObjects] = []


def driver_functions(gpu: VirtualGpu) -> Functions:
    """The functions by their names in the API, without versions."""
    objects = objects_of(gpu)
    if not (_functions and _functions[-1][0] is objects):
        found: Functions = {
            **dict.fromkeys(_NOTHING.split(), lambda *_: None),
            **dict.fromkeys(_WAIT, lambda *_: gpu.order.forget()),
            **_device_functions(objects),
            **_context_functions(objects),
            **_module_functions(objects),
            **_kernel_functions(objects),
            **_launch_functions(objects),
            **_memory_functions(objects),
            **_copy_functions(objects),
            **_stream_functions(objects),
        }
        _functions[:] = [(objects, found)]
    return _functions[-1][1]


_functions: list[tuple[CudaObjects, Functions]] = []


def device_attribute(gpu: VirtualGpu, number: int) -> int:
    """A device attribute by its number, which both APIs share. Raises UnsupportedError for an unknown one."""
    device = gpu.asked_device() if number == MULTIPROCESSORS else gpu.device
    known = {**_MORE_ATTRIBUTES, **device.attributes}
    if number not in known:
        raise refusal(f"a program that asks for device attribute {number}")
    return known[number]


def error_name(code: int) -> bytes:
    """cuGetErrorName."""
    if code not in ERROR_NAMES:
        raise DriverError(INVALID_VALUE)
    return ERROR_NAMES[code].encode()


def _device_functions(objects: CudaObjects) -> Functions:
    gpu = objects.gpu

    def get_device(ordinal: int) -> int:
        if ordinal:
            raise DriverError(INVALID_DEVICE)
        return 0

    def get_name(room: int, size: int, device: int) -> None:
        _write_text(room, size, gpu.machine.product)

    def get_bus(room: int, size: int, device: int) -> None:
        _write_text(room, size, "0000:00:00.0")

    def get_uuid(room: int, device: int) -> None:
        ctypes.memset(room, 0, 16)

    return {
        "cuDriverGetVersion": lambda: VERSION,
        "cuGetErrorName": error_name,
        "cuGetErrorString": error_name,
        "cuDeviceGetCount": lambda: 1,
        "cuDeviceGet": get_device,
        "cuDeviceGetName": get_name,
        "cuDeviceGetUuid": get_uuid,
        "cuDeviceGetPCIBusId": get_bus,
        "cuDeviceGetAttribute": lambda number, device: device_attribute(gpu, number),
        "cuDeviceTotalMem": lambda device: gpu.machine.memory,
        "cuDeviceComputeCapability": lambda device: gpu.device.capability,
        "cuDeviceCanAccessPeer": lambda device, peer: 0,
    }


def _write_text(room: int, size: int, text: str) -> None:
    data = text.encode()[: max(size - 1, 0)].ljust(size, b"\0")
    ctypes.memmove(room, data, size)


def _context_functions(objects: CudaObjects) -> Functions:
    limits = dict(_LIMITS)

    def get_limit(number: int) -> int:
        if number not in limits:
            raise refusal(f"limit {number} of a context")
        return limits[number]

    def set_limit(number: int, value: int) -> None:
        limits[number] = value

    def context(*_: int) -> int:
        return objects.context

    return {
        "cuDevicePrimaryCtxRetain": context,
        "cuDevicePrimaryCtxGetState": lambda device: (0, 1),
        "cuCtxCreate": context,
        "cuCtxGetCurrent": context,
        "cuCtxPopCurrent": context,
        "cuStreamGetCtx": context,
        "cuCtxGetDevice": lambda: 0,
        "cuCtxGetFlags": lambda: 0,
        "cuCtxGetId": lambda: 1,
        "cuCtxGetLimit": get_limit,
        "cuCtxSetLimit": set_limit,
        "cuCtxGetCacheConfig": lambda: 0,
        "cuCtxGetStreamPriorityRange": lambda: (0, -5),
    }


def _module_functions(objects: CudaObjects) -> Functions:
    def load(image: Any) -> int:
        return objects.add(objects.load(image))

    def load_file(name: bytes | str) -> int:
        path = Path(os.fsdecode(name))
        return objects.add(objects.load(path.read_bytes()))

    def unload(handle: int) -> None:
        objects.objects.pop(handle, None)

    def module(handle: int) -> Module:
        found: Module = objects.get(handle, Module, "module")
        return found

    def get_function(handle: int, name: bytes | str) -> int:
        return objects.function_handle(module(handle), name)

    def get_global(handle: int, name: bytes | str) -> tuple[int, int]:
        text = name.decode(errors="replace") if isinstance(name, bytes) else name
        room = objects.gpu.variable(module(handle), text)
        return int(room.ctypes.data), room.size

    def count(handle: int) -> int:
        return len(module(handle).kernels)

    def enumerate_kernels(room: int, size: int, handle: int) -> None:
        names = list(module(handle).kernels)[:size]
        handles = (ctypes.c_uint64 * len(names)).from_address(room)
        for index, name in enumerate(names):
            handles[index] = objects.function_handle(module(handle), name)

    return {
        "cuModuleLoad": load_file,
        "cuModuleLoadData": load,
        "cuModuleLoadDataEx": load,
        "cuModuleLoadFatBinary": load,
        "cuModuleUnload": unload,
        "cuModuleGetLoadingMode": lambda: 1,  # eager
        "cuModuleGetFunction": get_function,
        "cuModuleGetFunctionCount": count,
        "cuModuleEnumerateFunctions": enumerate_kernels,
        "cuModuleGetGlobal": get_global,
        "cuLibraryLoadData": load,
        "cuLibraryLoadFromFile": load_file,
        "cuLibraryUnload": unload,
        "cuLibraryGetKernel": get_function,
        "cuLibraryGetKernelCount": count,
        "cuLibraryEnumerateKernels": enumerate_kernels,
        "cuLibraryGetModule": lambda library: library,
        "cuLibraryGetGlobal": get_global,
    }


def _kernel_functions(objects: CudaObjects) -> Functions:
    gpu = objects.gpu

    def function(handle: int) -> Function:
        found: Function = objects.get(handle, Function, "kernel")
        return found

    def get_name(handle: int) -> bytes:
        return function(handle).kernel.name.encode()

    def get_attribute(number: int, handle: int) -> int:
        return function(handle).attribute(number)

    def set_attribute(handle: int, number: int, value: int) -> None:
        function(handle).attributes[number] = value

    def set_kernel_attribute(number: int, value: int, handle: int) -> None:
        set_attribute(handle, number, value)

    def module_of(handle: int) -> int:
        return objects.handle_of(function(handle).module)

    def param_info(handle: int, index: int) -> tuple[int, int]:
        params = function(handle).kernel.params
        if index >= len(params):
            raise DriverError(INVALID_VALUE)
        return params[index].offset, params[index].size

    def param_count(handle: int) -> int:
        return len(function(handle).kernel.params)

    def max_blocks(handle: int, block: int, shared: int) -> int:
        found = function(handle)
        registers = found.kernel.maxnreg or 0
        return gpu.device.blocks_per_multiprocessor(block, registers, shared + found.kernel.shared_size)

    def max_clusters(handle: int, config: int) -> int:
        x, y, z = _attributes(LaunchConfig.from_address(config)).cluster
        return gpu.asked_device().active_clusters(x * y * z)

    def largest_cluster(handle: int, config: int) -> int:
        return MAX_CLUSTER if function(handle).attribute(NON_PORTABLE_CLUSTERS) else PORTABLE_CLUSTER

    return {
        "cuKernelGetFunction": lambda kernel: kernel,
        "cuKernelGetLibrary": module_of,
        "cuKernelGetName": get_name,
        "cuKernelGetAttribute": get_attribute,
        "cuKernelSetAttribute": set_kernel_attribute,
        "cuKernelGetParamInfo": param_info,
        "cuKernelGetParamCount": param_count,
        "cuFuncGetModule": module_of,
        "cuFuncGetName": get_name,
        "cuFuncGetAttribute": get_attribute,
        "cuFuncSetAttribute": set_attribute,
        "cuFuncGetParamInfo": param_info,
        "cuFuncGetParamCount": param_count,
        "cuFuncIsLoaded": lambda kernel: 1,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": max_blocks,
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": max_blocks,
        "cuOccupancyMaxActiveClusters": max_clusters,
        "cuOccupancyMaxPotentialClusterSize": largest_cluster,
        "cuTensorMapEncodeTiled": encode_tiled,
        "cuTensorMapReplaceAddress": replace_address,
    }


def _attributes(config: LaunchConfig) -> LaunchAttributes:
    try:
        return launch_attributes(config)
    except UnsupportedError as error:
        note_refusal(error)
        raise


def _launch_functions(objects: CudaObjects) -> Functions:
    def launch(
        handle: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        params: Any,
        extra: int,
    ) -> None:
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        objects.launch(handle, grid, block, shared, params, extra)

    def launch_ex(config: int, handle: int, params: Any, extra: int) -> None:
        given = LaunchConfig.from_address(config)
        grid: Dim3 = (given.grid[0], given.grid[1], given.grid[2])
        block: Dim3 = (given.block[0], given.block[1], given.block[2])
        # CUlaunchConfig has 32 bits of dynamic shared memory and padding, cudaLaunchConfig_t 64.
        shared = given.dynamic_shared & 0xFFFFFFFF
        objects.launch(
            handle, grid, block, shared, params, extra, _attributes(given), stream=given.stream or 0
        )

    def host_function(function: int, data: int) -> None:
        objects.do(lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data))

    def callback(stream: int, function: int, data: int) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        objects.do(lambda: kind(function)(stream, SUCCESS, data))

    return {
        "cuLaunchKernel": launch,
        "cuLaunchKernelEx": launch_ex,
        "cuLaunchHostFunc": host_function,
        "cuStreamAddCallback": callback,
    }


def _memory_functions(objects: CudaObjects) -> Functions:
    gpu = objects.gpu
    pool_values: dict[int, int] = {}

    def allocate(size: int) -> int:
        try:
            return objects.allocate(size)
        except MemoryError:
            raise DriverError(OUT_OF_MEMORY) from None

    def allocate_host(size: int) -> int:
        try:
            return objects.allocate_host(size)
        except MemoryError:
            raise DriverError(OUT_OF_MEMORY) from None

    def allocate_managed(size: int) -> int:
        address = allocate(size)
        objects.managed.add(address)
        return address

    def unregister(address: int) -> None:
        if objects.registered.pop(address, None) is None:
            raise DriverError(INVALID_VALUE)

    def range_of(address: int) -> tuple[int, int]:
        found = objects.allocation_at(address)
        if found is None:
            raise DriverError(INVALID_VALUE)
        return found

    def pointer_attribute(number: int, address: int) -> int | None:
        found = objects.allocation_at(address)
        if found is None:
            return None
        start, size = found
        on_host = start in objects.host
        known = {
            _CONTEXT: objects.context,
            _MEMORY_TYPE: _ON_HOST if on_host else _ON_DEVICE,
            _DEVICE_POINTER: address,
            _BUFFER_ID: start,
            _IS_MANAGED: int(start in objects.managed),
            _ORDINAL: 0,
            _START: start,
            _SIZE: size,
            _MAPPED: 1,
            _POOL: 0,
        }
        if on_host or start in objects.managed:
            known[_HOST_POINTER] = address
        if number not in known and number != _HOST_POINTER:
            raise refusal(f"attribute {number} of a pointer")
        return known.get(number)

    def get_pointer_attribute(room: int, number: int, address: int) -> None:
        value = pointer_attribute(number, address)
        if value is None:
            raise DriverError(INVALID_VALUE)
        _write(room, number, value)

    def get_pointer_attributes(count: int, numbers: int, rooms: int, address: int) -> None:
        for number, room in zip(
            (ctypes.c_int * count).from_address(numbers),
            (ctypes.c_uint64 * count).from_address(rooms),
            strict=True,
        ):
            value = pointer_attribute(number, address)
            # What CUDA documents for memory that it does not know.
            _write(room, number, {_ORDINAL: -2}.get(number, 0) if value is None else value)

    def set_pool_attribute(pool: int, number: int, room: int) -> None:
        if number in _POOL_RULES:
            pool_values[number] = ctypes.c_int32.from_address(room).value
        elif number == _THRESHOLD:
            pool_values[number] = ctypes.c_uint64.from_address(room).value
        elif number not in (*_RESERVED, *_USED):
            raise refusal(f"attribute {number} of a memory pool")

    def get_pool_attribute(pool: int, number: int, room: int) -> None:
        if number in _POOL_RULES:
            ctypes.c_int32.from_address(room).value = pool_values.get(number, 1)
        elif number == _THRESHOLD:
            ctypes.c_uint64.from_address(room).value = pool_values.get(number, 0)
        elif number in (*_RESERVED, *_USED):
            high = number in (_RESERVED[1], _USED[1])
            ctypes.c_uint64.from_address(room).value = gpu.memory.peak if high else gpu.memory.allocated
        else:
            raise refusal(f"attribute {number} of a memory pool")

    def pool(*_: int) -> int:
        return objects.pool

    return {
        "cuMemAlloc": allocate,
        "cuMemAllocAsync": allocate,
        "cuMemAllocFromPoolAsync": allocate,
        "cuMemAllocManaged": allocate_managed,
        "cuMemFree": objects.free,
        "cuMemFreeAsync": objects.free,
        "cuMemAllocHost": allocate_host,
        "cuMemHostAlloc": allocate_host,
        "cuMemFreeHost": objects.free_host,
        "cuMemHostRegister": objects.register,
        "cuMemHostUnregister": unregister,
        "cuMemHostGetDevicePointer": lambda address: address,
        "cuMemGetInfo": lambda: (gpu.machine.memory - gpu.memory.allocated, gpu.machine.memory),
        "cuMemGetAddressRange": range_of,
        "cuPointerGetAttribute": get_pointer_attribute,
        "cuPointerGetAttributes": get_pointer_attributes,
        "cuDeviceGetDefaultMemPool": pool,
        "cuDeviceGetMemPool": pool,
        "cuMemPoolCreate": pool,
        "cuMemPoolSetAttribute": set_pool_attribute,
        "cuMemPoolGetAttribute": get_pool_attribute,
    }


def _write(room: int, number: int, value: int) -> None:
    """Write an attribute of a pointer."""
    data = struct.pack("<" + _NARROW.get(number, "Q"), value)
    ctypes.memmove(room, data, len(data))


_END = (
    ("x", ctypes.c_size_t),
    ("y", ctypes.c_size_t),
    ("type", ctypes.c_uint),
    ("host", ctypes.c_uint64),
    ("device", ctypes.c_uint64),
    ("array", ctypes.c_uint64),
    ("pitch", ctypes.c_size_t),
)


class _Copy2d(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *((f"source_{name}", kind) for name, kind in _END),
        *((f"to_{name}", kind) for name, kind in _END),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _copy_functions(objects: CudaObjects) -> Functions:
    def copier(to_device: bool, from_device: bool) -> Callable[..., None]:
        def copy(to: Any, source: Any, size: int) -> None:
            for address, checked in ((to, to_device), (source, from_device)):
                if checked:
                    objects.check(address, size)
            objects.copy(to, source, size)

        return copy

    def copy_2d(room: int) -> None:
        given = _Copy2d.from_address(room)
        ends = []
        for side in ("to", "source"):
            kind = getattr(given, f"{side}_type")
            if kind not in (_ON_HOST, _ON_DEVICE, 4):  # 4: unified
                raise refusal("a copy from or to a CUDA array")
            base = getattr(given, f"{side}_host" if kind == _ON_HOST else f"{side}_device")
            pitch = getattr(given, f"{side}_pitch") or given.width
            start = base + getattr(given, f"{side}_y") * pitch + getattr(given, f"{side}_x")
            if kind == _ON_DEVICE and given.height:
                objects.check(start, (given.height - 1) * pitch + given.width)
            ends.append((start, pitch))
        (to, to_pitch), (source, source_pitch) = ends
        for row in range(given.height):
            objects.copy(to + row * to_pitch, source + row * source_pitch, given.width)

    def filler(width: int) -> Callable[..., None]:
        def fill(address: Any, value: int, count: int) -> None:
            objects.fill(address, value, count, width)

        return fill

    def filler_2d(width: int) -> Callable[..., None]:
        def fill(address: int, pitch: int, value: int, columns: int, rows: int) -> None:
            for row in range(rows):
                objects.fill(address + row * pitch, value, columns, width)

        return fill

    found: Functions = {
        "cuMemcpy": copier(to_device=False, from_device=False),
        "cuMemcpyHtoD": copier(to_device=True, from_device=False),
        "cuMemcpyDtoH": copier(to_device=False, from_device=True),
        "cuMemcpyDtoD": copier(to_device=True, from_device=True),
        "cuMemcpy2D": copy_2d,
        **{f"cuMemsetD{bits}": filler(bits // 8) for bits in (8, 16, 32)},
        **{f"cuMemsetD2D{bits}": filler_2d(bits // 8) for bits in (8, 16, 32)},
    }
    later = {f"{name}Async": function for name, function in found.items()}
    return {**found, **later, "cuMemcpy2DUnaligned": copy_2d}


def _stream_functions(objects: CudaObjects) -> Functions:
    def capture(*_: int) -> int:
        return int(objects.gpu.recorder is not None)

    return {
        "cuStreamCreate": lambda: objects.add("stream"),
        "cuStreamCreateWithPriority": lambda: objects.add("stream"),
        "cuStreamGetPriority": lambda: 0,
        "cuStreamGetFlags": lambda: 0,
        "cuStreamGetDevice": lambda: 0,
        "cuStreamGetId": lambda stream: stream,
        "cuStreamIsCapturing": capture,
        "cuStreamGetCaptureInfo": lambda: (capture(), 1),
        "cuEventCreate": lambda: objects.add("event"),
        "cuEventRecord": objects.record,
        "cuEventRecordWithFlags": objects.record,
        "cuEventElapsedTime": objects.elapsed,
    }
