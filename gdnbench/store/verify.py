# SPDX-License-Identifier: Apache-2.0
"""Checks a store against its digests and checksums, and names what is damaged.

Covered: the elements of every tensor and the text of every record; of arrays also the zarr.json, which the
records describe. Not covered, as nothing in a store repeats it: the zarr.json of groups but for the indexes,
which hold where a process ran, with what, and how it ended; arrays that no record refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blake3 import blake3

from gdnbench.errors import StoreError
from gdnbench.store.address import Address
from gdnbench.store.array_metadata import (
    RECORDS_ATTRIBUTES,
    compression_level,
    description_flaw,
    layout_flaw,
)
from gdnbench.store.batch import byte_view, digest_of
from gdnbench.store.batches import BatchInfo
from gdnbench.store.compression import largest_run
from gdnbench.store.grid import Slices, grid_of
from gdnbench.store.index import IndexEntry, parse_index
from gdnbench.store.layout import METADATA, RECORDS
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench.store.record_json import Placed
from gdnbench.store.stored_array import StoredArray
from gdnbench.units import counted

_BLOCK_BYTES = 32 << 20  # read and hashed in one piece
_MOST_CHUNKS_NAMED = 8
_TRIES = 3  # while another process removes records


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage: its record, tensor and chunk, as far as known."""

    what: str
    record: str | None = None  # StoredRecord.key
    tensor: str | None = None  # "<name> before" or "<name> after"
    chunk: str | None = None  # the chunk's file in the store, and which chunk of a shard

    def __str__(self) -> str:
        record = self.record and f"record {self.record}"
        tensor = self.tensor and f"tensor {self.tensor}"
        place = ", ".join(part for part in (record, tensor, self.chunk) if part)
        return f"{place}: {self.what}" if place else self.what


@dataclass(frozen=True, slots=True)
class VerifyReport:
    records: int
    tensors: int  # counted once for each record
    bytes: int  # of the distinct tensors checked
    damages: tuple[Damage, ...]
    problems: tuple[str, ...]  # unfinished parts, which are no damage

    @property
    def ok(self) -> bool:
        return not self.damages


Progress = Callable[[int, int], None]
"""Called with the number of records checked and the total."""


def verify(path: Address, progress: Progress | None = None) -> VerifyReport:
    """Check the whole store at `path`; StoreError only if it cannot be opened at all.

    Records that a pruning or a capture with a limit removes meanwhile are no damage: if something is missing
    from a batch that no longer exists, everything is checked again. A URL is read from its server, not from
    the cache.
    """
    for _ in range(_TRIES):
        report, went = _verified(path, progress)
        if not went:
            break
    return report


def _verified(path: Address, progress: Progress | None) -> tuple[VerifyReport, bool]:
    """The report on what still exists, and whether a damaged batch has been removed meanwhile."""
    with Store.open(path, cached=False) as store:
        checker = _Checker(store)
        for done in checker.check():
            if progress is not None:
                progress(done, len(store.records))
    damages = checker.damages
    if damages:
        # A batch is removed before the elements that it needs: one that still exists had all of them.
        with Store.open(path, cached=False) as now:
            there = {_identity(batch) for batch in now.batches}
            damages = [
                (batch, damage)
                for batch, damage in damages
                if (damage.what in now.damaged if batch is None else _identity(batch) in there)
            ]
    report = VerifyReport(
        len(store.records),
        checker.tensors,
        checker.nbytes,
        tuple(damage for _, damage in damages),
        store.unfinished,
    )
    return report, len(damages) < len(checker.damages)


def _identity(batch: BatchInfo) -> tuple[str, int, int]:
    return batch.key, batch.first, batch.count


@dataclass(frozen=True, slots=True)
class _Flaw:
    what: str
    chunk: str | None = None


Content = str | tuple[_Flaw, ...]
"""What was read at a location: the digest of its elements, or why they cannot be read."""


@dataclass(slots=True)
class _RowChunk:
    """The rows of one chunk of a row array: a digest for each, or what is wrong with the chunk."""

    digests: tuple[bytes, ...]
    flaws: tuple[_Flaw, ...]
    counted: set[int] = field(default_factory=set)  # rows whose bytes are in the report


Described = dict[str, dict[int | None, tuple[str, str, Placed]]]
"""By array and row: the key of the first record with these elements, the tensor's name in it, and what it
says of the tensor."""


