# SPDX-License-Identifier: Apache-2.0
"""The segments and batches of a store, from their metadata alone: how many records it has, and its indexes.

NumPy is not imported, so that a shell completes the numbers of records at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdnbench.errors import StoreError
from gdnbench.store.files import StoreFiles
from gdnbench.store.index import INDEX
from gdnbench.store.layout import (
    KEPT_IN,
    METADATA,
    METADATA_LIMIT,
    MOST_RECORDS,
    OF,
    SEGMENTS,
    checked_name,
    is_name,
    parse_node,
)
from gdnbench.store.record_json import unplain
from gdnbench.store.summary import END


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The process that wrote a segment, and the provenance of the code that it ran."""

    name: str
    process: Mapping[str, Any]
    provenance: Mapping[str, Any]
    end: (
        Mapping[str, Any] | None
    )  # how it ended, as its sealer saw it; None while it goes on, or without a journal


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A committed batch: its records are entries `first` .. `first + count - 1` of its segment."""

    segment: SegmentInfo
    name: str
    first: int
    count: int
    index: Any = field(default=None, repr=False, compare=False)  # unchecked, see `gdnbench.store.index`
    of: str | None = None  # the pruned batch whose records these were
    kept_in: tuple[str, ...] = ()  # of a pruned batch: the batches with its kept records

    @property
    def key(self) -> str:
        return f"{SEGMENTS}/{self.segment.name}/{self.name}"


class _MissingError(StoreError):
    """A folder without its metadata."""


def list_segments(files: StoreFiles, damaged: list[str]) -> Iterator[SegmentInfo]:
    """The segments, by name. What is wrong with one that is skipped is appended to `damaged`."""
    for name in files.folders(SEGMENTS):
        key = f"{SEGMENTS}/{checked_name(name, f'{files.path}: segment')}"
        ended = END in files.folders(key)
        try:
            ours = _group(files, key)
            yield SegmentInfo(
                name,
                _mapping(ours, "process", key),
                _mapping(ours, "provenance", key),
                _group(files, f"{key}/{END}") if ended else None,
            )
        except StoreError as error:
            damaged.append(f"segment {name} is skipped: {error}")


def list_batches(
    files: StoreFiles,
    segments: Sequence[SegmentInfo],
    damaged: list[str],
    arriving: list[str],
    unlisted: list[BatchInfo],
) -> Iterator[BatchInfo]:
    """The complete batches, whose records are those of the store, in order.

    In a store that arrives file by file, a batch without metadata is `arriving`, unless its segment has
    ended. A batch that holds kept records of another is `unlisted` unless the other names it.
    """
    for segment in segments:
        found = []
        folder = f"{SEGMENTS}/{segment.name}"
        names = [name for name in files.folders(folder) if name != END]
        files.prefetch(f"{folder}/{name}/{METADATA}" for name in names if is_name(name))
        for name in names:
            key = f"{folder}/{checked_name(name, f'{files.path}: batch')}"
            try:
                ours = _group(files, key)
                first, count = _number(ours, "first", key), _number(ours, "count", key)
                if count > MOST_RECORDS:
                    raise StoreError(
                        f"{key}/{METADATA}: count is {count}, but the {METADATA_LIMIT >> 20} MiB of text that"
                        f" a batch may have hold at most {MOST_RECORDS} records"
                    )
                of, kept_in = _kept(ours, key)
                found.append(BatchInfo(segment, name, first, count, ours.get(INDEX), of, kept_in))
            except StoreError as error:
                if isinstance(error, _MissingError) and files.commits_last and segment.end is None:
                    arriving.append(f"batch {segment.name}/{name} has not arrived; its records are skipped")
                else:
                    damaged.append(f"batch {segment.name}/{name} is skipped: {error}")
        named = {(batch.name, kept) for batch in found for kept in batch.kept_in}
        for batch in sorted(found, key=lambda batch: (batch.first, batch.name)):
            if batch.of is None or (batch.of, batch.name) in named:
                yield batch
            else:
                unlisted.append(batch)


def _group(files: StoreFiles, key: str) -> dict[str, Any]:
    text = files.read(f"{key}/{METADATA}", METADATA_LIMIT)
    if text is None:
        raise _MissingError(f"{key}/{METADATA} is missing")
    return parse_node(text, "group", key)[1]


def _mapping(attributes: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = attributes.get(name, {})
    if not isinstance(value, dict):
        raise StoreError(f"{where}: {name} is not an object")
    try:
        found: dict[str, Any] = unplain(value)
    except ValueError as error:
        raise StoreError(f"{where}: {name}: {error}") from error
    return found


def _kept(attributes: Mapping[str, Any], where: str) -> tuple[str | None, tuple[str, ...]]:
    of, kept_in = attributes.get(OF), attributes.get(KEPT_IN, [])
    names = kept_in if isinstance(kept_in, list) else [kept_in]
    if not all(isinstance(name, str) and is_name(name) for name in (*names, *(() if of is None else (of,)))):
        raise StoreError(f"{where}: {OF} and {KEPT_IN} are {str((of, kept_in))[:80]}, not names of batches")
    return of, tuple(names)


def _number(attributes: Mapping[str, Any], name: str, where: str) -> int:
    value = attributes.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise StoreError(f"{where}: {name} is {value!r}, not a count")
    return value
