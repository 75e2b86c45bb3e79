# SPDX-License-Identifier: Apache-2.0
"""Merges several stores into one: of the nodes of one run, or of several runs.

A segment belongs to one process and its name is unique, so merging puts the segments side by side unchanged.
Each is copied into a hidden folder, every tensor of the copy is checked against its digest, and the segment
is renamed into place whole. A merge that is killed leaves whole segments; repeating it continues with the
rest.

A segment that is already there is the same if its records and metadata are equal, since they contain the
digests of all tensors; it is not copied again. If it has grown since, because its process was still
recording, its later batches are added in order. Batches that a capture drops meanwhile are left out: their
records are gone at the source too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError, StoreError
from gdnbench.store.address import Address, is_url, local_path
from gdnbench.store.durable import make_folder, publish, remove_if_empty, sync, sync_tree
from gdnbench.store.exclusive import hold_store_lock
from gdnbench.store.files import FolderFiles, StoreFiles
from gdnbench.store.layout import (
    FORMAT_VERSION,
    METADATA,
    METADATA_LIMIT,
    RECORDS,
    SEGMENTS,
    group_json,
    parse_node,
)
from gdnbench.store.reader import Store
from gdnbench.store.summary import END
from gdnbench.store.verify import verify
from gdnbench.version import __version__

STAGING = ".merge"
_FICLONE = 0x40049409  # linux/fs.h: shares a file's extents, if the file system supports it
_FILE_LIMIT = 1 << 30  # limit of a file copied from an archive or a URL; chunk files have the same limit
_TRIES = 100  # attempts to begin, while other merges begin and end
_OF_EVERY_ROOT = ("format_version", "created_by")

Progress = Callable[[int, int], None]
"""Called with the number of segments done and the total."""


@dataclass(slots=True)
class MergeReport:
    segments: int = 0  # merged, whole or in part
    records: int = 0  # records in them
    already: int = 0  # segments that were there already
    refused: list[str] = field(default_factory=list)  # what was not merged, and why


def merge(out: Path, inputs: Sequence[Store], progress: Progress | None = None) -> MergeReport:
    """Merge the segments of `inputs` into the store at `out`, which is created if needed.

    Segments that are damaged, or exist with other content, are refused; the others are merged. StoreError,
    before any segment is merged, for stores of different kinds; BadInputError if another merge or a pruning
    works on `out`.
    """
    root = _common_root(inputs)
    report = MergeReport()
    with _staging(out, root) as staging:
        held = parse_node((out / METADATA).read_bytes(), "group", str(out))[1]
        if _essence(held) != _essence(root):
            raise StoreError(f"{out} is another kind of store than {inputs[0].path}; merge into another path")
        total, done = sum(len(store.segments) for store in inputs), 0
        for store in inputs:
            report.refused += [f"{store.path}: {damage}" for damage in store.damaged]
            for segment in store.segments:
                _Segment(out, staging, store, segment.name).merge(report)
                done += 1
                if progress is not None:
                    progress(done, total)
    return report


def checked_out(out: str, inputs: Sequence[Address]) -> Path:
    """The folder to merge into. BadInputError if it cannot be one, or lies in one of the inputs."""
    if is_url(out):
        raise BadInputError(f"{out} is a URL; merge into a folder and upload that")
    place = local_path(out)
    folders = [local_path(source).resolve() for source in inputs if not is_url(source)]
    if place.resolve() in folders:
        raise BadInputError(f"{out} is one of the stores to be merged; give the new one another path")
    if not {*folders}.isdisjoint(place.resolve().parents):
        raise BadInputError(f"{out} is in one of the stores to be merged; give the new one another path")
    if place.exists() and not (place / METADATA).exists():
        if not place.is_dir():
            raise BadInputError(f"{out} is a file; merge into a folder")
        strange = sorted({entry.name for entry in place.iterdir()} - {STAGING})
        if strange:
            raise BadInputError(f"{out} is not a store and holds {strange[0]}; merge into another path")
    return place


def _common_root(inputs: Sequence[Store]) -> dict[str, Any]:
    """The root attributes of the merged store; StoreError if `inputs` are of different kinds."""
    roots = [_root(store) for store in inputs]
    for store, root in zip(inputs, roots, strict=True):
        if _essence(root) != _essence(roots[0]):
            raise StoreError(f"{store.path} is another kind of store than {inputs[0].path}; merge them apart")
    return {**roots[0], "format_version": FORMAT_VERSION, "created_by": f"gdnbench {__version__}"}


def _root(store: Store) -> dict[str, Any]:
    text = store.contents.files.read(METADATA, METADATA_LIMIT)
    assert text is not None  # the store is open
    return parse_node(text, "group", str(store.path))[1]


def _essence(root: Mapping[str, Any]) -> dict[str, Any]:
    """The root attributes that merged stores must have in common: their kind, and how they were
    anonymised."""
    return {name: value for name, value in root.items() if name not in _OF_EVERY_ROOT}


@contextmanager
def _staging(out: Path, root: Mapping[str, Any]) -> Iterator[Path]:
    """Make `out` a store, lock it, and yield a folder in it for unfinished copies."""
    staging = out / STAGING
    try:
        _begin(out, root, staging)
        with hold_store_lock(out):  # a pruning removes arrays that a later batch may refer to
            make_folder(staging)
            _clear(staging)
            yield staging
            _clear(staging)
            remove_if_empty(staging)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{out} cannot be written: {error}") from error


def _begin(out: Path, root: Mapping[str, Any], staging: Path) -> None:
    """Make `out` a store unless it is one; unfinished files go into `staging`."""
    if staging.is_symlink():
        raise StoreError(f"{staging} is a symbolic link, and what is in there would be cleared; remove it")
    for _ in range(_TRIES):  # another merge may begin too, and clear our files
        with contextlib.suppress(FileNotFoundError):
            make_folder(staging)
            publish(out / METADATA, group_json(root), staging, durable=True)
            make_folder(out / SEGMENTS)
            publish(out / SEGMENTS / METADATA, group_json({}), staging, durable=True)
            return
    raise StoreError(f"other merges into {out} begin and end all the time; start this one after them")


def _clear(folder: Path) -> None:
    """Remove the remains of a merge that was killed."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


