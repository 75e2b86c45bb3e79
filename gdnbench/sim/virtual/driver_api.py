# SPDX-License-Identifier: Apache-2.0
"""What the functions of the CUDA driver API do on the virtual GPU.

`driver_functions(gpu)["cuMemAlloc"]` takes the parameters of the function that go in, in C's order, without
those that `driver_signatures.py` marks as of no effect: handles and addresses as integers, strings as bytes.
It returns the value that goes out, a tuple of several, or None.

Two callers have them: `libcuda.py` for C, `cuda_driver.py` for cuda-python.
"""

from __future__ import annotations

import ctypes
import os
from math import prod
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import UnsupportedError
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
from gdnbench.sim.virtual.device_attributes import device_attribute
from gdnbench.sim.virtual.driver_errors import INVALID_DEVICE, INVALID_VALUE, SUCCESS, DriverError, error_name
from gdnbench.sim.virtual.driver_memory import Functions, copy_functions, memory_functions
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.refusals import note_refusal, refusal

VERSION = 13000  # CUDA 13.0

# CUlimit: stack of a thread, printf's buffer, malloc's heap, with CUDA's defaults in bytes.
_LIMITS = {0: 1 << 10, 1: 1 << 20, 2: 8 << 20}


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
            **memory_functions(objects),
            **copy_functions(objects),
            **_stream_functions(objects),
        }
        _functions[:] = [(objects, found)]
    return _functions[-1][1]


_functions: list[tuple[CudaObjects, Functions]] = []


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
        cluster = _attributes(LaunchConfig.from_address(config)).cluster
        return gpu.asked_device().active_clusters(prod(cluster or ()))

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
