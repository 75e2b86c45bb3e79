# SPDX-License-Identifier: Apache-2.0
"""`cuda.bindings.runtime` on the virtual GPU: its functions are replaced one by one, the others refused by
name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gdnbench.sim.virtual.cuda_driver import replace_functions
from gdnbench.sim.virtual.cuda_objects import CudaObjects, address_of
from gdnbench.sim.virtual.device_attributes import device_attribute
from gdnbench.sim.virtual.driver_api import VERSION, objects_of
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.patches import Patches

# Of cudaDeviceProp, the numbers of their attributes.
_PROPERTIES = {
    "major": 75,
    "minor": 76,
    "multiProcessorCount": 16,
    "warpSize": 10,
    "maxThreadsPerBlock": 1,
    "maxThreadsPerMultiProcessor": 39,
    "maxBlocksPerMultiProcessor": 106,
    "regsPerBlock": 12,
    "regsPerMultiprocessor": 82,
    "sharedMemPerBlock": 8,
    "sharedMemPerBlockOptin": 97,
    "sharedMemPerMultiprocessor": 81,
    "reservedSharedMemPerBlock": 111,
    "l2CacheSize": 38,
    "totalConstMem": 9,
    "memPitch": 11,
    "textureAlignment": 14,
    "canMapHostMemory": 19,
    "concurrentKernels": 31,
    "ECCEnabled": 32,
    "memoryBusWidth": 37,
    "asyncEngineCount": 40,
    "unifiedAddressing": 41,
    "streamPrioritiesSupported": 78,
    "globalL1CacheSupported": 79,
    "localL1CacheSupported": 80,
    "managedMemory": 83,
    "concurrentManagedAccess": 89,
    "computePreemptionSupported": 90,
    "cooperativeLaunch": 95,
    "hostRegisterSupported": 99,
    "memoryPoolsSupported": 115,
    "clusterLaunch": 120,
}
TO_HOST, TO_DEVICE, ON_DEVICE = 2, 1, 3  # of cudaMemcpyKind


@contextmanager
def runtime_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block the runtime API of cuda-python has one device, `gpu`."""
    from cuda.bindings import runtime

    patches = Patches()
    objects = objects_of(gpu)
    try:
        functions = {**_device_functions(runtime, objects), **_memory_functions(runtime, objects)}
        replace_functions(patches, runtime, "cuda", functions)
        yield
    finally:
        patches.restore()


def device_properties(runtime: Any, gpu: VirtualGpu) -> Any:
    """The cudaDeviceProp of a GPU, as an object of cuda-python's module `runtime`."""
    made = runtime.cudaDeviceProp()
    made.name = gpu.machine.product.encode().ljust(256, b"\0")
    made.totalGlobalMem = gpu.machine.memory
    made.maxThreadsDim = [device_attribute(gpu, number) for number in (2, 3, 4)]
    made.maxGridSize = [device_attribute(gpu, number) for number in (5, 6, 7)]
    for name, number in _PROPERTIES.items():
        setattr(made, name, device_attribute(gpu, number))
    return made


def _device_functions(runtime: Any, objects: CudaObjects) -> dict[str, Callable[..., Any]]:
    gpu = objects.gpu
    ok = runtime.cudaError_t.cudaSuccess

    def nothing(*_: Any) -> Any:
        return (ok,)

    def wait(*_: Any) -> Any:
        gpu.order.forget()
        return (ok,)

    def set_device(device: int) -> Any:
        return (runtime.cudaError_t.cudaErrorInvalidDevice if device else ok,)

    def name_of(error: Any) -> Any:
        return ok, runtime.cudaError_t(error).name.encode()

    return {
        "cudaGetDeviceCount": lambda: (ok, 1),
        "cudaGetDevice": lambda: (ok, 0),
        "cudaSetDevice": set_device,
        "cudaInitDevice": nothing,
        "cudaDeviceGetAttribute": lambda attribute, device: (ok, device_attribute(gpu, int(attribute))),
        "cudaGetDeviceProperties": lambda device: (ok, device_properties(runtime, gpu)),
        "cudaDeviceSynchronize": wait,
        "cudaDriverGetVersion": lambda: (ok, VERSION),
        "cudaRuntimeGetVersion": lambda: (ok, VERSION),
        "cudaGetLastError": nothing,
        "cudaPeekAtLastError": nothing,
        "cudaGetErrorName": name_of,
        "cudaGetErrorString": name_of,
        "cudaProfilerStart": nothing,
        "cudaProfilerStop": nothing,
        **_stream_functions(runtime, objects, nothing, wait),
    }


def _stream_functions(
    runtime: Any, objects: CudaObjects, nothing: Callable[..., Any], wait: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    ok = runtime.cudaError_t.cudaSuccess

    def stream(*_: Any) -> Any:
        return ok, runtime.cudaStream_t(objects.add("stream"))

    def event(*_: Any) -> Any:
        return ok, runtime.cudaEvent_t(objects.add("event"))

    def record(event: Any, *_: Any) -> Any:
        objects.record(event)
        return (ok,)

    return {
        "cudaStreamCreate": stream,
        "cudaStreamCreateWithFlags": stream,
        "cudaStreamCreateWithPriority": stream,
        "cudaStreamDestroy": nothing,
        "cudaStreamSynchronize": wait,
        "cudaStreamQuery": nothing,
        "cudaStreamWaitEvent": nothing,
        "cudaEventCreate": event,
        "cudaEventCreateWithFlags": event,
        "cudaEventDestroy": nothing,
        "cudaEventRecord": record,
        "cudaEventQuery": nothing,
        "cudaEventSynchronize": wait,
        "cudaEventElapsedTime": lambda start, end: (ok, objects.elapsed(start, end)),
    }


def _memory_functions(runtime: Any, objects: CudaObjects) -> dict[str, Callable[..., Any]]:
    ok = runtime.cudaError_t.cudaSuccess
    gpu = objects.gpu

    def allocate(size: int, *_: Any) -> Any:
        try:
            return ok, objects.allocate(int(size))
        except MemoryError:
            return runtime.cudaError_t.cudaErrorMemoryAllocation, None

    def free(address: Any, *_: Any) -> Any:
        objects.free(address)
        return (ok,)

    def copy(to: Any, source: Any, size: int, kind: Any, *_: Any) -> Any:
        if int(kind) in (TO_DEVICE, ON_DEVICE):
            objects.check(address_of(to), int(size))
        if int(kind) in (TO_HOST, ON_DEVICE):
            objects.check(address_of(source), int(size))
        objects.copy(to, source, int(size))
        return (ok,)

    def fill(address: Any, value: int, size: int, *_: Any) -> Any:
        objects.fill(address_of(address), int(value) & 0xFF, int(size), 1)
        return (ok,)

    return {
        "cudaMalloc": allocate,
        "cudaMallocAsync": allocate,
        "cudaFree": free,
        "cudaFreeAsync": free,
        "cudaMemcpy": copy,
        "cudaMemcpyAsync": copy,
        "cudaMemset": fill,
        "cudaMemsetAsync": fill,
        "cudaMemGetInfo": lambda: (ok, gpu.machine.memory - gpu.memory.allocated, gpu.machine.memory),
    }