class _Checker:
    def __init__(self, store: Store) -> None:
        self._store = store
        # By location: what many records share is read once, whatever digests they claim.
        self._blobs: dict[str, Content] = {}
        self._rows: dict[tuple[str, int], _RowChunk] = {}
        self._arrays: set[str] = set()  # whose zarr.json was checked
        self.damages: list[tuple[BatchInfo | None, Damage]] = [(None, Damage(what)) for what in store.damaged]
        self.tensors = 0
        self.nbytes = 0

    def check(self) -> Iterator[int]:
        """Check record by record, yielding after each how many were checked. The records of a batch that
        cannot be read count at once."""
        number = 0
        for batch in self._store.batches:
            if not self._check_lines(batch):
                number += batch.count
                yield number
                continue
            told = self._index_of(batch)
            described: Described = {}
            for line in range(batch.count):
                damages = self._check_record(
                    batch, number, line, None if told is None else told[line], described
                )
                self.damages += [(batch, damage) for damage in damages]
                number += 1
                yield number
            self.damages += [(batch, damage) for damage in self._check_arrays(batch, described)]

    def _check_lines(self, batch: BatchInfo) -> bool:
        """Whether the batch's record lines can be read."""
        try:
            self._store.contents.record_lines(batch)
        except StoreError as error:
            self.damages.append((batch, Damage(f"{counted(batch.count, 'record')} cannot be read: {error}")))
            return False
        return True

    def _index_of(self, batch: BatchInfo) -> list[IndexEntry] | None:
        """The entries of the batch's index; None if it has none, as in older stores."""
        told = parse_index(batch.index, batch.count)
        if told is None and batch.index is not None:
            self.damages.append((batch, Damage(f"the index of batch {batch.key} does not hold together")))
        return told

    def _check_record(
        self, batch: BatchInfo, number: int, line: int, told: IndexEntry | None, described: Described
    ) -> Iterator[Damage]:
        """What is wrong with a record. What it says of elements that its batch holds goes into `described`,
        unless an earlier record has said it."""
        key = f"{batch.segment.name}/{batch.first + line}"
        try:
            record = self._store.records[number]
        except StoreError as error:
            yield Damage(str(error), key)
            return
        if told is not None and told != record.index_entry:
            yield Damage("the index of its batch, which listings show, says otherwise", key)
        for name, handle in _handles(record):
            self.tensors += 1
            for flaw in self._check_tensor(handle):
                yield Damage(flaw.what, key, name, flaw.chunk)
        for when, tensors in (("before", record.line.before), ("after", record.line.after)):
            for name, placed in tensors.items():
                if placed.location.batch == batch.name:
                    rows = described.setdefault(placed.location.array, {})
                    rows.setdefault(placed.location.row, (key, f"{name} {when}", placed))

    def _check_arrays(self, batch: BatchInfo, described: Described) -> Iterator[Damage]:
        """What is wrong with the zarr.json of the batch's arrays, one damage each."""
        if not batch.count:
            return
        try:
            texts = self._store.contents.array(f"{batch.key}/{RECORDS}")
        except StoreError as error:  # its lines could be read: it has been removed since
            yield Damage(str(error))
            return
        flaw = layout_flaw(texts)
        if flaw is None and texts.attributes != RECORDS_ATTRIBUTES:
            flaw = f"attributes are {dict(texts.attributes)}, not {RECORDS_ATTRIBUTES}"
        if flaw is not None:
            yield Damage(f"{texts.key}/{METADATA}: {flaw}")
        for key, rows in described.items():
            try:
                array = self._store.contents.array(key)
            except StoreError:  # which was reported with its records
                continue
            record, tensor, _ = next(iter(rows.values()))
            level, usual = compression_level(array), compression_level(texts)
            flaw = layout_flaw(array)
            if flaw is None and level != usual:
                flaw = f"compression level is {level}, but {usual} in {texts.key}/{METADATA}"
            if flaw is None:
                found = description_flaw(array, {row: placed for row, (_, _, placed) in rows.items()})
                if found is not None:
                    row, flaw = found
                    record, tensor, _ = rows.get(row, (record, tensor, None))
            if flaw is not None:
                yield Damage(f"{key}/{METADATA}: {flaw}", record, tensor)

    def _check_tensor(self, handle: TensorHandle) -> tuple[_Flaw, ...]:
        """What is wrong with a tensor; empty if its bytes match its digest."""
        try:
            array = handle.array()
        except StoreError as error:
            return (_Flaw(str(error)),)
        found = self._blob(handle, array) if handle.location.row is None else self._row(handle, array)
        if not isinstance(found, str):
            return found
        if found == handle.digest:
            return ()
        at = None if handle.location.row is None else next(grid_of(_part(handle, array), array.chunk), None)
        return (
            _Flaw(
                f"its bytes have digest {found}, not {handle.digest}, though every chunk is well-formed",
                None if at is None else _chunk_name(array, at),
            ),
        )

    def _blob(self, handle: TensorHandle, array: StoredArray) -> Content:
        found = self._blobs.get(array.key)
        if found is None:
            try:
                found = _digest(array)
            except StoreError as error:
                found = _damaged_chunks(array, array.whole) or (_Flaw(str(error)),)
            self._blobs[array.key] = found
            self.nbytes += handle.nbytes
        return found

    def _row(self, handle: TensorHandle, array: StoredArray) -> Content:
        """All rows of a chunk are read with the first of them: records may come in another order than rows,
        and a chunk is decoded once however many there are."""
        row = handle.location.row
        assert row is not None
        named = array.attributes.get("digests")
        if not isinstance(named, list) or len(named) != array.shape[0]:
            count = len(named) if isinstance(named, list) else "no"
            return (
                _Flaw(f"{array.key}/{METADATA} names {count} digests of an array of {array.shape[0]} rows"),
            )
        step = array.chunk[0]
        chunk = self._rows.get((array.key, row // step))
        if chunk is None:
            chunk = self._rows[array.key, row // step] = _row_chunk(array, row // step)
        if row not in chunk.counted:
            chunk.counted.add(row)
            self.nbytes += handle.nbytes
        return chunk.flaws or chunk.digests[row % step].hex()


def _handles(record: StoredRecord) -> Iterator[tuple[str, TensorHandle]]:
    for name, handle in record.before.items():
        yield f"{name} before", handle
    for name, handle in record.after.items():
        yield f"{name} after", handle


def _row_chunk(array: StoredArray, number: int) -> _RowChunk:
    step = array.chunk[0]
    part = (slice(number * step, min(array.shape[0], (number + 1) * step)), *array.whole[1:])
    try:
        rows = array.read(part)
    except StoreError as error:
        return _RowChunk((), _damaged_chunks(array, part) or (_Flaw(str(error)),))
    return _RowChunk(tuple(bytes.fromhex(digest_of(rows[row, ...])) for row in range(len(rows))), ())


def _digest(array: StoredArray) -> str:
    """BLAKE3 of the elements; holds one block of them in memory at a time."""
    hasher = blake3(max_threads=blake3.AUTO)
    block = largest_run(array.shape, _unit(array), max(1, _BLOCK_BYTES // array.dtype.itemsize))
    for at in grid_of(array.whole, block):
        hasher.update(byte_view(array.read(_block(at, block, array.shape))))
    return hasher.hexdigest()


def _unit(array: StoredArray) -> tuple[int, ...]:
    """The chunk shape if whole chunks follow each other in C order; otherwise single elements."""
    partial = next((axis for axis, size in enumerate(array.chunk) if size > 1), len(array.chunk))
    trailing = zip(array.chunk[partial + 1 :], array.shape[partial + 1 :], strict=True)
    return array.chunk if all(chunk >= size for chunk, size in trailing) else (1,) * len(array.shape)


def _damaged_chunks(array: StoredArray, part: Slices) -> tuple[_Flaw, ...]:
    """The chunks of `part` that cannot be read. A file that can be read as a whole is not searched: reading
    one chunk reads the index of its whole shard."""
    flaws: list[_Flaw] = []
    for file in grid_of(part, array.file):
        there = _common(_block(file, array.file, array.shape), part)
        if _problem(array, there) is None:
            continue
        for at in grid_of(there, array.chunk):
            problem = _problem(array, _common(_block(at, array.chunk, array.shape), part))
            if problem is None:
                continue
            if len(flaws) == _MOST_CHUNKS_NAMED:
                return (*flaws, _Flaw("and further chunks"))
            flaws.append(_Flaw(problem, _chunk_name(array, at)))
    return tuple(flaws)


def _problem(array: StoredArray, part: Slices) -> str | None:
    try:
        array.read(part)
    except StoreError as error:
        return str(error)
    return None


def _part(handle: TensorHandle, array: StoredArray) -> Slices:
    """The part of the array that holds the tensor."""
    row = handle.location.row
    return array.whole if row is None else (slice(row, row + 1), *array.whole[1:])


def _block(at: tuple[int, ...], block: tuple[int, ...], shape: tuple[int, ...]) -> Slices:
    return tuple(
        slice(i * step, min(size, (i + 1) * step)) for i, step, size in zip(at, block, shape, strict=True)
    )


def _common(one: Slices, other: Slices) -> Slices:
    """The elements of both."""
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))


def _chunk_name(array: StoredArray, at: tuple[int, ...]) -> str:
    """The chunk's file and, in a shard, the chunk's coordinates."""
    first = tuple(i * step for i, step in zip(at, array.chunk, strict=True))
    file = next(array.files_of(tuple(slice(i, i + 1) for i in first)))
    if array.file == array.chunk:
        return f"chunk {array.key}/{file}"
    inner = tuple(i % whole // step for i, whole, step in zip(first, array.file, array.chunk, strict=True))
    return f"chunk {inner} of shard {array.key}/{file}"
