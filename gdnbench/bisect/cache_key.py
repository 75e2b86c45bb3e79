"""What a verdict depends on, as digests: records, and the code of a kernel."""

from __future__ import annotations

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
    """BLAKE3 of what a replay of records sees, in order: operation, conventions, scalars, pools, and of
    tensors their digests and how the caller held them. Where the store lies and how it is cut does not
    matter."""
    return combine_digests(
        [
            _of(
                (record.info, when, {name: (handle.meta, handle.digest) for name, handle in handles.items()})
                for when, handles in (("before", record.before), ("after", record.after))
            )
            for record in records
        ]
    )


def digest_drafts(drafts: Sequence[RecordDraft]) -> str:
    """What `of_records` has of them once they are stored."""
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
    """The digest of records whose own digests these are, in order."""
    return digests[0] if len(digests) == 1 else blake3("".join(digests).encode()).hexdigest()


def digest_store(path: str, choice: Choice) -> str:
    """`of_records` of what the store holds now. StoreError if it is none any more."""
    with open_store(path) as store:
        return digest_records([store.records[number] for number in choice(store)])


@contextmanager
def open_unchanged(
    path: str, choice: Choice, expected: str | None = None
) -> Iterator[tuple[Store, Sequence[int], str]]:
    """A store while it is read, with the numbers of the records that are meant and their digest. StoreError
    if that is not as `expected`, or another at the end: what was read is then nobody's."""
    with open_store(path) as store:
        numbers = choice(store)
        found = digest_records([store.records[number] for number in numbers])
        if expected is not None:
            check_unchanged(path, expected, found)
        yield store, numbers, found
    check_unchanged(path, found, digest_store(path, choice))


def check_unchanged(where: str, expected: str, found: str) -> None:
    """StoreError if records are others than they were when a question about them was asked."""
    if found != expected:
        raise StoreError(
            f"{where}: the store's records are others than when this began, so the verdict is not kept;"
            " give the command again"
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
    """BLAKE3 of the source files at `paths`, folders with all below them: relative names and contents."""
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
    return (
        file
        for file in folder.rglob("*")
        if file.suffix in SOURCE_SUFFIXES and "__pycache__" not in file.parts and file.is_file()
    )
