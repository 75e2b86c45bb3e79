# SPDX-License-Identifier: Apache-2.0
"""Replays of graphs, and calls behind which copies come late; on a stand-in for a device, against a spy."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gdnbench.capture import packing, record, runtime
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.packing import Bundle, Fill
from gdnbench.store.reader import Store
from tests.capture.stand_in import Operators, StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.messages import wording
from tests.seeds import drawn, fresh

SLOTS, HEADS, DIM = 9, 4, 8


@record("gdn_decode")
def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor, o: Tensor
) -> None:
    """A padded sequence puts back row 0 as it is, which no other may use in the same call."""
    rows = state_indices.flatten().long().clamp(min=0)
    old = state.index_select(0, rows)
    keys = k[:, 0].repeat_interleave(2, dim=1)[:, :, None, :]
    new = old * g[:, 0].exp()[..., None, None] + (beta[:, 0, :, None] * v[:, 0])[..., None] * keys
    state.index_copy_(0, rows, torch.where((state_indices >= 0)[..., None, None], new, old))
    o.copy_(
        (state.index_select(0, rows) * q[:, 0].repeat_interleave(2, dim=1)[:, :, None, :]).sum(-1)[:, None]
    )


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index


def inside(layer: Layer) -> AbstractContextManager[None]:
    """What an adapter's scope does around a layer's forward method."""
    capture = runtime.innermost()
    return capture.session._scopes.inside(layer) if capture is not None else nullcontext()


class Engine:
    """Layers with pools, static buffers that each step refills, and what they held as a spy saw it."""

    def __init__(self, layers: int = 2, batch: int = 3, seed: int = 0) -> None:
        self.make = torch.Generator().manual_seed(seed)
        self.states = [self.random(SLOTS, HEADS, DIM, DIM) for _ in range(layers)]
        self.layers = [Layer(index) for index in range(layers)]
        self.x = self.random(batch, 1, HEADS, DIM)
        self.indices = torch.tensor([[4], [0], [7]][:batch], dtype=torch.int32)
        self.out = torch.zeros(batch, 1, HEADS, DIM)
        self.seen: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.make)

    def forward(self, spy: bool = False) -> None:
        """Everything between the layers is computed anew, in memory that a graph uses again."""
        x = self.x * 1.0
        for layer, state in zip(self.layers, self.states, strict=True):
            inputs = {
                "q": x[:, :, ::2] * 0.5,
                "k": x[:, :, 1::2] * 0.25,
                "v": x + 1.0,
                "g": -x[..., 0].abs(),
                "beta": x[..., 1].sigmoid(),
                "state_indices": self.indices,
            }
            o = torch.empty_like(x)
            if spy:
                before = {name: one.clone() for name, one in {**inputs, "state": state}.items()}
            with inside(layer):
                step(**inputs, state=state, o=o)
            if spy:
                self.seen.append((before, {"o": o.clone(), "state": state.clone()}))
            x = o * 0.5
            o.zero_()  # whoever gets an output may work on it in place
        self.out.copy_(x)

    def call(self) -> dict[str, Tensor]:
        """Arguments of one call of the first layer."""
        x = self.x
        inputs = {"q": x[:, :, ::2], "k": x[:, :, 1::2], "v": x, "g": -x[..., 0].abs(), "beta": x[..., 1]}
        return {**inputs, "state": self.states[0], "state_indices": self.indices, "o": torch.empty_like(x)}

    def next_step(self, rows: list[int] | None = None) -> None:
        self.x.copy_(self.random(*self.x.shape))
        if rows is not None:
            self.indices.copy_(torch.tensor(rows, dtype=torch.int32).unsqueeze(1))

    def spied(self) -> None:
        """What a step does, on copies of the states, without a capture."""
        kept, kept_out = [state.clone() for state in self.states], self.out.clone()
        step_of_capture = globals()["step"]
        try:
            globals()["step"] = step.__wrapped__  # type: ignore[attr-defined]
            self.forward(spy=True)
        finally:
            globals()["step"] = step_of_capture
        for state, was in zip(self.states, kept, strict=True):
            state.copy_(was)
        self.out.copy_(kept_out)


def assert_recorded(store: Path, seen: list[tuple[dict[str, Tensor], dict[str, Tensor]]]) -> None:
    """Records hold what the spy saw, bit for bit: pools the touched rows of what it saw."""
    records = Store.open(store).records
    assert len(records) == len(seen)
    for stored, (before, after) in zip(records, seen, strict=True):
        rows = sorted({row for row in before["state_indices"].flatten().tolist() if row >= 0})
        pool = stored.info.pools["state"]
        assert (pool.slots, pool.rows) == (SLOTS, tuple(rows))
        assert pool.untouched_before == pool.untouched_after is not None
        for handles, tensors in ((stored.before, before), (stored.after, after)):
            assert handles.keys() == tensors.keys()
            for name, tensor in tensors.items():
                expected = tensor[rows] if name == "state" else tensor
                assert torch.equal(handles[name].read(), expected), name


def run(engine: Engine, graph: StandInGraph, steps: list[list[int] | None]) -> None:
    for rows in steps:
        engine.next_step(rows)
        engine.spied()
        graph.replay()


@pytest.mark.parametrize("seed", [0, fresh(drawn("graphs", 30))])
def test_replays_are_recorded_as_the_calls_in_them_were(tmp_path: Path, seed: int) -> None:
    engine, graph, streams = Engine(seed=seed), StandInGraph(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.forward()
        assert streams.log == []
        run(engine, graph, [None, [1, 8, 2], None, [3, -1, 5]])
    assert (counts.failures, counts.first_failure) == (0, None)
    assert (counts.graph_calls, counts.graph_replays, counts.records) == (2, 4, 8)
    assert_recorded(tmp_path / "run.zarr", engine.seen)
    infos = [stored.info for stored in Store.open(tmp_path / "run.zarr").records]
    assert [info.call for info in infos] == list(range(8))


def test_an_eager_call_is_recorded_as_it_was_when_its_buffers_are_used_again(tmp_path: Path) -> None:
    engine, streams = Engine(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        for rows in (None, [8, 6, 7], [2, -1, 6]):
            engine.next_step(rows)
            engine.spied()
            engine.forward()
    assert (counts.failures, counts.first_failure, counts.records) == (0, None, 6)
    assert_recorded(tmp_path / "run.zarr", engine.seen)


def test_a_selection_of_replays_costs_the_others_no_copy_to_the_host(tmp_path: Path) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    sent = []
    with capturing_stand_in(tmp_path / "run.zarr", streams, CaptureOptions(every=3)) as counts:
        with graph_of(graph):
            engine.forward()
        for _ in range(7):
            run(engine, graph, [None])
            sent.append(streams.sent())
            streams.log.clear()
    assert (counts.failures, counts.records, counts.graph_replays) == (0, 6, 3)
    # Of each layer: rows before it, inputs, outputs, rows after it.
    assert sent == [2 * 4, 0, 0, 2 * 4, 0, 0, 2 * 4]
    kept = [engine.seen[2 * replay + layer] for replay in (0, 3, 6) for layer in (0, 1)]
    assert_recorded(tmp_path / "run.zarr", kept)
    infos = [stored.info for stored in Store.open(tmp_path / "run.zarr").records]
    assert [(info.step, info.layer_index) for info in infos] == [(n, i) for n in (0, 3, 6) for i in (0, 1)]


def test_the_way_to_the_host_is_gone_by_a_thread_of_ours_alone(tmp_path: Path) -> None:
    """Pinned memory may take the driver milliseconds, and the program's thread none."""
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    streams.gate.set()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None])
        engine.forward()
    assert (counts.failures, counts.records) == (0, 4)
    threads = {what: {name for one, name in streams.log if one == what} for what, _ in streams.log}
    assert threads["begin"] == threads["arrived"] == {"gdnbench-capture"}
    assert threads["to_host"] == {threading.current_thread().name}


