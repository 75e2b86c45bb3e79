# SPDX-License-Identifier: Apache-2.0
"""A store with rows, blobs of several shards and two segments, and the same as objects."""

from __future__ import annotations

from pathlib import Path

from gdnbench.store.objects import Objects
from gdnbench.store.reader import Store
from gdnbench.store.summary import SegmentSummary, write_summary
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import PLAIN, TINY, randn, record


def make_store(path: Path, *, ended: bool = True, batches: int = 2) -> Path:
    for number in range(2):
        with StoreWriter(
            path, kind="capture", segment=f"{number}", compression=PLAIN, chunking=TINY, durable=False
        ) as writer:
            for batch in range(batches):
                seed = 10 * number + batch
                row, blob = randn(4, 8, seed=seed), randn(40, 64, seed=seed)
                draft = record({"q": row, "k": -row, "state": blob}, {"state": blob + 1}, call=batch)
                writer.write(f"{batch:010d}", [draft], batch)
            if ended:
                write_summary(path, f"{number}", SegmentSummary(closed=True, records=batches))
    return path


def as_objects(path: Path, url: str) -> Objects:
    """Copies the files of a store, by nothing of what is tested but `put`."""
    objects = Objects(url)
    for file in path.rglob("*"):
        if file.is_file():
            objects.put_object(file.relative_to(path).as_posix(), file.read_bytes())
    return objects


def contents(store: Store) -> list[tuple[str, dict[str, bytes]]]:
    """Every record's key, and the bytes of its tensors."""
    return [
        (
            record.key,
            {
                f"{name} {when}": handle.bits().tobytes()
                for when, handles in (("before", record.before), ("after", record.after))
                for name, handle in handles.items()
            },
        )
        for record in store.records
    ]
