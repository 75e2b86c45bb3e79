# SPDX-License-Identifier: Apache-2.0
"""Uploads a local store into an object store, batch by batch.

Objects are written atomically, and a batch's zarr.json is written last: readers ignore a batch without one.
Existing objects are not written again, so a new uploader continues where a dead one stopped.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gdnbench.errors import CannotRunError, GdnbenchError, StoreError
from gdnbench.store.files import FolderFiles
from gdnbench.store.layout import (
    METADATA,
    METADATA_LIMIT,
    SEGMENTS,
    check_root,
    group_json,
    is_name,
    parse_node,
)
from gdnbench.store.objects import Objects
from gdnbench.store.spool import Spool
from gdnbench.store.summary import END
from gdnbench.store.writer import root_json

_FILES: Final = 4  # uploaded in parallel
_IDLE_SECONDS: Final = 0.2
_NICENESS: Final = 19
_LONGEST_WAIT: Final = 30.0  # seconds between attempts while the network is down


class Uploader:
    """Uploads the local store at `store` to `objects`; deletes what is uploaded if the store is in a
    `spool`."""

    def __init__(self, store: Path, objects: Objects, spool: Spool | None = None) -> None:
        self.batches = 0  # uploaded by this uploader
        self._store = store
        self._files = FolderFiles(store)
        self._objects = objects
        self._spool = spool
        self._there: set[str] = set()  # groups that are in the object store
        self._looked: dict[str, int] = {}  # mtime of segments whose batches are all uploaded

    @classmethod
    def of_spool(cls, spool: Spool) -> Uploader:
        return cls(spool.store, Objects(spool.url), spool)

    def step(self, advance: Callable[[], None] | None = None) -> None:
        """Upload everything committed and not uploaded yet; call `advance` after each batch.

        Errors as of `Objects`; StoreError if the URL holds something else.
        """
        locked = contextlib.nullcontext(True) if self._spool is None else self._spool.locked()
        with locked as here:
            if not here or not (self._store / METADATA).is_file():
                return
            self._root()
            for segment in self._segments():
                self._segment(segment, advance or _nothing)

    def look_again(self) -> None:
        """Check every segment in the next step: a batch may have been added within one tick of the last
        mtime."""
        self._looked.clear()

    def missing_batches(self) -> list[str]:
        """Committed batches, `<segment>/<batch>`, that are not known to be uploaded."""
        return [
            f"{segment}/{name}"
            for segment in self._segments()
            for name in self._batches(segment)
            if not self._has(segment, name)
        ]

    def _segments(self) -> list[str]:
        return sorted(
            found.parent.name
            for found in (self._store / SEGMENTS).glob(f"*/{METADATA}")
            if is_name(found.parent.name)
        )

    def _batches(self, segment: str) -> list[str]:
        return sorted(
            found.parent.name
            for found in (self._store / SEGMENTS / segment).glob(f"*/{METADATA}")
            if is_name(found.parent.name) and found.parent.name != END
        )

    def _has(self, segment: str, name: str) -> bool:
        arrived = self._spool is not None and self._spool.has_arrived(segment, name)
        return arrived or f"{SEGMENTS}/{segment}/{name}" in self._there

    def _root(self) -> None:
        if "" in self._there:
            return
        _, ours = parse_node(self._files.read(METADATA, METADATA_LIMIT) or b"", "group", str(self._store))
        begin_store(self._objects, check_root(ours, self._store))
        self._there.add("")

    def _segment(self, segment: str, advance: Callable[[], None]) -> None:
        folder = f"{SEGMENTS}/{segment}"
        ended = (self._store / folder / END / METADATA).is_file()  # checked first: no batch follows it
        self._group(folder)
        changed = (self._store / folder).stat().st_mtime_ns
        names = self._batches(segment) if changed != self._looked.get(segment) else []
        for name in names:
            if not self._has(segment, name):
                self.batches += self._group(f"{folder}/{name}")
                advance()
                if self._spool is not None:
                    self._spool.mark_arrived(segment, name)
        self._looked[segment] = changed
        if ended and not self._has(segment, END):
            self._group(f"{folder}/{END}")
            if self._spool is not None:
                self._spool.mark_arrived(segment, END)

    def _group(self, key: str) -> bool:
        """Upload the group `key`, its metadata last (a segment's group has only metadata); whether it was
        new."""
        if key in self._there:
            return False
        content = self._files.read(f"{key}/{METADATA}", METADATA_LIMIT)
        if content is None:
            raise StoreError(f"{self._store}: {key} went while it was being uploaded; start again")
        found = self._objects.get(f"{key}/{METADATA}", METADATA_LIMIT)
        if found is None:
            if key.count("/") > 1:
                self._send_files(key)
            self._objects.put_object(f"{key}/{METADATA}", content)
        elif found != content:
            raise StoreError(f"{self._objects.url} holds another {key}; upload to another URL")
        self._there.add(key)
        return found is None

    def _send_files(self, folder: str) -> None:
        """Upload all files below `folder` except its metadata. StoreError for a link, whose target may be any
        local file."""

        def send(name: str) -> None:
            self._objects.put_object(f"{folder}/{name}", self._store / folder / name)

        with ThreadPoolExecutor(_FILES) as pool:
            list(pool.map(send, (name for name in self._files.sizes(folder) if name != METADATA)))


def begin_store(objects: Objects, kind: str) -> None:
    """Make the URL of `objects` a store of this kind, unless it is one. StoreError if it is of another
    kind."""
    found = objects.get(METADATA, METADATA_LIMIT)
    if found is None:
        objects.put_object(METADATA, root_json(kind))
    else:
        there = check_root(parse_node(found, "group", objects.url)[1], objects.url)
        if there != kind:
            raise StoreError(f"{objects.url} is a {there} store; write this {kind} to another URL")
    if objects.get(f"{SEGMENTS}/{METADATA}", METADATA_LIMIT) is None:
        objects.put_object(f"{SEGMENTS}/{METADATA}", group_json({}))


class UploadThread(threading.Thread):
    """Uploads while the sealer runs; while the network is down it waits and tries again."""

    def __init__(self, spool: Spool) -> None:
        super().__init__(name="gdnbench-upload", daemon=True)
        self.spool = spool
        self.uploader = Uploader.of_spool(spool)
        self.error: GdnbenchError | None = None  # why the last attempt failed
        self._last = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            os.nice(_NICENESS)  # on Linux, applies to this thread and those that it starts
        wait = _IDLE_SECONDS
        while True:
            is_last = self._last.is_set()
            if is_last:
                self.uploader.look_again()
            try:
                self.uploader.step()
                self.error, wait = None, _IDLE_SECONDS
            except GdnbenchError as error:
                self.error, wait = error, min(2 * wait, _LONGEST_WAIT)
            except Exception as error:  # any error must show that the upload is incomplete
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.error, wait = StoreError(reason), min(2 * wait, _LONGEST_WAIT)
            if is_last:
                return
            self._last.wait(wait)

    def not_arrived(self) -> str | None:
        """After `finish`: what is not uploaded, why, and what to do; None if everything is."""
        if self.error is None:
            return None
        left = len(self.uploader.missing_batches())
        what = f"{left} batches have" if left != 1 else "1 batch has"
        return f"{what} not arrived: {self.error}; {how_to_resume(self.spool)}"

    def finish(self) -> None:
        """Wait, after everything is sealed, until it is uploaded or one last attempt has failed."""
        self._last.set()
        self.join()


@contextmanager
def uploading(store: Path) -> Iterator[UploadThread | None]:
    """If `store` is a spool's, upload its batches while the block runs, and the rest at its end."""
    spool = Spool.of_store(store)
    if spool is None:
        yield None
        return
    thread = UploadThread(spool)
    thread.start()
    try:
        yield thread
    finally:
        thread.finish()
        spool.clear()


def upload_spool(spool: Spool) -> None:
    """Upload the content of `spool` and clear it. CannotRunError, with the remedy, if that fails."""
    try:
        Uploader.of_spool(spool).step()
    except CannotRunError as error:
        raise CannotRunError(f"{error}; {how_to_resume(spool)}") from error
    spool.clear()


def how_to_resume(spool: Spool) -> str:
    return f"what has not arrived is kept: gdnbench upload {spool.folder}"


def _nothing() -> None:
    """Does nothing."""
