# SPDX-License-Identifier: Apache-2.0
"""Writes batches of records into a store; each batch is committed atomically."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gdnbench.bits import Bits, logical
from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import JournalDraft, RecordDraft
from gdnbench.store.address import folder_to_write
from gdnbench.store.array_metadata import RECORDS_ATTRIBUTES, RECORDS_NAMES, dimension_names
from gdnbench.store.arrays import write_array
from gdnbench.store.batch import Batch, Content, Stored
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.durable import make_folder, publish, remove_if_empty, sync, sync_tree
from gdnbench.store.index import INDEX
from gdnbench.store.layout import (
    BLOBS,
    FORMAT_VERSION,
    INCOMING,
    JOURNAL,
    KINDS,
    METADATA,
    OF,
    RECORDS,
    ROWS,
    SEGMENTS,
    Location,
    check_root,
    checked_name,
    group_json,
    parse_node,
    refuse_links,
)
from gdnbench.store.quota import Quota
from gdnbench.store.reader import Store
from gdnbench.store.record_json import plain
from gdnbench.store.summary import END
from gdnbench.version import __version__


def new_segment() -> str:
    """A unique segment name for this process, which sorts by time."""
    return f"{time.time_ns() // 1_000_000}-{os.getpid()}-{secrets.token_hex(4)}"


def root_json(kind: str) -> bytes:
    """The zarr.json of a store's root."""
    return group_json(
        {"format_version": FORMAT_VERSION, "kind": kind, "created_by": f"gdnbench {__version__}"}
    )


