# SPDX-License-Identifier: Apache-2.0
"""A kernel of a PTX text with its launch shape, which `gdnbench.sim.launch(kernel, *args)` runs. There is no
host code: the arguments are packed by the types that the PTX declares for the kernel's parameters."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.demangle import demangled, names_called, short_name
from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.arguments import NamedTensor, Region, region_of
from gdnbench.sim.host.request import Dim3, LaunchRequest
from gdnbench.sim.ptx.ir import Kernel, Module, Variable

POINTER_TYPES = ("u64", "s64", "b64")
_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
_UNTYPED_FLOATS = {"b16": "<e", "b32": "<f", "b64": "<d"}


@dataclass(frozen=True, slots=True)
class PtxKernel:
    """A kernel, named by its `entry` in the PTX, with its launch shape. `shared_bytes` is dynamic shared
    memory, `registers` ptxas's count per thread, None if it is not known. `labels` names the arguments in
    reports; by default they are called as in the PTX, without the kernel's name: `param_0`."""

    module: Module
    entry: str
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    cluster: Dim3 | None = None
    registers: int | None = None
    labels: tuple[str, ...] = ()

    @property
    def kernel(self) -> Kernel:
        """The parsed kernel."""
        return self.module.kernels[self.entry]

    def request(self, args: Sequence[Any]) -> tuple[LaunchRequest, list[Region]]:
        """The launch with these arguments, and the memory of the tensors among them. Raises LaunchError,
        which names the first parameter whose argument does not fit."""
        kernel = self.kernel
        labels = self.labels or parameter_names(kernel)
        _check_count(kernel, labels, args)
        packed = [
            _pack(variable, label, value)
            for variable, label, value in zip(kernel.params, labels, args, strict=True)
        ]
        regions = [
            region_of(NamedTensor(label, value))
            for variable, label, value in zip(kernel.params, labels, args, strict=True)
            if isinstance(value, Tensor) and not variable.array
        ]
        request = LaunchRequest(
            ptx=self.module.text,
            entry=self.entry,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            shared_bytes=self.shared_bytes,
            params=tuple(packed),
            registers=self.registers,
            stream=0,
        )
        return request, regions


def entry_named(entries: Sequence[str], name: str | None, where: str) -> str:
    """The one of a PTX text's `entries` that `name` means: its mangled name, or its C++ name if only one
    kernel has it. None means the only entry. `where` is the file. Raises LaunchError, which lists them."""
    found = list(entries) if name is None else names_called(name, entries)
    if len(found) == 1:
        return found[0]
    if not entries:
        raise LaunchError(f"{where} has no kernel")
    listed = ", ".join(short_name(entry) for entry in found or entries)
    if name is None:
        raise LaunchError(f"{where} has the kernels {listed}: name one, as {where}:NAME")
    if found:
        listed = ", ".join(f"{entry}, which is {demangled(entry)}" for entry in found)
        raise LaunchError(f"{name!r} in {where} may be {listed}: give the mangled name")
    raise LaunchError(f"{where} has no kernel {name!r}; it has {listed}")


def parameter_names(kernel: Kernel) -> tuple[str, ...]:
    """The parameters' names, without the kernel's name where compilers put it before: `param_0`."""
    return tuple(variable.name.removeprefix(f"{kernel.name}_") or variable.name for variable in kernel.params)


def _type_of(variable: Variable) -> str:
    if variable.array:
        return f"{variable.size} bytes by value"
    return "a pointer" if variable.pointer else variable.type


def _check_count(kernel: Kernel, labels: Sequence[str], args: Sequence[Any]) -> None:
    wanted, given = len(kernel.params), len(args)
    if len(labels) != wanted or given > wanted:
        takes = ", ".join(map(_type_of, kernel.params)) or "none"
        raise LaunchError(
            f"{short_name(kernel.name)} takes {wanted} arguments ({takes}); {max(given, len(labels))}"
            " were given"
        )
    if given < wanted:
        name, label, type_ = short_name(kernel.name), labels[given], _type_of(kernel.params[given])
        raise LaunchError(
            f"{name} takes {wanted} arguments, {given} were given: {label}, {type_}, is missing"
        )


def _pack(variable: Variable, label: str, value: object) -> bytes:
    """The bytes of one parameter."""
    if variable.array:
        return _pack_struct(variable, label, value)
    if isinstance(value, Tensor):
        if variable.type not in POINTER_TYPES:
            raise LaunchError(f"{label} is {variable.type} and no pointer; a tensor was given")
        return value.data_ptr().to_bytes(8, "little")
    if value is None and variable.type in POINTER_TYPES:
        return bytes(8)
    if not isinstance(value, int | float):
        raise LaunchError(f"{label} is {_type_of(variable)}; {value!r} was given")
    if variable.pointer:
        raise LaunchError(f"{label} is a pointer; {value!r} was given: give a tensor, or none for null")
    if variable.type in _FLOATS or (isinstance(value, float) and variable.type in _UNTYPED_FLOATS):
        return _pack_float(variable, label, value)
    if isinstance(value, float):
        raise LaunchError(f"{label} is {variable.type}; {value!r} is no integer")
    bits = 8 * variable.size
    # The sign of a C parameter is lost in PTX: an int is declared as u32.
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise LaunchError(f"{label} is {variable.type}; {value} does not fit {bits} bits")
    return (value & ((1 << bits) - 1)).to_bytes(variable.size, "little")


def _pack_float(variable: Variable, label: str, value: float) -> bytes:
    try:
        return struct.pack((_FLOATS | _UNTYPED_FLOATS)[variable.type], float(value))
    except OverflowError:
        raise LaunchError(f"{label} is {variable.type}; {value} is too large for it") from None


def _pack_struct(variable: Variable, label: str, value: object) -> bytes:
    """A struct, which is passed by value: bytes, or the bytes of a tensor."""
    if isinstance(value, Tensor):
        value = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if not isinstance(value, bytes | bytearray):
        raise LaunchError(
            f"{label} is {variable.size} bytes by value: give a tensor of as many bytes, such as"
            f" u8[{variable.size}]:zeros; {value!r} was given"
        )
    if len(value) != variable.size:
        raise LaunchError(f"{label} is {variable.size} bytes by value; {len(value)} bytes were given")
    return bytes(value)


def bind_positional(kernel: PtxKernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """The arguments of a call. Raises LaunchError for named ones: PTX does not keep the names of C++."""
    if kwargs:
        raise LaunchError(
            f"{short_name(kernel.entry)} is a kernel of a PTX text, which takes its arguments in order;"
            f" {', '.join(kwargs)} was given by name"
        )
    return args
