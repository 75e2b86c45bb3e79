# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime that is linked into an extension module, as CuPy's `runtime` has it, on the virtual GPU.

    replace_runtime(path)

The linked runtime would reach the driver through tables that NVIDIA does not document. So each of its
functions `cuda...` gets a jump to one of ours, written over its first instructions in this process's memory;
the file stays as it is. The module has to be loaded, and its file to have its symbol table.

`SERVED` has rows as in `driver_signatures.py`; the second name is the function of the driver API that does
the same, where there is one. All others are refused by name.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gdnbench.sim.host.runtime import ERROR_NAMES
from gdnbench.sim.virtual.c_functions import CFunctions, NoGpuError
from gdnbench.sim.virtual.cuda_runtime import device_properties
from gdnbench.sim.virtual.driver_api import VERSION
from gdnbench.sim.virtual.driver_errors import INVALID_DEVICE, INVALID_VALUE, DriverError
from gdnbench.sim.virtual.driver_signatures import parameters_of
from gdnbench.sim.virtual.gpu import VirtualGpu, current_gpu
from gdnbench.sim.virtual.install import CUPY
from gdnbench.sim.virtual.libcuda import driver_function
from gdnbench.sim.virtual.refusals import refusal

SERVED = """
cudaGetDeviceCount cuDeviceGetCount: out int
cudaGetDevice cuCtxGetDevice: out int
cudaSetDevice: int
cudaDeviceGetAttribute cuDeviceGetAttribute: out int, int, int
cudaDeviceGetPCIBusId cuDeviceGetPCIBusId: address, int, int
cudaDeviceCanAccessPeer cuDeviceCanAccessPeer: out int, int, int
cudaDeviceSynchronize cuCtxSynchronize:
cudaDeviceGetLimit cuCtxGetLimit: out size_t, int
cudaDeviceSetLimit cuCtxSetLimit: int, size_t
cudaDeviceGetStreamPriorityRange cuCtxGetStreamPriorityRange: out int, out int
cudaDeviceGetDefaultMemPool cuDeviceGetDefaultMemPool: out CUmemoryPool, int
cudaDeviceGetMemPool cuDeviceGetMemPool: out CUmemoryPool, int
cudaDeviceSetMemPool cuDeviceSetMemPool: int, -
cudaDriverGetVersion: out int
cudaRuntimeGetVersion: out int
cudaGetErrorName: int
cudaGetErrorString: int
cudaMalloc cuMemAlloc: out void*, size_t
cudaMallocAsync cuMemAlloc: out void*, size_t, stream
cudaMallocFromPoolAsync cuMemAlloc: out void*, size_t, -, stream
cudaMallocManaged cuMemAllocManaged: out void*, size_t, -
cudaFree cuMemFree: address
cudaFreeAsync cuMemFree: address, stream
cudaMallocHost cuMemAllocHost: out void*, size_t
cudaHostAlloc cuMemAllocHost: out void*, size_t, -
cudaFreeHost cuMemFreeHost: address
cudaHostRegister cuMemHostRegister: address, size_t, -
cudaHostUnregister cuMemHostUnregister: address
cudaMemGetInfo cuMemGetInfo: out size_t, out size_t
cudaMemcpy: address, address, size_t, int
cudaMemcpyAsync: address, address, size_t, int, stream
cudaMemset cuMemsetD8: address, uint8, size_t
cudaMemsetAsync cuMemsetD8: address, uint8, size_t, stream
cudaMemAdvise cuMemAdvise: -, -, -, -
cudaMemPrefetchAsync cuMemPrefetchAsync: -, -, -, -, stream
cudaMemPoolSetAttribute cuMemPoolSetAttribute: CUmemoryPool, int, address
cudaMemPoolGetAttribute cuMemPoolGetAttribute: CUmemoryPool, int, address
cudaMemPoolTrimTo cuMemPoolTrimTo: CUmemoryPool, -
cudaPointerGetAttributes: address, address
cudaStreamCreate cuStreamCreate: out CUstream
cudaStreamCreateWithFlags cuStreamCreate: out CUstream, -
cudaStreamCreateWithPriority cuStreamCreate: out CUstream, -, -
cudaStreamDestroy cuStreamDestroy: -
cudaStreamSynchronize cuStreamSynchronize: stream
cudaStreamQuery cuStreamQuery: stream
cudaStreamWaitEvent cuStreamWaitEvent: stream, -, -
cudaStreamGetPriority cuStreamGetPriority: stream, out int
cudaStreamIsCapturing cuStreamIsCapturing: stream, out int
cudaStreamAddCallback cuStreamAddCallback: CUstream, address, address, -
cudaLaunchHostFunc cuLaunchHostFunc: stream, address, address
cudaEventCreate cuEventCreate: out CUevent
cudaEventCreateWithFlags cuEventCreate: out CUevent, -
cudaEventDestroy cuEventDestroy: -
cudaEventRecord cuEventRecord: CUevent, stream
cudaEventRecordWithFlags cuEventRecord: CUevent, stream, -
cudaEventQuery cuEventQuery: -
cudaEventSynchronize cuEventSynchronize: -
cudaEventElapsedTime cuEventElapsedTime: out float, CUevent, CUevent
cudaProfilerStart cuProfilerStart:
cudaProfilerStop cuProfilerStop:
"""
# cudaMemcpyKind: which ends are memory of the device.
_COPIES = {0: "cuMemcpy", 1: "cuMemcpyHtoD", 2: "cuMemcpyDtoH", 3: "cuMemcpyDtoD", 4: "cuMemcpy"}
_PROPERTIES_BYTES = 1008  # of cudaDeviceProp
_RETURN_TEXT = ("cudaGetErrorName", "cudaGetErrorString")

