# SPDX-License-Identifier: Apache-2.0
"""The journal: what was appended comes back, in order, bit for bit, or the loss is counted."""

from __future__ import annotations

import os
import resource
import signal
import struct
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import BadInputError
from gdnbench.record import JournalDraft, RecordDraft, Status, TensorDraft, TensorMeta
from gdnbench.store.journal import JournalWriter
from gdnbench.store.journal import format as journal_format
from gdnbench.store.journal.reader import JournalReader, JournalRecord, writer_lives
from tests.messages import wording
from tests.store import journal_calls as calls

SMALL_FILES = 200_000  # bytes: about four records of `journal_calls` to a file


def new_writer(store: Path, **options: Any) -> JournalWriter:
    return JournalWriter(store, process={"pid": os.getpid()}, provenance={"git": "abc"}, **options)


def folder_of(store: Path, writer: JournalWriter) -> Path:
    return store / ".journal" / writer.segment


def plain(record: JournalDraft) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    return calls.tensors_of(record.before), calls.tensors_of(record.after)


def assert_calls(records: list[JournalRecord], numbers: list[int]) -> None:
    assert [record.draft.info.call for record in records] == numbers
    for record in records:
        calls.assert_is_call(record.draft.info, *plain(record.draft))
        wanted = calls.tensors(record.draft.info.call, "before")
        assert {n: d.meta for n, d in record.draft.before.items()} == {n: d.meta for n, d in wanted.items()}


@pytest.mark.parametrize("carry_bytes", [0, 1 << 20])
def test_records_come_back_bit_for_bit(tmp_path: Path, carry_bytes: int) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES, carry_bytes=carry_bytes)
    assert all(writer.append(calls.draft(n)) for n in range(40))
    writer.close({"layers": 4})
    reader = JournalReader(folder_of(tmp_path, writer))
    records = list(reader.poll())
    assert_calls(records, list(range(40)))
    assert [record.number for record in records] == list(range(40))
    assert len({record.file for record in records}) > 3
    assert reader.finished
    assert reader.closed is not None
    assert reader.closed["summary"] == {"layers": 4}
    assert (reader.torn, reader.damage, reader.dropped) == (None, [], 0)
    assert reader.opening is not None
    assert (reader.opening.process, reader.opening.provenance) == ({"pid": os.getpid()}, {"git": "abc"})


def test_a_state_that_enters_the_next_step_is_written_once(tmp_path: Path) -> None:
    carrying = new_writer(tmp_path / "a")
    plain_writer = new_writer(tmp_path / "b", carry_bytes=0)
    for n in range(20):
        carrying.append(calls.draft(n))
        plain_writer.append(calls.draft(n))
    saved = plain_writer.stats.bytes - carrying.stats.bytes
    state = len(calls.expected(0)["after"]["state"])
    # Every state but the first is carried; a reference takes under 64 bytes of header.
    assert 19 * (state - 64) < saved <= 19 * state
    for writer in (carrying, plain_writer):
        writer.close({})


def test_a_state_changed_in_place_between_calls_is_not_carried(tmp_path: Path) -> None:
    """The caller may hand over live memory; what is compared is what was written."""
    writer = new_writer(tmp_path)
    state = torch.zeros(8, 32, 32)
    meta = TensorMeta("float32", (8, 32, 32), ("h", "v", "k"), (8, 32, 32), (1024, 32, 1), 0, "cpu")
    for n in range(3):
        draft = {"state": TensorDraft(state, meta)}
        writer.append(RecordDraft(calls.info(n), draft, draft))
        state += 1
    writer.close({})
    found = list(JournalReader(folder_of(tmp_path, writer)).poll())
    assert [float(calls.tensors_of(record.draft.before)["state"].unique()) for record in found] == [0, 1, 2]
    assert [float(calls.tensors_of(record.draft.after)["state"].unique()) for record in found] == [0, 1, 2]


_STATE_META = TensorMeta("float32", (8, 32, 32), ("h", "v", "k"), (8, 32, 32), (1024, 32, 1), 0, "cpu")


def step(n: int, before: torch.Tensor, after: torch.Tensor) -> RecordDraft:
    entering, leaving = ({"state": TensorDraft(state, _STATE_META)} for state in (before, after))
    return RecordDraft(calls.info(n), entering, leaving)


