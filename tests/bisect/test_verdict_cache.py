# SPDX-License-Identifier: Apache-2.0
"""Verdicts on disk: kept by content, through kills, torn lines and writers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.verdict_cache import VerdictCache, key_of
from gdnbench.errors import StoreError
from tests.messages import wording

GOOD = Verdict(State.GOOD, "pass", digest="d", facts={"errors": {"o": 1e-3}}, seconds=0.5)
BAD = Verdict(State.BAD, "numeric mismatch", "o: RMS error 2 over 1")


def test_a_verdict_is_found_again_by_what_was_asked(tmp_path: Path) -> None:
    ledger = VerdictCache(tmp_path / "state" / "probes.jsonl")
    asked = {"records": "abc", "k": None, "schedules": ["late"]}
    assert ledger.find(asked) is None
    assert ledger.answer(asked, lambda: GOOD) == GOOD
    again = VerdictCache(tmp_path / "state" / "probes.jsonl")
    assert again.answer({"k": None, "schedules": ["late"], "records": "abc"}, pytest.fail) == GOOD
    assert again.find({**asked, "k": 2.0}) is None


def test_a_later_verdict_counts(tmp_path: Path) -> None:
    ledger = VerdictCache(tmp_path / "probes.jsonl")
    ledger.add({"a": 1}, GOOD)
    ledger.add({"a": 1}, BAD)
    assert VerdictCache(tmp_path / "probes.jsonl").find({"a": 1}) == BAD


@pytest.mark.parametrize("left", [1, 20, -1])
def test_half_a_line_of_a_killed_process_is_no_verdict(tmp_path: Path, left: int) -> None:
    path = tmp_path / "probes.jsonl"
    ledger = VerdictCache(path)
    ledger.add({"a": 1}, GOOD)
    whole = path.read_bytes()
    ledger.add({"a": 2}, BAD)
    line = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + line[:left])
    found = VerdictCache(path)
    assert found.find({"a": 1}) == GOOD
    assert found.find({"a": 2}) is None
    found.add({"a": 3}, BAD)
    last = VerdictCache(path)
    assert (last.find({"a": 1}), last.find({"a": 3})) == (GOOD, BAD)


def test_another_process_s_verdicts_are_seen(tmp_path: Path) -> None:
    mine, other = (VerdictCache(tmp_path / "probes.jsonl") for _ in range(2))
    other.add({"a": 1}, BAD)
    assert mine.find({"a": 1}) == BAD


ADD_MANY = """
import sys
from pathlib import Path
from gdnbench.bisect.verdict_cache import VerdictCache
from gdnbench.bisect.verdict import State, Verdict

path, first = Path(sys.argv[1]), int(sys.argv[2])
ledger = VerdictCache(path)
for number in range(first, first + 50):
    ledger.add({"number": number}, Verdict(State.GOOD, "pass", "x" * 3000 + str(number)))
"""


def test_processes_write_one_ledger_at_once(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    # A text of its own: multiprocessing would import this module by a name that not all runs of pytest find.
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD_MANY, str(path), str(first)]) for first in (0, 50, 100)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    ledger = VerdictCache(path)
    assert len(ledger) == 150
    for number in range(150):
        found = ledger.find({"number": number})
        assert found is not None
        assert found.reason.endswith(str(number))


@pytest.mark.parametrize("change", ['"bad"', '"wrong"', "7", "null", '{"facts": []}'])
def test_a_verdict_that_was_changed_is_none(tmp_path: Path, change: str) -> None:
    """Neither believed nor an error: it is asked for again."""
    path = tmp_path / "probes.jsonl"
    VerdictCache(path).add({"a": 1}, GOOD)
    line = json.loads(path.read_text())
    line["verdict"]["state"] = json.loads(change)
    path.write_text(json.dumps(line) + "\n")
    ledger = VerdictCache(path)
    assert ledger.find({"a": 1}) is None
    assert ledger.answer({"a": 1}, lambda: BAD) == BAD
    assert VerdictCache(path).find({"a": 1}) == BAD


def test_a_verdict_without_a_sum_is_none(tmp_path: Path) -> None:
    """As an earlier version wrote it."""
    path = tmp_path / "probes.jsonl"
    path.write_text(json.dumps({"key": key_of({}), "verdict": GOOD.to_json()}) + "\n")
    assert VerdictCache(path).find({}) is None


def test_what_is_no_verdict_is_said_in_one_line() -> None:
    for data in ({"state": "wrong"}, [], None, {**GOOD.to_json(), "kind": 1}):
        with pytest.raises(
            StoreError, match=wording("bisect.verdict-damaged", line="probes.jsonl")
        ) as caught:
            Verdict.from_json(data, "probes.jsonl")
        assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "probes.jsonl"
    ledger = VerdictCache(path)
    ledger.add({"a": 1}, GOOD)
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    with pytest.raises(StoreError, match=wording("bisect.disk-full")):
        ledger.add({"a": 2}, BAD)
    assert path.read_bytes() == before
    assert ledger.find({"a": 2}) is None


def test_questions_are_plain() -> None:
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": "1"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        key_of({"a": float("nan")})


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    VerdictCache(path).add({"a": 1}, GOOD)
    for junk in (b"\xff\xfe", b"null", b"[]", b'{"key": 1}', b"[" * 100_000, b"\0" * 9):
        path.write_bytes(path.read_bytes() + junk + b"\n")
        assert VerdictCache(path).find({"a": 1}) == GOOD
