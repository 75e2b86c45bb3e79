# SPDX-License-Identifier: Apache-2.0
"""Programs that call captured functions on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.capture import CaptureOptions, capturing, runtime
from gdnbench.capture.claims import Claims
from gdnbench.capture.report import Report
from gdnbench.capture.session import Session
from gdnbench.lineage.check import check_stores
from gdnbench.store.reader import Store
from tests.capture.test_claims import in_step
from tests.capture.test_graphs import Engine

SECONDS = 0.2
"""For which the first thread stays in a place where a second one must not come."""


def on_two_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_first_calls_at_once_make_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two, a process would have two segments, each with steps and numbers of its own."""
    both, begin = threading.Barrier(2), Session.__init__

    def slow(session: Session, *arguments: object, **named: object) -> None:
        try:
            both.wait(SECONDS)
        except threading.BrokenBarrierError:
            begin(session, *arguments, **named)  # type: ignore[arg-type]
        else:
            pytest.fail("two sessions are being made")

    monkeypatch.setattr(Session, "__init__", slow)
    capture = runtime.Capture(
        tmp_path / "run.zarr", CaptureOptions(), report=Report(None), on_first_record=None
    )
    found: list[Session] = []
    on_two_threads(lambda number: found.append(capture.session))
    assert len(found) == 2
    assert found[0] is found[1]
    found[0].close()


def test_a_later_step_has_the_larger_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise lineage takes the calls of the layer for those of two layers with one name, and judges none
    of them."""
    both, next_number = threading.Barrier(2), Session.next_number

    def slow(session: Session) -> int:
        number = next_number(session)
        if number == 0:
            try:
                both.wait(SECONDS)
            except threading.BrokenBarrierError:
                return number
        return number

    engine = Engine(layers=1)
    with capturing(tmp_path / "run.zarr") as counts:
        monkeypatch.setattr(Session, "next_number", slow)

        def work(thread: int) -> None:
            in_step(engine.forward, Claims([f"{thread}{row}" for row in "abc"], [7, 7, 7]))

        on_two_threads(work)
    assert (counts.records, counts.failures) == (2, 0)
    with Store.open(tmp_path / "run.zarr") as store:
        assert [one.info.step for one in sorted(store.records, key=lambda one: one.info.call)] == [0, 1]
        assert "several layers have this name" not in check_stores([store]).unknown