def test_layers_that_share_index_tensors_sort_them_once_a_replay(tmp_path: Path) -> None:
    engine, graph, streams = Engine(layers=3), StandInGraph(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.forward()
        for rows in ([4, 0, 7], [1, 8, 2]):
            engine.next_step(rows)
            engine.spied()
            with Operators() as ran:
                graph.replay()
            assert ran.count("aten::sort") == 1
    assert (counts.failures, counts.records) == (0, 6)
    assert_recorded(tmp_path / "run.zarr", engine.seen)


def test_a_pool_takes_few_kernels_however_many_its_rows(tmp_path: Path) -> None:
    """A record of a pool that is written: gather, product and sum, twice, and no copy of the pool itself."""
    engine, streams = Engine(layers=1), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        engine.forward()  # weights of the sums are made here
        with Operators() as plain:
            step.__wrapped__(**engine.call())  # type: ignore[attr-defined]
        with Operators() as ran:
            step(**engine.call())
    assert (counts.failures, counts.records) == (0, 2)
    ours = {name: ran.count(name) - plain.count(name) for name in ran.names}
    assert {name: ours[f"aten::{name}"] for name in ("index_select", "mul", "sum", "sort")} == {
        "index_select": 2,
        "mul": 2,
        "sum": 2,
        "sort": 1,
    }
    assert not any(ours.get(f"aten::{name}", 0) for name in ("index", "arange", "zeros", "bitwise_xor"))


def test_an_index_that_the_graph_changes_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    engine, graph, streams = Engine(layers=1), StandInGraph(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.indices.add_(1).remainder_(SLOTS)
            engine.forward()
        graph.replay()
    assert (counts.records, counts.failures) == (0, 1)
    assert re.search(wording("capture.rows-change", tensor="state"), str(counts.first_failure))


def test_two_calls_on_one_pool_and_pools_made_in_the_graph_are_refused(tmp_path: Path) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    engine.states = [engine.states[0], engine.states[0]]
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.forward()
        graph.replay()
        assert (counts.records, counts.failures) == (0, 1)
        assert re.search(wording("capture.pool-twice"), str(counts.first_failure))
        counts.first_failure = None
        with graph_of(StandInGraph()):
            engine.states = [state * 2.0 for state in Engine().states]
            engine.forward()
        assert re.search(wording("capture.pool-in-graph", tensor="state"), str(counts.first_failure))


def test_rows_that_are_not_there_are_counted_and_not_followed(tmp_path: Path) -> None:
    engine, streams = Engine(layers=1), StandInStreams()
    engine.indices[1] = SLOTS + 3
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts, pytest.raises(IndexError):
        engine.forward()
    assert (counts.records, counts.unfinished, counts.failures) == (0, 0, 1)
    missing = wording("capture.rows-missing", first=4, last=SLOTS + 3, tensor="state", slots=SLOTS)
    assert re.search(missing, str(counts.first_failure))


def test_no_graphs_leaves_them_alone(tmp_path: Path) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, CaptureOptions(graphs=False)) as counts:
        with graph_of(graph):
            engine.forward()
        mine = len(graph._log.steps)
        graph.replay()
    plain = StandInGraph()
    with graph_of(plain):
        engine.forward()
    assert mine == len(plain._log.steps)
    assert (counts.records, counts.skipped_compiling, counts.graph_calls) == (0, 2, 0)


def test_a_graph_outlives_the_capture_and_its_class_is_as_it_was(tmp_path: Path) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    methods = {name: getattr(StandInGraph, name) for name in ("capture_begin", "capture_end", "replay")}
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None])
    assert {name: getattr(StandInGraph, name) for name in methods} == methods
    run(engine, graph, [None])
    expected = engine.seen[-1][1]["o"] * 0.5
    assert torch.equal(engine.out, expected)
    assert (counts.records, counts.failures) == (2, 0)


