# SPDX-License-Identifier: Apache-2.0
"""The sealer: what a journal holds is in the store afterwards, once, and what it does not hold is said."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

from gdnbench.errors import StoreError
from gdnbench.record import Status
from gdnbench.store import batch, segment_sealer
from gdnbench.store.journal import JournalWriter
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.recover import open_store
from gdnbench.store.sealer import Progress, Sealer
from gdnbench.store.segment_sealer import SegmentSealer, sealed_records
from gdnbench.store.summary import segment_summary
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store import journal_calls as calls

SMALL_FILES = 200_000


def new_writer(store: Path, **options: Any) -> JournalWriter:
    return JournalWriter(store, process={"rank": 3}, provenance={"git": "abc"}, **options)


def die(writer: JournalWriter) -> None:
    """What the kernel does for a process that is killed: its locks are released, nothing more is written."""
    writer._log.release()


def assert_is_call(record: StoredRecord) -> None:
    calls.assert_is_call(
        record.info,
        {name: handle.read() for name, handle in record.before.items()},
        {name: handle.read() for name, handle in record.after.items()},
    )


def assert_sealed(store: Path, numbers: list[int]) -> None:
    assert verify(store).ok
    with Store.open(store) as opened:
        assert [record.info.call for record in opened.records] == numbers
        for record in opened.records:
            assert_is_call(record)


def test_a_closed_journal_becomes_batches_and_goes(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    for n in range(30):
        writer.append(calls.draft(n))
    writer.close({"kept": 30})
    progress = Sealer(tmp_path).poll()
    assert (progress.records, progress.ended, progress.live) == (30, (writer.segment,), ())
    assert progress.queued_bytes == 0
    assert not (tmp_path / ".journal").exists()
    assert_sealed(tmp_path, list(range(30)))
    with Store.open(tmp_path) as store:
        assert store.segments[0].process == {"rank": 3}
        assert store.segments[0].provenance == {"git": "abc"}
    summary = segment_summary(tmp_path, writer.segment)
    assert summary is not None
    assert (summary.closed, summary.records, summary.torn, summary.damage) == (True, 30, None, ())
    assert summary.summary == {"kept": 30}


def test_the_summary_is_no_batch_and_no_problem(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writer.close({})
    Sealer(tmp_path).poll()
    report = verify(tmp_path)
    assert report.damages == ()
    assert report.problems == ()
    end = zarr.open_group(tmp_path / "segments" / writer.segment / "end", mode="r")
    assert end.attrs["gdnbench"]["records"] == 1  # type: ignore[index, call-overload]


def test_a_living_journal_is_sealed_by_age_and_freed_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_sealer, "BATCH_SECONDS", 0.0)
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    sealer = Sealer(tmp_path)
    for n in range(30):
        writer.append(calls.draft(n))
        if n % 4 == 3:
            progress = sealer.poll()
            assert progress.records == n + 1
            assert progress.live == (writer.segment,)
    assert writer.stats.queued_bytes < 3 * SMALL_FILES  # the current file, and what came after the last poll
    assert segment_summary(tmp_path, writer.segment) is None
    writer.close({})
    assert sealer.poll().ended == (writer.segment,)
    assert_sealed(tmp_path, list(range(30)))


def test_young_records_wait_to_share_a_batch(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    sealer = Sealer(tmp_path)
    for n in range(3):
        writer.append(calls.draft(n))
        assert sealer.poll().records == 0
    writer.close({})
    assert sealer.poll().records == 3
    with Store.open(tmp_path) as store:
        assert [batch.count for batch in store.batches] == [3]


def test_a_batch_is_bounded_in_records_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_sealer, "BATCH_RECORDS", 7)
    writer = new_writer(tmp_path)
    for n in range(20):
        writer.append(calls.draft(n))
    writer.close({})
    Sealer(tmp_path).poll()
    with Store.open(tmp_path) as store:
        assert [(batch.first, batch.count) for batch in store.batches] == [(0, 7), (7, 7), (14, 6)]
    monkeypatch.setattr(segment_sealer, "BATCH_BYTES", 100_000)
    writer = new_writer(tmp_path / "other")
    for n in range(8):
        writer.append(calls.draft(n))
    writer.close({})
    Sealer(tmp_path / "other").poll()
    assert_sealed(tmp_path / "other", list(range(8)))
    with Store.open(tmp_path / "other") as store:
        assert 2 < len(store.batches) < 8


def test_two_writers_in_one_store(tmp_path: Path) -> None:
    first, second = new_writer(tmp_path), new_writer(tmp_path)
    for n in range(10):
        (first if n % 2 else second).append(calls.draft(n))
    first.close({})
    second.close({})
    progress = Sealer(tmp_path).poll()
    assert set(progress.ended) == {first.segment, second.segment}
    assert verify(tmp_path).ok
    with Store.open(tmp_path) as store:
        assert sorted(record.info.call for record in store.records) == list(range(10))
        assert [record.info.call for record in store.records_of(first.segment)] == [1, 3, 5, 7, 9]


def test_only_one_sealer_works_on_a_segment(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    first, second = Sealer(tmp_path), Sealer(tmp_path)
    assert first.poll().live == (writer.segment,)
    assert second.poll().busy == (writer.segment,)
    writer.close({})
    assert second.poll().busy == (writer.segment,)
    first.close()
    assert second.poll().ended == (writer.segment,)
    assert_sealed(tmp_path, [0])


def test_a_dead_writer_leaves_all_that_was_appended(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for n in range(5):
        writer.append(calls.draft(n))
    path = tmp_path / ".journal" / writer.segment / "00000000.log"
    whole = path.stat().st_size
    writer.append(calls.draft(5))
    die(writer)
    os.truncate(path, path.stat().st_size - 10)
    size = path.stat().st_size - whole
    notes = io.StringIO()
    with open_store(tmp_path, notes=notes) as store:
        assert [record.info.call for record in store.records] == list(range(5))
    torn = wording("store.record-torn", what="call 5 of layers.3", bytes=size, of=size + 10)
    found = re.compile(f"5 records, skipped {torn}")
    recovered = wording("store.recovered", segment=writer.segment, found=found)
    assert re.fullmatch(f"gdnbench: {recovered}\n", notes.getvalue())
    summary = segment_summary(tmp_path, writer.segment)
    assert summary is not None
    assert not summary.closed
    assert summary.torn is not None
    assert re.fullmatch(torn, summary.torn)
    assert_sealed(tmp_path, list(range(5)))
    notes = io.StringIO()
    open_store(tmp_path, notes=notes).close()
    assert notes.getvalue() == ""


def test_a_call_that_never_came_back_is_a_record_with_its_inputs(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    token = writer.begin(calls.info(1), calls.tensors(1, "before"))
    writer.begin(calls.info(2), calls.tensors(2, "before"))
    writer.end(token, calls.info(1), calls.tensors(1, "after"))
    die(writer)
    notes = io.StringIO()
    with open_store(tmp_path, notes=notes) as store:
        assert [(record.info.call, record.info.status) for record in store.records] == [
            (0, Status.COMPLETE),
            (1, Status.COMPLETE),
            (2, Status.UNFINISHED),
        ]
        for record in store.records:
            assert_is_call(record)
        assert store.records[2].after == {}
    assert re.search("3 records, " + wording("store.inputs-only", records=1), notes.getvalue())


@pytest.mark.every(2)
@pytest.mark.parametrize("steps_before_crash", range(6))
def test_a_sealer_that_stops_between_any_two_steps_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_before_crash: int
) -> None:
    """The end has many steps (batches, the unfinished, the summary, deletions): each may be the last."""
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    for n in range(10):
        writer.append(calls.draft(n))
    writer.begin(calls.info(10), calls.tensors(10, "before"))
    die(writer)
    steps = 0

    class Crash(Exception):
        pass

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal steps
            if steps == steps_before_crash:
                raise Crash
            steps += 1
            return function(*arguments, **keywords)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(segment_sealer, "BATCH_RECORDS", 6)
        patch.setattr(StoreWriter, "write", counted(StoreWriter.write))
        patch.setattr(segment_sealer, "write_summary", counted(segment_sealer.write_summary))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        crashing = Sealer(tmp_path)
        with pytest.raises(Crash):
            crashing.poll()
        crashing.close()
    Sealer(tmp_path).poll()
    assert_sealed(tmp_path, list(range(11)))
    summary = segment_summary(tmp_path, writer.segment)
    assert summary is not None
    assert (summary.records, summary.unfinished) == (11, 1)
    assert not (tmp_path / ".journal").exists()


def test_damage_is_skipped_said_and_kept(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES, carry_bytes=0)
    for n in range(12):
        writer.append(calls.draft(n))
    writer.close({})
    folder = tmp_path / ".journal" / writer.segment
    damaged = sorted(folder.glob("*.log"))[1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    notes = io.StringIO()
    with open_store(tmp_path, notes=notes) as store:
        found = [record.info.call for record in store.records]
        assert len(found) == 11
        for record in store.records:
            assert_is_call(record)
    assert f"{damaged}, byte " in notes.getvalue()
    assert verify(tmp_path).ok
    assert sorted(path.name for path in folder.iterdir()) == ["00000001.damaged"]
    lost = (set(range(12)) - set(found)).pop()
    assert found == [n for n in range(12) if n != lost]


def test_a_record_that_cannot_be_stored_does_not_stop_the_others(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for n in range(4):
        draft = calls.draft(n)
        if n == 2:
            meta = draft.before["q"].meta
            object.__setattr__(meta, "axes", ())
        writer.append(draft)
    writer.close({})
    Sealer(tmp_path).poll()
    assert_sealed(tmp_path, [0, 1, 3])
    summary = segment_summary(tmp_path, writer.segment)
    assert summary is not None
    assert len(summary.damage) == 1
    assert summary.damage[0].startswith("record 2 cannot be stored: ")
    assert sealed_records(tmp_path, writer.segment) == 4


def test_records_with_more_to_say_than_a_reader_takes_at_once_get_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of large pools are numbers in a record's line. One line past the limit is said, not stored."""
    drafts = [calls.draft(n) for n in range(6)]
    rows = tuple(range(20_000))
    pool = replace(drafts[4].info.pools["state"], slots=1 << 20, rows=rows)
    drafts[4] = replace(drafts[4], info=replace(drafts[4].info, pools={"state": pool}))
    monkeypatch.setattr(batch, "METADATA_LIMIT", 10_000)
    writer = new_writer(tmp_path)
    for draft in drafts:
        writer.append(draft)
    writer.close({})
    Sealer(tmp_path).poll()
    assert_sealed(tmp_path, [0, 1, 2, 3, 5])
    summary = segment_summary(tmp_path, writer.segment)
    assert summary is not None
    (damage,) = summary.damage
    too_large = re.compile(wording("store.batch-too-large", rows=20_000))
    assert re.fullmatch(wording("store.record-not-stored", record=4, error=too_large), damage)


