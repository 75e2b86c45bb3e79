# SPDX-License-Identifier: Apache-2.0
"""Removes records from a store. Kept records keep their keys and bits, and stay readable throughout.

A segment without kept records is removed whole. In other segments, a batch that loses records is replaced:

1. Its kept records are written into new batches of the same segment, one for each run of entries. Each new
   batch names the old one in `of`. Readers ignore the new batches until step 2.
2. The old batch's group is replaced, by rename, with one that has no records and names the new batches in
   `kept_in`. This commits one batch: each record is visible exactly once before and after.
3. When all batches are committed, elements that no record refers to are removed: whole arrays, and of row
   arrays the files without a used row. Batches that lose nothing stay as they are, with the elements that
   they share.

If pruning is killed at any point, every kept record is there once and complete; the next pruning removes the
remains. A segment that is still being written, or whose journal is not sealed, is not pruned. Neither is one
with damaged batches, whose content is unknown and may include tensors of other batches.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.store.array_metadata import RECORDS_NAMES
from gdnbench.store.arrays import write_array
from gdnbench.store.batch import digest_of
from gdnbench.store.batches import BatchInfo
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.durable import make_folder, remove_if_empty, sync
from gdnbench.store.exclusive import hold_store_lock
from gdnbench.store.files import FolderFiles
from gdnbench.store.layout import (
    BLOBS,
    INCOMING,
    JOURNAL,
    KEPT_IN,
    METADATA,
    METADATA_LIMIT,
    OF,
    OUTGOING,
    RECORDS,
    ROWS,
    SEGMENTS,
    Location,
    group_json,
    is_name,
    parse_node,
)
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench.store.stored_array import open_array
from gdnbench.store.summary import END
from gdnbench.store.writer import StoreWriter

_MARK = "pruning."  # prefix of a segment's name: a pruning made the unfinished batches there


@dataclass(frozen=True, slots=True)
class Pruned:
    records: int
    kept: int
    bytes: int  # bytes freed on disk
    left_alone: tuple[str, ...]  # segments that are still being written
    damaged: tuple[str, ...] = ()  # segments that were not pruned because they are damaged


def busy_segments(store: Path) -> frozenset[str]:
    """Segments that a process may be writing to, or that have no end yet."""
    journals, incoming = (
        {entry.name for entry in (store / folder).iterdir()} if (store / folder).is_dir() else set()
        for folder in (JOURNAL, INCOMING)
    )
    ours = {name.removeprefix(_MARK) for name in incoming if name.startswith(_MARK)}
    return frozenset(journals | (incoming - ours))


def damaged_segments(store: Store) -> frozenset[str]:
    """Segments of an open store with folders that could not be read as batches."""
    read: dict[str, set[str]] = {}
    for batch in (*store.batches, *store.unlisted):
        read.setdefault(batch.segment.name, {END}).add(batch.name)
    files = store.contents.files
    return frozenset(
        name
        for name in _names(store)
        if not read.get(name, {END}).issuperset(files.folders(f"{SEGMENTS}/{name}"))
    )


def check_can_prune(path: Path) -> None:
    """BadInputError unless `path` is a folder."""
    if not path.is_dir():
        raise BadInputError(f"{path} is no folder; unpack the store to prune it")


def prune(path: Path, keep: Callable[[StoredRecord], bool], *, durable: bool = True) -> Pruned:
    """Remove every record of the store at `path` for which `keep` returns false.

    `keep` is called once for each record, in order. BadInputError if `path` is no folder or another pruning
    is running; StoreError, before anything of a segment is removed, for a record that cannot be read.
    """
    check_can_prune(path)
    with hold_store_lock(path):
        begun = _begun(path)
        busy = busy_segments(path)  # before the store is read: a segment that ends meanwhile was read in part
        with Store.open(path) as store:  # refuses links, so what is removed below is the store's
            _clear_trash(path)
            busy |= _names(store) - begun
            damaged = damaged_segments(store) - busy
            kept_of = _kept(store, keep, busy | damaged)
            before = _bytes_of(path, kept_of)
            counts = {name: len(store.records_of(name)) for name in kept_of}
            for name, kept in kept_of.items():
                if not kept and counts[name]:
                    _discard(path, [path / SEGMENTS / name], durable)
            for name, kept in kept_of.items():
                if 0 < len(kept) < counts[name]:
                    _mark(path, name)
                    batches = [batch for batch in store.batches if batch.segment.name == name]
                    _replace_batches(path, store, batches, kept, durable)
        with Store.open(path) as store:
            for segment in store.segments:
                if segment.name in kept_of:
                    _tidy(path, store, segment.name, durable)
            left = len(store.records)
        freed = before - _bytes_of(path, kept_of)
        dropped = sum(counts[name] - len(kept) for name, kept in kept_of.items())
        left_alone = tuple(sorted(busy & _names(store)))
        return Pruned(dropped, left, freed, left_alone, tuple(sorted(damaged)))


def _begun(path: Path) -> frozenset[str]:
    """Existing segments; their journals are made before them."""
    folder = path / SEGMENTS
    return frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()


def _names(store: Store) -> set[str]:
    return {segment.name for segment in store.segments}


def _kept(
    store: Store, keep: Callable[[StoredRecord], bool], excepted: frozenset[str]
) -> dict[str, set[int]]:
    """The entries to keep of each segment that may be pruned."""
    found: dict[str, set[int]] = {name: set() for name in _names(store) - excepted}
    for record in store.records:
        if keep(record) and record.segment.name in found:
            found[record.segment.name].add(_entry(record))
    return found


def _entry(record: StoredRecord) -> int:
    return int(record.key.rpartition("/")[2])


def _replace_batches(
    path: Path, store: Store, batches: Sequence[BatchInfo], kept: set[int], durable: bool
) -> None:
    """Steps 1 and 2, for the batches of one segment."""
    segment = batches[0].segment
    losing = [batch for batch in batches if not kept.issuperset(_entries(batch))]
    names = {batch.name for batch in losing}
    records = {_entry(record): record for record in store.records_of(segment.name)}
    whole = [batch for batch in batches if batch.name not in names]
    stay = {place for batch in whole for entry in _entries(batch) for place in _places(records[entry])}
    compression = _compression_of(store, batches)
    with StoreWriter(
        path, kind=store.kind, segment=segment.name, compression=compression, durable=durable
    ) as writer:
        writer.forget(lambda place: place.batch not in names or place in stay)
        kept_in: dict[str, list[str]] = {}
        for batch in batches:
            root = batch.of or batch.name
            listed = kept_in.setdefault(root, [])
            if batch.name not in names:
                listed += [batch.name] if batch.of else []
                continue
            for run in _runs(entry for entry in _entries(batch) if entry in kept):
                name = f"{root[:150]}-{run.start}-{secrets.token_hex(4)}"
                writer.write(name, [_draft(records[entry]) for entry in run], run.start, of=root)
                listed.append(name)
        for batch in batches:
            if batch.of is None and (batch.name in names or kept_in[batch.name] != list(batch.kept_in)):
                _write_group(path, batch, kept_in[batch.name], durable)


def _entries(batch: BatchInfo) -> range:
    return range(batch.first, batch.first + batch.count)


def _runs(entries: Iterable[int]) -> Iterator[range]:
    for _, run in itertools.groupby(enumerate(entries), lambda pair: pair[1] - pair[0]):
        numbers = [entry for _, entry in run]
        yield range(numbers[0], numbers[-1] + 1)


def _places(record: StoredRecord) -> Iterator[Location]:
    for placed in (*record.line.before.values(), *record.line.after.values()):
        yield placed.location


def _draft(record: StoredRecord) -> RecordDraft:
    return RecordDraft(
        record.info,
        {name: _read(handle) for name, handle in record.before.items()},
        {name: _read(handle) for name, handle in record.after.items()},
    )


def _read(handle: TensorHandle) -> TensorDraft:
    """The tensor, checked against its digest; StoreError if it differs."""
    if digest_of(handle.bits()) != handle.digest:
        raise StoreError(f"{handle.where} is damaged, nothing of it is pruned; see gdnbench verify")
    return TensorDraft(handle.read(), handle.meta)


def _compression_of(store: Store, batches: Sequence[BatchInfo]) -> Compression:
    """The compression of the segment's records."""
    key = next(f"{batch.key}/{RECORDS}" for batch in batches if batch.count)
    node, _ = parse_node(store.contents.files.read(f"{key}/{METADATA}", METADATA_LIMIT) or b"", "array", key)
    levels = [codec["configuration"]["clevel"] for codec in node["codecs"] if codec["name"] == "blosc"]
    return Compression(levels[0] if levels else None)


