"""`cuda.bindings.driver` on the virtual GPU: functions are replaced, the others refused by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdnbench.sim.host.device import MULTIPROCESSORS
from gdnbench.sim.host.encode_tiled import encode_tiled
from gdnbench.sim.virtual.cuda_objects import CudaObjects, Function, address_of
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.patches import Patches
from gdnbench.sim.virtual.refusals import refusal

VERSION = 13000  # CUDA 13.0
# cudaDeviceAttr and CUdevice_attribute have the same numbers.
_MORE_ATTRIBUTES = {
    13: 1_965_000,  # clock, kHz
    19: 0,  # no run-time limit on kernels
    31: 1,  # concurrent kernels
    36: 3_996_000,  # memory clock, kHz
    37: 8192,  # bits of the memory bus
    41: 1,  # unified addressing
    78: 1,  # stream priorities
    83: 1,  # managed memory
    115: 1,  # memory pools
}


@contextmanager
def driver_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block the driver API of cuda-python has one device, `gpu`."""
    from cuda.bindings import driver

    patches = Patches()
    objects = objects_of(gpu)
    try:
        replace_functions(patches, driver, "cu", _functions(driver, objects))
        yield
    finally:
        patches.restore()


def objects_of(gpu: VirtualGpu) -> CudaObjects:
    """The objects of a GPU, which both APIs share."""
    if _objects and _objects[-1].gpu is gpu:
        return _objects[-1]
    _objects[:] = [CudaObjects(gpu)]
    return _objects[-1]


_objects: list[CudaObjects] = []


def replace_functions(patches: Patches, module: Any, prefix: str, functions: dict[str, Any]) -> None:
    """Replace the API's functions in `module`: those in `functions`, and all others by one that refuses."""
    for name, value in list(vars(module).items()):
        api = name.startswith(prefix) and name[len(prefix) : len(prefix) + 1].isupper()
        if api and callable(value) and not isinstance(value, type):
            patches.replace(module, name, functions.get(name) or _refuser(f"{module.__name__}.{name}"))


