"""Checks every byte of a store against its digests, and names what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from gdnbench.errors import StoreError
from gdnbench.store.address import Address
from gdnbench.store.batch import byte_view
from gdnbench.store.compression import largest_run
from gdnbench.store.grid import Slices, grid_of
from gdnbench.store.index import IndexEntry, parse_index
from gdnbench.store.reader import BatchInfo, Store, StoredRecord, TensorHandle
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
        for done, _ in enumerate(checker.check(), 1):
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


class _Checker:
    def __init__(self, store: Store) -> None:
        self._store = store
        # By location and metadata: a tensor shared by many records is read once.
        self._flaws: dict[tuple[str, str, str, tuple[int, ...]], tuple[_Flaw, ...]] = {}
        self.damages: list[tuple[BatchInfo | None, Damage]] = [(None, Damage(what)) for what in store.damaged]
        self.tensors = 0
        self.nbytes = 0

    def check(self) -> Iterator[None]:
        """Check record by record, yielding after each."""
        number = 0
        for batch in self._store.batches:
            whole = self._check_lines(batch)
            told = self._index_of(batch) if whole else None
            for line in range(batch.count):
                if whole:
                    key = f"{batch.segment.name}/{batch.first + line}"
                    damages = self._check_record(number, key, None if told is None else told[line])
                    self.damages += [(batch, damage) for damage in damages]
                number += 1
                yield

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

    def _check_record(self, number: int, key: str, told: IndexEntry | None) -> Iterator[Damage]:
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

    def _check_tensor(self, handle: TensorHandle) -> tuple[_Flaw, ...]:
        content = (str(handle.location), handle.digest, handle.meta.dtype, handle.meta.shape)
        if content not in self._flaws:
            self._flaws[content] = _flaws(handle)
            self.nbytes += handle.nbytes
        return self._flaws[content]


def _handles(record: StoredRecord) -> Iterator[tuple[str, TensorHandle]]:
    for name, handle in record.before.items():
        yield f"{name} before", handle
    for name, handle in record.after.items():
        yield f"{name} after", handle


def _flaws(handle: TensorHandle) -> tuple[_Flaw, ...]:
    """What is wrong with a tensor; empty if its bytes match its digest."""
    try:
        array = handle.array()
    except StoreError as error:
        return (_Flaw(str(error)),)
    try:
        found = _digest(handle, array)
    except StoreError as error:
        return _damaged_chunks(handle, array) or (_Flaw(str(error)),)
    if found == handle.digest:
        return ()
    chunk = (
        None
        if handle.location.row is None
        else _chunk_name(array, next(grid_of(_part(handle, array), array.chunk)))
    )
    return (
        _Flaw(
            f"its bytes have digest {found}, not {handle.digest}, though every chunk is well-formed", chunk
        ),
    )


def _digest(handle: TensorHandle, array: StoredArray) -> str:
    """BLAKE3 of the elements; holds one block of them in memory at a time."""
    hasher = blake3(max_threads=blake3.AUTO)
    if handle.location.row is not None:
        return hasher.update(byte_view(handle.bits())).hexdigest()
    block = largest_run(array.shape, _unit(array), max(1, _BLOCK_BYTES // array.dtype.itemsize))
    for at in grid_of(array.whole, block):
        hasher.update(byte_view(array.read(_block(at, block, array.shape))))
    return hasher.hexdigest()


def _unit(array: StoredArray) -> tuple[int, ...]:
    """The chunk shape if whole chunks follow each other in C order; otherwise single elements."""
    partial = next((axis for axis, size in enumerate(array.chunk) if size > 1), len(array.chunk))
    trailing = zip(array.chunk[partial + 1 :], array.shape[partial + 1 :], strict=True)
    return array.chunk if all(chunk >= size for chunk, size in trailing) else (1,) * len(array.shape)


def _damaged_chunks(handle: TensorHandle, array: StoredArray) -> tuple[_Flaw, ...]:
    flaws: list[_Flaw] = []
    for at in grid_of(_part(handle, array), array.chunk):
        try:
            array.read(_block(at, array.chunk, array.shape))
        except StoreError as error:
            if len(flaws) == _MOST_CHUNKS_NAMED:
                return (*flaws, _Flaw("and further chunks"))
            flaws.append(_Flaw(str(error), _chunk_name(array, at)))
    return tuple(flaws)


def _part(handle: TensorHandle, array: StoredArray) -> Slices:
    """The part of the array that holds the tensor."""
    row = handle.location.row
    return array.whole if row is None else (slice(row, row + 1), *array.whole[1:])


def _block(at: tuple[int, ...], block: tuple[int, ...], shape: tuple[int, ...]) -> Slices:
    return tuple(
        slice(i * step, min(size, (i + 1) * step)) for i, step, size in zip(at, block, shape, strict=True)
    )


def _chunk_name(array: StoredArray, at: tuple[int, ...]) -> str:
    """The chunk's file and, in a shard, the chunk's coordinates."""
    first = tuple(i * step for i, step in zip(at, array.chunk, strict=True))
    file = next(array.files_of(tuple(slice(i, i + 1) for i in first)))
    if array.file == array.chunk:
        return f"chunk {array.key}/{file}"
    inner = tuple(i % whole // step for i, whole, step in zip(first, array.file, array.chunk, strict=True))
    return f"chunk {inner} of shard {array.key}/{file}"