def _write_group(path: Path, batch: BatchInfo, kept_in: Sequence[str], durable: bool) -> None:
    """Write a group for `batch` that says it has no records, and which batches hold those kept of it."""
    # Record numbers are not reused: `first` + `count` stays the end of the batch.
    attributes = {"count": 0, "first": batch.first + batch.count, **({OF: batch.of} if batch.of else {})}
    if kept_in:
        attributes[KEPT_IN] = list(kept_in)
    folder = path / batch.key
    unfinished = path / INCOMING / batch.segment.name / f"{batch.name}.{METADATA}"
    make_folder(unfinished.parent)
    unfinished.write_bytes(group_json(attributes))
    if durable:
        sync(unfinished)
    os.replace(unfinished, folder / METADATA)
    if durable:
        sync(folder)


def _tidy(path: Path, store: Store, segment: str, durable: bool) -> None:
    """Step 3 for one segment, including the remains of earlier prunings."""
    batches = [batch for batch in store.batches if batch.segment.name == segment]
    spent = [batch for batch in batches if not batch.count]
    spent += [batch for batch in store.unlisted if batch.segment.name == segment]
    if not spent:
        return
    _mark(path, segment)
    needed: dict[str, set[int | None]] = {}
    for record in store.records_of(segment):
        for place in _places(record):
            needed.setdefault(place.array, set()).add(place.row)
    last = max(batches, key=attrgetter("first", "count", "name"), default=None)
    for batch in spent:
        folder = path / batch.key
        if batch.count:  # an unlisted batch: without records it is not mistaken for an unfinished one
            _write_group(path, batch, (), durable)
        unused = list(_unused(path, batch, needed))
        arrays = sum(1 for kind in (ROWS, BLOBS) for array in _arrays(folder / kind))
        if len([one for one in unused if one.parent.parent == folder]) == arrays and _may_go(batch, last):
            unused = [folder]
        elif (folder / RECORDS).exists() and not _has_no_records(folder):
            unused.append(folder / RECORDS)
        _discard(path, unused, durable)
        if folder.is_dir() and not (folder / RECORDS).exists():
            _write_no_records(path, batch, durable)
    (path / INCOMING / f"{_MARK}{segment}").unlink(missing_ok=True)
    remove_if_empty(path / INCOMING / segment)
    remove_if_empty(path / INCOMING)