_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE, _FUNCTION = 2, 2
_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp *(%rip): to the address that follows
_JUMP_BYTES = len(_JUMP) + 8

_replaced: set[str] = set()
_functions: list[CFunctions] = []


def replace_runtime(path: str) -> None:
    """Replace the functions of the CUDA runtime that is linked into the loaded module of that path, once in a
    process. Raises UnsupportedError if that cannot be done."""
    if path in _replaced:
        return
    if os.uname().machine != "x86_64":
        raise refusal(f"{Path(path).name} on a CPU other than x86-64: a CUDA runtime is linked into it")
    symbols = _runtime_symbols(path)
    if not symbols:
        raise refusal(f"{Path(path).name}, into which a CUDA runtime is linked without symbols")
    if not _functions:
        _functions.append(CFunctions())
    # The first field of glibc's link_map is where the library was loaded.
    base = ctypes.c_uint64.from_address(ctypes.CDLL(path)._handle).value
    addresses = _addresses(_functions[0], set(symbols))
    for name, (place, size) in symbols.items():
        if size >= _JUMP_BYTES:
            _write_code(base + place, _JUMP + struct.pack("<Q", addresses[name]))
    _replaced.add(path)


def _runtime_symbols(path: str) -> dict[str, tuple[int, int]]:
    """Place and size of the functions `cuda...` of an ELF64 file, by name."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (table,) = struct.unpack_from("<Q", data, 40)
        stride, count = struct.unpack_from("<HH", data, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * stride) for i in range(count)]
        found: dict[str, tuple[int, int]] = {}
        for _, kind, _, _, offset, size, link, *_ in sections:
            if kind != _SYMBOL_TABLE:
                continue
            strings = data[sections[link][4] : sections[link][4] + sections[link][5]]
            for name, info, _, section, place, length in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if info & 15 == _FUNCTION and section and strings[name : name + 4] == b"cuda":
                    text = strings[name : strings.index(b"\0", name)].decode()
                    if text[4:5].isupper():
                        found[text] = place, length
        return found


def _addresses(c: CFunctions, names: set[str]) -> dict[str, int]:
    """Where the functions of ours are, by the names of the runtime's."""
    special = _special_functions(c)
    addresses = {}
    for row in filter(None, SERVED.split("\n")):
        both, _, text = row.partition(":")
        name, _, driver_name = both.partition(" ")
        function = special.get(name) or _by_driver(driver_name)
        if name in _RETURN_TEXT:
            address = c.text_function(name, function)
        else:
            address = c.callback(name, parameters_of(text), function)
        for suffix in ("", "_ptsz", "_ptds"):  # for programs with a default stream of each thread
            addresses[name + suffix] = address
    for name in names:
        if name.startswith("cudaLaunchKernel"):
            what = f"{name} of a kernel that is linked into a module, without PTX"
            addresses[name] = c.refuser(name, what, raises=True)
    if "cudaGetDeviceProperties_v2" not in names:  # of CUDA 12, with another structure
        addresses["cudaGetDeviceProperties"] = c.callback(
            "cudaGetDeviceProperties", parameters_of("address, int"), _write_properties
        )
    addresses["cudaGetLastError"] = c.number_function(partial(c.last_error, forget=True))
    addresses["cudaPeekAtLastError"] = c.number_function(c.last_error)
    return {name: addresses.get(name) or c.refuser(name) for name in names}


