# SPDX-License-Identifier: Apache-2.0
"""Reads a store (a folder, a .zip or a URL) without writing to it."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

from gdnbench.bits import Bits, from_bits, logical
from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import RecordInfo, TensorMeta
from gdnbench.store.address import Address
from gdnbench.store.batches import BatchInfo, SegmentInfo, list_batches, list_segments
from gdnbench.store.files import StoreFiles, open_files
from gdnbench.store.index import IndexEntry, Kind, Listed, parse_index
from gdnbench.store.layout import (
    INCOMING,
    JOURNAL,
    METADATA,
    METADATA_LIMIT,
    OUTGOING,
    RECORDS,
    Location,
    check_root,
    parse_node,
)
from gdnbench.store.record_json import Placed, RecordLine, from_line
from gdnbench.store.stored_array import RowCache, StoredArray, open_array
from gdnbench.units import counted

if TYPE_CHECKING:
    from torch import Tensor

_ROW_CACHE_BYTES = 64 << 20
_OPEN_ARRAYS = 128
_LOADED_BATCHES = 8


@dataclass(slots=True)
class Contents:
    """The files of a store, with caches of arrays, rows and record lines read recently."""

    files: StoreFiles
    rows: RowCache = field(default_factory=lambda: RowCache(_ROW_CACHE_BYTES))
    arrays: OrderedDict[str, StoredArray] = field(default_factory=OrderedDict)
    lines: OrderedDict[str, list[bytes]] = field(default_factory=OrderedDict)

    def array(self, key: str) -> StoredArray:
        found = self.arrays.get(key)
        if found is None:
            found = self.arrays[key] = open_array(self.files, key)
            if len(self.arrays) > _OPEN_ARRAYS:
                self.arrays.popitem(last=False)
        else:
            self.arrays.move_to_end(key)
        return found

    def record_lines(self, batch: BatchInfo) -> list[bytes]:
        found = self.lines.get(batch.key)
        if found is None:
            found = self.lines[batch.key] = self._read_lines(batch)
            if len(self.lines) > _LOADED_BATCHES:
                self.lines.popitem(last=False)
        return found

    def _read_lines(self, batch: BatchInfo) -> list[bytes]:
        if not batch.count:
            return []
        array = open_array(self.files, f"{batch.key}/{RECORDS}")
        if array.dtype.name != "uint8" or len(array.shape) != 1 or array.shape[0] > METADATA_LIMIT:
            raise StoreError(f"{array.where} is {array.dtype.name} {array.shape}, not a text of up to 64 MiB")
        lines = array.read().tobytes().split(b"\n")
        if lines.pop() != b"" or len(lines) != batch.count:
            said = counted(batch.count, "record")
            raise StoreError(f"{array.where} has {counted(len(lines), 'line')}, but its batch says {said}")
        return lines


@dataclass(frozen=True, slots=True)
class TensorHandle:
    """A stored tensor, not read yet."""

    meta: TensorMeta
    digest: str  # BLAKE3 of the contiguous bytes, hexadecimal
    location: Location
    where: str  # record and tensor, for messages
    _contents: Contents = field(repr=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.meta.shape) * logical(self.meta.dtype).storage.itemsize

    def read(self) -> Tensor:
        """The tensor, contiguous on the CPU, bit for bit; StoreError if it is missing or damaged."""
        return from_bits(self.bits(), self.meta.dtype)

    def bits(self) -> Bits:
        """The tensor in its storage dtype, as a contiguous array that the caller may modify; errors as
        `read`."""
        array, row = self.array(), self.location.row
        try:
            return array.read() if row is None else self._contents.rows.row(array, row)
        except StoreError as error:
            raise StoreError(f"{self.where}: {error}") from error

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of axis 0; reads only the chunks that hold them."""
        if not self.meta.shape:
            raise BadInputError(f"{self.where} has no axes, so no rows; read it whole")
        if not 0 <= start <= stop <= self.meta.shape[0]:
            raise BadInputError(f"{self.where} has rows 0..{self.meta.shape[0]}, not {start}..{stop}")
        if self.location.row is not None:
            return self.read()[start:stop]
        array = self.array()
        try:
            rows = array.read((slice(start, stop), *array.whole[1:]))
        except StoreError as error:
            raise StoreError(f"{self.where}: {error}") from error
        return from_bits(rows, self.meta.dtype)

    def array(self) -> StoredArray:
        """The array that holds this tensor; StoreError if it does not match the record."""
        try:
            array = self._contents.array(self.location.array)
        except StoreError as error:
            raise StoreError(f"{self.where}: {error}") from error
        row, shape = self.location.row, self.meta.shape
        dtype = logical(self.meta.dtype)
        element = array.shape if row is None else array.shape[1:]
        if row is not None and (not array.shape or row >= array.shape[0]):
            raise StoreError(f"{self.where}: {array.where} has shape {array.shape} and no row {row}")
        if element != shape or array.dtype != dtype.storage:
            holds = f"{array.dtype.name} {element}"
            raise StoreError(f"{self.where} should be {dtype.name} {shape}, but {array.where} holds {holds}")
        if array.attributes.get("dtype") != dtype.name:
            held = array.attributes.get("dtype")
            raise StoreError(f"{self.where} should be {dtype.name}, but {array.where} says {held!r}")
        return array


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A recorded call. `number` counts over the store; `key` identifies the record in it permanently."""

    number: int
    key: str
    segment: SegmentInfo
    line: RecordLine
    _contents: Contents = field(repr=False)

    @property
    def info(self) -> RecordInfo:
        return self.line.info

    @property
    def before(self) -> Mapping[str, TensorHandle]:
        return self._handles(self.line.before, "before")

    @property
    def after(self) -> Mapping[str, TensorHandle]:
        return self._handles(self.line.after, "after")

    @property
    def index_entry(self) -> IndexEntry:
        """What the batch's index must contain for this record."""
        line = self.line
        return Kind.from_record(line.info, line.before, line.after), line.info.step, line.info.call

    @property
    def listed(self) -> Listed:
        return Listed(self.number, self.key, self.segment.name, *self.index_entry)

    def _handles(self, placed: Mapping[str, Placed], when: str) -> dict[str, TensorHandle]:
        return {
            name: TensorHandle(
                tensor.meta,
                tensor.digest,
                tensor.location,
                f"record {self.key}, {name} {when} the call",
                self._contents,
            )
            for name, tensor in placed.items()
        }