def _refuser(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(f"{name}, a CUDA function that the virtual GPU does not have")

    return refuse


def device_attribute(gpu: VirtualGpu, number: int) -> int:
    """A device attribute by its number, which both APIs share. Raises UnsupportedError for an unknown one."""
    device = gpu.asked_device() if number == MULTIPROCESSORS else gpu.device
    known = {**_MORE_ATTRIBUTES, **device.attributes}
    if number not in known:
        raise refusal(f"a program that asks for device attribute {number}")
    return known[number]


def _functions(driver: Any, objects: CudaObjects) -> dict[str, Callable[..., Any]]:
    ok = driver.CUresult.CUDA_SUCCESS
    return {
        **_device_functions(driver, objects, ok),
        **_module_functions(driver, objects, ok),
        **_memory_functions(driver, objects, ok),
        **_stream_functions(driver, objects, ok),
    }


def _device_functions(driver: Any, objects: CudaObjects, ok: Any) -> dict[str, Callable[..., Any]]:
    gpu = objects.gpu
    context = driver.CUcontext(objects.add(gpu))
    name = gpu.machine.product.encode()

    def nothing(*_: Any, **__: Any) -> Any:
        return (ok,)

    def get_device(ordinal: int) -> Any:
        if ordinal:
            return driver.CUresult.CUDA_ERROR_INVALID_DEVICE, None
        return ok, driver.CUdevice(0)

    def max_clusters(function: Any, config: Any) -> Any:
        sizes = [one.value.clusterDim for one in config.attrs or () if int(one.id) == 4]
        size = sizes[0].x * sizes[0].y * sizes[0].z if sizes else 1
        return ok, gpu.asked_device().active_clusters(size)

    def max_blocks(function: Any, block: int, shared: int, *_: Any) -> Any:
        found = objects.get(function, Function, "kernel")
        registers = found.kernel.maxnreg or 0
        size = int(shared) + found.kernel.shared_size
        return ok, gpu.device.blocks_per_multiprocessor(int(block), registers, size)

    return {
        "cuInit": nothing,
        "cuDriverGetVersion": lambda: (ok, VERSION),
        "cuDeviceGetCount": lambda: (ok, 1),
        "cuDeviceGet": get_device,
        "cuDeviceGetName": lambda length, device: (ok, name.ljust(int(length), b"\0")),
        "cuDeviceGetAttribute": lambda attribute, device: (ok, device_attribute(gpu, int(attribute))),
        "cuDeviceTotalMem": lambda device: (ok, gpu.machine.memory),
        "cuDeviceGetUuid": lambda device: (ok, driver.CUuuid()),
        "cuDeviceComputeCapability": lambda device: (ok, *gpu.device.capability),
        "cuDevicePrimaryCtxRetain": lambda device: (ok, context),
        "cuDevicePrimaryCtxRelease": nothing,
        "cuDevicePrimaryCtxSetFlags": nothing,
        "cuDevicePrimaryCtxGetState": lambda device: (ok, 0, 1),
        "cuCtxCreate": lambda *_: (ok, context),
        "cuCtxGetCurrent": lambda: (ok, context),
        "cuCtxSetCurrent": nothing,
        "cuCtxPushCurrent": nothing,
        "cuCtxPopCurrent": lambda: (ok, context),
        "cuCtxDestroy": nothing,
        "cuCtxSynchronize": nothing,
        "cuCtxGetDevice": lambda: (ok, driver.CUdevice(0)),
        "cuGetErrorName": lambda error: (ok, driver.CUresult(error).name.encode()),
        "cuGetErrorString": lambda error: (ok, driver.CUresult(error).name.encode()),
        "cuOccupancyMaxActiveClusters": max_clusters,
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": max_blocks,
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": max_blocks,
        "cuTensorMapEncodeTiled": lambda *arguments: (ok, _encode(driver, *arguments)),
        "cuProfilerStart": nothing,
        "cuProfilerStop": nothing,
    }


def _encode(driver: Any, *arguments: Any) -> Any:
    """cuTensorMapEncodeTiled with cuda-python's arguments."""
    kind, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill = arguments
    rank = int(rank)
    made = driver.CUtensorMap()
    wide = (ctypes.c_uint64 * rank)(*map(int, dims)), (ctypes.c_uint64 * rank)(*map(int, strides or ()))
    narrow = (ctypes.c_uint32 * rank)(*map(int, box)), (ctypes.c_uint32 * rank)(*map(int, steps))
    addresses = [ctypes.addressof(array) for array in (*wide, *narrow)]
    numbers = [int(value) for value in (interleave, swizzle, promotion, fill)]
    encode_tiled(int(made.getPtr()), int(kind), rank, address_of(address), *addresses, *numbers)
    return made


def _module_functions(driver: Any, objects: CudaObjects, ok: Any) -> dict[str, Callable[..., Any]]:
    from gdnbench.sim.ptx.ir import Module

    def load_module(image: Any, *_: Any) -> Any:
        return ok, driver.CUmodule(objects.add(objects.load(image)))

    def load_file(name: Any) -> Any:
        path = Path(name.decode() if isinstance(name, bytes) else name)
        return ok, driver.CUmodule(objects.add(objects.load(path.read_bytes())))

    def load_library(image: Any, *_: Any) -> Any:
        return ok, driver.CUlibrary(objects.add(objects.load(image)))

    def function_of(kind: Any) -> Callable[..., Any]:
        def get_function(module: Any, name: Any) -> Any:
            found = objects.get(module, Module, "module")
            return ok, kind(objects.add(objects.function(found, name)))

        return get_function

    def get_global(module: Any, name: Any) -> Any:
        text = name.decode() if isinstance(name, bytes) else name
        room = objects.gpu.variable(objects.get(module, Module, "module"), text)
        return ok, driver.CUdeviceptr(int(room.ctypes.data)), room.size

    def enumerate_kernels(count: int, library: Any) -> Any:
        found = objects.get(library, Module, "library")
        names = list(found.kernels)[: int(count)]
        return ok, [driver.CUkernel(objects.add(objects.function(found, name))) for name in names]

    def unload(handle: Any) -> Any:
        objects.objects.pop(int(handle), None)
        return (ok,)

    def set_attribute(function: Any, attribute: Any, value: int) -> Any:
        objects.get(function, Function, "kernel").attributes[int(attribute)] = int(value)
        return (ok,)

    def get_attribute(attribute: Any, function: Any, *_: Any) -> Any:
        return ok, objects.get(function, Function, "kernel").attribute(int(attribute))

    def get_name(function: Any) -> Any:
        return ok, objects.get(function, Function, "kernel").kernel.name.encode()

    def launch(*arguments: Any) -> Any:
        function, *rest = arguments
        x, y, z, *block = map(int, rest[:6])
        shared, _, params, extra = (*rest[6:], None, None, None, None)[:4]
        objects.launch(function, (x, y, z), (block[0], block[1], block[2]), int(shared or 0), params, extra)
        return (ok,)

    def launch_ex(config: Any, function: Any, params: Any, extra: Any = None) -> Any:
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        attributes = list(config.attrs or ())[: config.numAttrs]
        objects.launch(function, grid, block, config.sharedMemBytes, params, extra, attributes)
        return (ok,)

    return {
        "cuModuleLoadData": load_module,
        "cuModuleLoadDataEx": load_module,
        "cuModuleLoad": load_file,
        "cuModuleUnload": unload,
        "cuModuleGetFunction": function_of(driver.CUfunction),
        "cuModuleGetGlobal": get_global,
        "cuLibraryLoadData": load_library,
        "cuLibraryUnload": unload,
        "cuLibraryGetKernel": function_of(driver.CUkernel),
        "cuLibraryGetGlobal": get_global,
        "cuLibraryGetKernelCount": lambda library: (ok, len(objects.get(library, Module, "library").kernels)),
        "cuLibraryEnumerateKernels": enumerate_kernels,
        "cuKernelGetFunction": lambda kernel: (ok, driver.CUfunction(int(kernel))),
        "cuKernelGetName": get_name,
        "cuFuncGetName": get_name,
        "cuFuncSetAttribute": set_attribute,
        "cuFuncGetAttribute": get_attribute,
        "cuKernelSetAttribute": lambda attribute, value, kernel, _: set_attribute(kernel, attribute, value),
        "cuKernelGetAttribute": get_attribute,
        "cuFuncSetCacheConfig": lambda *_: (ok,),
        "cuLaunchKernel": launch,
        "cuLaunchKernelEx": launch_ex,
    }


def _memory_functions(driver: Any, objects: CudaObjects, ok: Any) -> dict[str, Callable[..., Any]]:
    gpu = objects.gpu

    def allocate(size: int, *_: Any) -> Any:
        return ok, driver.CUdeviceptr(objects.allocate(int(size)))

    def free(address: Any, *_: Any) -> Any:
        objects.free(address)
        return (ok,)

    def copier(to_device: bool, from_device: bool) -> Callable[..., Any]:
        def copy(to: Any, source: Any, size: int, *_: Any) -> Any:
            for address, checked in ((to, to_device), (source, from_device)):
                if checked:
                    objects.check(address, int(size))
            objects.copy(to, source, int(size))
            return (ok,)

        return copy

    def filler(width: int) -> Callable[..., Any]:
        def fill(address: Any, value: int, count: int, *_: Any) -> Any:
            objects.fill(address, int(value), int(count), width)
            return (ok,)

        return fill

    def allocate_host(size: int, *_: Any) -> Any:
        room = ctypes.create_string_buffer(int(size))
        objects.objects[ctypes.addressof(room)] = room
        return ok, ctypes.addressof(room)

    def free_host(address: Any) -> Any:
        objects.objects.pop(int(address), None)
        return (ok,)

    found: dict[str, Callable[..., Any]] = {
        "cuMemAlloc": allocate,
        "cuMemAllocAsync": allocate,
        "cuMemFree": free,
        "cuMemFreeAsync": free,
        "cuMemAllocHost": allocate_host,
        "cuMemHostAlloc": allocate_host,
        "cuMemFreeHost": free_host,
        "cuMemGetInfo": lambda: (ok, gpu.machine.memory - gpu.memory.allocated, gpu.machine.memory),
    }
    for suffix in ("", "Async"):
        found[f"cuMemcpyHtoD{suffix}"] = copier(to_device=True, from_device=False)
        found[f"cuMemcpyDtoH{suffix}"] = copier(to_device=False, from_device=True)
        found[f"cuMemcpyDtoD{suffix}"] = copier(to_device=True, from_device=True)
        found[f"cuMemcpy{suffix}"] = copier(to_device=False, from_device=False)
        for bits in (8, 16, 32):
            found[f"cuMemsetD{bits}{suffix}"] = filler(bits // 8)
    return found


def _stream_functions(driver: Any, objects: CudaObjects, ok: Any) -> dict[str, Callable[..., Any]]:
    def nothing(*_: Any) -> Any:
        return (ok,)

    def record(event: Any, *_: Any) -> Any:
        objects.record(event)
        return (ok,)

    return {
        "cuStreamCreate": lambda *_: (ok, driver.CUstream(objects.add("stream"))),
        "cuStreamCreateWithPriority": lambda *_: (ok, driver.CUstream(objects.add("stream"))),
        "cuStreamDestroy": nothing,
        "cuStreamSynchronize": nothing,
        "cuStreamQuery": nothing,
        "cuStreamWaitEvent": nothing,
        "cuStreamIsCapturing": lambda _: (
            ok,
            driver.CUstreamCaptureStatus(int(objects.gpu.recorder is not None)),
        ),
        "cuCtxGetStreamPriorityRange": lambda: (ok, 0, -5),
        "cuEventCreate": lambda *_: (ok, driver.CUevent(objects.add("event"))),
        "cuEventDestroy": nothing,
        "cuEventRecord": record,
        "cuEventQuery": nothing,
        "cuEventSynchronize": nothing,
        "cuEventElapsedTime": lambda start, end: (ok, objects.elapsed(start, end)),
    }
