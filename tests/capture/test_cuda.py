# SPDX-License-Identifier: Apache-2.0
"""On a GPU: copies leave on a side stream, and no one waits for them but a thread of ours."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, record
from gdnbench.capture.streams import CudaHostCopy
from gdnbench.store.reader import Store
from tests.messages import wording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

SLOTS, BATCH, HEADS, DIM = 64, 8, 4, 128
Spied = list[tuple[dict[str, Tensor], dict[str, Tensor]]]


@record("gdn_decode")
def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor, o: Tensor
) -> None:
    rows = state_indices.flatten().long()
    state[rows] = state[rows] * 0.5 + v[:, 0, :, :, None]
    o.copy_(v + q.sum() + g.sum() + beta.sum() + k.sum())


class Buffers:
    """Static buffers, as an engine has them; the indices name every third slot."""

    def __init__(self, layers: int = 1) -> None:
        self.make = torch.Generator("cuda").manual_seed(0)
        self.states = [self.random(SLOTS, HEADS, DIM, DIM) for _ in range(layers)]
        self.o = self.random(BATCH, 1, HEADS, DIM)
        self.x = self.random(BATCH, 1, HEADS, DIM)
        self.indices = torch.arange(BATCH, dtype=torch.int32, device="cuda").unsqueeze(1) * 3
        self.rows = self.indices.flatten().long()

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=self.make)

    def inputs(self) -> dict[str, Tensor]:
        """Computed anew by each step, in memory that the next step, or the same graph, uses again."""
        x = self.x * 1.5
        return {
            "q": x[:, :, :2] * 0.5,
            "k": x[:, :, 2:] * 0.5,
            "v": x + 1.0,
            "g": -x[..., 0].abs(),
            "beta": x[..., 1].sigmoid(),
        }

    def forward(self) -> None:
        for state in self.states:
            step(**self.inputs(), state=state, state_indices=self.indices, o=self.o)
            self.x.add_(self.o * 1e-3)

    def next_step(self, shift: int = 0) -> None:
        self.x.copy_(self.random(*self.x.shape))
        self.indices.copy_(torch.arange(BATCH, device="cuda").unsqueeze(1) * 3 + shift)

    def spied(self, seen: Spied) -> None:
        """What a step computes, on copies."""
        x, rows = self.x.clone(), self.indices.flatten().long()
        for pool in self.states:
            inputs, state = self.inputs(), pool.clone()
            before = {**{n: one.clone() for n, one in inputs.items()}, "state": state[rows]}
            o = torch.empty_like(self.o)
            step.__wrapped__(**inputs, state=state, state_indices=self.indices, o=o)  # type: ignore[attr-defined]
            seen.append((before, {"o": o, "state": state[rows]}))
            self.x.add_(o * 1e-3)
        self.x.copy_(x)


def assert_recorded(store: Path, seen: Spied, rows: list[tuple[int, ...]]) -> None:
    for stored, (before, after), named in zip(Store.open(store).records, seen, rows, strict=True):
        for handles, tensors in ((stored.before, before), (stored.after, after)):
            for name, tensor in tensors.items():
                assert torch.equal(handles[name].read(), tensor.cpu()), name
        pool = stored.info.pools["state"]
        assert (pool.slots, pool.rows) == (SLOTS, named)
        assert pool.untouched_before == pool.untouched_after is not None
        assert stored.before["state"].meta.device == "cuda:0"


@contextmanager
def no_wait() -> Iterator[None]:
    """Whatever of torch makes this thread wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_reused_buffers_are_recorded_as_they_were(tmp_path: Path) -> None:
    buffers, seen = Buffers(), []
    with capturing(tmp_path / "run.zarr") as counts:
        buffers.forward()  # pinned memory and the side stream are made here
        for _ in range(20):
            buffers.next_step()
            buffers.spied(seen)
            with no_wait():
                buffers.forward()
            buffers.o.zero_()
    assert (counts.failures, counts.first_failure, counts.records) == (0, None, 21)
    store = Store.open(tmp_path / "run.zarr")
    assert len(store.records) == 21
    named = tuple(range(0, 3 * BATCH, 3))
    for stored, (before, after) in zip(store.records[1:], seen, strict=True):
        for handles, tensors in ((stored.before, before), (stored.after, after)):
            for name, tensor in tensors.items():
                assert torch.equal(handles[name].read(), tensor.cpu()), name
        assert stored.info.pools["state"].rows == named