def test_a_journal_whose_process_died_while_making_it_is_removed_later(tmp_path: Path) -> None:
    unborn = tmp_path / ".journal" / ".new-1-2-3"
    unborn.mkdir(parents=True)
    (unborn / "writer.lock").touch()
    Sealer(tmp_path).poll()
    assert unborn.exists(), "it may be in the making"
    os.utime(unborn, (0, 0))
    Sealer(tmp_path).poll()
    assert not unborn.exists()


def test_a_store_of_another_kind_keeps_the_journal(tmp_path: Path) -> None:
    StoreWriter(tmp_path, kind="synth").close()
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writer.close({})
    progress = Sealer(tmp_path).poll()
    assert len(progress.refused) == 1
    assert re.search(wording("store.kind-differs", found="synth"), progress.refused[0])
    assert (tmp_path / ".journal" / writer.segment / "00000000.log").exists()


def test_a_full_disk_under_the_store_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writer.close({})

    def no_space(*_: Any) -> None:
        raise StoreError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write", no_space)
        notes = io.StringIO()
        open_store(tmp_path, notes=notes).close()
        kept = wording("store.journal-kept", path=tmp_path, error="No space left on device")
        assert re.search(kept, notes.getvalue())
    open_store(tmp_path, notes=io.StringIO()).close()
    assert_sealed(tmp_path, [0])


