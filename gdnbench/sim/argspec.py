# SPDX-License-Identifier: Apache-2.0
"""Arguments of a kernel as text, such as `bf16[128,64]`, `f32[?300,8]:zeros`, `x=@x.npy` or `3.5`.

[NAME=]VALUE
VALUE    a number, true, false, none, a Python literal such as (64, 8) or 'mean', or a tensor
tensor   TYPE[EXTENTS][:FILL], TYPE[EXTENTS:STRIDES][:FILL], or @FILE of .npy or .pt
EXTENTS  comma-separated; ?N is N now and left open when the kernel is compiled
STRIDES  comma-separated, in elements; packed, the last dimension contiguous, if left out
FILL     randn, rand, randint, zeros, ones, arange, nan, or a number; randn or zeros if left out
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from torch import Tensor

from gdnbench.sim.errors import InputError

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}
FLOAT_FILLS = ("randn", "rand", "nan")
FILLS = (*FLOAT_FILLS, "randint", "zeros", "ones", "arange")
RANDINT_BELOW = 100

Literal = int | float | bool | str | None | tuple[object, ...]

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TENSOR = re.compile(r"(\w+)\[([^\]:]*)(?::([^\]]*))?\](?::(.+))?")
_EXTENT = re.compile(r"(\??)(\d{1,18})")
_STRIDE = re.compile(r"\d{1,99}")
_WORDS: dict[str, Literal] = {"none": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to make. `strides` are in elements. `dynamic` marks the dimensions whose extent the compiled
    kernel takes at run time."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dynamic: tuple[bool, ...]
    fill: str


@dataclass(frozen=True, slots=True)
class Argument:
    """A parsed argument: its name, if it has one, and its value, a Tensor if the text named a file."""

    name: str | None
    value: Literal | TensorSpec | Tensor


def parse_argument(text: str) -> Argument:
    """Parse one argument. Raises InputError, which names the part that is wrong."""
    named = _NAMED.fullmatch(text)
    name, value = (named[1], named[2]) if named else (None, text)
    if value.startswith("@"):
        return Argument(name, _read(Path(value[1:]), text))
    if value.lower() in _WORDS:
        return Argument(name, _WORDS[value.lower()])
    match = _TENSOR.fullmatch(value)
    if match is not None:
        return Argument(name, _tensor_spec(match, text))
    try:
        return Argument(name, float(value) if value.lower() in ("inf", "-inf", "nan") else _literal(value))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # of ast.literal_eval
        raise InputError(
            f"argument {text!r} is no number, literal or tensor; tensors are written like f32[128,64]:zeros"
        ) from None


def make_tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    """Make the tensor that `spec` describes. Random contents come from `generator`. Raises InputError if it
    is too large."""
    dtype = DTYPES[spec.dtype]
    try:
        tensor = torch.empty_strided(spec.shape, spec.strides, dtype=dtype)
        tensor.copy_(_contents(spec, dtype, generator))
    except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
        extents, strides = (",".join(map(str, numbers)) for numbers in (spec.shape, spec.strides))
        what = str(error).partition("\n")[0]
        raise InputError(
            f"a tensor {spec.dtype}[{extents}:{strides}]:{spec.fill} cannot be made: {what}"
        ) from None
    return tensor


def _literal(text: str) -> Literal:
    """A Python literal of the kinds that a kernel can be specialised for; SyntaxError for any other text."""
    value = ast.literal_eval(text)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int | float | str | tuple):
        return value
    raise SyntaxError(text)


def _tensor_spec(match: re.Match[str], text: str) -> TensorSpec:
    dtype, extents, strides, fill = match.groups()
    if dtype not in DTYPES:
        raise InputError(f"argument {text!r}: type {dtype!r}; there are {', '.join(DTYPES)}")
    shape, dynamic = [], []
    for item in _items(extents):
        extent = _EXTENT.fullmatch(item)
        if extent is None:
            raise InputError(f"argument {text!r}: extent {item!r}; write a number, or ?N to leave it open")
        shape.append(int(extent[2]))
        dynamic.append(bool(extent[1]))
    given = _strides(strides, shape, text)
    if fill is None:
        fill = "randn" if DTYPES[dtype].is_floating_point else "zeros"
    _check_fill(fill, dtype, text)
    return TensorSpec(dtype, tuple(shape), given, tuple(dynamic), fill)


def _strides(text: str | None, shape: list[int], whole: str) -> tuple[int, ...]:
    if text is None:
        packed: list[int] = []
        for extent in reversed([*shape[1:], 1][: len(shape)]):
            packed.append((packed[-1] if packed else 1) * max(extent, 1))
        return tuple(reversed(packed))
    items = _items(text)
    if len(items) != len(shape) or not all(_STRIDE.fullmatch(item) for item in items):
        raise InputError(f"argument {whole!r}: strides {text!r}; write one number for each extent")
    return tuple(map(int, items))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _check_fill(fill: str, dtype: str, text: str) -> None:
    if fill in FILLS:
        if fill in FLOAT_FILLS and not DTYPES[dtype].is_floating_point:
            raise InputError(f"argument {text!r}: {fill} is for floating-point types; write randint")
        return
    try:
        float(fill)
    except ValueError:
        raise InputError(
            f"argument {text!r}: contents {fill!r}; there are {', '.join(FILLS)}, or a number"
        ) from None


def _contents(spec: TensorSpec, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """The contents in a wide type; torch converts them to the tensor's dtype."""
    shape = spec.shape
    match spec.fill:
        case "randn":
            return torch.randn(shape, generator=generator)
        case "rand":
            return torch.rand(shape, generator=generator)
        case "randint":
            return torch.randint(RANDINT_BELOW, shape, generator=generator)
        case "zeros" | "ones":
            return torch.full(shape, float(spec.fill == "ones"))
        case "arange":
            return torch.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        case number:
            value = float(number)
            exact = not dtype.is_floating_point and value.is_integer()
            return torch.full(shape, int(number) if exact and number.lstrip("+-").isdecimal() else value)


def _read(path: Path, text: str) -> Tensor:
    try:
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False).copy())
        if path.suffix == ".pt":
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(loaded, Tensor):
                return loaded
            raise InputError(f"argument {text!r}: {path} holds no tensor")
    except OSError as error:
        raise InputError(f"argument {text!r}: {path} cannot be read: {error.strerror or error}") from None
    except (TypeError, ValueError, RuntimeError, EOFError, UnpicklingError) as error:
        what = str(error).partition("\n")[0].partition(". ")[0]
        raise InputError(f"argument {text!r}: {path} holds no tensor: {what}") from None
    raise InputError(f"argument {text!r}: {path} is neither .npy nor .pt")
