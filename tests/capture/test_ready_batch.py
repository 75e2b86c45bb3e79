# SPDX-License-Identifier: Apache-2.0
"""Replays whose digests were prepared after the replay before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.capture import runtime
from gdnbench.capture.digest_buffer import Chunk, DigestBuffer
from gdnbench.capture.ready_batch import ReadyBatch
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_digests import DIGESTS, logged, spied
from tests.capture.test_graphs import Engine, run


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each replay for which a batch was prepared used it."""
    monkeypatch.setattr("gdnbench.capture.digest_buffer.CHUNK_SECONDS", 600)
    found: list[bool] = []
    plain = ReadyBatch.open

    def opened(self: ReadyBatch, *args: Any) -> Any:
        batch = plain(self, *args)
        found.append(batch is not None)
        return batch

    monkeypatch.setattr(ReadyBatch, "open", opened)
    return found


def test_what_is_prepared_is_used_only_for_the_replay_that_was_expected(
    tmp_path: Path, used: list[bool]
) -> None:
    """Another stream, a chunk that was passed on, a pause, and a pause that is over."""
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    streams.gate.set()
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        session = runtime.innermost().session  # type: ignore[union-attr]
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None, [1, 8, 2]])
        streams.stream = 1
        run(engine, graph, [[3, -1, 5]])
        session.recorder_here().wait_until_written()  # passes the chunks on
        run(engine, graph, [[2, 0, 1], [8, 6, 7]])
        session._switch.pause()
        run(engine, graph, [[1, 2, 3]])
        session._switch.on()
        run(engine, graph, [[4, 2, 3]])
    assert used == [True, False, False, True, False, True]
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 12)
    wanted = [row for row in spied(engine, 2) if row[1] != 5]  # the pause
    assert sorted(logged(tmp_path / "run.zarr")) == sorted(wanted)


def test_a_failure_to_queue_what_is_prepared_costs_no_replay(tmp_path: Path, used: list[bool]) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()

    def fail() -> None:
        raise RuntimeError("no launch")

    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None])
        plan = getattr(graph, runtime.innermost().session._graphs._attribute)  # type: ignore[union-attr]
        plan.ready.queue = fail
        run(engine, graph, [None, None])
    assert used == [False, True]
    assert (counts.failures, counts.digested) == (1, 6)
    assert "no launch" in str(counts.first_failure)
    assert logged(tmp_path / "run.zarr") == spied(engine, 2)


def test_a_chunk_waits_for_a_spare_slice_only_if_a_call_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.capture.digest_buffer.CHUNK_BYTES", 1024)
    sent: list[Chunk] = []
    buffer = DigestBuffer(StandInStreams(), lambda _: True, sent.append)
    for has_it in (False, True):
        first = buffer.take(300, torch.device("cpu"))
        assert first is not None
        buffer.finish(first, "first")
        spare = buffer.spare(first)
        assert [(one.chunk, one.start, one.stop) for one in spare] == [(first.chunk, 512, 1024)]
        assert buffer.spare(first) == []  # the chunk is full
        second = spare.pop() if has_it else None
        buffer.flush()
        assert spare == []
        assert buffer.spare(first) == []  # the chunk is passed on
        if second is not None:
            assert first.chunk not in sent
            buffer.finish(second, "second")
        assert sent[-1] is first.chunk
        assert first.chunk.records == (["first", "second"] if has_it else ["first"])
    assert len(sent) == 2
    buffer.close()
