# SPDX-License-Identifier: Apache-2.0
"""Adapters from a TOML or JSON file: tables of callers of paged attention.

    [[paged]]
    function = "engine.attention:sparse_decode"
    q = "q"
    ...

The keys are the fields of `Paged`. Every captured process reads every file at start-up.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from gdnbench.capture.adapters.paged import Paged, short_repr
from gdnbench.errors import BadInputError

KIND = "paged"


def read_tables(path: str | Path) -> list[Paged]:
    """The adapters in a file: JSON if its name ends in .json, else TOML.

    BadInputError, one line that names file, table and key, if the file is invalid.
    """
    path = Path(path)
    document = _document(path)
    if not isinstance(document, dict) or set(document) != {KIND} or not isinstance(document[KIND], list):
        raise BadInputError(f"{path} must hold a list of tables named {KIND!r} and nothing else: [[{KIND}]]")
    if not document[KIND]:
        raise BadInputError(f"{path} has no table; write one under [[{KIND}]]")
    return [_adapter(table, f"{path}: {KIND}[{number}]") for number, table in enumerate(document[KIND])]


def _document(path: Path) -> Any:
    if path.exists() and not path.is_file():  # several processes read it: a pipe gives its text to one only
        raise BadInputError(f"table {path} is no file; write the tables into one")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInputError(f"table {path} cannot be read: {why}") from None
    try:
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise BadInputError(f"table {path} is not {kind}: {' '.join(str(error).split())}") from None


def _adapter(table: Any, where: str) -> Paged:
    if not isinstance(table, dict):
        raise BadInputError(f"{where} is {short_repr(table)}; it must be a table")
    known = {field.name: field for field in fields(Paged)}
    for key in table:
        if key not in known:
            raise BadInputError(
                f"{where} has a key {short_repr(key)}, which there is not; keys are {', '.join(known)}"
            )
    missing = [name for name, field in known.items() if field.default is MISSING and name not in table]
    if missing:
        raise BadInputError(f"{where} lacks {', '.join(missing)}")
    if isinstance(table.get("layers"), list):
        table = {**table, "layers": tuple(table["layers"])}
    try:
        return Paged(**table)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None