def test_a_living_writer_is_left_alone_and_mentioned(tmp_path: Path) -> None:
    dead, living = new_writer(tmp_path), new_writer(tmp_path)
    dead.append(calls.draft(0))
    living.append(calls.draft(1))
    die(dead)
    notes = io.StringIO()
    with open_store(tmp_path, notes=notes) as store:
        assert [record.info.call for record in store.records] == [0]
    assert f"segment {living.segment} is still being written" in notes.getvalue()
    assert living.append(calls.draft(2))
    living.close({})
    open_store(tmp_path, notes=io.StringIO()).close()
    with Store.open(tmp_path) as store:
        assert [record.info.call for record in store.records_of(living.segment)] == [1, 2]


def test_a_store_of_which_nothing_is_sealed_yet(tmp_path: Path) -> None:
    living = new_writer(tmp_path)
    living.append(calls.draft(0))
    with pytest.raises(StoreError, match=wording("store.no-batch-yet", path=tmp_path)):
        open_store(tmp_path, notes=io.StringIO())
    living.close({})
    open_store(tmp_path, notes=io.StringIO()).close()


def test_a_read_only_store_is_opened_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreWriter(tmp_path, kind="capture").close()
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    die(writer)
    # For root every folder is writable, so a mode would show nothing here.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    notes = io.StringIO()
    with open_store(tmp_path, notes=notes) as store:
        assert len(store.records) == 0
    assert re.search(wording("store.journals-unlisted", path=tmp_path, journals=1), notes.getvalue())
    assert (tmp_path / ".journal" / writer.segment / "00000000.log").exists()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=wording("store.missing")):
        open_store(tmp_path / "nothing")


