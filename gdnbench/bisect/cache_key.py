# SPDX-License-Identifier: Apache-2.0
"""The cache key of a verdict: digests of records and of a kernel's code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from gdnbench.bits import to_bits
from gdnbench.errors import StoreError
from gdnbench.record import RecordDraft, RecordInfo, TensorMeta
from gdnbench.store.batch import digest_of
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.recover import open_store

SOURCE_SUFFIXES = (
    *(".py", ".pyi", ".pyx", ".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inl"),
    *(".ptx", ".sass", ".cubin", ".fatbin", ".so", ".json"),
)
"""Of files that a kernel's verdict may depend on: sources, compiled code, and tables of options."""


Choice = Callable[[Store], Sequence[int]]
"""Numbers of the records of a store that are meant."""


def digest_records(records: Sequence[StoredRecord]) -> str:
    """BLAKE3 of everything that a replay of `records` reads, in order: operation, conventions, scalars and
    pools, and of each tensor its digest and the caller's layout. The path of the store and its division into
    segments do not matter."""
    return combine_digests(
        [
            _of(
                (record.info, when, {name: (handle.meta, handle.digest) for name, handle in handles.items()})
                for when, handles in (("before", record.before), ("after", record.after))
            )
            for record in records
        ]
    )


def digest_inputs(record: StoredRecord) -> str:
    """`digest_records` of the record without its outputs, which a comparison with the oracle does not
    read."""
    return _of(
        (
            (record.info, "before", {name: (one.meta, one.digest) for name, one in record.before.items()}),
            (record.info, "after", {}),
        )
    )


def digest_drafts(drafts: Sequence[RecordDraft]) -> str:
    """The value that `digest_records` has for the drafts once they are stored."""
    return combine_digests(
        [
            _of(
                (
                    draft.info,
                    when,
                    {name: (one.meta, digest_of(to_bits(one.data))) for name, one in part.items()},
                )
                for when, part in (("before", draft.before), ("after", draft.after))
            )
            for draft in drafts
        ]
    )


def combine_digests(digests: Sequence[str]) -> str:
    """The digest of several records from their own digests, in order."""
    return digests[0] if len(digests) == 1 else blake3("".join(digests).encode()).hexdigest()


def digest_store(path: str, choice: Choice) -> str:
    """`digest_records` of the chosen records that the store holds now. StoreError if it is no store any
    more."""
    with open_store(path) as store:
        return digest_records([store.records[number] for number in choice(store)])


@contextmanager
def open_unchanged(
    path: str, choice: Choice, expected: str | None = None
) -> Iterator[tuple[Store, Sequence[int], str]]:
    """Opens a store and yields it with the numbers of the chosen records and their digest. StoreError if the
    digest is not `expected`, or if it has changed at the end of the `with` block."""
    with open_store(path) as store:
        numbers = choice(store)
        found = digest_records([store.records[number] for number in numbers])
        if expected is not None:
            check_unchanged(path, expected, found)
        yield store, numbers, found
    check_unchanged(path, found, digest_store(path, choice))


def check_unchanged(where: str, expected: str, found: str) -> None:
    """StoreError if the digest `found` of the records is not `expected`, the digest when the question was
    asked."""
    if found != expected:
        raise StoreError(
            f"{where}: the records of the store changed while they were replayed; the verdict is discarded."
            " Run the command again"
        )


def _of(parts: Iterable[tuple[RecordInfo, str, Mapping[str, tuple[TensorMeta, str]]]]) -> str:
    hasher = blake3()
    for info, when, tensors in parts:
        found: list[Any] = [info.op, sorted(info.conventions.items()), sorted(info.scalars.items())]
        found += [(name, pool.slots, pool.rows) for name, pool in sorted(info.pools.items())]
        found += [
            (when, name, meta.dtype, meta.shape, _held(meta), digest)
            for name, (meta, digest) in sorted(tensors.items())
        ]
        hasher.update(repr(found).encode())
    return hasher.hexdigest()


def _held(meta: TensorMeta) -> tuple[Any, ...]:
    return meta.caller_shape, meta.caller_strides, meta.caller_offset


def digest_code(paths: Iterable[Path]) -> str:
    """BLAKE3 of the relative names and contents of the source files at `paths`; of a folder, of all below
    it."""
    hasher = blake3()
    for path in sorted(paths):
        files = [path] if path.is_file() else sorted(_sources(path))
        for file in files:
            name = file.name if path.is_file() else str(file.relative_to(path))
            content = file.read_bytes()
            hasher.update(f"{name}\0{len(content)}\0".encode())
            hasher.update(content)
    return hasher.hexdigest()


def _sources(folder: Path) -> Iterable[Path]:
    return (file for file in files_below(folder) if file.suffix in SOURCE_SUFFIXES)


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and below it, also those that symbolic links lead to, without __pycache__."""
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above it, or a second one
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (Path(place) / name for name in files if (Path(place) / name).is_file())