@pytest.mark.parametrize("file_bytes", [1 << 20, 1], ids=["one file", "a file a record"])
def test_a_borrowed_state_stays_as_it_was_whatever_its_layer_does_meanwhile(
    tmp_path: Path, file_bytes: int
) -> None:
    """Another thread's calls of the same layer may leave new states before the borrower is written."""
    states = [torch.full((8, 32, 32), float(n)) for n in range(5)]
    writer = new_writer(tmp_path, file_bytes=file_bytes)
    layer = calls.info(0).layer
    assert writer.carried(layer, "state", states[0]) is None, "nothing is kept yet"
    writer.append(step(0, states[0], states[1]))
    borrowed = writer.carried(layer, "state", states[1].clone())
    given_up = writer.carried(layer, "state", states[1])
    assert borrowed is not None
    assert given_up is not None
    writer.append(step(1, states[1], states[2]))
    writer.append(step(2, states[2], states[3]))
    writer.append(step(3, borrowed, states[4]))
    assert torch.equal(given_up, states[1])
    writer.close({})
    found = list(JournalReader(folder_of(tmp_path, writer)).poll())
    assert [float(calls.tensors_of(record.draft.before)["state"].unique()) for record in found] == [
        0,
        1,
        2,
        1,
    ]
    assert [float(calls.tensors_of(record.draft.after)["state"].unique()) for record in found] == [1, 2, 3, 4]


def test_a_state_is_lent_only_if_every_bit_is_as_its_layer_left_it(tmp_path: Path) -> None:
    state = torch.full((8, 32, 32), torch.nan)
    state[0, 0, 0] = 0.0
    writer = new_writer(tmp_path)
    writer.append(step(0, state, state))
    layer = calls.info(0).layer
    negative = state.clone()
    negative[0, 0, 0] = -0.0
    assert writer.carried(layer, "state", negative) is None
    assert writer.carried(layer, "state", state.view(32, 8, 32)) is None
    assert writer.carried(layer, "state", state.view(torch.int32)) is None
    assert writer.carried("another layer", "state", state) is None
    assert writer.carried(layer, "state", state.clone()) is not None
    writer.close({})


def test_scalars_that_are_equal_but_of_other_types_stay_what_they_are(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    values = [1, 1.0, True, -0.0, 0.0, 0, False, 1]
    for n, value in enumerate(values):
        writer.append(RecordDraft(replace(calls.info(0), call=n, scalars={"x": value}), {}, {}))
    writer.close({})
    found = [r.draft.info for r in JournalReader(folder_of(tmp_path, writer)).poll()]
    assert [repr(info.scalars["x"]) for info in found] == [repr(value) for value in values]
    assert [info.call for info in found] == list(range(len(values)))


def test_a_growing_journal_is_followed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    reader = JournalReader(folder_of(tmp_path, writer))
    seen: list[JournalRecord] = []
    for n in range(25):
        writer.append(calls.draft(n))
        if n % 3 == 0:
            seen += reader.poll()
            assert not reader.finished
            assert len(seen) == n + 1
    writer.close({})
    seen += reader.poll()
    assert reader.finished
    assert_calls(seen, list(range(25)))


def test_records_already_sealed_are_passed_over(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    for n in range(12):
        writer.append(calls.draft(n))
    writer.close({})
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll(sealed=7)), list(range(7, 12)))


def test_threads_append_to_one_journal(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)

    def work(start: int) -> None:
        for n in range(start, start + 25):
            assert writer.append(calls.draft(n))

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close({})
    records = list(JournalReader(folder_of(tmp_path, writer)).poll())
    numbers = [record.draft.info.call for record in records]
    assert sorted(numbers) == sorted(100 * i + n for i in range(4) for n in range(25))
    assert_calls(records, numbers)


