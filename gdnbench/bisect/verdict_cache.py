# SPDX-License-Identifier: Apache-2.0
"""Stores verdicts on disk, so that no probe runs twice, in this bisection or a later one.

The cache is an append-only file of JSON lines, one for each verdict, flushed to the device before the verdict
is used. Several processes may write it: a line is a single write under a lock. If a process was killed while
it wrote, the half line is ignored and the next verdict starts a new line. A line with a wrong checksum,
damaged or of another version, is ignored too, and its question is probed again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from gdnbench.bisect.verdict import Verdict
from gdnbench.errors import StoreError

Question = Mapping[str, Any]
"""All that a verdict depends on, as plain JSON: digests of records and code, options, versions."""


def key_of(question: Question) -> str:
    """BLAKE3 of the question as canonical JSON, hexadecimal."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake3(text.encode()).hexdigest()


def cache_size(path: Path) -> int:
    """Size of the cache file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:  # reading it says why
        return 0


def _sum(key: str, verdict: Any) -> str:
    """The checksum of a line."""
    return key_of({"key": key, "verdict": json.dumps(verdict, sort_keys=True)})[:16]


class VerdictCache:
    """The verdicts in the file at `path`, which need not exist yet. The first `since` bytes are ignored.
    StoreError if the file cannot be read or holds something other than verdicts."""

    def __init__(self, path: Path, since: int = 0) -> None:
        self._path = path
        self._known: dict[str, Verdict] = {}
        self._read = min(since, cache_size(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._refresh()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, question: Question) -> Verdict | None:
        """The stored verdict, whichever process stored it."""
        key = key_of(question)
        if key not in self._known:
            self._refresh()
        return self._known.get(key)

    def answer(self, question: Question, probe: Callable[[], Verdict]) -> Verdict:
        """The stored verdict, else that of `probe`, which is then stored."""
        found = self.find(question)
        if found is None:
            found = probe()
            self.add(question, found)
        return found

    def add(self, question: Question, verdict: Verdict) -> None:
        key, found = key_of(question), verdict.to_json()
        line = {"key": key, "question": dict(question), "verdict": found, "sum": _sum(key, found)}
        data = json.dumps(line, sort_keys=True).encode() + b"\n"
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data
            if os.write(file, data) != len(data):
                os.ftruncate(file, size)
                raise StoreError(f"{self._path} cannot be written: there is no space left")
            os.fsync(file)
        finally:
            os.close(file)
        self._known[key] = verdict

    def _refresh(self) -> None:
        """Reads the lines that were added since the last read, complete lines only."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line:
            return
        try:
            found = json.loads(line)
            key, verdict = found["key"], found["verdict"]
            if found["sum"] != _sum(key, verdict):
                return
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # what a killed process left of a line
        self._known[key] = Verdict.from_json(verdict, str(self._path))
