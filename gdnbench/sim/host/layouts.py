# SPDX-License-Identifier: Apache-2.0
"""Reads the types of a host function's tensor arguments from the IR that was kept beside its PTX.

A CuTe tensor argument is a struct: the data pointer, then the dynamic extents, then the dynamic strides. The
compiled object does not say which are dynamic; the function's type in the kept IR does:

    !cute.memref<bf16, gmem, align<16>, "(?,16,?{i64}):(?{i64 div=8},128,1)">
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from gdnbench.sim.errors import LaunchError

_ALIAS = re.compile(r"^(![\w.]+) = (.*?)$", re.MULTILINE)
_MEMREF = re.compile(r'!cute\.memref<(\w+), (\w+)(?:, align<(\d+)>)?, "(.*)">')
_EXTENT = re.compile(r"\?(?:\{(?:i(\d+))?\s*(?:div=(\d+))?\})?|\d+")
_OPENING, _CLOSING = "([{<", ")]}>"


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent or a stride. A dynamic one has `value` None, has `bits` in the struct and is a multiple of
    `divisor`."""

    value: int | None
    bits: int = 32
    divisor: int = 1

    @property
    def dynamic(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of a tensor argument: which tensors fit, and which extents and strides are passed at run time.
    `align` is in bytes; 0 means the element's size."""

    dtype: str
    align: int
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]

    @property
    def layout(self) -> str:
        """Extents and strides as CuTe writes them, a dynamic one as ?: `(?,8):(?{i64},1)`."""
        return ":".join(f"({','.join(map(_extent_text, extents))})" for extents in (self.shape, self.strides))

    @property
    def passed(self) -> tuple[tuple[int, int, int], ...]:
        """What is passed at run time: (0 for an extent or 1 for a stride, its dimension, bits) each."""
        return tuple(
            (which, dim, extent.bits)
            for which, extents in enumerate((self.shape, self.strides))
            for dim, extent in enumerate(extents)
            if extent.dynamic
        )

    def pack(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        """The argument struct by the C layout rules; strides in elements."""
        parts = [
            _struct(
                [
                    (value, extent.bits)
                    for value, extent in zip(values, extents, strict=True)
                    if extent.dynamic
                ]
            )
            for values, extents in ((shape, self.shape), (strides, self.strides))
        ]
        layout, align = b"", 1
        for data, alignment in parts:
            layout += bytes(-len(layout) % alignment) + data
            align = max(align, alignment)
        layout += bytes(-len(layout) % align)
        packed = struct.pack("<Q", address) + layout
        return packed + bytes(-len(packed) % 8)


def _extent_text(extent: Extent) -> str:
    if extent.value is not None:
        return str(extent.value)
    return "?" if extent.bits == 32 else f"?{{i{extent.bits}}}"


def _struct(fields: list[tuple[int, int]]) -> tuple[bytes, int]:
    """(bytes, alignment) of a struct of integers of the given bits."""
    data, align = b"", 1
    for value, bits in fields:
        size = bits // 8
        align = max(align, size)
        data += bytes(-len(data) % size) + value.to_bytes(size, "little", signed=True)
    return data + bytes(-len(data) % align), align


def parameter_types(ir: str, function: str) -> list[str]:
    """The type of each parameter of `func.func @function` in the text of an IR module, aliases resolved."""
    aliases = dict(_ALIAS.findall(ir))
    match = re.search(rf'func\.func (?:\w+ )?@"?{re.escape(function)}"?\(', ir)
    if match is None:
        raise LaunchError(f"the IR kept beside the PTX has no function {function}")
    return [aliases.get(type_, type_) for type_ in map(_type_of, _split(ir, match.end()))]


def _split(text: str, at: int) -> list[str]:
    """The comma-separated items from `at` to the parenthesis that closes them."""
    items, depth, start, quoted = [], 0, at, False
    while depth >= 0:
        char = text[at]
        quoted ^= char == '"'
        if not quoted:
            depth += (char in _OPENING) - (char in _CLOSING and text[at - 1] != "-")
            if depth < 0 or (depth == 0 and char == ","):
                items.append(text[start:at].strip())
                start = at + 1
        at += 1
    return [item for item in items if item]


def _type_of(parameter: str) -> str:
    """`%arg0: !type loc(...)` -> `!type`."""
    text = parameter.partition(":")[2].strip()
    return re.split(r" loc\(| \{", text, maxsplit=1)[0].strip()


def tensor_type(text: str) -> TensorType | None:
    """Parse a tensor type; None for any other type. Raises LaunchError for a nested layout."""
    match = _MEMREF.fullmatch(text)
    if match is None:
        return None
    dtype, _, align, layout = match.groups()
    shape, _, strides = layout.partition(":")
    return TensorType(dtype, int(align or 0), _extents(shape, text), _extents(strides, text))


def _extents(text: str, whole: str) -> tuple[Extent, ...]:
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    found: list[Extent] = []
    for item in inner.split(",") if inner else ():
        match = _EXTENT.fullmatch(item.strip())
        if match is None:
            raise LaunchError(
                f"a tensor argument of type {whole}: only flat layouts can be given as torch tensors"
            )
        bits, divisor = match.groups()
        found.append(
            Extent(None, int(bits or 32), int(divisor or 1))
            if item.strip().startswith("?")
            else Extent(int(item))
        )
    return tuple(found)