def _may_go(batch: BatchInfo, last: BatchInfo | None) -> bool:
    return not batch.kept_in and (last is None or batch.name != last.name)


def _arrays(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


def _unused(path: Path, batch: BatchInfo, needed: Mapping[str, set[int | None]]) -> Iterator[Path]:
    """Arrays of `batch` that no record refers to, and files of row arrays without a used row."""
    files = FolderFiles(path)
    for kind in (ROWS, BLOBS):
        for array in _arrays(path / batch.key / kind):
            key = f"{batch.key}/{kind}/{array.name}"
            rows = needed.get(key)
            if rows is None:
                yield array
            elif kind == ROWS:
                stored = open_array(files, key)
                held = {
                    name
                    for row in rows
                    if row is not None
                    for name in stored.files_of((slice(row, row + 1), *stored.whole[1:]))
                }
                yield from (
                    array / name for name in files.sizes(key) if name not in held and name.startswith("c/")
                )


def _has_no_records(folder: Path) -> bool:
    node, _ = parse_node((folder / RECORDS / METADATA).read_bytes(), "array", str(folder))
    return bool(node.get("shape") == [0])


def _write_no_records(path: Path, batch: BatchInfo, durable: bool) -> None:
    """Write an empty records array: readers of other programs expect one in every batch."""
    made = path / INCOMING / batch.segment.name / "records"
    shutil.rmtree(made, ignore_errors=True)
    make_folder(made)
    none = np.empty(0, np.uint8)
    write_array(made, RECORDS, none, {}, Compression(None), Chunking(), durable, RECORDS_NAMES)
    os.rename(made / RECORDS, path / batch.key / RECORDS)
    shutil.rmtree(made)


def _discard(path: Path, unused: Sequence[Path], durable: bool) -> None:
    """Remove files and folders of the store: first by rename, then from the disk."""
    if not unused:
        return
    trash = path / INCOMING / f"{OUTGOING}{secrets.token_hex(8)}"
    make_folder(trash)
    for number, place in enumerate(unused):
        os.rename(place, trash / str(number))
    if durable:
        for folder in {place.parent for place in unused}:
            sync(folder)
    shutil.rmtree(trash)
    remove_if_empty(path / INCOMING)


def _clear_trash(path: Path) -> None:
    """Remove what a killed pruning had renamed away or not finished."""
    incoming = path / INCOMING
    if not incoming.is_dir():
        return
    for left in incoming.glob(f"{OUTGOING}*"):
        shutil.rmtree(left)
    for mark in incoming.glob(f"{_MARK}*"):
        name = mark.name.removeprefix(_MARK)
        if not is_name(name) or not mark.is_file():
            raise StoreError(f"gdnbench did not write {mark}; remove it to prune the store")
        shutil.rmtree(incoming / name, ignore_errors=True)
        mark.unlink()
    remove_if_empty(incoming)


def _mark(path: Path, segment: str) -> None:
    """Mark the segment, so that the next pruning knows that unfinished batches there are a pruning's."""
    make_folder(path / INCOMING)
    (path / INCOMING / f"{_MARK}{segment}").touch()


def _bytes_of(path: Path, segments: Iterable[str]) -> int:
    files = FolderFiles(path)
    return sum(sum(files.sizes(f"{SEGMENTS}/{segment}").values()) for segment in segments)