class StoreWriter:
    """Writes one segment of the store at `path`, which is created if needed.

    Writers of different segments may work on one store at the same time. A segment has one writer at a time;
    opening it again continues it, and removes what a dead writer had not committed. `durable` flushes a batch
    to the device before it is committed, so that it survives a power failure. `keep_bytes` limits the size of
    the segment's batches on disk: the oldest are dropped for new ones, and no batch refers to tensors of
    another.

    StoreError if `path` holds something else, or a store of another kind or a newer format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str,
        segment: str | None = None,
        process: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        compression: Compression | None = None,
        chunking: Chunking | None = None,
        durable: bool = True,
        keep_bytes: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise BadInputError(f"store kind {kind!r} is not one of {', '.join(KINDS)}")
        self.path = folder_to_write(path)
        self.kind = kind
        self.segment = checked_name(segment if segment is not None else new_segment(), "segment")
        self._compression = compression if compression is not None else Compression()
        self._chunking = chunking if chunking is not None else Chunking()
        self._durable = durable
        self._folder = self.path / SEGMENTS / self.segment
        self._incoming = self.path / INCOMING / self.segment
        self._open_root()
        self._open_segment(plain(process or {}, "process"), plain(provenance or {}, "provenance"))
        self._quota = None
        if keep_bytes is not None:
            self._quota = Quota(self._folder, self._incoming, keep_bytes, durable)
        self._stored = _contents(self.path, self.segment) if self._quota is None else {}

    def has(self, name: str) -> bool:
        """Whether a batch called `name` is committed in this segment."""
        return (self._folder / checked_name(name, "batch") / METADATA).is_file()

    def write(
        self,
        name: str,
        drafts: Sequence[RecordDraft | JournalDraft],
        first: int = 0,
        *,
        of: str | None = None,
    ) -> None:
        """Commit `drafts` as the batch `name`: entries `first`, `first + 1`, ... of the segment.

        `of` names the pruned batch whose kept records they are; readers see them once that batch names this
        one. StoreError if the batch exists or the disk fails, BadInputError if it exceeds `keep_bytes`; the
        store is then unchanged.
        """
        if name == END:
            raise BadInputError(f"batch name {END!r} is taken: a segment's end is written there")
        if self.has(name):
            raise StoreError(f"{self.path}: batch {self.segment}/{name} is there already")
        unfinished = self._incoming / name
        try:
            make_folder(unfinished)
            batch = self._write_arrays(unfinished, name, drafts, {"first": first} | ({OF: of} if of else {}))
            if self._durable:
                sync_tree(unfinished)
            if self._quota is not None:
                self._quota.make_room(unfinished)
            os.rename(unfinished, self._folder / name)
            if self._durable:
                sync(self._folder)
        except OSError as error:
            raise StoreError(
                f"{self.path}: batch {self.segment}/{name} cannot be written: {error}"
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        if self._quota is None:
            self._stored.update(batch.stored)
        else:
            self._quota.add(self._folder / name)

    def forget(self, keeps: Callable[[Location], bool]) -> None:
        """Let no later record refer to elements at locations for which `keeps` returns false."""
        self._stored = {content: place for content, place in self._stored.items() if keeps(place)}

    def _write_arrays(
        self,
        root: Path,
        name: str,
        drafts: Sequence[RecordDraft | JournalDraft],
        attributes: Mapping[str, Any],
    ) -> Batch:
        # A second thread writes a tensor while the next one is hashed.
        with ThreadPoolExecutor(1) as pool:
            blobs: list[Future[None]] = []

            def on_blob(blob: str, stored: Stored) -> None:
                attributes, names = _described([stored]), dimension_names([stored.meta.axes], rows=False)
                key = f"{BLOBS}/{blob}"
                blobs.append(pool.submit(self._write, root, key, stored.bits, attributes, names))

            batch = Batch(self.segment, name, self._stored, self._chunking.small, on_blob)
            for draft in drafts:
                batch.add(draft)
            for written in blobs:
                written.result()
        for class_, rows in batch.rows.items():
            names = dimension_names([row.meta.axes for row in rows], rows=True)
            bits = np.stack([row.bits for row in rows])
            self._write(root, f"{ROWS}/{class_}", bits, _described(rows), names)
        lines = np.frombuffer(b"".join(line + b"\n" for line in batch.lines), np.uint8)
        self._write(root, RECORDS, lines, RECORDS_ATTRIBUTES, RECORDS_NAMES)
        described = {"count": len(batch.lines), **attributes, INDEX: batch.index.attributes()}
        (root / METADATA).write_bytes(group_json(described, indent=None))
        for folder in (ROWS, BLOBS):
            if (root / folder).is_dir():
                (root / folder / METADATA).write_bytes(group_json({}))
        return batch

    def _write(
        self, root: Path, key: str, bits: Bits, attributes: Mapping[str, Any], names: Sequence[str | None]
    ) -> None:
        write_array(root, key, bits, attributes, self._compression, self._chunking, self._durable, names)

    def _open_root(self) -> None:
        # What is left in the folder of unfinished batches is deleted.
        refuse_links(self._incoming.parent, self._incoming, self._folder.parent, self._folder)
        try:
            self._refuse_other_folder()
            make_folder(self._incoming)
            publish(self.path / METADATA, root_json(self.kind), self._incoming, self._durable)
            _, ours = parse_node((self.path / METADATA).read_bytes(), "group", str(self.path))
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.path} cannot be made a store: {error}") from error
        found = check_root(ours, self.path)
        if found != self.kind:
            raise StoreError(f"{self.path} is a {found} store; write this {self.kind} to another path")

    def _refuse_other_folder(self) -> None:
        """StoreError for a folder that holds anything but a store or the beginnings of one."""
        if not self.path.exists() or (self.path / METADATA).exists():
            return
        if not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; a store that can be written is a folder")
        # Another process may be creating the same store: its first files are allowed.
        strange = sorted({entry.name for entry in self.path.iterdir()} - {JOURNAL, INCOMING, METADATA})
        if strange:
            raise StoreError(
                f"{self.path} is not a store and not empty (it holds {strange[0]}); choose another path"
            )

    def _open_segment(self, process: Any, provenance: Any) -> None:
        try:
            segments = self.path / SEGMENTS
            segments.mkdir(exist_ok=True)
            publish(segments / METADATA, group_json({}), self._incoming, self._durable)
            for left in self._incoming.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()
            if not self._folder.exists():
                made = self._incoming / "segment"
                made.mkdir()
                content = {"process": process, "provenance": provenance}
                (made / METADATA).write_bytes(group_json(content))
                if self._durable:
                    sync_tree(made)
                os.rename(made, self._folder)
                if self._durable:
                    sync(segments)
        except OSError as error:
            raise StoreError(f"{self.path}: segment {self.segment} cannot be made: {error}") from error

    def close(self) -> None:
        """Remove the folder for unfinished batches, so that the store holds only Zarr data."""
        remove_if_empty(self._incoming)
        remove_if_empty(self._incoming.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _contents(path: Path, segment: str) -> dict[Content, Location]:
    """The contents that a segment holds already, with their locations."""
    known: dict[Content, Location] = {}
    with Store.open(path) as store:
        for record in store.records_of(segment):
            for placed in (*record.line.before.values(), *record.line.after.values()):
                known[placed.digest, placed.meta.dtype, placed.meta.shape] = placed.location
    return known


def _described(stored: Iterable[Stored]) -> dict[str, Any]:
    """Attributes that describe the tensors of an array, in row order, to other readers."""
    tensors = list(stored)
    dtype = tensors[0].meta.dtype
    return {
        "dtype": dtype,
        "stored_as": logical(dtype).storage.name,
        "digests": [tensor.digest for tensor in tensors],
        "axes": [tensor.meta.axes for tensor in tensors],
        "caller_shapes": [tensor.meta.caller_shape for tensor in tensors],
        "caller_strides": [tensor.meta.caller_strides for tensor in tensors],
        "caller_offsets": [tensor.meta.caller_offset for tensor in tensors],
    }
