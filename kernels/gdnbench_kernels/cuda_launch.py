"""Runs a compiled program with CUDA, on torch's current device and stream.

CuTe DSL's own loader loads the host object, whose code calls the CUDA runtime. This module packs the
arguments by their lowered types. A tensor is the struct of the exported header: data pointer, dynamic
extents, dynamic strides.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gdnbench_kernels.artifacts import ARCHS, STREAM, ArgumentError, Artifacts, Parameter

DTYPES = {
    "f32": (torch.float32,),
    "f16": (torch.float16,),
    "bf16": (torch.bfloat16,),
    "i64": (torch.int64, torch.uint64),
    "i32": (torch.int32, torch.uint32),
    "i8": (torch.int8, torch.uint8, torch.bool),
}
"""Element types of the compiler's IR, whose integers have no sign."""

NUMBERS: dict[str, Any] = {
    "i1": ctypes.c_bool,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
_TENSOR = re.compile(r'!cute\.memref<(\w+), gmem(?:, align<(\d+)>)?, "\(?([^:()]*)\)?:\(?([^:()]*)\)?">')
_DYNAMIC = re.compile(r"\?(?:\{(?:i(\d+))? ?(?:div=(\d+))?\})?")


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent or stride: fixed to `value`, or if that is None, any multiple of `divisor`, passed with
    `bits` bits."""

    value: int | None
    bits: int = 32
    divisor: int = 1

    def takes(self, value: int) -> bool:
        if self.value is not None:
            return value == self.value
        return value % self.divisor == 0 and value < 1 << (self.bits - 1)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor parameter: which tensors it accepts, and the C struct that passes one."""

    dtype: str
    align: int
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    struct: type[ctypes.Structure]

    @staticmethod
    def parse(text: str) -> TensorType | None:
        """Parse a type; None if it is no tensor type."""
        found = _TENSOR.fullmatch(text)
        if found is None:
            return None
        shape, strides = _extents(found[3]), _extents(found[4])
        fields: list[tuple[str, Any]] = [("data", ctypes.c_void_p)]
        fields += [
            (name, part) for name, part in (("shape", _ints(shape)), ("strides", _ints(strides))) if part
        ]
        struct = type("Tensor", (ctypes.Structure,), {"_fields_": fields})
        return TensorType(found[1], int(found[2] or 1), shape, strides, struct)

    def check(self, name: str, tensor: Any, device: torch.device) -> None:
        """Raises ArgumentError, which names the property of the tensor that the kernel does not take."""
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} is {type(tensor).__name__}; the kernel takes a tensor")
        if tensor.device != device:
            raise ArgumentError(f"{name} is on {tensor.device}; the kernel runs on {device}")
        if tensor.dtype not in DTYPES.get(self.dtype, ()):
            raise ArgumentError(f"{name} is {tensor.dtype}; the kernel takes {self.dtype}")
        fits = tensor.dim() == len(self.shape) and all(
            extent.takes(size) and (size == 1 or step.takes(stride))
            for extent, step, size, stride in zip(
                self.shape, self.strides, tensor.shape, tensor.stride(), strict=True
            )
        )
        if not fits:
            raise ArgumentError(
                f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; the kernel takes"
                f" {_text(self.shape)} and {_text(self.strides)}"
            )
        if tensor.data_ptr() % self.align:
            raise ArgumentError(f"{name} is not aligned to {self.align} bytes")

    def pack(self, tensor: Tensor) -> ctypes.Structure:
        packed = self.struct(data=tensor.data_ptr())
        for name, values, extents in (
            ("shape", tensor.shape, self.shape),
            ("strides", tensor.stride(), self.strides),
        ):
            dynamic = [value for value, extent in zip(values, extents, strict=True) if extent.value is None]
            if dynamic:
                part = getattr(packed, name)
                for (field, _), value in zip(part._fields_, dynamic, strict=True):
                    setattr(part, field, value)
        return packed


class _Argument:
    """A packed value, with the interface that CuTe DSL expects of arguments."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._value)]


def launch(program: Artifacts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Enqueue `program` on torch's current stream. The first call loads the program.

    Raises NotImplementedError, which names the required device, if torch's current one differs, and
    ArgumentError, which names the argument that does not fit.
    """
    device, stream = current(program)
    _loaded(program)(*_packed(program, args, kwargs, device, ctypes.c_void_p(stream)))


