"""What a verdict depends on, as digests: records, and the code of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from gdnbench.bits import to_bits
from gdnbench.record import RecordDraft, RecordInfo, TensorMeta
from gdnbench.store.batch import digest_of
from gdnbench.store.reader import StoredRecord

SOURCE_SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".cpp", ".h", ".ptx", ".so")


def of_records(records: Sequence[StoredRecord]) -> str:
    """BLAKE3 of what a replay of records sees, in order: operation, conventions, scalars, pools, and of
    tensors their digests and how the caller held them. Where the store lies and how it is cut does not
    matter."""
    return _of(
        (record.info, when, {name: (handle.meta, handle.digest) for name, handle in handles.items()})
        for record in records
        for when, handles in (("before", record.before), ("after", record.after))
    )


def of_drafts(drafts: Sequence[RecordDraft]) -> str:
    """What `of_records` has of them once they are stored."""
    return _of(
        (draft.info, when, {name: (one.meta, digest_of(to_bits(one.data))) for name, one in tensors.items()})
        for draft in drafts
        for when, tensors in (("before", draft.before), ("after", draft.after))
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


def of_code(paths: Iterable[Path]) -> str:
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
