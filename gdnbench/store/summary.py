"""How a segment ended: what its journal could still tell when the last of it was sealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.errors import StoreError
from gdnbench.store.durable import publish
from gdnbench.store.layout import INCOMING, METADATA, SEGMENTS, checked_name, group_json, parse_node

END = "end"


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """`closed`: its process ended in order. All else may say what is missing from the segment."""

    closed: bool
    records: int  # that were sealed
    dropped_oldest: int = 0  # of them, to make room for later ones
    unfinished: int = 0  # records with inputs only: the call began and never came back
    dropped: int = 0  # calls that never reached the journal
    torn: str | None = None  # the record that was being written when the process died
    damage: tuple[str, ...] = ()  # parts of the journal that could not be read
    error: str | None = None  # why the process stopped writing to its journal
    blocked_seconds: float = 0.0  # that the program waited for the queue
    summary: Mapping[str, Any] = field(default_factory=dict)  # what the process itself said at its end


def write_summary(store: Path, segment: str, summary: SegmentSummary) -> None:
    """Put `summary` into the store, while the segment's `StoreWriter` is open; a segment's first summary
    stays.
    """
    folder = store / SEGMENTS / segment / END
    folder.mkdir(exist_ok=True)
    publish(folder / METADATA, group_json(asdict(summary)), store / INCOMING / segment, durable=True)


def segment_summary(store: Path, segment: str) -> SegmentSummary | None:
    """How `segment` ended; None while its process lives or its journal is not sealed. StoreError if it is
    damaged.
    """
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