def prepared(program: Artifacts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """A function that launches `program` on these arguments, checked and packed once, on torch's then current
    stream. Raises the errors of `launch`."""
    device, stream = current(program)
    function, handle = _loaded(program), ctypes.c_void_p(stream)
    values = _packed(program, args, kwargs, device, handle)

    def go(keep: object = (args, kwargs)) -> None:  # keeps the tensors whose addresses are packed
        handle.value = torch.cuda.current_stream(device).cuda_stream
        function(*values)

    return go


def _packed(
    program: Artifacts,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    stream: ctypes.c_void_p,
) -> list[_Argument | None]:
    """The packed arguments of the host function."""
    bound = program.bind(args, kwargs)
    return [
        _Argument(stream) if parameter.type == STREAM else _pack(parameter, bound[parameter.name], device)
        for parameter in program.parameters
    ]


def current(program: Artifacts) -> tuple[torch.device, int]:
    """(torch's current CUDA device, the handle of its current stream)."""
    wanted = " or ".join(f"{major}.{minor}" for major, minor in ARCHS[program.arch])
    needs = f"{program.name} is compiled for {program.arch} and needs a GPU of compute capability {wanted}"
    if not torch.cuda.is_available():
        raise NotImplementedError(f"{needs}; there is no CUDA device here")
    index = torch.cuda.current_device()
    capability = torch.cuda.get_device_capability(index)
    if capability not in ARCHS[program.arch]:
        name = torch.cuda.get_device_name(index)
        raise NotImplementedError(f"{needs}; {name} has {capability[0]}.{capability[1]}")
    return torch.device("cuda", index), torch.cuda.current_stream(index).cuda_stream


_functions: WeakKeyDictionary[Artifacts, Callable[..., object]] = WeakKeyDictionary()


def _loaded(program: Artifacts) -> Callable[..., object]:
    """The program's host function, loaded into this process."""
    found = _functions.get(program)
    if found is None:
        from cutlass.cute.runtime import load_module

        with tempfile.TemporaryDirectory(prefix="gdnbench-") as folder:
            path = Path(folder, "program.o")  # a symbol may be too long for a file name
            path.write_bytes(program.host_object)
            found = _functions[program] = getattr(load_module(str(path)), program.symbol)
    return found


def _pack(parameter: Parameter, value: Any, device: torch.device) -> _Argument | None:
    if parameter.type is None:
        return None
    tensor = _tensor_type(parameter.type)
    if tensor is not None:
        tensor.check(parameter.name, value, device)
        return _Argument(tensor.pack(value))
    number = NUMBERS.get(parameter.type)
    if number is None or not isinstance(value, int | float):
        raise ArgumentError(f"{parameter.name} is {value!r}; the kernel takes {parameter.type}")
    if issubclass(number, ctypes.c_int32 | ctypes.c_int64):
        bits = 8 * ctypes.sizeof(number)
        if isinstance(value, float) or not -(1 << (bits - 1)) <= value < 1 << bits:
            raise ArgumentError(f"{parameter.name} is {value!r}; the kernel takes an integer of {bits} bits")
    return _Argument(number(value))


_tensor_type = cache(TensorType.parse)


def _extents(text: str) -> tuple[Extent, ...]:
    found = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        dynamic = _DYNAMIC.fullmatch(item)
        found.append(
            Extent(None, int(dynamic[1] or 32), int(dynamic[2] or 1)) if dynamic else Extent(int(item))
        )
    return tuple(found)


def _ints(extents: Sequence[Extent]) -> type[ctypes.Structure] | None:
    """The C struct of the dynamic extents; None if there are none."""
    bits = [extent.bits for extent in extents if extent.value is None]
    fields = [(f"value{i}", {32: ctypes.c_int32, 64: ctypes.c_int64}[size]) for i, size in enumerate(bits)]
    return type("Ints", (ctypes.Structure,), {"_fields_": fields}) if fields else None


def _text(extents: Sequence[Extent]) -> str:
    shown = (str(extent.value) if extent.value is not None else "any" for extent in extents)
    return f"({', '.join(shown)})"
