# SPDX-License-Identifier: Apache-2.0
"""Reads TOML files of this project, each key checked against what it may hold; an invalid value gives a
one-line error that says what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Key:
    """A key's allowed values, in words, and the function that parses a TOML value or raises ValueError."""

    holds: str
    parse: Callable[[Any], Any]


def read_toml(path: Path) -> dict[str, Any]:
    """The document at `path`; BadInputError if there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # an integer with too many digits raises ValueError
        raise BadInputError(f"{path} is not TOML: {' '.join(str(error).split())}") from None


def parse_table(table: Mapping[str, Any], keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    """The values of a table; BadInputError for an unknown key or an invalid value."""
    values = {}
    for name, value in table.items():
        if name not in keys:
            raise BadInputError(f"{where} has a key {name!r}; its keys are {', '.join(keys)}")
        try:
            values[name] = keys[name].parse(value)
        except ValueError:
            raise BadInputError(f"{where}: {name} must be {keys[name].holds}, not {shown(value)}") from None
    return values


def shown(value: Any) -> str:
    """A TOML value in an error message."""
    text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse_unless(right: bool) -> None:
    """Raises ValueError, for `Key.parse`."""
    if not right:
        raise ValueError


def parse_text(value: Any) -> str:
    """A text of one line."""
    refuse_unless(isinstance(value, str) and bool(value.strip()) and value.isprintable())
    return str(value)


def parse_flag(value: Any) -> bool:
    refuse_unless(isinstance(value, bool))
    return bool(value)


def parse_subtable(value: Any) -> dict[str, Any]:
    refuse_unless(isinstance(value, dict))
    return dict(value)


def parse_subtables(value: Any) -> list[dict[str, Any]]:
    refuse_unless(isinstance(value, list) and bool(value))
    return [parse_subtable(one) for one in value]


FLAG = Key("true or false", parse_flag)
TEXT = Key("a text of one line", parse_text)
