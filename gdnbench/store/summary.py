# SPDX-License-Identifier: Apache-2.0
"""The end of a segment: what its journal said when its last records were sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.errors import StoreError
from gdnbench.store.layout import INCOMING, METADATA, SEGMENTS, checked_name, group_json, parse_node
from gdnbench.units import counted

END = "end"


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """`closed`: the process ended in order. The other fields say what is missing from the segment."""

    closed: bool
    records: int  # records sealed
    dropped_oldest: int = 0  # of these, dropped to make room for later ones
    unfinished: int = 0  # records with inputs only, whose calls never returned
    dropped: int = 0  # calls that never reached the journal
    torn: str | None = None  # the record that the process was writing when it died
    damage: tuple[str, ...] = ()  # unreadable parts of the journal
    error: str | None = None  # why the process stopped writing to its journal
    blocked_seconds: float = 0.0  # time that the program waited for the queue
    summary: Mapping[str, Any] = field(default_factory=dict)  # what the process reported at its end


@dataclass(frozen=True, slots=True)
class UncapturedCalls:
    """Calls of a function that no adapter records.

    `once`: how many of them made part of a CUDA graph or of compiled code, whose runs are not counted.
    `calls` is 0 if the process did not end in order.
    """

    calls: int
    once: int
    reason: str

    def __str__(self) -> str:
        return self._text("")

    def of(self, function: str) -> str:
        """The same with the function's name."""
        return self._text(f" of {function}")

    def _text(self, function: str) -> str:
        if not self.calls:
            return f"calls{function} ({self.reason}); their process did not end in order, and gave no number"
        text = f"{counted(self.calls, 'call')}{function} ({self.reason})"
        if self.once:
            text += f"; {self.once} of them in CUDA graphs or compiled code, whose runs are not counted"
        return text


def uncaptured_calls(summary: object) -> dict[str, UncapturedCalls]:
    """By function: the calls that no adapter records, of what a process reported at its end.

    {} if there are none. Entries of another form are left out.
    """
    listed = summary.get("uncaptured") if isinstance(summary, Mapping) else None
    found = {}
    for function, entry in listed.items() if isinstance(listed, Mapping) else ():
        if isinstance(entry, Mapping):
            calls, once, reason = (entry.get(name) for name in ("calls", "once", "reason"))
            if type(calls) is int and type(once) is int and isinstance(reason, str):
                found[str(function)] = UncapturedCalls(calls, once, reason)
    return found


def write_summary(store: Path, segment: str, summary: SegmentSummary) -> None:
    """Write `summary` into the store, while the segment's `StoreWriter` is open. An existing summary
    stays."""
    folder = store / SEGMENTS / segment / END
    folder.mkdir(exist_ok=True)
    from gdnbench.store.durable import publish

    publish(folder / METADATA, group_json(asdict(summary)), store / INCOMING / segment, durable=True)


def segment_summary(store: Path, segment: str) -> SegmentSummary | None:
    """The end of `segment`; None while its process lives or its journal is not sealed. StoreError if
    damaged."""
    path = store / SEGMENTS / checked_name(segment, "segment") / END
    try:
        text = (path / METADATA).read_bytes()
    except FileNotFoundError:
        return None
    _, attributes = parse_node(text, "group", str(path))
    try:
        return SegmentSummary(**{**attributes, "damage": tuple(attributes["damage"])})
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path}/{METADATA} is no segment summary: {error}") from error