def in_child(work: Any) -> int:
    """Run `work` in a forked process; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    release, hold = os.pipe()

    def child_appends() -> int:
        writer.close({"from": "child"})
        return int(writer.append(calls.draft(1)))

    assert in_child(child_appends) == 0
    started, start = os.pipe()
    lingering = os.fork()
    if lingering == 0:
        os.close(hold)
        os.write(start, b".")
        os.read(release, 1)
        os._exit(0)
    try:
        assert os.read(started, 1) == b"."
        writer.append(calls.draft(2))
        assert writer_lives(folder_of(tmp_path, writer))
        writer.close({"from": "parent"})
        assert not writer_lives(folder_of(tmp_path, writer)), "the child still holds the parent's lock"
    finally:
        os.close(hold)
        os.waitpid(lingering, 0)
        for fd in (release, started, start):
            os.close(fd)
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll()), [0, 2])
    assert reader.closed is not None
    assert reader.closed["summary"] == {"from": "parent"}


def test_a_child_has_its_own_journal(tmp_path: Path) -> None:
    parent = new_writer(tmp_path)
    parent.append(calls.draft(0))

    def child_writes() -> None:
        own = new_writer(tmp_path)
        own.append(calls.draft(1))
        own.close({})

    assert in_child(child_writes) == 0
    parent.close({})
    found = [
        [record.draft.info.call for record in JournalReader(folder).poll()]
        for folder in sorted((tmp_path / ".journal").iterdir())
    ]
    assert found == [[0], [1]]


def test_drop_mode_counts_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, limit_bytes=400_000, when_full="drop")
    kept = [n for n in range(40) if writer.append(calls.draft(n))]
    assert 0 < len(kept) < 40
    assert writer.stats.dropped == 40 - len(kept)
    assert writer.stats.queued_bytes <= 400_000
    assert writer.stats.blocked_seconds == 0
    folder = folder_of(tmp_path, writer)
    for path in sorted(folder.glob("*.log"))[:-1]:  # as a sealer would
        path.unlink()
    assert writer.append(calls.draft(40))
    writer.close({})
    reader = JournalReader(folder)
    assert [record.draft.info.call for record in reader.poll()][-1] == 40
    assert reader.dropped == 40 - len(kept)


def test_files_are_looked_at_only_when_the_queue_may_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at dozens of unsealed files at every append would cost more than the append."""
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    looks = []
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: looks.append(path) or exists(path))
    for n in range(30):
        assert writer.append(calls.draft(n))
    assert looks == []
    assert writer.stats.queued_bytes == writer.stats.bytes
    assert len(looks) > 5
    writer.close({})


def test_a_full_queue_blocks_until_a_file_is_freed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, limit_bytes=400_000)
    folder = folder_of(tmp_path, writer)
    done = threading.Event()
    freed = 0

    def fill() -> None:
        for n in range(60):
            assert writer.append(calls.draft(n))
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    while not done.wait(0.02):
        for path in sorted(folder.glob("*.log"))[:-1]:
            path.unlink()
            freed += 1
    thread.join()
    assert freed > 3
    assert writer.stats.dropped == 0
    assert writer.stats.records == 60
    assert writer.stats.blocked_seconds > 0
    writer.close({})


def test_blocking_ends_when_no_sealer_lives(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, limit_bytes=400_000, patience_s=0.2)
    started = time.monotonic()
    kept = sum(writer.append(calls.draft(n)) for n in range(60))
    # One wait of 0.2 s, not one for every dropped call: 40 of them would take 8 s.
    assert 0.2 <= writer.stats.blocked_seconds < 1.0
    assert time.monotonic() - started < 4.0
    assert kept + writer.stats.dropped == 60
    assert writer.stats.dropped > 20
    writer.close({})


def test_a_record_larger_than_the_queue_is_let_in_alone(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, limit_bytes=1000, when_full="drop")
    assert writer.append(calls.draft(0))
    assert not writer.append(calls.draft(1))
    writer.close({})
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll()), [0])
    assert reader.dropped == 1


def test_a_full_disk_turns_the_journal_off_and_loses_nothing_written(tmp_path: Path) -> None:
    def fill_disk() -> int:
        # A file may grow to this and no further: the write that crosses it is cut short, the next one fails.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        writer = new_writer(tmp_path)
        kept = sum(writer.append(calls.draft(n)) for n in range(30))
        stats = writer.stats
        writer.close({})
        assert stats.error is not None
        assert "File too large" in stats.error
        assert stats.dropped == 30 - kept
        return kept

    kept = in_child(fill_disk)
    assert 0 < kept < 30
    (folder,) = (tmp_path / ".journal").iterdir()
    reader = JournalReader(folder)
    assert_calls(list(reader.poll()), list(range(kept)))
    assert (reader.torn, reader.damage) == (None, [])
    assert reader.dropped == 30 - kept
    assert reader.closed is not None
    assert "File too large" in reader.closed["error"]