def test_graphs_that_are_gone_give_their_bytes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine captures its graphs anew when its batch sizes change; a capture may fail as well."""
    engine, streams = Engine(layers=1), StandInStreams()
    each = [tensor.nbytes for name, tensor in engine.call().items() if name != "state"]
    of_one = sum(-(-nbytes // 256) * 256 for nbytes in each)  # tensors begin at 256 bytes, as CUDA allocates
    monkeypatch.setattr("gdnbench.capture.graphs.GRAPH_BYTES", of_one * 3 // 2)
    streams.gate.set()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        for _ in range(3):
            graph = StandInGraph()
            with graph_of(graph):
                engine.forward()
            run(engine, graph, [None])
            del graph
            gc.collect()
        graph = StandInGraph()
        for _ in range(2):  # captured again: what it had is gone
            with graph_of(graph):
                engine.forward()
        with graph_of(StandInGraph()):
            engine.forward()
    assert (counts.graph_calls, counts.records, counts.failures) == (5, 3, 0)
    assert sum(counts.passed_over.values()) == 1
    assert_recorded(tmp_path / "run.zarr", engine.seen)


def test_drop_refuses_what_does_not_fit_and_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdnbench.capture.transfer.LIMIT_BYTES", 1)
    engine, streams = Engine(layers=1), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, CaptureOptions(when_full="drop")) as counts:
        for _ in range(3):  # the first goes alone; nothing arrives before the end
            engine.next_step()
            engine.spied()
            engine.forward()
    assert (counts.records, counts.dropped, counts.failures) == (1, 2, 0)
    assert_recorded(tmp_path / "run.zarr", engine.seen[:1])


def test_a_call_whose_rows_cannot_be_copied_takes_neither_room_nor_the_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine leaves little of a device's memory. Room that is not given back would in the end have the
    program wait for ever."""
    monkeypatch.setattr("gdnbench.capture.transfer.LIMIT_BYTES", 1)
    engine, graph, streams, full = Engine(), StandInGraph(), StandInStreams(), [True]

    def pack(fills: Mapping[str, Fill]) -> list[Bundle]:
        if full and not streams.capturing():
            full.clear()
            raise torch.OutOfMemoryError("out of memory")
        return packing.pack(fills)

    monkeypatch.setattr("gdnbench.capture.device_snapshot.pack", pack)
    with capturing_stand_in(tmp_path / "run.zarr", streams, CaptureOptions(when_full="drop")) as counts:
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None])
        streams.gate.set()
        settle()
        run(engine, graph, [None])
    assert counts.first_failure is not None
    assert "OutOfMemoryError" in counts.first_failure
    assert (counts.records, counts.dropped, counts.failures) == (3, 0, 1)
    assert_recorded(tmp_path / "run.zarr", engine.seen[1:])


