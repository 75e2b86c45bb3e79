# SPDX-License-Identifier: Apache-2.0
"""The baseline: accepted errors and their history, in one JSON file that is replaced as a whole and with a
reason.

    {"schema": 1,
     "accepted": {capture: {kernel: {on: {record's key: {tensor: {"rms", "max_abs", "update"}}}}}},
     "history": [{"time", "reason", "git", "provenance", "changes": [{... "from", "to"}]}]}

`update` numbers the updates from 1 and names the history entry that accepted the error. The captures' paths
are relative to the suite.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.suite.ratchet import METRICS
from gdnbench.whole_file import replace_text

SCHEMA = 1
Key = tuple[str, str, str, str, str]
"""Capture, kernel, where it ran, record, tensor."""
NAMES = ("capture", "kernel", "on", "record", "tensor")


@dataclass(slots=True)
class Baseline:
    """The content of the file at `path`; empty if there is no file yet."""

    path: Path
    accepted: dict[Key, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read the file. BadInputError if it cannot be read or has invalid content."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise BadInputError(f"{path} is not JSON: {' '.join(str(error).split())}") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInputError(f"{path} is no baseline of schema {SCHEMA}, as `gdnbench baseline` writes it")
        history = document.get("history")
        if not isinstance(history, list) or not all(map(_is_update, history)):
            raise BadInputError(f"{path}: history must be a list of updates, each with its git and changes")
        accepted = dict(_leaves(document.get("accepted"), (), path))
        for key, errors in accepted.items():
            check_errors(errors, f"{path}: {' '.join(key)}")
        return cls(path, accepted, history)

    def find(self, *key: str) -> Mapping[str, Any] | None:
        """The accepted errors of a tensor, by capture, kernel, where it ran, record and tensor; None if there
        are none."""
        capture, kernel, on, record, tensor = key
        return self.accepted.get((capture, kernel, on, record, tensor))

    def accept(
        self,
        errors: Mapping[Key, Mapping[str, float]],
        *,
        reason: str,
        git: Mapping[str, Any] | None,
        provenance: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        """Accept `errors`; returns the changes as the history records them. Call it in `locked_baseline`."""
        number = len(self.history) + 1
        changes = []
        for key, found in sorted(errors.items()):
            before = self.accepted.get(key)
            new = {metric: float(found[metric]) for metric in METRICS}
            check_errors(new, " ".join(key))
            old = before and {metric: before[metric] for metric in METRICS}
            if new != old:
                changes.append({**dict(zip(NAMES, key, strict=True)), "from": old, "to": new})
                self.accepted[key] = {**new, "update": number}
        if changes:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            told = {"time": when, "reason": reason, "git": git, "provenance": dict(provenance)}
            self.history.append({**told, "changes": changes})
        return changes

    def _text(self) -> str:
        """The JSON with one line for each error and each change, for readable reviews."""
        tree: dict[str, Any] = {}
        for key in sorted(self.accepted):
            place = tree
            for name in key[:-1]:
                place = place.setdefault(name, {})
            place[key[-1]] = self.accepted[key]
        document = {"schema": SCHEMA, "accepted": tree, "history": self.history}
        return "".join(_lines(document)) + "\n"

    def _write(self) -> None:
        replace_text(self.path, self._text(), durable=True)


@contextmanager
def locked_baseline(path: Path) -> Iterator[Baseline]:
    """Read the baseline at `path` under a lock, and write it at the end.

    The baseline file itself is replaced, so the lock is on a file beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".{path.name}.lock")):
        baseline = Baseline.read(path)
        yield baseline
        baseline._write()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file at `path`, which exists only meanwhile.

    It is opened for writing, because NFS grants an exclusive lock only then (flock(2)); so a folder cannot be
    locked there.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(path, lock):  # its previous holder removed the file meanwhile
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(lock)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _leaves(tree: Any, above: tuple[str, ...], path: Path) -> Iterator[tuple[Key, dict[str, Any]]]:
    """The tensors below `above`, with their keys."""
    if not isinstance(tree, dict):
        raise BadInputError(f"{path}: accepted {' '.join(above)} must be an object by {NAMES[len(above)]}")
    for name, value in tree.items():
        if len(above) < len(NAMES) - 1:
            yield from _leaves(value, (*above, name), path)
        else:
            capture, kernel, on, record = above
            yield (capture, kernel, on, record, name), value


def check_errors(errors: Any, where: str) -> None:
    """BadInputError unless both errors are finite and not negative: NaN would accept anything."""
    if isinstance(errors, dict) and all(_is_error(errors.get(metric)) for metric in METRICS):
        return
    raise BadInputError(f"{where}: {' and '.join(METRICS)} must be finite numbers of 0 or more")


def _is_error(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= sys.float_info.max  # integers may exceed it


def _is_update(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("git"), dict | None):
        return False
    changes = value.get("changes")
    return isinstance(changes, list) and all(isinstance(one, dict) for one in changes)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """JSON in which flat values and changes have a line of their own."""
    if _flat(value):
        yield json.dumps(value, allow_nan=False)
        return
    named = isinstance(value, dict)
    ends = "{}" if named else "[]"
    items = [(f"{json.dumps(name)}: ", item) for name, item in value.items()] if named else None
    items = [("", item) for item in value] if items is None else items
    yield f"{ends[0]}\n"
    for number, (name, item) in enumerate(items, 1):
        yield f"{indent} {name}"
        yield from _lines(item, f"{indent} ")
        yield "\n" if number == len(items) else ",\n"
    yield f"{indent}{ends[1]}"


def _flat(value: Any) -> bool:
    if not isinstance(value, dict | list) or not value:
        return True
    if isinstance(value, list):
        return not any(isinstance(item, dict | list) for item in value)
    return "from" in value or not any(isinstance(item, dict | list) and item for item in value.values())
