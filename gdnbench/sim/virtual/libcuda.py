"""libcuda.so.1 for the virtual GPU: what callers of the CUDA driver from C find, such as cuda.core, or a program
that loads the library with ctypes.

    provide_libcuda(start)

A library of the driver's symbols (`jump_table.py`) is loaded under the driver's name. Each symbol leads to a
function of `driver_api.py`; one that the virtual GPU does not have returns CUDA_ERROR_NOT_SUPPORTED. C gets a
number for an error, so a line on stderr says what it is about.

Imports the standard library alone until a function is called: it is loaded when Python starts.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from gdnbench.sim.virtual.driver_signatures import REFUSED_SYMBOLS, SYMBOLS, Symbol, symbol_of
from gdnbench.sim.virtual.jump_table import JumpTable, supported

SONAME = "libcuda.so.1"
# CUresult.
_SUCCESS, _INVALID_VALUE, _DEINITIALIZED, _NO_DEVICE, _INVALID_IMAGE = 0, 1, 4, 100, 200
_INVALID_PTX, _FAILED, _NOT_SUPPORTED, _UNKNOWN = 218, 719, 801, 999

_TYPES: dict[str, Any] = {
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "float": ctypes.c_float,
    "CUdevice": ctypes.c_int32,
    "CUstreamCaptureStatus": ctypes.c_int32,
}

_provided: list[_Library] = []


def provide_libcuda(start: Callable[[], object] | None = None) -> bool:
    """Load the library, once in a process. `start` is called at the first use of the driver if there is no
    virtual GPU then. Returns whether callers find it: not if another libcuda was loaded before, nor on a
    machine for which no such library can be made."""
    if not supported():
        return False
    if not _provided:
        _provided.append(_Library())
    if start is not None:
        _provided[0].start = start
    return _provided[0].found


class _Library:
    """The loaded library and what its symbols lead to. A symbol gets its function once the library is
    there."""

    def __init__(self) -> None:
        self.start: Callable[[], object] | None = None
        self._starting = threading.RLock()
        self._texts: dict[bytes, Any] = {}
        self._told: set[str] = set()
        self._last = threading.local()
        names = (*SYMBOLS, *REFUSED_SYMBOLS)
        self.table = JumpTable(SONAME, names, _DEINITIALIZED)
        self._callbacks = [self._callback(name) for name in names]
        for name, callback in zip(names, self._callbacks, strict=True):
            self.table.assign(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)
        # Destructors of C++ call the driver when Python is gone.
        atexit.register(self.table.withdraw)

    @property
    def found(self) -> bool:
        """Whether the process finds this library under its name."""
        return ctypes.CDLL(SONAME)._handle == self.table.library._handle

    def _callback(self, name: str) -> Any:
        if name not in SYMBOLS:
            return ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self._refuse(name))
        symbol = SYMBOLS[name]
        kinds = [
            ctypes.c_uint64 if one.out else _TYPES.get(one.kind, ctypes.c_uint64) for one in symbol.parameters
        ]
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(lambda *given: self._call(symbol, given))

    def _refuse(self, name: str) -> int:
        def refuse() -> None:
            from gdnbench.sim.virtual.refusals import refusal

            raise refusal(f"{name}, a CUDA function that the virtual GPU does not have")

        return self._result(name, refuse)

    def _call(self, symbol: Symbol, given: tuple[int, ...]) -> int:
        return self._result(symbol.name, lambda: self._run(symbol, given))

    def _run(self, symbol: Symbol, given: tuple[int, ...]) -> int | None:
        function = self._function(symbol)
        if function is None:
            return _NO_DEVICE
        inputs, rooms = [], []
        for parameter, value in zip(symbol.parameters, given, strict=True):
            if parameter.out:
                rooms.append((parameter.kind, value))
            elif parameter.kind == "text":
                inputs.append(ctypes.string_at(value))
            elif parameter.kind not in ("-", "stream"):
                inputs.append(value)
        found = function(*inputs)
        if rooms:
            values = found if isinstance(found, tuple) else (found,)
            for (kind, room), value in zip(rooms, values, strict=True):
                self._write(kind, room, value)
        return None

    def _write(self, kind: str, room: int, value: Any) -> None:
        if kind == "char*":
            kept = self._texts.setdefault(value, ctypes.create_string_buffer(value))
            value = ctypes.addressof(kept)
        if room:
            _TYPES.get(kind, ctypes.c_uint64).from_address(room).value = value

    def _function(self, symbol: Symbol) -> Callable[..., Any] | None:
        """What a symbol does; None if there is no GPU, as after the block that made it."""
        without_gpu: dict[str, Callable[..., Any]] = {
            "cuGetErrorName": self._error_name,
            "cuGetErrorString": self._error_string,
            "cuGetProcAddress": self._get_address,
            "cuGetProcAddress_v2": self._find_address,
        }
        if symbol.name in without_gpu:
            return without_gpu[symbol.name]
        from gdnbench.sim.virtual.driver_api import driver_functions
        from gdnbench.sim.virtual.gpu import current_gpu

        gpu = current_gpu()
        return None if gpu is None else driver_functions(gpu)[symbol.function]

    def _find_address(self, name: bytes, version: int) -> tuple[int, int]:
        """cuGetProcAddress_v2: the address and a CUdriverProcAddressQueryResult."""
        symbol = symbol_of(name.decode(), version)
        return (0, 1) if symbol is None else (self.table.address(symbol), 0)

    def _get_address(self, name: bytes, version: int) -> int:
        """cuGetProcAddress of CUDA 11."""
        from gdnbench.sim.virtual.driver_api import NOT_FOUND, DriverError

        address, missing = self._find_address(name, version)
        if missing:
            raise DriverError(NOT_FOUND)
        return address

    def _error_name(self, code: int) -> bytes:
        from gdnbench.sim.virtual.driver_api import error_name

        return error_name(code)

    def _error_string(self, code: int) -> bytes:
        """The name, and the message of the last error if it is that of this thread."""
        last_code, message = getattr(self._last, "error", (0, ""))
        name = self._error_name(code)
        return name + b": " + message.encode() if code and code == last_code else name

    def _result(self, name: str, function: Callable[[], int | None]) -> int:
        """The CUresult of a call. No exception can pass through C."""
        try:
            self._start_once()
            return function() or _SUCCESS
        except KeyboardInterrupt:
            _thread.interrupt_main()  # again, once the program's own code runs
            return _UNKNOWN
        except BaseException as error:
            code, message = _code_of(error), " ".join(str(error).split()) or type(error).__name__
            self._last.error = code, message
            if not _is_documented(error):
                self._tell(message if name in message else f"{name}: {message}")
            return code

    def _start_once(self) -> None:
        """Call `start`, before a module is imported that imports torch, whose import may start the GPU."""
        with self._starting:
            start, self.start = self.start, None
            if start is not None:
                start()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            with contextlib.suppress(Exception):  # stderr may be closed, full or None
                sys.stderr.write(f"gdnbench: {text}\n")


def _is_documented(error: BaseException) -> bool:
    """Whether it is a result that CUDA documents, which needs no message."""
    from gdnbench.sim.virtual.driver_api import DriverError

    return isinstance(error, DriverError)


def _code_of(error: BaseException) -> int:
    """The CUresult that is nearest to an error."""
    from gdnbench.sim.errors import FaultKind, KernelFault, LaunchError, PtxSyntaxError, UnsupportedError
    from gdnbench.sim.virtual.driver_api import DriverError

    faults = {
        FaultKind.OUT_OF_BOUNDS: 700,
        FaultKind.MISALIGNED: 716,
        FaultKind.ASSERTION: 710,
        FaultKind.BUDGET: 701,
    }
    match error:
        case DriverError():
            return error.code
        case UnsupportedError():
            return _NOT_SUPPORTED
        case KernelFault():
            return faults.get(error.kind, _FAILED)
        case PtxSyntaxError():
            return _INVALID_PTX
        case LaunchError():
            return _INVALID_VALUE
        case FileNotFoundError():
            return 301
        case UnicodeDecodeError():
            return _INVALID_IMAGE
        case _:
            return _UNKNOWN