def test_a_writer_that_blocks_is_freed_by_the_sealer(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, limit_bytes=400_000)
    stop = threading.Event()
    seen: list[Progress] = []
    thread = threading.Thread(target=Sealer(tmp_path).run_until, args=(stop.is_set, seen.append))
    thread.start()
    for n in range(60):
        assert writer.append(calls.draft(n))
    writer.close({})
    stop.set()
    thread.join()
    assert writer.stats.blocked_seconds > 0
    assert seen[-1].records == 60
    assert_sealed(tmp_path, list(range(60)))


def test_a_sealer_holds_its_segment_for_the_writer_to_see(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    assert not writer._log.sealer_lives()
    sealer = SegmentSealer.try_lock(tmp_path, writer.segment)
    assert sealer is not None
    assert writer._log.sealer_lives()
    sealer.close()
    assert not writer._log.sealer_lives()
    writer.close({})


def test_the_process_ends_by_itself_when_all_is_sealed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "gdnbench.store.sealer", str(tmp_path), "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for n in range(20):
        writer.append(calls.draft(n))
    writer.close({})
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, b"", b"")
    assert_sealed(tmp_path, list(range(20)))


def test_the_process_says_what_it_refuses(tmp_path: Path) -> None:
    StoreWriter(tmp_path, kind="synth").close()
    new_writer(tmp_path).close({})
    process = subprocess.run(
        [sys.executable, "-m", "gdnbench.store.sealer", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert re.match(
        wording("store.kind-differs", path=f"gdnbench sealer: {tmp_path}", found="synth"), process.stderr
    )


def test_a_sealer_does_not_import_torch() -> None:
    """One runs beside every captured process: torch would take more than a second and 200 MB there."""
    code = "import sys, gdnbench.store.sealer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