@dataclass(frozen=True, slots=True)
class _Segment:
    """One segment of an input store, and its destination."""

    out: Path
    staging: Path
    store: Store
    name: str

    def merge(self, report: MergeReport) -> None:
        """Merge it into `out`: the whole segment, or the batches that `out` lacks."""
        target = self.out / SEGMENTS / self.name
        try:
            missing = self._missing() if target.exists() else None
            if missing == []:
                report.already += 1
                return
            counts = self._copy()
            staged = self.staging / SEGMENTS / self.name
            if missing is None:
                os.rename(staged, target)
            else:
                missing = [child for child in missing if (staged / child).exists()]
                for child in missing:
                    os.rename(staged / child, target / child)
            sync(target if missing else target.parent)
        except StoreError as error:
            report.refused.append(f"segment {self.name} of {self.store.path}: {error}")
            return
        finally:
            _clear(self.staging)
        report.segments += 1
        report.records += sum(count for name, count in counts.items() if missing is None or name in missing)

    @property
    def _key(self) -> str:
        return f"{SEGMENTS}/{self.name}"

    def _missing(self) -> list[str]:
        """The batches that `out` lacks, in order, the segment's end last. StoreError if a common batch
        differs."""
        here, there = FolderFiles(self.out), self.store.contents.files
        if not _same_metadata(here, there, self._key):
            raise StoreError(f"{self.out} has another segment of this name; merge them apart")
        order = [batch.name for batch in self.store.batches if batch.segment.name == self.name]
        children = sorted(there.folders(self._key), key=lambda name: (name == END, _index(order, name)))
        held = here.folders(self._key)
        differing = [
            child for child in children if child in held and not _same(here, there, f"{self._key}/{child}")
        ]
        for child in there.folders(self._key) if differing else ():  # except batches removed meanwhile
            if child in differing:
                raise StoreError(f"{self.out} has its {child} with other content; merge them apart")
        return [child for child in children if child not in held]

    def _copy(self) -> dict[str, int]:
        """Make `staging` a store with this segment only; returns the number of records of each of its
        batches.

        StoreError if a tensor does not match its digest.
        """
        staged = self.staging / SEGMENTS / self.name
        files = self.store.contents.files
        for key in files.sizes(self._key):
            with contextlib.suppress(FileNotFoundError):  # if a batch needs it, `verify` reports it
                _copy_file(files, f"{self._key}/{key}", staged / key)
        # A batch is removed by rename: one that is still there was complete all the time.
        for child in {*FolderFiles(self.staging).folders(f"{SEGMENTS}/{self.name}")} - {
            *files.folders(self._key)
        }:
            shutil.rmtree(staged / child)
        if not staged.is_dir():
            raise StoreError("it has gone meanwhile")
        (self.staging / METADATA).write_bytes(group_json(_root(self.store)))
        damages = verify(self.staging).damages
        if damages:
            more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
            raise StoreError(f"{damages[0]}{more}; gdnbench verify {self.store.path} says all")
        sync_tree(staged)
        with Store.open(self.staging) as copied:
            return {batch.name: batch.count for batch in copied.batches}


def _index(order: list[str], name: str) -> int:
    """The position of `name`; -1 for a batch in no order, such as a pruned one."""
    return order.index(name) if name in order else -1


def _same(here: StoreFiles, there: StoreFiles, key: str) -> bool:
    """Whether two batches are equal: files of equal names and sizes, equal records and metadata."""
    sizes = here.sizes(key)
    if sizes != there.sizes(key):
        return False
    telling = [name for name in sizes if name.startswith(f"{RECORDS}/") or name.endswith(METADATA)]
    return all(
        here.read(f"{key}/{name}", _FILE_LIMIT) == there.read(f"{key}/{name}", _FILE_LIMIT)
        for name in telling
    )


def _same_metadata(here: StoreFiles, there: StoreFiles, key: str) -> bool:
    return here.read(f"{key}/{METADATA}", METADATA_LIMIT) == there.read(f"{key}/{METADATA}", METADATA_LIMIT)


def _copy_file(files: StoreFiles, key: str, target: Path) -> None:
    """Copy `key` of `files` to `target`; shares the bytes on disk if possible, since stores never rewrite
    files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(files, FolderFiles):
        source = files.path / key
        if _cloned(source, target) or _linked(source, target):
            return
        shutil.copyfile(source, target, follow_symlinks=False)
        return
    content = files.read(key, _FILE_LIMIT)
    if content is None:
        raise StoreError(f"{key} has gone")
    target.write_bytes(content)


def _cloned(source: Path, target: Path) -> bool:
    try:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        with open(target, "xb") as writing:
            fcntl.ioctl(writing, _FICLONE, reading)
        return True
    except OSError:
        target.unlink(missing_ok=True)
        return False
    finally:
        os.close(reading)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
        return True
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
            raise
        return False
