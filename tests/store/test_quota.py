# SPDX-License-Identifier: Apache-2.0
"""`keep_bytes`: a segment stays within it, what it holds are its latest records, and they are whole."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import RecordDraft
from gdnbench.store.journal import JournalWriter
from gdnbench.store.reader import Store
from gdnbench.store.sealer import Sealer
from gdnbench.store.segment_sealer import dropped_oldest, sealed_records
from gdnbench.store.summary import segment_summary
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store import journal_calls as calls
from tests.store.store_samples import PLAIN, TINY, randn, record

SEGMENT = "seg"


def writer(path: Path, keep_bytes: int | None) -> StoreWriter:
    return StoreWriter(
        path,
        kind="capture",
        segment=SEGMENT,
        compression=PLAIN,
        chunking=TINY,
        durable=False,
        keep_bytes=keep_bytes,
    )


def step(n: int, size: int = 40) -> RecordDraft:
    """A state of `size` rows that step n - 1 left, and the one that it leaves; and a weight of all."""
    shared = {"w": torch.ones(30, 20)}
    return record({"s": randn(size, 20, seed=n), **shared}, {"s": randn(size, 20, seed=n + 1)}, call=n)


def bytes_of(segment: Path) -> int:
    """Of its batches, counted by the shell's own idea of a tree."""
    return sum(
        (Path(top) / name).stat().st_size
        for batch in segment.iterdir()
        if batch.is_dir() and batch.name != "end"
        for top, _, names in os.walk(batch)
        for name in names
    )


def calls_in(path: Path) -> list[int]:
    with Store.open(path) as opened:
        return [found.info.call for found in opened.records]


def one_batch(folder: Path) -> int:
    with writer(folder, None) as alone:
        alone.write("0", [step(0), step(1)])
    return bytes_of(folder / "segments" / SEGMENT)


def test_the_oldest_batches_make_room_and_the_rest_stays_whole(tmp_path: Path) -> None:
    limit = 3 * one_batch(tmp_path / "alone") + 5000
    path = tmp_path / "store.zarr"
    with writer(path, limit) as out:
        for n in range(0, 20, 2):
            out.write(f"{n:010d}", [step(n), step(n + 1)], n)
            assert bytes_of(path / "segments" / SEGMENT) <= limit
            assert calls_in(path) == list(range(max(0, n - 4), n + 2))
            assert verify(path).ok
    with Store.open(path) as opened:
        first = opened.records[0]
        assert first.key == f"{SEGMENT}/14"
        assert torch.equal(first.before["w"].read(), torch.ones(30, 20))
        assert torch.equal(first.before["s"].read(), randn(40, 20, seed=14))
    assert dropped_oldest(path, SEGMENT) == 14


def test_without_a_bound_batches_share_and_with_one_they_do_not(tmp_path: Path) -> None:
    """Else the test above would pass with a writer that drops what later records need."""
    for name, keep, shared in (("a", None, True), ("b", 1 << 30, False)):
        with writer(tmp_path / name, keep) as out:
            out.write("0", [step(0)])
            out.write("1", [step(1)], 1)
        with Store.open(tmp_path / name) as opened:
            assert (opened.records[1].before["s"].location.batch == "0") is shared


def test_what_cannot_fit_alone_is_refused_and_drops_nothing(tmp_path: Path) -> None:
    limit = 3 * one_batch(tmp_path / "alone")
    path = tmp_path / "store.zarr"
    with writer(path, limit) as out:
        out.write("0", [step(0)])
        with pytest.raises(BadInputError, match=wording("store.quota-too-small")):
            out.write("1", [step(1, size=4000)], 1)
        out.write("2", [step(2)], 2)
    assert calls_in(path) == [0, 2]


def test_a_writer_that_goes_on_counts_what_is_there_and_clears_what_was_on_its_way_out(
    tmp_path: Path,
) -> None:
    limit = 3 * one_batch(tmp_path / "alone") + 5000
    path = tmp_path / "store.zarr"
    with writer(path, limit) as out:
        for n in range(0, 6, 2):
            out.write(f"{n:010d}", [step(n), step(n + 1)], n)
    # As a writer leaves it that is killed between the rename and the end of the removal.
    leaving = path / ".incoming" / SEGMENT / "0000000000.dropped"
    leaving.parent.mkdir(parents=True)
    shutil.move(path / "segments" / SEGMENT / "0000000000", leaving)
    assert calls_in(path) == [2, 3, 4, 5]
    with writer(path, limit) as out:
        out.write("0000000006", [step(6), step(7)], 6)
        assert calls_in(path) == [2, 3, 4, 5, 6, 7]
        out.write("0000000008", [step(8), step(9)], 8)
    assert calls_in(path) == [4, 5, 6, 7, 8, 9]
    assert not (path / ".incoming").exists()


def test_a_batch_that_cannot_be_removed_costs_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails while the oldest goes: it is out of the store, and is counted no more."""
    path = tmp_path / "store.zarr"
    with writer(path, 3 * one_batch(tmp_path / "alone") + 5000) as out:
        for n in range(0, 6, 2):
            out.write(f"{n:010d}", [step(n), step(n + 1)], n)
        with monkeypatch.context() as patched:
            patched.setattr("gdnbench.store.quota.shutil.rmtree", _fails_unless_told)
            with pytest.raises(StoreError, match=wording("file.unwritable")):
                out.write("0000000006", [step(6), step(7)], 6)
        assert calls_in(path) == [2, 3, 4, 5]
        out.write("0000000006", [step(6), step(7)], 6)
        assert calls_in(path) == [2, 3, 4, 5, 6, 7]
    assert verify(path).ok


def _fails_unless_told(
    path: Path, ignore_errors: bool = False, real: Callable[..., None] = shutil.rmtree
) -> None:
    if not ignore_errors:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    real(path, ignore_errors=True)


@pytest.mark.slow
def test_a_journal_is_sealed_within_its_bound_and_its_end_says_what_was_dropped(tmp_path: Path) -> None:
    limit = 400_000
    journal = JournalWriter(tmp_path, process={}, provenance={}, file_bytes=100_000, keep_bytes=limit)
    segment = tmp_path / "segments" / journal.segment
    sealer = Sealer(tmp_path)
    for n in range(60):
        assert journal.append(calls.draft(n))
        if n % 7 == 6:
            sealer.poll()
            assert bytes_of(segment) <= limit
            sealer.close()  # another takes over
            sealer = Sealer(tmp_path)
    journal.close({})
    sealer.poll()
    sealer.close()

    held = calls_in(tmp_path)
    assert held == list(range(held[0], 60))
    assert 0 < held[0] < 60
    assert sealed_records(tmp_path, journal.segment) == 60
    end = segment_summary(tmp_path, journal.segment)
    assert end is not None
    assert (end.records, end.dropped_oldest, end.damage) == (60, held[0], ())
    report = verify(tmp_path)
    assert report.ok
    (problem,) = report.problems
    dropped = wording("store.dropped-oldest", segment=journal.segment, records=held[0])
    assert re.fullmatch(dropped, problem)
    with Store.open(tmp_path) as opened:
        for found in opened.records:
            calls.assert_is_call(
                found.info,
                {name: handle.read() for name, handle in found.before.items()},
                {name: handle.read() for name, handle in found.after.items()},
            )


def test_a_segment_without_a_bound_says_nothing_of_it(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, process={}, provenance={})
    journal.append(calls.draft(0))
    journal.close({})
    Sealer(tmp_path).poll()
    end = segment_summary(tmp_path, journal.segment)
    assert end is not None
    assert end.dropped_oldest == dropped_oldest(tmp_path, journal.segment) == 0
