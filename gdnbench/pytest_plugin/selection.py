# SPDX-License-Identifier: Apache-2.0
"""Selects the records that become tests, and names the tests.

Nothing here depends on the process or the time, because all processes of pytest-xdist must find the same
tests.
"""

from __future__ import annotations

import glob
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdnbench.errors import EXPECTED_ERRORS, BadInputError, StoreError
from gdnbench.printable import printable
from gdnbench.pytest_plugin.marks import RecordRequest, parse_request
from gdnbench.record_numbers import record_numbers
from gdnbench.store.address import Address, is_url
from gdnbench.store.reader import Store

_LONGEST = 80
"""Maximum length of a layer's name in a test's name; the record's number keeps names unique."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A future test: record `number` of the store at `path`, or a `problem` that is its outcome."""

    path: Address
    asked: RecordRequest
    id: str
    number: int = -1
    problem: str | None = None


def select_marked(marks: Sequence[pytest.Mark], file: Path, config: pytest.Config) -> list[Chosen]:
    """The records that `marks` of a test in `file` name, in the order of marks, paths and records.

    BadInputError if a mark is invalid or names no store or record. A store that cannot be read becomes a
    `problem`.
    """
    if not marks:
        raise BadInputError("which stores? Give the test @pytest.mark.gdnbench('captures/*.zarr.zip')")
    folders = (file.parent, config.rootpath)
    found: list[Chosen] = []
    for mark in reversed(marks):  # the closest to the function comes first
        if not mark.args:
            raise BadInputError("mark gdnbench names no store: its arguments are paths and globs")
        asked = parse_request(mark.kwargs, config, *folders)
        paths = list(dict.fromkeys(path for pattern in mark.args for path in _paths(pattern, folders)))
        chosen = [
            one
            for path, label in _labelled(paths, folders)
            for one in select_records(path, asked, f"{label}-")
        ]
        if not chosen:
            which = f"record of {asked.op}" if asked.op is not None else "record"
            raise BadInputError(f"no {which} in {', '.join(map(str, mark.args))}")
        found += chosen
    return found


def select_records(path: Address, asked: RecordRequest, prefix: str = "") -> list[Chosen]:
    """The requested records of the store at `path`, with names that begin with `prefix`; unreadable ones
    become problems."""

    def problem(name: str, error: object) -> Chosen:
        return Chosen(path, asked, f"{prefix}{name}", problem=printable(error))

    found: list[Chosen] = []
    try:
        with Store.open(path) as store:
            for number, damage in enumerate(store.damaged):
                found.append(problem(f"damaged{number or ''}", f"{path}: {damage}"))
            for loss in store.unfinished:
                warnings.warn(pytest.PytestWarning(printable(f"{path}: {loss}")), stacklevel=2)
            for number in _numbers(store, asked):
                try:
                    info = store.records[number].info
                except StoreError as error:
                    found.append(problem(f"{number}-unreadable", error))
                    continue
                if asked.op in (None, info.op):
                    name = f"{number}-{safe_name(info.op)}-{safe_name(info.layer)}-step{info.step}"
                    found.append(Chosen(path, asked, f"{prefix}{name}", number))
    except EXPECTED_ERRORS as error:
        return [*found, problem("unreadable", error)]
    return found


def _numbers(store: Store, asked: RecordRequest) -> Sequence[int]:
    if asked.records is None:
        return range(len(store.records))
    return record_numbers(asked.records, len(store.records))


def safe_name(text: str) -> str:
    """`text` for a test's name: characters that are special to pytest, a shell or `-k` become `_`."""
    kept = "".join(c if c.isalnum() or c in "._-+/" else "_" for c in text)
    return kept if len(kept) <= _LONGEST else f"{kept[: _LONGEST - 2]}.."


def _paths(pattern: object, folders: tuple[Path, ...]) -> Iterator[Address]:
    """A URL, or the sorted matches of a path or glob in the first of `folders` that has any."""
    text = str(pattern)
    if is_url(text):
        return iter([text])
    for folder in folders:
        if text and (folder / text).exists():
            return iter([folder / text])
        if matches := sorted(glob.glob(text, root_dir=folder, recursive=True)):
            return (folder / match for match in matches)
    raise BadInputError(f"{text!r} names no store in {' or '.join(map(str, dict.fromkeys(folders)))}")


def _labelled(paths: Sequence[Address], folders: tuple[Path, ...]) -> Iterator[tuple[Address, str]]:
    """Each path with its file name or, if that is not unique, with its path in the folder."""
    count = Counter(Path(path).name for path in paths)
    for address in paths:
        path = Path(address)  # works for a URL's last name too
        inside = next((folder for folder in folders if path.is_relative_to(folder)), None)
        longer = address if inside is None else path.relative_to(inside)
        yield address, safe_name(path.name if count[path.name] == 1 else str(longer))
