# SPDX-License-Identifier: Apache-2.0
"""Seals one segment: turns its journal into batches, each committed atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Self

from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import JournalDraft
from gdnbench.store.compression import Compression
from gdnbench.store.durable import remove_if_empty
from gdnbench.store.journal.format import JournalRefusedError
from gdnbench.store.journal.log import SEALER_LOCK, WRITER_LOCK
from gdnbench.store.journal.reader import JournalReader, JournalRecord
from gdnbench.store.layout import JOURNAL, METADATA, SEGMENTS, parse_node
from gdnbench.store.quota import Quota, dropped_records
from gdnbench.store.summary import SegmentSummary, segment_summary, write_summary
from gdnbench.store.writer import StoreWriter

BATCH_RECORDS = 256
BATCH_BYTES = 256 << 20
BATCH_SECONDS = 2.0  # the longest that a record waits for others to share its batch

_BATCH = re.compile(r"[0-9]{10}")


def batch_name(first: int) -> str:
    """The name of the batch whose first record is number `first` of its segment."""
    return f"{first:010d}"


def sealed_records(store: Path, segment: str) -> int:
    """The number after the last record of `segment` that is in the store."""
    folder = store / SEGMENTS / segment
    try:
        names = [name for name in os.listdir(folder) if _BATCH.fullmatch(name)]
    except FileNotFoundError:
        return 0
    if not names:
        return 0
    last = folder / max(names)
    _, batch = parse_node((last / METADATA).read_bytes(), "group", str(last))
    return int(batch["first"]) + int(batch["count"])


def dropped_oldest(store: Path, segment: str) -> int:
    """The number of sealed records of `segment` that were dropped for later ones."""
    summary = segment_summary(store, segment)
    return dropped_records(store / SEGMENTS / segment) if summary is None else summary.dropped_oldest


class SegmentSealer:
    """Holds the lock that makes it the only sealer of its segment, until `close`."""

    def __init__(self, store: Path, segment: str, lock: int) -> None:
        self.reader = JournalReader(store / JOURNAL / segment)
        self.ended = False
        self.sealed_here = 0
        self.bytes_here = 0
        self._store = store
        self._segment = segment
        self._lock = lock
        self._sealed = sealed_records(store, segment)
        self._writer: StoreWriter | None = None
        self._pending: list[JournalRecord] = []
        self._pending_bytes = 0
        self._pending_since = 0.0
        self._unstorable: list[str] = []

    @classmethod
    def try_lock(cls, store: Path, segment: str) -> Self | None:
        """Lock `segment` and return its sealer; None if another sealer holds it, or its journal no longer
        exists."""
        path = store / JOURNAL / segment / SEALER_LOCK
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return None  # a link may lead out of the store
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its previous holder may have removed the whole journal meanwhile.
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return cls(store, segment, lock)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
        return None

    def close(self) -> None:
        """Release the segment; the next sealer continues after the last committed batch."""
        self._close_writer()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def queued_bytes(self) -> int:
        """Bytes in the segment's journal files."""
        return 0 if self.ended else sum(path.stat().st_size for path in self.reader.logs())

    def step(self) -> str | None:
        """Seal what is ready, and at the journal's end write its summary. Returns why the journal cannot be
        sealed, or None.

        StoreError if the store cannot be written.
        """
        try:
            for record in self.reader.poll(self._sealed):
                self._add(record)
            if not self.reader.finished:
                if self._is_due():
                    self._seal_pending()
                self._release()
                return None
            if self.reader.logs():
                self._finish()
        except JournalRefusedError as error:
            return str(error)
        self._remove_journal()
        return None

    @property
    def _keep_bytes(self) -> int | None:
        return None if self.reader.opening is None else self.reader.opening.keep_bytes

    def _batch_bytes(self) -> int:
        limit = self._keep_bytes
        return BATCH_BYTES if limit is None else Quota.batch_bytes(limit, BATCH_BYTES)

    def _add(self, record: JournalRecord) -> None:
        """Add `record` to the next batch; first seal the current batch if the record does not belong in
        it."""
        follows = not self._pending or record.number == self._pending[-1].number + 1
        if not follows or len(self._pending) == BATCH_RECORDS or self._pending_bytes >= self._batch_bytes():
            self._seal_pending()
        if not self._pending:
            self._pending_since = time.monotonic()
        self._pending.append(record)
        self._pending_bytes += record.nbytes

    def _is_due(self) -> bool:
        """Whether to seal the batch now: it is old, or a full journal file waits to be deleted."""
        if not self._pending:
            return False
        aged = time.monotonic() - self._pending_since >= BATCH_SECONDS
        return aged or self.reader.is_full(self._pending[0].file)

    def _seal_pending(self) -> None:
        if not self._pending:
            return
        self._write(self._pending[0].number, [record.draft for record in self._pending])
        self.bytes_here += self._pending_bytes
        self._pending, self._pending_bytes = [], 0

    def _write(self, first: int, drafts: list[JournalDraft]) -> None:
        """Commit `drafts` as one batch. If one of them cannot be stored, commit the others singly and note
        the failure."""
        writer = self._store_writer()
        try:
            writer.write(batch_name(first), drafts, first)
            self.sealed_here += len(drafts)
        except BadInputError as error:
            if len(drafts) == 1:
                self._unstorable.append(f"record {first} cannot be stored: {error}")
            else:
                for number, draft in enumerate(drafts, first):
                    self._write(number, [draft])
        self._sealed = first + len(drafts)

    def _store_writer(self) -> StoreWriter:
        """The writer, created when the journal's opening is known; creates store and segment if needed."""
        opening = self.reader.opening
        if opening is None:
            raise JournalRefusedError(f"{self.reader.folder}: no file of this journal has a readable start")
        if self._writer is None:
            try:
                self._writer = StoreWriter(
                    self._store,
                    kind=opening.kind,
                    segment=self._segment,
                    process=opening.process,
                    provenance=opening.provenance,
                    compression=Compression(opening.compression),
                    keep_bytes=opening.keep_bytes,
                )
            except StoreError as error:
                raise JournalRefusedError(str(error)) from error
        return self._writer

    def _finish(self) -> None:
        """Seal the rest, including calls that never ended, and write the segment's summary."""
        self._store_writer()
        self._seal_pending()
        reader = self.reader
        unfinished = reader.unfinished()
        if unfinished and self._sealed <= reader.records:  # all in one batch, which is committed atomically
            self._write(reader.records, unfinished)
        closed = reader.closed or {}
        summary = SegmentSummary(
            closed=reader.closed is not None,
            records=self._sealed,
            dropped_oldest=0 if self._keep_bytes is None else dropped_oldest(self._store, self._segment),
            unfinished=len(unfinished),
            dropped=reader.dropped,
            torn=reader.torn,
            damage=(*reader.damage, *self._unstorable),
            error=closed.get("error"),
            blocked_seconds=closed.get("blocked_seconds", 0.0),
            summary=closed.get("summary", {}),
        )
        write_summary(self._store, self._segment, summary)

    def _release(self) -> None:
        for path in self.reader.releasable(self._sealed):
            path.unlink()
            self.reader.forget(path)

    def _remove_journal(self) -> None:
        """Delete the journal's files; keep damaged ones under a name that no sealer reads."""
        self._close_writer()  # while the journal exists, so that the next sealer repeats this cleanup
        for path in self.reader.damaged():
            path.rename(path.with_suffix(".damaged"))
        folder = self.reader.folder
        for path in self.reader.logs():
            path.unlink()
        for name in (WRITER_LOCK, SEALER_LOCK):
            (folder / name).unlink(missing_ok=True)
        for empty in (folder, folder.parent):
            remove_if_empty(empty)
        self.close()
        self.ended = True
