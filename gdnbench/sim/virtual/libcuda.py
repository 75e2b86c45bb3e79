# SPDX-License-Identifier: Apache-2.0
"""libcuda.so.1 for the virtual GPU: what callers of the CUDA driver from C find, such as cuda.core, or a
program that loads the library with ctypes.

    provide_libcuda(start)

A library of the driver's symbols (`jump_table.py`) is loaded under the driver's name. Each symbol leads to a
function of `driver_api.py`; one that the virtual GPU does not have returns CUDA_ERROR_NOT_SUPPORTED.

Imports the standard library alone until a function is called: it is loaded when Python starts.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from typing import Any

from gdnbench.sim.virtual.c_functions import DEINITIALIZED, NOT_SUPPORTED, SUCCESS, CFunctions, NoGpuError
from gdnbench.sim.virtual.driver_signatures import REFUSED_SYMBOLS, SYMBOLS, Symbol, symbol_of
from gdnbench.sim.virtual.jump_table import NULL_RESULT, JumpTable, supported

SONAME = "libcuda.so.1"
_DEVELOPMENT_NAME = "libcuda.so"  # which some programs load too
# By these tables the CUDA runtime library reaches what the driver API does not have. It asks for them without
# need.
_UNDOCUMENTED = "cuGetExportTable"
# What destructors call.
_AT_EXIT = (
    *("Free", "Destroy", "Unload", "Release", "Unregister"),
    *("Synchronize", "CtxSetCurrent", "CtxPushCurrent"),
)

_provided: list[_Library] = []


def provide_libcuda(start: Callable[[], object] | None = None) -> bool:
    """Load the library, once in a process, and return whether callers find it.

    With `start` the process belongs to the virtual GPU: the library takes the place of the machine's own, and
    `start` is called at the first use of the driver if there is no virtual GPU then. Without, a machine that
    has a driver keeps it, for what else the process does. Nor do callers find the library if another libcuda
    was loaded before, or on a machine for which none can be made.
    """
    if not supported() or (start is None and not _provided and _has_driver()):
        return False
    if not _provided:
        _provided.append(_Library())
    if start is not None:
        _provided[0].functions.start = start
    return ctypes.CDLL(SONAME)._handle == _provided[0].table.library._handle


def _has_driver() -> bool:
    try:
        ctypes.CDLL(SONAME)
    except OSError:
        return False
    return True


def driver_function(name: str) -> Callable[..., Any]:
    """What a function of the driver API does on the GPU that there is. Raises NoGpuError."""
    from gdnbench.sim.virtual.driver_api import driver_functions
    from gdnbench.sim.virtual.gpu import current_gpu

    gpu = current_gpu()
    if gpu is None:
        raise NoGpuError
    return driver_functions(gpu)[name]


class _Library:
    """The loaded library, and the functions that its symbols lead to."""

    def __init__(self) -> None:
        self.functions = CFunctions()
        symbols = {name: _at_exit(name) for name in (*SYMBOLS, *REFUSED_SYMBOLS)}
        self.table = JumpTable(SONAME, symbols)
        other = JumpTable(_DEVELOPMENT_NAME, symbols)
        for name in symbols:
            address = self._address(name)
            for table in (self.table, other):
                table.assign(name, address)
        # Destructors, of Python modules and of C++, call the driver when Python is about to be gone.
        for table in (self.table, other):
            atexit.register(table.withdraw)

    def _address(self, name: str) -> int:
        if name == _UNDOCUMENTED:
            return self.functions.number_function(lambda: NOT_SUPPORTED)
        if name not in SYMBOLS:
            return self.functions.refuser(name)
        symbol = SYMBOLS[name]
        return self.functions.callback(name, symbol.parameters, self._function(symbol))

    def _function(self, symbol: Symbol) -> Callable[..., Any]:
        without_gpu: dict[str, Callable[..., Any]] = {
            "cuGetErrorName": _error_name,
            "cuGetErrorString": lambda code: self.functions.error_text(code, _error_name(code)),
            "cuGetProcAddress": self._get_address,
            "cuGetProcAddress_v2": self._find_address,
        }
        if symbol.name in without_gpu:
            return without_gpu[symbol.name]
        return lambda *inputs: driver_function(symbol.function)(*inputs)

    def _find_address(self, name: bytes, version: int) -> tuple[int, int]:
        """cuGetProcAddress_v2: the address and a CUdriverProcAddressQueryResult."""
        symbol = symbol_of(name.decode(), version)
        return (0, 1) if symbol is None else (self.table.address(symbol), 0)

    def _get_address(self, name: bytes, version: int) -> int:
        """cuGetProcAddress of CUDA 11."""
        from gdnbench.sim.virtual.driver_errors import NOT_FOUND, DriverError

        address, missing = self._find_address(name, version)
        if missing:
            raise DriverError(NOT_FOUND)
        return address


def _at_exit(name: str) -> int:
    """What a function does when the process ends: it has nothing left to free and to wait for, there is no
    context, and nothing else works."""
    if name.startswith(("cuCtxGetCurrent", "cuCtxPopCurrent")):
        return NULL_RESULT
    return SUCCESS if any(word in name for word in _AT_EXIT) else DEINITIALIZED


def _error_name(code: int) -> bytes:
    from gdnbench.sim.virtual.driver_errors import error_name

    return error_name(code)
