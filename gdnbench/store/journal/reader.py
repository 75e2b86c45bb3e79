# SPDX-License-Identifier: Apache-2.0
"""Reads a journal that is growing or was left by its writer: every finished record once, in order."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.record import BitsDraft, JournalDraft, RecordInfo, Status
from gdnbench.store.journal.codec import bits_at, info_from_json, meta_from_json, nbytes_of
from gdnbench.store.journal.format import JournalDamage, Kind, checksum
from gdnbench.store.journal.log import WRITER_LOCK
from gdnbench.store.journal.scan import Entry, scan

_LOG_NAME = re.compile(r"[0-9]{8}\.log")
_UNREADABLE = (JournalDamage, BadInputError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A finished record. Its tensors are views of a private mapping of the file and survive its deletion."""

    number: int  # in the segment, from 0, in the order in which calls finished
    draft: JournalDraft
    nbytes: int  # of the entry that finished it
    file: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The first entry of every file of a journal."""

    kind: str
    segment: str
    compression: int | None
    process: Mapping[str, Any]
    provenance: Mapping[str, Any]
    keep_bytes: int | None = None  # limit of the segment's batches in the store; the oldest are dropped


@dataclass(slots=True)
class _File:
    number: int
    path: Path
    offset: int = 0  # of the next entry
    read: bool = False  # read to its end, and complete
    damaged: bool = False
    needed_until: int = 0  # the file may be deleted once this many records are sealed


@dataclass(frozen=True, slots=True)
class _Begun:
    file: _File
    info: RecordInfo
    before: Mapping[str, BitsDraft]


def writer_lives(folder: Path) -> bool:
    """Whether a process holds the writer's lock of the journal `folder`. False without a lock file.

    Also False for a link in its place, which may lead to a pipe or to the lock of another store.
    """
    try:
        fd = os.open(folder / WRITER_LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class JournalReader:
    """Follows one segment's journal: `poll` yields newly finished records, the attributes hold its state.

    It maps complete entries only, which a writer never truncates, so no access can fault.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opening: Opening | None = None
        self.closed: Mapping[str, Any] | None = (
            None  # the header of the CLOSE entry: the writer ended in order
        )
        self.torn: str | None = None  # the entry that the writer's death left unfinished
        self.damage: list[str] = []  # what could not be read
        self.records = 0  # finished so far, including those in deleted files
        self.dropped = 0  # as last counted by the writer
        self.finished = False  # the writer has ended and everything is read
        self._next_entry: int | None = None
        self._files: dict[int, _File] = {}
        self._begun: dict[int, _Begun] = {}

    def poll(self, sealed: int = 0) -> Iterator[JournalRecord]:
        """Records from number `sealed` on that finished since the last poll.

        StoreError if the journal has a newer version; damage is noted in `damage` and skipped.
        """
        gone = not writer_lives(self.folder)  # checked first: if it has ended, what is read below is all
        unread = self._unread_files()
        for file in unread:
            is_last = file is unread[-1]
            yield from self._poll_file(file, is_last=is_last, grows=is_last and not gone, sealed=sealed)
        self.finished = gone

    def unfinished(self) -> list[JournalDraft]:
        """Calls that began (`--sync`) and never ended, oldest first, as records with inputs only."""
        return [
            JournalDraft(replace(begun.info, status=Status.UNFINISHED), begun.before, {})
            for _, begun in sorted(self._begun.items())
        ]

    def releasable(self, sealed: int) -> list[Path]:
        """Undamaged files that nothing needs once the records below `sealed` are in the store."""
        waiting = {begun.file.number for begun in self._begun.values()}
        return [
            file.path
            for file in self._files.values()
            if file.read and not file.damaged and file.needed_until <= sealed and file.number not in waiting
        ]

    def is_full(self, file: int) -> bool:
        """Whether file number `file` has been read to its end."""
        return file not in self._files or self._files[file].read

    def damaged(self) -> list[Path]:
        return [file.path for file in self._files.values() if file.damaged]

    def logs(self) -> list[Path]:
        """The journal's files, oldest first, without links and pipes, which a writer does not create."""
        with os.scandir(self.folder) as entries:
            names = [
                e.name for e in entries if _LOG_NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False)
            ]
        return [self.folder / name for name in sorted(names)]

    def forget(self, path: Path) -> None:
        """The releasable file `path` is deleted."""
        self._files = {number: file for number, file in self._files.items() if file.path != path}

    def _unread_files(self) -> list[_File]:
        for path in self.logs():
            self._files.setdefault(int(path.stem), _File(int(path.stem), path))
        return [file for _, file in sorted(self._files.items()) if not file.read]

    def _poll_file(self, file: _File, *, is_last: bool, grows: bool, sealed: int) -> Iterator[JournalRecord]:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = scan(fd, file.path, file.offset)
            mapped = mmap.mmap(fd, found.end, access=mmap.ACCESS_READ) if found.entries else None
        finally:
            os.close(fd)
        for entry in found.entries:
            file.offset = entry.end
            try:
                record = self._take(file, entry, mapped, sealed)
            except _UNREADABLE as error:
                self._note_damage(file, f"{file.path}, byte {entry.start}: {error}; the entry is skipped")
            else:
                if record is not None:
                    yield record
        if grows:  # report a fault only when the file is complete
            return
        file.read = True
        if found.fault is not None:
            self._note_damage(file, f"{found.fault}; the rest of the file is skipped")
        elif found.tail is not None and is_last:
            self.torn = found.tail
        elif found.tail is not None:
            self._note_damage(file, f"{file.path} ends inside {found.tail}")

    def _note_damage(self, file: _File, what: str) -> None:
        file.damaged = True
        self.damage.append(what)

    def _take(self, file: _File, entry: Entry, mapped: mmap.mmap | None, sealed: int) -> JournalRecord | None:
        """Process a complete entry; returns the record that it finishes, unless that is sealed already."""
        prefix, header = entry.prefix, entry.header
        self._check_number(entry)
        self.records = max(self.records, prefix.records)
        self.dropped = prefix.dropped
        match prefix.kind:
            case Kind.OPEN:
                self.opening = Opening(**header)
            case Kind.CLOSE:
                self.closed = header
            case Kind.BEGIN:
                before = _tensors(entry, mapped, "before")["before"]
                self._begun[prefix.number] = _Begun(file, info_from_json(header["info"]), before)
            case Kind.RECORD | Kind.END:
                self.records = file.needed_until = prefix.records + 1
                return self._finish(file, entry, mapped, sealed)
        return None

    def _check_number(self, entry: Entry) -> None:
        """JournalDamage unless entry numbers are consecutive; before a file, others may have been deleted."""
        number, expected = entry.prefix.number, self._next_entry
        self._next_entry = number + 1
        starts_file = entry.start == 0
        if starts_file != (entry.prefix.kind is Kind.OPEN):
            raise JournalDamage("a file starts with an OPEN entry, and has no other")
        if expected is not None and (number < expected or (number > expected and not starts_file)):
            raise JournalDamage(f"entry {number} stands where entry {expected} belongs")

    def _finish(
        self, file: _File, entry: Entry, mapped: mmap.mmap | None, sealed: int
    ) -> JournalRecord | None:
        number = entry.prefix.records
        begun = None
        if entry.prefix.kind is Kind.END:
            begun = self._begun.pop(entry.header["begin"], None)
            if begun is not None:
                begun.file.needed_until = max(begun.file.needed_until, number + 1)
        if number < sealed:
            return None
        if entry.prefix.kind is Kind.END and begun is None:
            raise JournalDamage(f"the inputs of this call (entry {entry.header['begin']}) could not be read")
        tensors = _tensors(entry, mapped, "before", "after")
        before = tensors["before"] if begun is None else begun.before
        draft = JournalDraft(info_from_json(entry.header["info"]), before, tensors["after"])
        return JournalRecord(number, draft, entry.prefix.entry_bytes, file.number)


def _tensors(entry: Entry, mapped: mmap.mmap | None, *groups: str) -> dict[str, dict[str, BitsDraft]]:
    """The tensors of an entry's `groups`, checked against their checksums."""
    payloads = iter(entry.payloads)
    total = 0
    found: dict[str, dict[str, BitsDraft]] = {}
    with memoryview(mapped or b"") as view:
        for group in groups:
            found[group] = {}
            for name, description in entry.header[group].items():
                meta = meta_from_json(description)
                nbytes = nbytes_of(meta)
                if "at" in description:
                    at = description["at"]
                    if at + nbytes > entry.start or checksum(view[at : at + nbytes]) != description["sum"]:
                        raise JournalDamage(f"tensor {name} is not where its layer's previous call left it")
                else:
                    at, length = next(payloads)
                    if length != nbytes:
                        raise JournalDamage(f"tensor {name} has {length} bytes, its shape needs {nbytes}")
                    total += checksum(view[at : at + nbytes])
                found[group][name] = BitsDraft(bits_at(mapped, at, meta), meta)
    if total % 2**64 != entry.checksum:
        raise JournalDamage("the tensors do not match the entry's checksum")
    return found