def test_a_long_kernel_in_front_delays_no_call(tmp_path: Path) -> None:
    """The host is through with a captured call while the device has not begun it."""
    buffers = Buffers()
    with capturing(tmp_path / "run.zarr") as counts:
        buffers.forward()
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # a second or so of the GPU's clock
        buffers.forward()
        busy = not torch.cuda.current_stream().query()
    assert busy
    assert (counts.failures, counts.records) == (0, 2)


@pytest.mark.parametrize("every", [1, 3])
def test_replays_of_a_graph_are_recorded(tmp_path: Path, every: int) -> None:
    buffers, graph = Buffers(layers=2), torch.cuda.CUDAGraph()
    seen: Spied = []
    shifts = [0, 1, 0, 2, 30, 0, 7]
    with capturing(tmp_path / "run.zarr", CaptureOptions(every=every)) as counts:
        for state in buffers.states:  # warm up, uncaptured
            step.__wrapped__(  # type: ignore[attr-defined]
                **buffers.inputs(), state=state, state_indices=buffers.indices, o=buffers.o
            )
        with torch.cuda.graph(graph):
            buffers.forward()
        for shift in shifts:
            buffers.next_step(shift)
            buffers.spied(seen)
            graph.replay()
    assert (counts.failures, counts.first_failure, counts.skipped_compiling) == (0, None, 0)
    assert counts.graph_calls == 2
    named = [tuple(range(shift, shift + 3 * BATCH, 3)) for shift in shifts for _ in range(2)]
    # Without a scope both calls are of one layer: --every counts calls.
    assert_recorded(tmp_path / "run.zarr", seen[::every], named[::every])
    graph.replay()  # it works on, uncaptured
    torch.cuda.synchronize()


def test_replays_wait_for_no_way_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the device is busy with something in front, kept replays are queued one behind the other; pinned
    memory and copies to the host are asked for by the thread that writes."""
    threads = set()
    begin = CudaHostCopy.begin

    def spied_begin(way: CudaHostCopy) -> None:
        threads.add(threading.current_thread().name)
        begin(way)

    monkeypatch.setattr(CudaHostCopy, "begin", spied_begin)
    buffers, graph = Buffers(layers=2), torch.cuda.CUDAGraph()
    with capturing(tmp_path / "run.zarr") as counts:
        with torch.cuda.graph(graph):
            buffers.forward()
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # a second or so of the GPU's clock
        with no_wait():
            for _ in range(3):
                graph.replay()
        busy = not torch.cuda.current_stream().query()
    assert busy
    assert (counts.failures, counts.first_failure, counts.records) == (0, None, 8)
    assert threads == {"gdnbench-capture"}


def test_graphs_are_left_alone_without_the_option(tmp_path: Path) -> None:
    buffers, graph = Buffers(), torch.cuda.CUDAGraph()
    with capturing(tmp_path / "run.zarr", CaptureOptions(graphs=False)) as counts:
        with torch.cuda.graph(graph):
            buffers.forward()
        graph.replay()
        torch.cuda.synchronize()
    assert (counts.records, counts.skipped_compiling, counts.failures) == (0, 1, 0)


def test_a_pool_that_the_graph_makes_is_refused(tmp_path: Path) -> None:
    buffers, graph = Buffers(), torch.cuda.CUDAGraph()
    with capturing(tmp_path / "run.zarr") as counts:
        with torch.cuda.graph(graph):
            buffers.states = [buffers.states[0] * 2.0]
            buffers.forward()
        graph.replay()
        torch.cuda.synchronize()
    assert (counts.records, counts.failures) == (0, 1)
    assert re.search(wording("capture.pool-in-graph", tensor="state"), str(counts.first_failure))


def test_a_row_that_is_not_there_is_counted_and_not_followed(tmp_path: Path) -> None:
    buffers = Buffers()

    @record("gdn_decode")
    def harmless(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return v

    buffers.indices[2] = SLOTS + 5
    with capturing(tmp_path / "run.zarr") as counts:
        harmless(**buffers.inputs(), state=buffers.states[0], state_indices=buffers.indices)
    torch.cuda.synchronize()  # an access out of bounds would be reported here
    assert (counts.records, counts.failures) == (0, 1)
    assert f"to {SLOTS + 5} of state; it has {SLOTS}" in str(counts.first_failure)
