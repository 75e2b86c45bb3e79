# SPDX-License-Identifier: Apache-2.0
"""Converts torch CPU tensors to the arguments of a host function and to the memory that its kernels may
access."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host import cute_tensors
from gdnbench.sim.host.layouts import Extent, TensorType, tensor_type

# Element types of CuTe DSL's IR, whose integers have no sign, and the torch dtypes of the same width.
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "f64": (torch.float64,),
    "f32": (torch.float32,),
    "tf32": (torch.float32,),
    "f16": (torch.float16,),
    "bf16": (torch.bfloat16,),
    "f8E4M3FN": (torch.float8_e4m3fn,),
    "f8E5M2": (torch.float8_e5m2,),
    "f8E8M0FNU": (torch.float8_e8m0fnu,),
    "i64": (torch.int64, torch.uint64),
    "i32": (torch.int32, torch.uint32),
    "i16": (torch.int16, torch.uint16),
    "i8": (torch.int8, torch.uint8, torch.bool),
}

_data_ptr = Tensor.data_ptr  # not the one that notes who asks, see asked_memory
_SCALAR = re.compile(r"(i|f|bf|tf)(\d+)")


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor argument with the name that the kernel uses: `x`, or `state[1]` inside a tuple."""

    name: str
    tensor: Tensor


class Packed:
    """An argument that is already a C struct in memory, with the interface that CuTe DSL expects of
    arguments."""

    def __init__(self, data: bytes) -> None:
        self._bytes = ctypes.create_string_buffer(data, max(len(data), 1))

    def __c_pointers__(self) -> list[int]:
        return [ctypes.addressof(self._bytes)]


def map_leaves(name: str, value: Any, leaf: Callable[[str, Any], Any]) -> Any:
    """`value` with every element of its tuples, lists and dataclasses replaced by `leaf(name, element)`."""
    if isinstance(value, tuple | list):
        items = [map_leaves(f"{name}[{i}]", item, leaf) for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: map_leaves(f"{name}.{field.name}", getattr(value, field.name), leaf)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **changed)
    return leaf(name, value)


def tensors_in(arguments: Mapping[str, Any]) -> list[NamedTensor]:
    """Every torch tensor among the arguments, in order."""
    return [NamedTensor(name, value) for name, value in _leaves(arguments) if isinstance(value, Tensor)]


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes that the kernels of a call may access; `keeper` owns them."""

    name: str
    address: int
    size: int
    keeper: object


def address_of(tensor: Tensor) -> int:
    """The address of a tensor's first element. Unlike `data_ptr()` it does not count as a question of the
    program."""
    return int(_data_ptr(tensor))


def region_of(named: NamedTensor) -> Region:
    """The bytes from a tensor's first element to its last. Raises LaunchError if the tensor is not on the
    CPU."""
    check_on_cpu(named)
    tensor = named.tensor
    size = _span(tensor.shape, tensor.stride()) * tensor.element_size()
    return Region(named.name, address_of(tensor), size, tensor)


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def regions_in(arguments: Mapping[str, Any]) -> list[Region]:
    """The memory of all tensors among the arguments, torch's and those of CuTe's runtime."""
    found = []
    for name, value in _leaves(arguments):
        if isinstance(value, Tensor):
            found.append(region_of(NamedTensor(name, value)))
        elif cute_tensors.is_cute_tensor(value):
            cute_tensors.type_of(name, value)
            found.append(Region(name, *cute_tensors.span_of(value), value))
    return found


def check_on_cpu(named: NamedTensor) -> None:
    """Raises LaunchError for a tensor outside this process's memory."""
    if named.tensor.device.type != "cpu":
        device = named.tensor.device
        advice = "; on a virtual GPU call the kernel itself, without sim.active() or sim.launch()"
        raise LaunchError(
            f"{named.name} is on {device}: the simulator takes CPU tensors"
            + (advice if device.type == "cuda" else "")
        )
    if named.tensor.layout is not torch.strided:
        raise LaunchError(f"{named.name} is {named.tensor.layout}: the simulator takes strided tensors")


def pack_arguments(arguments: Mapping[str, Any], types: Sequence[str]) -> list[Any]:
    """The arguments of a host function whose parameters have `types`, with tensors as structs. Raises
    LaunchError, which names the first that does not fit. A value that is no tensor, number, None or container
    of these stays as it is; types are not passed."""
    leaves = [(name, value) for name, value in _leaves(arguments) if not isinstance(value, type)]
    given = sum(isinstance(value, Tensor) or cute_tensors.is_cute_tensor(value) for _, value in leaves)
    wanted = [kind for kind in map(tensor_type, types) if kind is not None]
    if len(leaves) == len(types):
        for (name, value), type_ in zip(leaves, types, strict=True):
            _check_kind(name, value, type_)
    if given != len(wanted):
        raise LaunchError(f"the kernel takes {len(wanted)} tensors; there are {given}")
    remaining = iter(wanted)

    def pack(name: str, value: Any) -> Any:
        if cute_tensors.is_cute_tensor(value):
            return pack_cute_tensor(name, value, next(remaining))
        return pack_tensor(NamedTensor(name, value), next(remaining)) if isinstance(value, Tensor) else value

    return [map_leaves(name, value, pack) for name, value in arguments.items()]