def settle() -> None:
    """Wait until all that is on its way has arrived."""
    capture = runtime.innermost()
    assert capture is not None
    assert capture.session.recorder is not None
    capture.session.recorder.wait_until_written()


@pytest.mark.timeout(60)
def test_calls_of_a_replay_do_not_wait_for_one_another_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them arrives before the replay: together they go alone."""
    monkeypatch.setattr("gdnbench.capture.transfer.LIMIT_BYTES", 1)
    engine, graph, streams = Engine(layers=3), StandInGraph(), StandInStreams()
    streams.gate.set()
    with capturing_stand_in(tmp_path / "run.zarr", streams, CaptureOptions(when_full="block")) as counts:
        with graph_of(graph):
            engine.forward()
        for _ in range(2):
            run(engine, graph, [None])
            settle()
    assert (counts.records, counts.dropped, counts.failures) == (6, 0, 0)
    assert_recorded(tmp_path / "run.zarr", engine.seen)


def test_rows_known_to_all_captures_may_be_forgotten_by_another_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgotten(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None: ...

    monkeypatch.setattr("gdnbench.capture.inflight._rows_known", Forgotten())
    engine, streams = Engine(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        engine.next_step()
        engine.spied()
        engine.forward()
    assert (counts.records, counts.failures) == (2, 0)
    assert_recorded(tmp_path / "run.zarr", engine.seen)
