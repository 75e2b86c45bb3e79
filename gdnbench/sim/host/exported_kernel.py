# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels that were exported with their PTX and types; running them needs no compiler."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.arguments import Packed, pack_arguments

STREAM = "!cuda.stream"
NO_STREAM = Packed(bytes(8))  # the default stream, a null pointer

# The `struct` format of each number type in CuTe DSL's IR, whose integers have no sign.
_CODES = {"i1": "?", "i8": "B", "i16": "H", "i32": "I", "i64": "Q", "f16": "e", "f32": "f", "f64": "d"}


class Parameter(Protocol):
    """A parameter of the host function: its lowered type in the IR, or None if it was compiled in."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str | None: ...


@runtime_checkable
class ExportedKernel(Protocol):
    """The result of CuTe DSL's `export_to_c`, with what that leaves out: PTX and parameter types.

    `symbol` is the prefix of the object's symbols, `function` the compiler's name of the host function.
    """

    @property
    def symbol(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def ptx(self) -> str: ...
    @property
    def host_object(self) -> bytes: ...


def bind_arguments(kernel: ExportedKernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Run-time arguments by parameter name, in order, with a null stream. Raises LaunchError if they do not
    fit."""
    expected = [parameter.name for parameter in kernel.parameters if parameter.type != STREAM]
    given = dict(zip(expected, args, strict=False))
    if len(args) > len(expected):
        raise LaunchError(f"{len(args)} arguments for {len(expected)}: {', '.join(expected)}")
    for name, value in kwargs.items():
        if name not in expected or name in given:
            why = "is given twice" if name in given else f"is none of {', '.join(expected)}"
            raise LaunchError(f"argument {name} {why}")
        given[name] = value
    bound = {}
    for parameter in kernel.parameters:
        if parameter.type is None:
            if given.get(parameter.name) is not None:
                raise LaunchError(f"{parameter.name} is given; the kernel was compiled without it")
        elif parameter.type == STREAM:
            bound[parameter.name] = NO_STREAM
        elif given.get(parameter.name) is None:
            why = "is None" if parameter.name in given else "is missing"
            raise LaunchError(f"argument {parameter.name} {why}; the kernel was compiled with it")
        else:
            bound[parameter.name] = given[parameter.name]
    return bound


def pack_bound(kernel: ExportedKernel, bound: Mapping[str, Any]) -> list[Packed]:
    """The result of `bind` as the host function takes it: one struct in memory each."""
    types = [parameter.type for parameter in kernel.parameters if parameter.type is not None]
    return [
        value if isinstance(value, Packed) else _number(name, value, type_)
        for name, value, type_ in zip(bound, pack_arguments(bound, types), types, strict=True)
    ]


def _number(name: str, value: Any, type_: str) -> Packed:
    code = _CODES.get(type_)
    if code is None or not isinstance(value, int | float):
        raise LaunchError(f"{name} is {value!r}; the kernel takes {type_.removeprefix('!')}")
    if code in "BHIQ":  # both signs of the bits
        value = int(value) & ((1 << int(type_[1:])) - 1)
    return Packed(struct.pack(f"<{code}", value))