def _leaves(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Name and value of every passed argument; None is compiled in and not passed."""
    found: list[tuple[str, Any]] = []

    def note(name: str, value: Any) -> Any:
        if value is not None:
            found.append((name, value))
        return value

    for name, value in arguments.items():
        map_leaves(name, value, note)
    return found


def _check_kind(name: str, value: Any, type_: str) -> None:
    """Raises LaunchError for a number where the kernel takes a tensor, and the reverse."""
    if (isinstance(value, Tensor) or cute_tensors.is_cute_tensor(value)) and tensor_type(type_) is None:
        raise LaunchError(f"{name} is a tensor; the kernel takes {type_.removeprefix('!')}")
    if isinstance(value, bool | int | float | str):
        scalar = _SCALAR.fullmatch(type_)
        if scalar is None or isinstance(value, str):
            what = "a tensor" if tensor_type(type_) else type_.removeprefix("!")
            raise LaunchError(f"{name} is {value!r}; the kernel takes {what}")
        if scalar[1] == "i":
            bits = int(scalar[2])
            if isinstance(value, float) or not -(1 << (bits - 1)) <= value < 1 << bits:
                raise LaunchError(f"{name} is {value!r}; the kernel takes an integer of {bits} bits")


def pack_tensor(named: NamedTensor, type_: TensorType) -> Packed:
    """The argument struct of a tensor. Raises LaunchError, which names the mismatch with the compiled
    type."""
    if wrong := next(_misfits(named.tensor, type_), None):
        raise LaunchError(f"{named.name} {wrong}")
    tensor = named.tensor
    return Packed(type_.pack(address_of(tensor), tuple(tensor.shape), tensor.stride()))


def pack_cute_tensor(name: str, value: Any, type_: TensorType) -> Packed:
    """The argument struct of a tensor of CuTe's runtime. Raises LaunchError like `pack_tensor`, and for one
    whose own struct is another: a GPU's host code would read the wrong extents from it."""
    own = cute_tensors.type_of(name, value)
    if wrong := next(_cute_misfits(value, own, type_), None):
        raise LaunchError(f"{name} {wrong}")
    if type_.passed and own.passed != type_.passed:
        raise LaunchError(
            f"{name} passes the layout {own.layout}; the kernel was compiled for {type_.layout}: "
            "mark the same extents dynamic"
        )
    address, _ = cute_tensors.span_of(value)
    return Packed(type_.pack(address, tuple(value.shape), tuple(value.stride)))


def _cute_misfits(value: Any, own: TensorType, type_: TensorType) -> Iterator[str]:
    if own.dtype != type_.dtype:
        yield f"is {own.dtype}; the kernel was compiled for {type_.dtype}"
    yield from _layout_misfits(tuple(value.shape), tuple(value.stride), type_)
    address, size = cute_tensors.span_of(value)
    if type_.align and size and address % type_.align:
        yield f"is not aligned to {type_.align} bytes, as the kernel was told"


def _misfits(tensor: Tensor, type_: TensorType) -> Iterator[str]:
    wanted = DTYPES.get(type_.dtype)
    if wanted is None:
        yield f"has element type {type_.dtype}, which no torch tensor can stand for"
    elif tensor.dtype not in wanted:
        yield f"is {_name(tensor.dtype)}; the kernel was compiled for {' or '.join(map(_name, wanted))}"
    yield from _layout_misfits(tuple(tensor.shape), tensor.stride(), type_)
    align = type_.align or tensor.element_size()
    if tensor.numel() and address_of(tensor) % align:
        yield f"is not aligned to {align} bytes, as the kernel was told"


def _layout_misfits(shape: Sequence[int], strides: Sequence[int], type_: TensorType) -> Iterator[str]:
    if len(shape) != len(type_.shape):
        yield f"has {len(shape)} dimensions; the kernel was compiled for {len(type_.shape)}"
        return
    for what, values, extents in (("extent", shape, type_.shape), ("stride", strides, type_.strides)):
        for dim, (value, extent) in enumerate(zip(values, extents, strict=True)):
            # The stride of an extent of 1 is never used.
            if what == "stride" and not extent.dynamic and shape[dim] == 1:
                continue
            if reason := _misfit(value, extent):
                yield f"has {what} {value} in dimension {dim}; {reason}"


def _misfit(value: int, extent: Extent) -> str | None:
    if extent.value is not None:
        return f"the kernel was compiled for {extent.value}" if value != extent.value else None
    if value % extent.divisor:
        return f"the kernel was told a multiple of {extent.divisor}"
    if value >= 1 << (extent.bits - 1):
        return f"it is passed in {extent.bits} bits"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
