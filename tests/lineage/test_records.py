# SPDX-License-Identifier: Apache-2.0
"""Stores of ordinary records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.errors import BadInputError
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Unknown
from gdnbench.lineage.text import lines, table_of_lines
from gdnbench.store.reader import Store
from tests.capture.test_graphs import Engine as Server
from tests.lineage.logs import Engine, Options
from tests.lineage.stores import write_store
from tests.messages import wording


def test_lines_of_several_processes_name_them(tmp_path: Path) -> None:
    write_store(tmp_path / "run.zarr", Engine(3, Options(bug="older-version")).run(35), segments=2)
    with Store.open(tmp_path / "run.zarr") as store:
        report = check_stores([store])
        names = [segment.name for segment in store.segments]
    headers, rows = table_of_lines(report, list(lines(report)))
    assert headers[0] == "process"
    assert [row[0] for row in rows] == names


@pytest.mark.parametrize("drafts", [False, True])
def test_a_right_store_has_no_break(tmp_path: Path, drafts: bool) -> None:
    write_store(tmp_path / "run.zarr", Engine(3, Options(drafts=drafts)).run(15), segments=2)
    with Store.open(tmp_path / "run.zarr") as store:
        report = check_stores([store])
    assert len(report.processes) == 2
    assert report.breaks == 0
    assert report.total("right") == report.total("reads") > 30


def test_a_break_names_records(tmp_path: Path) -> None:
    engine = Engine(3, Options(bug="overwritten")).run(60)
    write_store(tmp_path / "run.zarr", engine)
    with Store.open(tmp_path / "run.zarr") as store:
        report = check_stores([store])
    (process,) = report.processes
    finding = process.chains[0].findings[0]
    assert engine.planted is not None
    assert (finding.kind, finding.damage.call) == ("overwritten", engine.planted.call)
    assert process.table.records[finding.damage.call] == engine.planted.call


def test_states_that_were_rounded_to_the_pool_are_compared(tmp_path: Path) -> None:
    """A prefill leaves float32 states and the engine rounds them to its pool: the write is known by its
    rounded content, and another content proves nothing."""
    write_store(tmp_path / "run.zarr", Engine(3, Options()).run(20), dtype=torch.bfloat16)
    with Store.open(tmp_path / "run.zarr") as store:
        report = check_stores([store])
    assert report.breaks == 0
    assert report.total("right") == report.total("reads")
    assert Unknown.NO_DIGEST not in report.unknown


@pytest.mark.parametrize("digests", [False, True])
def test_calls_of_padding_alone_are_no_traceback(tmp_path: Path, digests: bool) -> None:
    """As of an engine that warmed up and served nobody."""
    server = Server()
    server.next_step([-1, -1, -1])
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=digests)):
        server.forward()
    sentence = wording("lineage.no-access")
    with Store.open(tmp_path / "run.zarr") as store, pytest.raises(BadInputError, match=sentence):
        check_stores([store])
