# SPDX-License-Identifier: Apache-2.0
"""A journal cut anywhere, or with bytes not those written: never a wrong record, never a silent loss."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdnbench.record import JournalDraft
from gdnbench.store.journal import JournalWriter
from gdnbench.store.journal.format import JournalRefusedError
from gdnbench.store.journal.reader import JournalReader
from tests.messages import wording
from tests.seeds import drawn
from tests.store import journal_calls as calls

RECORDS = 10
SYNCED = (2, 6)  # these are begun and ended, the last of them is never ended


@dataclass(frozen=True)
class Finished:
    """A journal of one file, and where each of its entries ends."""

    data: bytes = field(repr=False)
    ends: list[int]  # of the entries, in order
    calls_at: list[int | None]  # the call that each entry finishes


def write_journal(store: Path) -> Finished:
    writer = JournalWriter(store, process={}, provenance={})
    path = store / ".journal" / writer.segment / "00000000.log"
    ends, finished = [path.stat().st_size], [None]

    def wrote(call: int | None) -> None:
        ends.append(path.stat().st_size)
        finished.append(call)

    for n in range(RECORDS):
        if n in SYNCED:
            token = writer.begin(calls.info(n), calls.tensors(n, "before"))
            wrote(None)
            if n != SYNCED[-1]:
                writer.end(token, calls.info(n), calls.tensors(n, "after"))
                wrote(n)
        else:
            writer.append(calls.draft(n))
            wrote(n)
    writer.close({})
    wrote(None)
    return Finished(path.read_bytes(), ends, finished)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return write_journal(tmp_path_factory.mktemp("journal"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("damaged")
    yield path
    shutil.rmtree(path)


def read(folder: Path, data: bytes) -> tuple[list[int], JournalReader]:
    """The calls found in a journal file of these bytes, each checked bit for bit."""
    (folder / "00000000.log").write_bytes(data)
    reader = JournalReader(folder)
    found = []
    for record in reader.poll():
        check(record.draft)
        found.append(record.draft.info.call)
    for draft in reader.unfinished():
        check(draft)
    assert reader.finished
    return found, reader


def check(draft: JournalDraft) -> None:
    calls.assert_is_call(draft.info, calls.tensors_of(draft.before), calls.tensors_of(draft.after))


def assert_cut_is_noticed(finished: Finished, folder: Path, size: int) -> None:
    found, reader = read(folder, finished.data[:size])
    whole = [call for end, call in zip(finished.ends, finished.calls_at, strict=True) if end <= size]
    assert found == [call for call in whole if call is not None]
    assert (reader.torn is None) == (size == 0 or size in finished.ends)
    assert reader.damage == []


def test_cut_at_random_bytes(finished: Finished, folder: Path) -> None:
    for chooser in (random.Random(0), random.Random(drawn("cut at random bytes"))):
        for _ in range(100):
            assert_cut_is_noticed(finished, folder, chooser.randrange(len(finished.data)))


def test_cut_at_every_byte_around_an_entry_boundary(finished: Finished, folder: Path) -> None:
    """Prefix, header and trailer: 56 bytes behind a boundary and 24 before it, with a few of the payload."""
    for end in finished.ends[:4]:
        for size in range(max(end - 32, 0), min(end + 64, len(finished.data))):
            assert_cut_is_noticed(finished, folder, size)


@pytest.mark.slow
def test_cut_at_every_byte_of_a_header(finished: Finished, folder: Path) -> None:
    for size in range(finished.ends[1], finished.ends[1] + 4000):
        assert_cut_is_noticed(finished, folder, size)


def test_the_torn_record_is_named_as_soon_as_its_header_is_there(finished: Finished, folder: Path) -> None:
    last = finished.ends[-3]
    _, reader = read(folder, finished.data[: last + 20])
    assert reader.torn is not None
    assert re.fullmatch(wording("store.entry-torn", bytes=20), reader.torn)
    _, reader = read(folder, finished.data[: finished.ends[-2] - 1])
    size = finished.ends[-2] - last
    assert reader.torn is not None
    torn = wording("store.record-torn", what="call 9 of layers.3", bytes=size - 1, of=size)
    assert re.fullmatch(torn, reader.torn)


def assert_no_silent_loss(finished: Finished, folder: Path, data: bytes) -> None:
    try:
        found, reader = read(folder, data)
    except JournalRefusedError:  # the version field is what was hit
        return
    expected = [call for call in finished.calls_at if call is not None]
    assert found == [call for call in expected if call in found], "out of order, or twice"
    if found != expected or len(reader.unfinished()) != 1:
        assert reader.damage or reader.torn


EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EXAMPLES
@given(data=st.data())
def test_one_flipped_bit(finished: Finished, folder: Path, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(finished.data) - 1))
    damaged = bytearray(finished.data)
    damaged[bit // 8] ^= 1 << (bit % 8)
    assert_no_silent_loss(finished, folder, bytes(damaged))


@pytest.mark.slow
@EXAMPLES
@given(data=st.data())
def test_one_flipped_bit_beside_the_payloads(finished: Finished, folder: Path, data: st.DataObject) -> None:
    """Where the structure is: the first KiB of an entry, or its trailer."""
    start = data.draw(st.sampled_from([0, *finished.ends[:-1]]))
    byte = min(start + data.draw(st.integers(-24, 1024)), len(finished.data) - 1)
    damaged = bytearray(finished.data)
    damaged[max(byte, 0)] ^= 1 << data.draw(st.integers(0, 7))
    assert_no_silent_loss(finished, folder, bytes(damaged))


@EXAMPLES
@given(data=st.data())
def test_a_block_of_other_bytes(finished: Finished, folder: Path, data: st.DataObject) -> None:
    """A block that reads back as zeros, or as garbage."""
    start = data.draw(st.integers(0, len(finished.data) - 1))
    size = data.draw(st.sampled_from([1, 8, 512, 4096]))
    garbage = data.draw(st.sampled_from([bytes(size), random.Random(start).randbytes(size)]))
    damaged = finished.data[:start] + garbage + finished.data[start + size :]
    assert_no_silent_loss(finished, folder, damaged[: len(finished.data)])


@EXAMPLES
@given(garbage=st.binary(max_size=300), valid_start=st.booleans())
def test_any_bytes(finished: Finished, folder: Path, garbage: bytes, valid_start: bool) -> None:
    start = finished.data[: finished.ends[1]] if valid_start else b""
    found, reader = read(folder, start + garbage)
    assert found == ([0] if valid_start else [])
    assert reader.closed is None
    assert bool(reader.damage or reader.torn) == bool(garbage)
