# SPDX-License-Identifier: Apache-2.0
"""Makes an anonymised copy of a store, and verifies that it still shows what the source shows."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gdnbench.errors import BadInputError, StoreError
from gdnbench.judge.calls import conventions_of
from gdnbench.ops import operation
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.replay.replay import RECORDED
from gdnbench.share import metadata
from gdnbench.share.anonymize import anonymized_tensors
from gdnbench.share.disclosure import sentences
from gdnbench.share.synthetic import synthetic_inputs
from gdnbench.share.transforms import Bases, Kind
from gdnbench.share.verify_copy import Shown, replay_both, same_elements
from gdnbench.store.address import Address, folder_to_write
from gdnbench.store.durable import sync, sync_tree
from gdnbench.store.layout import METADATA, group_json, parse_node
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter, root_json

KINDS = ("capture", "synth")
"""Kinds of stores that are shared. A run is excluded: its results contain what it was made from."""
NOTHING, SYNTHETIC = "nothing", "synthetic"
HIDES = (NOTHING, *Kind, SYNTHETIC)
TRIES = 3
"""Number of secrets to try until the copy shows what the source shows."""
_BATCH_RECORDS = 64
_BATCH_BYTES = 64 << 20

Progress = Callable[[int, int], None]
"""Called with the number of records copied and the total."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The result. `lost`: why nothing was written, one line each; empty if the copy exists."""

    records: int
    dropped: tuple[str, ...]
    statement: tuple[str, ...]
    shown: tuple[Shown, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(slots=True)
class _Copy:
    """One attempt: its folder and its secret."""

    folder: Path
    hide: str
    outputs: bool = True
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    dropped: metadata.Dropped = field(default_factory=metadata.Dropped)


def share(
    source: Store,
    out: Address,
    numbers: Sequence[int],
    *,
    hide: str = NOTHING,
    replays: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Shared:
    """Copy records `numbers` of `source` to `out`, a folder or .zip that does not exist yet.

    hide: `nothing`, `rotation`, `permutation` or `synthetic`. replays: options of `replay` under which source
    and copy must give the same results; None: the elements must be equal or, if they are hidden, torch's
    kernel must give the same results against the recorded outputs.

    `out` appears only when it is complete. BadInputError for an existing path, a run store, or data that
    cannot be hidden in this way; CannotRunError if the kernel cannot run; also what a replay raises.
    """
    out = folder_to_write(out)
    _check(source, out, hide)
    numbers = sorted(set(numbers))
    if not numbers:
        raise BadInputError(f"{source.path} has no record to share")
    options = _replays(source, numbers, hide, replays)
    # Rotation rounds inputs to bfloat16 again, so outputs differ from the recorded ones by more than kernels
    # may: leave them out, unless the recorded output is what fails.
    outputs = hide != Kind.ROTATION or (options or {}).get("against") == RECORDED
    found: list[Shown] = []
    for _ in range(TRIES if hide != NOTHING else 1):
        with _beside(out) as folder:
            copy = _Copy(folder, hide, outputs)
            statement = sentences(hide, {source.records[number].info.op for number in numbers})
            _write(copy, source, numbers, statement, progress)
            _check_bytes(folder)
            with Store.open(folder) as written:
                lost = _lost_bits(source, numbers, written) if hide == NOTHING else []
                if options is not None:
                    found = replay_both(source, numbers, written, options)
                    lost += [f"record {one.source.number}: {one.lost}" for one in found if one.lost]
            told = tuple(sorted(copy.dropped.names)), tuple(statement), tuple(found)
            if not lost:
                _publish(folder, out)
                return Shared(len(numbers), *told)
    return Shared(len(numbers), *told, tuple(lost))


def _check(source: Store, out: Path, hide: str) -> None:
    if hide not in HIDES:
        raise BadInputError(f"--hide {hide!r} is not one of {', '.join(HIDES)}")
    if source.kind not in KINDS:
        raise BadInputError(f"{source.path} is a {source.kind} store; share the capture it was made from")
    if os.path.lexists(out):
        raise BadInputError(f"{out} is there already; share to another path")
    if not out.absolute().parent.is_dir():
        raise BadInputError(f"{out} cannot be made: {out.absolute().parent} is no folder")


def _replays(
    source: Store, numbers: Sequence[int], hide: str, replays: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    if replays is not None:
        if hide == SYNTHETIC and replays.get("against") == RECORDED:
            raise BadInputError("--hide synthetic keeps no output: --against recorded cannot be asked of it")
        return dict(replays)
    if hide == NOTHING:
        return None
    if hide != Kind.PERMUTATION:
        raise BadInputError(
            f"--hide {hide}: say which kernel fails, by --kernel: its failure may not survive"
        )
    if not any(source.records[number].after for number in numbers):
        raise BadInputError(
            "there is no recorded output to compare with: say which kernel fails, by --kernel"
        )
    return {"kernel": "torch", "against": RECORDED}


def _check_bytes(copy: Path) -> None:
    """StoreError unless the copy verifies completely."""
    report = verify(copy)
    if not report.ok or report.problems:
        raise StoreError(f"the copy was not written whole: {(*report.damages, *report.problems)[0]}")


def _lost_bits(source: Store, numbers: Sequence[int], copy: Store) -> list[str]:
    other = same_elements(source, numbers, copy)
    return [f"{other}: not the elements of the source"] if other else []


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A hidden folder next to `out`, on the same file system; removed at the end unless it was renamed."""
    folder = out.absolute().parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        yield folder
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(
    copy: _Copy, source: Store, numbers: Sequence[int], statement: Sequence[str], progress: Progress | None
) -> None:
    by_segment: dict[str, list[StoredRecord]] = {}
    for number in numbers:
        record = source.records[number]
        by_segment.setdefault(record.segment.name, []).append(record)
    done = 0
    for at, records in enumerate(by_segment.values()):
        segment = records[0].segment
        with StoreWriter(
            copy.folder,
            kind=source.kind,
            # Like segment names, without time and process.
            segment=f"{at:013d}-0-{secrets.token_hex(4)}",
            process=metadata.process_of(segment.process, copy.dropped),
            provenance=metadata.provenance_of(segment.provenance, copy.dropped),
        ) as writer:
            for first, batch in _batches(records):
                writer.write(f"{first:012d}", [_draft(record, copy) for record in batch], first)
                done += len(batch)
                if progress is not None:
                    progress(done, len(numbers))
    _write_root(copy, source.kind, statement)


def _write_root(copy: _Copy, kind: str, statement: Sequence[str]) -> None:
    """Write the root again, now that the left-out names are known; nobody has seen the store yet."""
    shared = {
        "dropped": sorted(copy.dropped.names),
        "transformed": None if copy.hide == NOTHING else copy.hide,
        "inferable": list(statement),
    }
    _, root = parse_node(root_json(kind), "group", str(copy.folder))
    (copy.folder / METADATA).write_bytes(group_json({**root, "shared": shared}))


def _batches(records: Sequence[StoredRecord]) -> Iterator[tuple[int, list[StoredRecord]]]:
    """Runs of records that fit into memory, each with the number of its first record."""
    first, batch, nbytes = 0, [], 0
    for record in records:
        batch.append(record)
        nbytes += sum(handle.nbytes for handle in (*record.before.values(), *record.after.values()))
        if len(batch) == _BATCH_RECORDS or nbytes > _BATCH_BYTES:
            yield first, batch
            first, batch, nbytes = first + len(batch), [], 0
    if batch:
        yield first, batch


def _draft(record: StoredRecord, copy: _Copy) -> RecordDraft:
    _check_tensors(record)
    info = metadata.info_of(record, copy.secret, copy.dropped)
    before, after = _elements(record, copy)
    return RecordDraft(info, _drafts(record.before, before), _drafts(record.after, after))


def _check_tensors(record: StoredRecord) -> None:
    """BadInputError for tensors or axes that the contract does not define, since their names go into the
    copy."""
    contract = operation(record.info.op)
    specs = {spec.name: spec for spec in contract.tensors}
    conventions = conventions_of(record, contract)
    for name, handle in (*record.before.items(), *record.after.items()):
        if name not in specs or handle.meta.axes != tuple(specs[name].axes_in(conventions)):
            raise BadInputError(
                f"record {record.number}: {name} {list(handle.meta.axes)} is no tensor of {contract.name}; "
                "nobody knows what it tells: leave the record out"
            )


def _elements(record: StoredRecord, copy: _Copy) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    if copy.hide == SYNTHETIC:
        return synthetic_inputs(record, Bases(copy.secret, Kind.ROTATION)), {}
    if copy.hide != NOTHING:
        before, after = anonymized_tensors(record, Bases(copy.secret, Kind(copy.hide)))
        return before, after if copy.outputs else {}
    plain = [
        {name: handle.read() for name, handle in handles.items()} for handles in (record.before, record.after)
    ]
    return plain[0], plain[1]


def _drafts(handles: Mapping[str, TensorHandle], tensors: Mapping[str, Tensor]) -> dict[str, TensorDraft]:
    return {
        name: TensorDraft(tensor, metadata.meta_of(handles[name].meta)) for name, tensor in tensors.items()
    }


def _publish(folder: Path, out: Path) -> None:
    if out.suffix != ".zip":
        sync_tree(folder)
        os.rename(folder, out)
        sync(out.absolute().parent)
        return
    made = folder / ".zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path != made:
                # ZipInfo has no file times
                archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes())
    sync(made)
    # Like a rename onto a folder that is not empty, link() fails if `out` exists.
    os.link(made, out)
    sync(out.absolute().parent)
