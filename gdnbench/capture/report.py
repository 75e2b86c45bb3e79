# SPDX-License-Identifier: Apache-2.0
"""Captured processes report events to the launcher, as JSON lines in one file that the launcher reads at the
end.

Each line is one `write` to a file opened for appending: lines of several processes never mix, and a process
that is killed leaves all lines that it wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Report:
    """Writes events for the launcher; with path None (capture by environment alone, Python API) it writes
    nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def note(self, event: str, **fields: Any) -> None:
        """Write one line. Never raises: a lost line costs a sentence in the summary."""
        if self._path is None:
            return
        try:
            line = json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n"
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except (OSError, TypeError, ValueError):
            return


def read_report(path: Path) -> list[dict[str, Any]]:
    """The events in `path`, oldest first; [] if the file does not exist. Skips lines that a full disk cut
    short."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [note for note in map(_note, lines) if note is not None]


def _note(line: bytes) -> dict[str, Any] | None:
    try:
        note = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) and "event" in note else None


def segments_in(notes: Sequence[Mapping[str, Any]]) -> frozenset[str] | None:
    """The segments that the reporting processes record into; None if no process has reported that it
    started."""
    if not any(note["event"] == "started" for note in notes):
        return None
    return frozenset(str(note.get("segment")) for note in notes if note["event"] == "recording")