def test_inputs_are_on_disk_before_the_call_and_its_end_completes_them(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    tokens = {n: writer.begin(calls.info(n, Status.UNFINISHED), calls.tensors(n, "before")) for n in range(8)}
    for n in (3, 0, 7, 1, 2, 6):
        assert writer.end(tokens[n], calls.info(n), calls.tensors(n, "after"))
    assert not writer.end(None, calls.info(9), {})
    assert writer.stats.records == 6
    writer.close({})
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll()), [3, 0, 7, 1, 2, 6])
    unfinished = reader.unfinished()
    assert [(draft.info.call, draft.info.status) for draft in unfinished] == [
        (4, Status.UNFINISHED),
        (5, Status.UNFINISHED),
    ]
    for draft in unfinished:
        calls.assert_is_call(draft.info, *plain(draft))


def test_a_file_with_an_open_call_is_not_released(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, file_bytes=SMALL_FILES)
    token = writer.begin(calls.info(0), calls.tensors(0, "before"))
    for n in range(1, 20):
        writer.append(calls.draft(n))
    reader = JournalReader(folder_of(tmp_path, writer))
    assert len(list(reader.poll())) == 19
    first = folder_of(tmp_path, writer) / "00000000.log"
    assert first not in reader.releasable(19)
    assert len(reader.releasable(19)) > 1
    writer.end(token, calls.info(0), calls.tensors(0, "after"))
    assert_calls(list(reader.poll()), [0])
    assert first not in reader.releasable(19)
    assert first in reader.releasable(20)
    writer.close({})


def test_an_exception_inside_a_write_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's signal handler may raise anywhere; the next append must not follow half an entry."""
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writev = os.writev

    def interrupted(fd: int, pieces: Any) -> int:
        writev(fd, pieces[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "writev", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(calls.draft(1))
    monkeypatch.setattr(os, "writev", writev)
    writer.append(calls.draft(2))
    writer.close({})
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll()), [0, 2])
    assert reader.damage == []


def test_an_exception_right_behind_a_write_takes_no_later_call_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a handler runs when the write that it came into is done, and the whole entry there: a time limit's
    raises an OSError."""
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writev = os.writev

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError("of the program")

    def interrupted(fd: int, pieces: Any) -> int:
        written = writev(fd, pieces)
        signal.raise_signal(signal.SIGUSR1)
        return written

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", interrupted)
            with pytest.raises(TimeoutError, match="of the program"):
                writer.append(calls.draft(1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert writer.append(calls.draft(2))
    writer.close({})
    reader = JournalReader(folder_of(tmp_path, writer))
    assert_calls(list(reader.poll()), [0, 1, 2])
    assert (reader.damage, writer.stats.error) == ([], None)


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(
        os, "writev", lambda fd, pieces: os.write(fd, bytes(memoryview(pieces[0]))[:1000]) or 0
    )
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writer.append(calls.draft(16))
    monkeypatch.setattr(os, "writev", writev)
    writer.close({})
    assert_calls(list(JournalReader(folder_of(tmp_path, writer)).poll()), [0, 16])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(4, 4).t()[:2], "not contiguous"),
        (torch.zeros(4, device="meta"), "on meta"),
    ],
)
def test_a_draft_that_is_not_plain_memory_is_refused(
    tmp_path: Path, data: torch.Tensor, message: str
) -> None:
    writer = new_writer(tmp_path)
    meta = TensorMeta("float32", tuple(data.shape), (), (), (), 0, "cpu")
    with pytest.raises(BadInputError, match=f"tensor q is .*{message}|tensor q is {message}"):
        writer.append(RecordDraft(calls.info(0), {"q": TensorDraft(data, meta)}, {}))
    writer.close({})


def test_a_newer_journal_is_refused_with_the_version(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.close({})
    path = folder_of(tmp_path, writer) / "00000000.log"
    data = bytearray(path.read_bytes())
    data[4:6] = (journal_format.JOURNAL_VERSION + 1).to_bytes(2, "little")
    data[52:56] = struct.pack("<I", zlib.crc32(bytes(data[:52])))
    path.write_bytes(bytes(data))
    with pytest.raises(
        journal_format.JournalRefusedError,
        match=wording("store.journal-version", version=2, journal_version=1),
    ):
        list(JournalReader(folder_of(tmp_path, writer)).poll())


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append(calls.draft(0))
    writer.close({})
    folder = folder_of(tmp_path, writer)
    (folder / "notes.txt").write_text("mine")
    (folder / "00000001.log").write_bytes(b"PK\x03\x04" + bytes(100))
    reader = JournalReader(folder)
    assert_calls(list(reader.poll()), [0])
    assert len(reader.damage) == 1
    assert "no journal entry starts here" in reader.damage[0]
    assert [path.name for path in reader.damaged()] == ["00000001.log"]
