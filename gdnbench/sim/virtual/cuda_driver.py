# SPDX-License-Identifier: Apache-2.0
"""`cuda.bindings.driver` on the virtual GPU: its functions are replaced by those of `driver_api.py`, in
cuda-python's conventions. A function without one is refused by name. Errors are Python's exceptions.

cuda-python would find the library of `libcuda.py` too. But C returns an error as a number alone, and a real
libcuda may be loaded already.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gdnbench.sim.host.encode_tiled import encode_tiled
from gdnbench.sim.virtual.cuda_objects import address_of
from gdnbench.sim.virtual.driver_api import driver_functions
from gdnbench.sim.virtual.driver_errors import SUCCESS, DriverError
from gdnbench.sim.virtual.driver_signatures import SYMBOLS, Symbol, symbol_of
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.patches import Patches
from gdnbench.sim.virtual.refusals import refusal

_DROPPED = ("-", "stream")
_AS_GIVEN = ("text", "image")


@contextmanager
def driver_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block the driver API of cuda-python has one device, `gpu`."""
    from cuda.bindings import driver

    patches = Patches()
    try:
        replace_functions(patches, driver, "cu", _functions(driver, gpu))
        yield
    finally:
        patches.restore()


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


def _functions(driver: Any, gpu: VirtualGpu) -> dict[str, Callable[..., Any]]:
    """The functions by their names. Those with parameters that are addresses in C and something else in
    Python are written out."""
    functions = driver_functions(gpu)
    ok = driver.CUresult.CUDA_SUCCESS
    found: dict[str, Callable[..., Any]] = {}
    for name, function in functions.items():
        symbol = SYMBOLS[symbol_of(name, driver.CUDA_VERSION) or name]
        if not any(parameter.kind == "address" for parameter in symbol.parameters):
            found[name] = _in_python(driver, symbol, function)

    def get_name(length: int, device: Any) -> Any:
        room = ctypes.create_string_buffer(int(length))
        functions["cuDeviceGetName"](ctypes.addressof(room), int(length), int(device))
        return ok, room.raw

    def enumerate_kernels(kind: Any, function: Callable[..., None]) -> Callable[..., Any]:
        def enumerate_module(count: Any, module: Any) -> Any:
            room = (ctypes.c_uint64 * int(count))()
            function(ctypes.addressof(room), int(count), int(module))
            return ok, [kind(handle) for handle in room if handle]

        return enumerate_module

    def launch(*arguments: Any) -> Any:
        function, *rest = arguments
        shared, _, params, extra = (*rest[6:], None, None, None, None)[:4]
        sizes = map(int, rest[:6])
        functions["cuLaunchKernel"](int(function), *sizes, int(shared or 0), params, int(extra or 0))
        return (ok,)

    def launch_ex(config: Any, function: Any, params: Any, extra: Any = None) -> Any:
        functions["cuLaunchKernelEx"](int(config.getPtr()), int(function), params, int(extra or 0))
        return (ok,)

    def replace_address(tensor_map: Any, address: Any) -> Any:
        functions["cuTensorMapReplaceAddress"](int(tensor_map.getPtr()), address_of(address))
        return (ok,)

    def of_config(name: str) -> Callable[[Any, Any], Any]:
        return lambda function, config: (ok, functions[name](int(function), int(config.getPtr())))

    return found | {
        "cuCtxCreate": lambda *_: found["cuCtxGetCurrent"](),  # its parameters differ between releases
        "cuDeviceGetName": get_name,
        "cuDeviceGetUuid": lambda device: (ok, driver.CUuuid()),
        "cuModuleEnumerateFunctions": enumerate_kernels(
            driver.CUfunction, functions["cuModuleEnumerateFunctions"]
        ),
        "cuLibraryEnumerateKernels": enumerate_kernels(
            driver.CUkernel, functions["cuLibraryEnumerateKernels"]
        ),
        "cuLaunchKernel": launch,
        "cuLaunchKernelEx": launch_ex,
        "cuOccupancyMaxActiveClusters": of_config("cuOccupancyMaxActiveClusters"),
        "cuOccupancyMaxPotentialClusterSize": of_config("cuOccupancyMaxPotentialClusterSize"),
        "cuTensorMapReplaceAddress": replace_address,
        "cuTensorMapEncodeTiled": lambda *arguments: (ok, _encode(driver, *arguments)),
    }


def _in_python(driver: Any, symbol: Symbol, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes and returns what cuda-python's does: (result, value, ...)."""
    kinds = [parameter.kind for parameter in symbol.parameters if not parameter.out]
    results = [parameter.kind for parameter in symbol.parameters if parameter.out]
    wrappers = [getattr(driver, kind) if kind.startswith("CU") else None for kind in results]

    def call(*arguments: Any) -> tuple[Any, ...]:
        if len(arguments) != len(kinds):
            raise TypeError(f"{symbol.function} takes {len(kinds)} arguments, {len(arguments)} were given")
        given = [
            _converted(kind, value)
            for kind, value in zip(kinds, arguments, strict=True)
            if kind not in _DROPPED
        ]
        try:
            found = function(*given)
        except DriverError as error:
            return driver.CUresult(error.code), *([None] * len(results))
        values = found if isinstance(found, tuple) else (found,) * len(results)
        pairs = zip(wrappers, values, strict=True)
        return driver.CUresult(SUCCESS), *(value if kind is None else kind(value) for kind, value in pairs)

    return call


def _converted(kind: str, value: Any) -> Any:
    if kind in _AS_GIVEN:
        return value
    return address_of(value) if kind == "host" else int(value)


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
