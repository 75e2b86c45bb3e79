# SPDX-License-Identifier: Apache-2.0
"""Functions of C that lead to Python: the callbacks behind the virtual GPU's CUDA libraries.

Each returns a CUresult or a cudaError_t, which have the same numbers. C gets no more than that number for an
error, so a line on stderr says what it is about.

Imports the standard library alone until a function is called: it is loaded when Python starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from gdnbench.sim.virtual.driver_signatures import Parameter

SUCCESS, INVALID_VALUE, DEINITIALIZED, NO_DEVICE = 0, 1, 4, 100
_INVALID_IMAGE, _INVALID_PTX, _FILE_NOT_FOUND, _FAILED = 200, 218, 301, 719
NOT_SUPPORTED, _UNKNOWN = 801, 999

_TYPES: dict[str, Any] = {
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "float": ctypes.c_float,
    "CUdevice": ctypes.c_int32,
    "CUstreamCaptureStatus": ctypes.c_int32,
}


class NoGpuError(Exception):
    """There is no virtual GPU, as after the block that made it."""


class CFunctions:
    """Makes callbacks and keeps them. `start` is called once, before the first of them does anything."""

    def __init__(self, start: Callable[[], object] | None = None) -> None:
        self.start = start
        self._starting = threading.RLock()
        self._callbacks: list[Any] = []
        self._texts: dict[bytes, Any] = {}
        self._told: set[str] = set()
        self._last = threading.local()

    def callback(self, name: str, parameters: Sequence[Parameter], function: Callable[..., Any]) -> int:
        """The address of a function `name` of C. `function` gets the parameters that go in, and returns the
        value that goes out, a tuple of several, or None."""

        def call(*given: int) -> int:
            code, _guard = self._result(name, lambda: self._run(parameters, function, given))
            return code

        kinds = [ctypes.c_uint64 if one.out else _type_of(one) for one in parameters]
        return self._kept(ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call))

    def refuser(self, name: str, what: str = "", *, raises: bool = False) -> int:
        """The address of a function that is refused, whatever its parameters; `what` names it in the message.
        With `raises` the Python code that called into C gets the exception: for a function whose result C
        rarely looks at."""
        what = what or f"{name}, a CUDA function that the virtual GPU does not have"

        def refuse() -> None:
            from gdnbench.sim.virtual.refusals import refusal

            raise refusal(what)

        def call() -> int:
            code, _guard = self._result(name, refuse, raises=raises)
            return code

        return self._kept(ctypes.CFUNCTYPE(ctypes.c_int)(call))

    def text_function(self, name: str, function: Callable[[int], bytes]) -> int:
        """The address of a function that takes a number and returns the address of a string."""

        def call(number: int) -> int:
            found: list[bytes] = []
            self._result(name, lambda: found.append(function(number)))
            return self.text(found[0]) if found else 0

        return self._kept(ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int)(call))

    def number_function(self, function: Callable[[], int]) -> int:
        """The address of a function that returns a number, and cannot fail."""
        return self._kept(ctypes.CFUNCTYPE(ctypes.c_int)(function))

    def last_error(self, *, forget: bool = False) -> int:
        """The last error of this thread."""
        code: int = getattr(self._last, "error", (SUCCESS, ""))[0]
        if forget:
            self._last.error = SUCCESS, ""
        return code

    def error_text(self, code: int, name: bytes) -> bytes:
        """The message of an error if it is the last one of this thread, else its name."""
        last_code, message = getattr(self._last, "error", (SUCCESS, ""))
        return message.encode() if code and code == last_code and message else name

    def text(self, value: bytes) -> int:
        """The address of a string that stays."""
        return ctypes.addressof(self._texts.setdefault(value, ctypes.create_string_buffer(value)))

    def _kept(self, callback: Any) -> int:
        self._callbacks.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    def _run(
        self, parameters: Sequence[Parameter], function: Callable[..., Any], given: Sequence[int]
    ) -> None:
        inputs: list[Any] = []
        rooms: list[tuple[Parameter, int]] = []
        for parameter, value in zip(parameters, given, strict=True):
            if parameter.out:
                rooms.append((parameter, value))
            elif parameter.kind in ("text", "image") and not value:
                raise _null()
            elif parameter.kind == "text":
                inputs.append(ctypes.string_at(value))
            elif parameter.kind not in ("-", "stream"):
                inputs.append(value)
        found = function(*inputs)
        if rooms:
            values = found if isinstance(found, tuple) else (found,)
            for (parameter, room), value in zip(rooms, values, strict=True):
                if room:
                    stored = self.text(value) if parameter.kind == "char*" else value
                    _type_of(parameter).from_address(room).value = stored

    def _result(
        self, name: str, function: Callable[[], None], *, raises: bool = False
    ) -> tuple[int, _Guard | None]:
        """The result of a call, and what the callback's own frame has to keep: no exception can pass through
        C, and one that the Python code around it should get is raised once that frame has gone."""
        try:
            self._start_once()
            function()
        except NoGpuError:
            return NO_DEVICE, None
        except KeyboardInterrupt as error:
            error.__traceback__ = None
            return _UNKNOWN, _Guard(error)
        except BaseException as error:
            error.__traceback__ = None  # it would keep the frames, and so what they keep
            code, message = _code_of(error), " ".join(str(error).split()) or type(error).__name__
            self._last.error = code, message
            if not _is_documented(error):
                self._tell(message if name in message else f"{name}: {message}")
            return code, _Guard(error) if raises else None
        return SUCCESS, None

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


class _Guard:
    """Raises `error` in this thread when it is deleted: in the next Python code that runs.

    Python raises such an exception at once where Python code asks for it, which here would be the callback's.
    So the request is C code alone, which a weak reference calls.
    """

    _references: ClassVar[list[Any]] = []

    def __init__(self, error: BaseException) -> None:
        # Python takes a class, which it makes the exception of.
        text = str(error)
        members = {"__init__": lambda self: None, "__str__": lambda self: text, **vars(error)}
        kind = type(type(error).__name__, (type(error),), members)
        request = partial(_SET_EXCEPTION, threading.get_ident(), kind)
        self._references[:] = [one for one in self._references if one() is not None]
        self._references.append(weakref.ref(self, request))


# The third argument is the weak reference, which C ignores.
_SET_EXCEPTION = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


def _null() -> Exception:
    """The error of a null pointer where the function needs another."""
    from gdnbench.sim.virtual.driver_errors import INVALID_VALUE, DriverError

    return DriverError(INVALID_VALUE)


def _type_of(parameter: Parameter) -> Any:
    return _TYPES.get(parameter.kind, ctypes.c_uint64)


def _is_documented(error: BaseException) -> bool:
    """Whether it is a result that CUDA documents, which needs no message."""
    from gdnbench.sim.virtual.driver_errors import DriverError

    return isinstance(error, DriverError)


def _code_of(error: BaseException) -> int:
    """The CUresult that is nearest to an error."""
    from gdnbench.sim.errors import FaultKind, KernelFault, LaunchError, PtxSyntaxError, UnsupportedError
    from gdnbench.sim.virtual.driver_errors import DriverError

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
            return NOT_SUPPORTED
        case KernelFault():
            return faults.get(error.kind, _FAILED)
        case PtxSyntaxError():
            return _INVALID_PTX
        case LaunchError():
            return INVALID_VALUE
        case FileNotFoundError():
            return _FILE_NOT_FOUND
        case UnicodeDecodeError():
            return _INVALID_IMAGE
        case _:
            return _UNKNOWN
