# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses to plain JSON values and back, by their type hints, with every mismatch refused."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gdnbench.errors import BadInputError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None; ValueError for NaN and infinities."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} has no form in JSON")
    return value


def from_plain(kind: type[T], value: Any, where: str) -> T:
    """The `kind` that `value` describes; BadInputError with the place in `where` that does not fit.

    Names that `kind` lacks are passed over, so that a later release may add some; one it has no default for
    must be there.
    """
    made: T = _read(kind, value, where)
    return made


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        (hint,) = (part for part in parts if part is not type(None))
        return _read(hint, value, where)
    if origin is tuple:
        return _tuple(parts, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _misfit(where, "an object", value)
        return {key: _read(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(hint):
        return _dataclass(hint, value, where)
    return _scalar(hint, value, where)


def _tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _misfit(where, "a list", value)
    kinds = [parts[0]] * len(value) if parts[1:] == (Ellipsis,) else list(parts)
    if len(kinds) != len(value):
        raise _misfit(where, f"a list of {len(kinds)}", value)
    return tuple(
        _read(kind, item, f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _misfit(where, "an object", value)
    hints, given = get_type_hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise BadInputError(f"{where}.{field.name} is missing")
    return kind(**given)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if issubclass(kind, StrEnum):
        if value not in [member.value for member in kind]:
            raise _misfit(where, f"one of {', '.join(kind)}", value)
        return kind(value)
    # A whole float is written as an int by other programs; a bool is an int to Python and to nobody else.
    accepted = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, accepted):
        raise _misfit(where, f"a {kind.__name__}", value)
    if kind is not float:
        return kind(value)
    try:
        number = float(value)
    except OverflowError:  # of an int
        number = math.inf
    if not math.isfinite(number):
        raise _misfit(where, "a finite number", value)
    return number


def _misfit(where: str, wanted: str, value: Any) -> BadInputError:
    text = repr(value)
    return BadInputError(f"{where} is {text if len(text) < 60 else text[:57] + '...'}, not {wanted}")