def _write_properties(room: int, device: int) -> None:
    """Write a cudaDeviceProp of CUDA 13."""
    from cuda.bindings import runtime

    gpu = current_gpu()
    if gpu is None:
        raise NoGpuError
    if runtime.CUDART_VERSION // 1000 != VERSION // 1000:
        raise refusal("cudaGetDeviceProperties with cuda-python of another CUDA than 13")
    made = device_properties(runtime, gpu)
    ctypes.memmove(room, int(made.getPtr()), _PROPERTIES_BYTES)


def _by_driver(name: str) -> Callable[..., Any]:
    return lambda *inputs: driver_function(name)(*inputs)


def _special_functions(c: CFunctions) -> dict[str, Callable[..., Any]]:
    def set_device(device: int) -> None:
        if device:
            raise DriverError(INVALID_DEVICE)

    def copy(to: int, source: int, size: int, kind: int) -> None:
        if kind not in _COPIES:
            raise DriverError(INVALID_VALUE)
        driver_function(_COPIES[kind])(to, source, size)

    def pointer_attributes(room: int, address: int) -> None:
        """cudaPointerAttributes: type, device, addresses on the device and on the host."""
        kinds, values = (ctypes.c_int * 4)(2, 8, 3, 4), [ctypes.c_uint64() for _ in range(4)]
        rooms = (ctypes.c_uint64 * 4)(*map(ctypes.addressof, values))
        driver_function("cuPointerGetAttributes")(
            4, ctypes.addressof(kinds), ctypes.addressof(rooms), address
        )
        memory, managed, device, host = (value.value for value in values)
        kind = 3 if managed else memory  # unregistered, host, device, managed
        ctypes.memmove(room, struct.pack("<iiQQ", kind, 0 if memory else -2, device, host), 24)

    def name_of(code: int) -> bytes:
        return ERROR_NAMES.get(code, f"cudaError_t {code}").encode()

    return {
        "cudaSetDevice": set_device,
        "cudaDriverGetVersion": lambda: VERSION,
        "cudaRuntimeGetVersion": lambda: VERSION,
        "cudaGetErrorName": name_of,
        "cudaGetErrorString": lambda code: c.error_text(code, name_of(code)),
        "cudaMemcpy": copy,
        "cudaMemcpyAsync": copy,
        "cudaPointerGetAttributes": pointer_attributes,
    }


def _write_code(address: int, code: bytes) -> None:
    """Write over instructions of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = address & ~(mmap.PAGESIZE - 1)
    span = ctypes.c_size_t(address + len(code) - page)
    execute, write, read = 4, 2, 1
    for protection in (read | write | execute, read | execute):
        if libc.mprotect(ctypes.c_void_p(page), span, protection):
            number = ctypes.get_errno()
            raise refusal(f"a CUDA runtime that is linked into a module: {os.strerror(number)}")
        if protection & write:
            ctypes.memmove(address, code, len(code))


def cupy_sees(gpu: VirtualGpu) -> None:
    """Give the modules of CuPy that are loaded the virtual GPU. They ask the runtime for nothing before."""
    # CUB's kernels are machine code alone.
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    for name in CUPY:
        module = sys.modules.get(name)
        if module is not None and module.__file__ is not None:
            replace_runtime(module.__file__)
