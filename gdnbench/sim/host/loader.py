# SPDX-License-Identifier: Apache-2.0
"""Loads a kernel's host object into this process and links it to the simulator's runtime instead of CUDA's.

LLVM's linker ends the process when a symbol is missing, so the object's own symbol table is read first.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from gdnbench.sim.errors import ExportError
from gdnbench.sim.host.elf import Elf
from gdnbench.sim.host.runtime import UNKNOWN, Runtime

_INT, _WORD, _POINTER, _TEXT = ctypes.c_int32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p

_SIZE = ctypes.c_size_t

# Symbol -> (method of Runtime, argument types); all return an int32, but those of RESULTS.
SYMBOLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "_cudaGetDevice": (Runtime.get_device, (_POINTER,)),
    "_cudaSetDevice": (Runtime.set_device, (_INT,)),
    "_cudaDeviceGetAttribute": (Runtime.device_attribute, (_POINTER, _INT, _INT)),
    "_cudaLibraryLoadData": (
        Runtime.load_library,
        (_POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT),
    ),
    "_cudaLibraryGetKernel": (Runtime.library_kernel, (_POINTER, _POINTER, _TEXT)),
    "_cuKernelGetAttribute": (Runtime.kernel_attribute, (_POINTER, _INT, _POINTER, _INT)),
    "_cudaKernelSetAttributeForDevice": (Runtime.set_attribute, (_POINTER, _INT, _INT, _INT)),
    "_cudaFuncSetAttribute": (Runtime.set_attribute, (_POINTER, _INT, _INT)),
    "_cudaGetDeviceCount": (Runtime.device_count, (_POINTER,)),
    "_cuDeviceGet": (Runtime.device_handle, (_POINTER, _INT)),
    "_cudaOccupancyMaxActiveBlocksPerMultiprocessor": (Runtime.occupancy, (_POINTER, _POINTER, _INT, _SIZE)),
    "_cudaStreamCreate": (Runtime.make_handle, (_POINTER,)),
    "_cudaStreamDestroy": (Runtime.order_launches, (_POINTER,)),
    "_cudaStreamWaitEvent": (Runtime.order_launches, (_POINTER, _POINTER, _INT)),
    "_cudaStreamSynchronize": (Runtime.wait_for_launches, (_POINTER,)),
    "_cudaDeviceSynchronize": (Runtime.wait_for_launches, ()),
    "_cudaEventCreate": (Runtime.make_handle, (_POINTER,)),
    "_cudaEventRecord": (Runtime.order_launches, (_POINTER, _POINTER)),
    "_cudaEventDestroy": (Runtime.order_launches, (_POINTER,)),
    "_cudaProfilerStart": (Runtime.order_launches, ()),
    "_cudaProfilerStop": (Runtime.order_launches, ()),
    "_cudaLibraryUnload": (Runtime.order_launches, (_POINTER,)),
    "_cudaLaunchKernel": (
        Runtime.launch_plain,
        (_POINTER, *(_WORD,) * 6, _POINTER, _SIZE, _POINTER),
    ),
    "_cudaLaunchKernelEx": (Runtime.launch, (_POINTER, _POINTER, _POINTER)),
    "_cuTensorMapEncodeTiled": (
        Runtime.encode_tensor_map,
        (_POINTER, _WORD, _WORD, _POINTER, *(_POINTER,) * 4, *(_WORD,) * 4),
    ),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (Runtime.raise_cuda_error, (_POINTER, _INT)),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError": (Runtime.raise_launch_error, (_POINTER, *(_INT,) * 6)),
    "cuda_dialect_unload_library_once": (Runtime.set_attribute, (_POINTER,)),
    "cuda_dialect_init_library_once": (Runtime.initialise_once, (_POINTER, _POINTER, _POINTER, _POINTER)),
    "cuda_dialect_assert_success": (Runtime.assert_success, (_INT,)),
    "cuda_dialect_print_on_error": (Runtime.print_on_error, (_INT,)),
    "cuda_dialect_get_error_name": (Runtime.error_name, (_INT,)),
    "CuteDSLRT_GetErrorName": (Runtime.error_name, (_INT,)),
    "CuteDSLRT_GetErrorString": (Runtime.error_name, (_INT,)),
}
RESULTS: dict[str, Any] = {
    "cuda_dialect_assert_success": None,
    "cuda_dialect_print_on_error": None,
    "cuda_dialect_get_error_name": _POINTER,
    "CuteDSLRT_GetErrorName": _POINTER,
    "CuteDSLRT_GetErrorString": _POINTER,
}
# The DSL's runtime library also has functions to allocate, copy and fill memory, for graphs, callbacks,
# global variables, the time between events, kernels of a library by number, and to load libraries through
# the driver API. No host code that was met calls them; `load_host_object` refuses them by name.
LINKER_OWN = ("_GLOBAL_OFFSET_TABLE_",)
# C library functions that LLVM may substitute for a loop or a check.
C_LIBRARY = (
    *("abort", "free", "malloc", "memcpy", "memmove", "memset", "printf", "putchar", "puts"),
    *("snprintf", "sprintf", "strlen"),
)

_running = threading.local()


@dataclass(slots=True)
class HostObject:
    """A loaded object. Its code may run only inside `running()`, which selects the runtime of its calls."""

    runtime: Runtime
    engine: Any
    lock: threading.RLock = field(default_factory=threading.RLock)

    def function(self, name: str) -> int:
        """The address of a function of the object. Raises ExportError if it has none of that name."""
        address = int(self.engine.get_function_address(name))
        if not address:
            raise ExportError(f"the exported host code has no function {name}")
        return address

    @contextmanager
    def running(self) -> Iterator[Runtime]:
        """Run the object's code inside this block, in one thread at a time."""
        with self.lock:
            outer = getattr(_running, "runtime", None)
            _running.runtime = self.runtime
            self.runtime.launches.clear()
            self.runtime.error = None
            try:
                yield self.runtime
            finally:
                _running.runtime = outer


def load_host_object(data: bytes, runtime: Runtime, extra: dict[str, int] | None = None) -> HostObject:
    """Link `data`, an ELF object, against `runtime` and `extra` symbols (name -> address)."""
    extra = extra or {}
    known = {*SYMBOLS, *LINKER_OWN, *C_LIBRARY, *extra}
    if missing := [name for name in Elf.parse(data).undefined() if name not in known]:
        raise ExportError(
            f"the kernel's host code calls what the simulator does not stand in for: {', '.join(missing)}"
        )
    _prepare()
    for name, address in extra.items():
        llvm.add_symbol(name, address)
    target = llvm.Target.from_default_triple().create_target_machine(
        reloc="pic", codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return HostObject(runtime, engine)


@functools.cache
def _prepare() -> tuple[object, ...]:
    """Register the symbols once. LLVM keeps only addresses, so the returned callbacks must stay alive."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    callbacks = []
    for name, (method, arguments) in SYMBOLS.items():
        callback = ctypes.CFUNCTYPE(RESULTS.get(name, _INT), *arguments)(_forward(method))
        llvm.add_symbol(name, ctypes.cast(callback, _POINTER).value)
        callbacks.append(callback)
    return tuple(callbacks)


def _forward(method: Callable[..., Any]) -> Callable[..., Any]:
    """A callback that calls `method` of this thread's runtime. An exception cannot pass through compiled
    code."""

    @functools.wraps(method)
    def forward(*arguments: Any) -> Any:
        runtime: Runtime = _running.runtime
        try:
            return method(runtime, *arguments)
        except Exception as error:
            runtime.error = runtime.error or error
            return UNKNOWN

    return forward
