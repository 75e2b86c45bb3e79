# SPDX-License-Identifier: Apache-2.0
"""Options of functions from text, by their annotations."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gdnbench.errors import BadInputError
from gdnbench.near_names import nearest_first


def parse_options(
    function: Callable[..., Any], texts: Mapping[str, str], owner: str, kind: str
) -> dict[str, Any]:
    """Keyword arguments of `function` from text: numbers, true/false, none, words, comma-separated tuples.

    BadInputError, with what `owner` has as `kind` options, for any other.
    """
    hints = get_type_hints(function)
    hints.pop("return", None)
    options = {}
    for name, text in texts.items():
        if name not in hints:
            raise BadInputError(f"{owner} has no {kind} option {name!r}; it has {nearest_first(name, hints)}")
        try:
            options[name] = _parse(hints[name], text)
        except ValueError:
            raise BadInputError(f"{owner} option {name}: {text!r} is not {_described(hints[name])}") from None
    return options


def option_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }


def describe_options(function: Callable[..., Any]) -> str:
    """The options of a function with their defaults, then what its documentation says of them."""
    lines = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        shown = ",".join(map(str, default)) or "none" if isinstance(default, tuple) else default
        lines.append(f"--{parameter.name.replace('_', '-')} (default {shown})")
    return "\n".join([*lines, "", inspect.getdoc(function) or ""]).rstrip()


def _parse(hint: Any, text: str) -> Any:
    """`text` as a value of type `hint`; ValueError if it is none."""
    if hint is bool:
        return (
            {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse()
        )
    if hint in (int, float, str):
        return hint(text)
    if hint is NoneType:
        return None if text.lower() == "none" else _refuse()
    if get_origin(hint) is Literal:
        return text if text in get_args(hint) else _refuse()
    if get_origin(hint) is tuple:
        return _parse_tuple(get_args(hint), text)
    assert get_origin(hint) in (Union, types.UnionType), hint
    for member in get_args(hint):
        try:
            return _parse(member, text)
        except ValueError:
            continue
    return _refuse()


def _parse_tuple(members: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    parts = text.split(",") if text.strip() else []
    if members[-1] is ...:
        return tuple(_parse(members[0], part) for part in parts)
    return tuple(_parse(member, part) for member, part in zip(members, parts, strict=True))


def _refuse() -> Any:
    raise ValueError


def _described(hint: Any) -> str:
    if hint is bool:
        return "true or false"
    if hint is NoneType:
        return "none"
    if get_origin(hint) is Literal:
        return " or ".join(get_args(hint))
    if hint in (int, float, str):
        return {int: "an integer", float: "a number", str: "text"}[hint]
    if get_origin(hint) is tuple:
        members = get_args(hint)
        what = {int: "integers", float: "numbers"}[members[0]]
        return (
            f"{what} separated by commas"
            if members[-1] is ...
            else f"{len(members)} {what} separated by a comma"
        )
    return " or ".join(_described(member) for member in get_args(hint))