class Records(Sequence[StoredRecord]):
    """The records of a store in order, each parsed on access."""

    def __init__(self, batches: Sequence[BatchInfo], contents: Contents) -> None:
        self._batches = batches
        self._contents = contents
        self._starts: list[int] = []
        self._length = 0
        for batch in batches:
            self._starts.append(self._length)
            self._length += batch.count

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredRecord]: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | list[StoredRecord]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"record {index} of {self._length}")
        at = bisect.bisect_right(self._starts, number) - 1
        batch = self._batches[at]
        line = number - self._starts[at]
        key = f"{batch.segment.name}/{batch.first + line}"
        where = f"{self._contents.files.path}: record {key}"
        parsed = from_line(self._contents.record_lines(batch)[line], where)
        for placed in (*parsed.before.values(), *parsed.after.values()):
            if placed.location.segment != batch.segment.name:
                raise StoreError(f"{where} refers to {placed.location}, which is in another segment")
        return StoredRecord(number, key, batch.segment, parsed, self._contents)

    def __iter__(self) -> Iterator[StoredRecord]:
        return (self[number] for number in range(self._length))


class Store:
    """A store opened for reading. Nothing in it is executed, and nothing outside it is read."""

    def __init__(self, files: StoreFiles) -> None:
        self.path = files.path
        self.contents = Contents(files)
        text = files.read(METADATA, METADATA_LIMIT)
        if text is None:
            raise StoreError(f"{self.path} is not a gdnbench store: it has no {METADATA}")
        _, ours = parse_node(text, "group", str(self.path))
        self.kind = check_root(ours, self.path)
        self.format_version: int = ours["format_version"]
        damaged: list[str] = []
        arriving: list[str] = []
        unlisted: list[BatchInfo] = []
        self.segments = tuple(list_segments(files, damaged))
        self.batches = tuple(list_batches(files, self.segments, damaged, arriving, unlisted))
        self.unlisted = tuple(unlisted)  # left by an interrupted pruning
        self.damaged = tuple(damaged)
        self.unfinished = (*_unfinished(files, self.segments), *arriving)
        self.records: Sequence[StoredRecord] = Records(self.batches, self.contents)

    @classmethod
    def open(cls, path: Address, *, cached: bool = True) -> Store:
        """The store at `path`: a folder, a zip archive or a URL. StoreError if it is none."""
        files = open_files(path, cached=cached)
        try:
            return cls(files)
        except BaseException:
            files.close()
            raise

    @property
    def problems(self) -> tuple[str, ...]:
        """What was skipped: damaged and unfinished segments and batches."""
        return (*self.damaged, *self.unfinished)

    @property
    def removed_records(self) -> int:
        """The number of records that were pruned or dropped for later ones.

        Segments that were removed whole are not counted.
        """
        found = 0
        for _, batches in itertools.groupby(self.batches, lambda batch: batch.segment.name):
            counts, stops = zip(*((batch.count, batch.first + batch.count) for batch in batches), strict=True)
            found += max(0, max(stops) - sum(counts))
        return found

    def listed(self) -> Iterator[Listed]:
        """Every record in order as a listing shows it, taken from the indexes if possible.

        This is much faster than `records`; the index is not checked against them. StoreError for a record
        that must be read and cannot be.
        """
        number = 0
        for batch in self.batches:
            told = parse_index(batch.index, batch.count)
            if told is None:
                told = [self.records[number + line].index_entry for line in range(batch.count)]
            for entry, (kind, step, call) in enumerate(told, batch.first):
                yield Listed(number, f"{batch.segment.name}/{entry}", batch.segment.name, kind, step, call)
                number += 1

    def records_of(self, segment: str) -> Sequence[StoredRecord]:
        """The records of one segment, numbered within it."""
        return Records([batch for batch in self.batches if batch.segment.name == segment], self.contents)

    def close(self) -> None:
        self.contents.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unfinished(files: StoreFiles, segments: Sequence[SegmentInfo]) -> Iterator[str]:
    for ended in segments:
        yield from _missing_at_end(ended)
    for segment in files.folders(JOURNAL):
        yield f"segment {segment} has journal entries that are not sealed; they are not listed"
    for segment in files.folders(INCOMING):
        if segment.startswith(OUTGOING):
            continue
        for batch in files.folders(f"{INCOMING}/{segment}"):
            yield f"batch {segment}/{batch} was not finished; its records are skipped"


def _missing_at_end(segment: SegmentInfo) -> Iterator[str]:
    """What is missing from a segment, as its end says."""
    end = segment.end or {}
    if torn := end.get("torn"):
        yield f"segment {segment.name}: unfinished record skipped: {torn}"
    if oldest := end.get("dropped_oldest"):
        yield f"segment {segment.name}: its {oldest} oldest records were dropped to stay within --max-bytes"
    if dropped := end.get("dropped"):
        yield f"segment {segment.name}: {dropped} calls were dropped before they reached the store"
    if error := end.get("error"):
        yield f"segment {segment.name}: its process stopped recording: {error}"
    damage = end.get("damage")
    for what in damage if isinstance(damage, list) else ():
        yield f"segment {segment.name}: lost from its journal: {what}"
