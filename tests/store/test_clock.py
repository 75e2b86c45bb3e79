# SPDX-License-Identifier: Apache-2.0
"""Clocks that step, and processes of the same host name and pid, as those of containers are."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from gdnbench.store.journal import JournalWriter
from gdnbench.store.recover import open_store
from gdnbench.store.sealer import Sealer
from gdnbench.store.verify import verify
from tests.store import journal_calls as calls

ROOT = Path(__file__).resolve().parents[2]
START = 1_900_000_000_000_000_000  # ns


def journal(store: Path) -> JournalWriter:
    return JournalWriter(store, process={"host": "a", "pid": 1}, provenance={})


def seal(store: Path) -> None:
    Sealer(store).run_until(lambda: True, lambda progress: None)


@pytest.mark.parametrize("step", [-3600, 0, 3600], ids=["back", "stands still", "forth"])
def test_a_clock_that_steps_while_processes_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Three processes, as many segments. They sort by the clock; records of each keep their order."""
    clock = [START]
    monkeypatch.setattr(time, "time_ns", lambda: clock[0])
    monkeypatch.setattr(time, "time", lambda: clock[0] / 1e9)
    writers = []
    for _ in range(3):
        writers.append(journal(tmp_path / "run.zarr"))
        clock[0] += step * 1_000_000_000
    for number in range(6):
        assert writers[number % 3].append(calls.draft(number))
        clock[0] += step * 1_000_000_000
    for writer in writers:
        writer.close({})
    seal(tmp_path / "run.zarr")
    assert verify(tmp_path / "run.zarr").ok
    with open_store(tmp_path / "run.zarr") as store:
        assert store.problems == ()
        found: dict[str, list[int]] = {}
        for record in store.records:
            found.setdefault(record.segment.name, []).append(record.info.call)
    named = [writer.segment for writer in writers]
    assert [found[name] for name in named] == [[0, 3], [1, 4], [2, 5]]
    assert list(found) == sorted(named)
    if step:
        assert sorted(named) == (named if step > 0 else named[::-1])


def test_equal_host_pid_and_time_are_two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers on one machine: pid 1 in each, one host name, one store."""
    monkeypatch.setattr(time, "time_ns", lambda: START)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    writers = [journal(tmp_path / "run.zarr") for _ in range(2)]
    assert len({writer.segment for writer in writers}) == 2
    for number in range(4):
        assert writers[number % 2].append(calls.draft(number))
    for writer in writers:
        writer.close({})
    seal(tmp_path / "run.zarr")
    assert verify(tmp_path / "run.zarr").ok
    with open_store(tmp_path / "run.zarr") as store:
        assert sorted(record.info.call for record in store.records) == [0, 1, 2, 3]


WALL_CLOCK = {
    "cli/prune.py": "--older-than is an age by the clock that named the segments",
    "store/sealer.py": "a journal in the making is old by its file's time; one that is locked stays",
    "store/spool.py": "a spool without a store is removed when it is a day old by its file's time",
    "timing/conditions.py": "NVML counts so",
}


CLOCKS = ("time.time", "datetime.now", "datetime.utcnow")


def test_no_time_limit_depends_on_a_clock_that_can_be_set() -> None:
    found = set()
    for path in sorted((ROOT / "gdnbench").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in CLOCKS):
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func) in CLOCKS
                and not node.args
            ):
                found.add(path.relative_to(ROOT / "gdnbench").as_posix())
    assert found == set(WALL_CLOCK)
