# SPDX-License-Identifier: Apache-2.0
"""Reads the results of a replay or diff: a run store (`replay --save`), or a file of `--json`.

Both are untrusted input: an invalid run raises an error with its place, and nothing in it is executed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError, Exit, GdnbenchError
from gdnbench.report.export import SCHEMA
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.store.address import Address, is_url, local_path
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store

COMMANDS = ("replay", "diff")


@dataclass(frozen=True, slots=True)
class Run:
    """One replay or diff, as plain values.

    - header: what was compared with what, and the rule (`ReplayReport.header`, `DiffReport.header`)
    - provenance, process: of the process that replayed; empty for a file of `--json`, which lacks both
    - captured: provenance and process of the capturing processes, by segment of their store
    - records: `export.record_json` each, from a run store with grids, and `segment`, a key of `captured`
    - expected: the planned number of records; more than there are if the run was interrupted
    """

    path: str
    header: Mapping[str, str]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    captured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    records: tuple[Mapping[str, Any], ...] = ()
    expected: int = 0

    @property
    def interrupted(self) -> bool:
        return len(self.records) < self.expected

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(record["outcome"] for record in self.records)

    @property
    def exit_code(self) -> Exit:
        return exit_code(map(Outcome, self.outcomes))


@contextmanager
def as_replayed(where: str) -> Iterator[None]:
    """Context for parsing values of a run that `read_run` has not checked: turns errors into BadInputError
    with `where`."""
    try:
        yield
    except GdnbenchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadInputError(
            f"{where} is not as a replay writes it ({type(error).__name__}: {error}): write it again with"
            " this release"
        ) from error


def read_run(path: Address) -> Run:
    """The run at `path`; BadInputError if it is none, StoreError if its store is damaged."""
    if not is_url(path) and (place := local_path(path)).is_file() and place.suffix != ".zip":
        return _from_text(place)
    with open_store(path) as store:
        return _from_store(path, store)


def _from_store(path: Address, store: Store) -> Run:
    if store.kind != "run":
        raise BadInputError(
            f"{path} is a {store.kind}, not a run; `gdnbench replay {path} --save RUN` makes one"
        )
    if len(store.segments) != 1:
        raise BadInputError(f"{path} has {len(store.segments)} segments; a run is written by one process")
    segment = store.segments[0]
    replays = segment.process.get("replays")
    if replays is None:
        raise BadInputError(
            f"{path} was saved by an earlier gdnbench, which kept no results; replay its store again"
        )
    where = f"{path}: the run's description"
    header = _header(_object(replays, where).get("header"), where)
    captured = _object(replays.get("captured", {}), where)
    records = []
    for record in store.records:
        run, place = record.info.run, f"{path}: record {record.number}"
        result = _record(run.get("result"), place)
        records.append({**result, "timing": run.get("timing"), "segment": run.get("segment")})
    process = {name: value for name, value in segment.process.items() if name != "replays"}
    expected = replays.get("records", 0)
    if not isinstance(expected, int):
        raise BadInputError(f"{where} has no number of records")
    return Run(str(path), header, segment.provenance, process, captured, tuple(records), expected)


def _from_text(path: Path) -> Run:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is neither a run store nor JSON of `replay --json`: {error}") from None
    document = _object(document, str(path))
    if document.get("schema") != SCHEMA or not isinstance(document.get("records"), list):
        raise BadInputError(
            f"{path} is no result of schema {SCHEMA}, as `replay --json` or `diff --json` prints"
        )
    named = ("command", "store", "kernel", "against", "on", "rule", "a", "b")
    header = _header({name: document[name] for name in named if name in document}, str(path))
    records = tuple(
        {**_record(record, f"{path}: records[{number}]"), "segment": None}
        for number, record in enumerate(document["records"])
    )
    return Run(str(path), header, records=records, expected=len(records))


def _header(value: Any, where: str) -> dict[str, str]:
    found = _object(value, where)
    if found.get("command") not in COMMANDS or not all(isinstance(text, str) for text in found.values()):
        raise BadInputError(f"{where} does not say which command it is of, {' or '.join(COMMANDS)}")
    return dict(found)


def _record(value: Any, where: str) -> Mapping[str, Any]:
    """A record's result, with the parts that every reader needs checked: identity, outcome, tensors."""
    found = _object(value, where)
    if not all(isinstance(found.get(name), str) for name in ("key", "op", "layer", "reason", "outcome")):
        raise BadInputError(f"{where} lacks its key, operation, layer, outcome or reason")
    if found["outcome"] not in {str(outcome) for outcome in Outcome}:
        raise BadInputError(f"{where} has an unknown outcome, {found['outcome']!r}")
    if not all(isinstance(found.get(name), int) for name in ("number", "step")):
        raise BadInputError(f"{where} lacks its number or step")
    if not isinstance(found.get("tensors"), list):
        raise BadInputError(f"{where} has no list of tensors")
    for tensor in found["tensors"]:
        if not isinstance(_object(tensor, f"{where}, a tensor").get("tensor"), str):
            raise BadInputError(f"{where} has a tensor without a name")
    return found


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInputError(f"{where} is not an object but {type(value).__name__}")
    return value
