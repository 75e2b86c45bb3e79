# SPDX-License-Identifier: Apache-2.0
"""Calls that a trigger keeps, and those around them: on the CPU, a stand-in for a device, in its graphs."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gdnbench.capture import capturing, record, runtime
from gdnbench.capture.nonfinite import _extremes, _odd
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.recorder import Counts
from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.store.reader import Store, StoredRecord
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.messages import wording
from tests.subset import quick

SLOTS, HEADS, DIM = 7, 4, 8
INF, NAN = float("inf"), float("nan")


@record("gdn_decode")
def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor, o: Tensor
) -> None:
    """The state of a sequence is what it had and v; a padding sequence leaves its row of o as it was."""
    rows = state_indices.flatten().long()
    used = (rows >= 0)[:, None, None, None]
    old = state.index_select(0, rows.clamp(min=0))
    new = old * 0.5 + v[:, 0, :, :, None] + g[:, 0].exp()[..., None, None] * beta.sum() * 0.01
    state.index_copy_(0, rows.clamp(min=0), torch.where(used, new, old))
    o.copy_(torch.where(used, v + q.sum() * 0.01 + k.sum() * 0.01, o))


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index


def inside(layer: Layer) -> AbstractContextManager[None]:
    capture = runtime.innermost()
    return capture.session._scopes.inside(layer) if capture is not None else nullcontext()


class Engine:
    """Two layers on static buffers that each step refills. `seen` has what a step's calls got and gave, by
    (layer, step)."""

    def __init__(self, layers: int = 2) -> None:
        self.make = torch.Generator().manual_seed(0)
        self.layers = [Layer(index) for index in range(layers)]
        self.states = [self.random(SLOTS, HEADS, DIM, DIM) for _ in range(layers)]
        self.buffers = [
            {
                "q": torch.zeros(3, 1, 2, DIM),
                "k": torch.zeros(3, 1, 2, DIM),
                "v": torch.zeros(3, 1, HEADS, DIM),
                "g": torch.zeros(3, 1, HEADS),
                "beta": torch.zeros(3, 1, HEADS),
                "state_indices": torch.tensor([[4], [-1], [2]], dtype=torch.int32),
                "o": torch.zeros(3, 1, HEADS, DIM),
            }
            for _ in range(layers)
        ]
        self.seen: dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        self.steps = 0

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.make)

    def refill(self) -> None:
        for tensors in self.buffers:
            for name in ("q", "k", "v"):
                tensors[name].copy_(self.random(*tensors[name].shape))
            tensors["g"].copy_(-self.random(3, 1, HEADS).abs())
            tensors["beta"].copy_(self.random(3, 1, HEADS).sigmoid())
            tensors["o"].zero_()

    def calls(self) -> None:
        for layer, state, tensors in zip(self.layers, self.states, self.buffers, strict=True):
            with inside(layer):
                step(**tensors, state=state)

    def spy(self) -> None:
        """What the step about to run will get and give, on copies."""
        for index, (state, tensors) in enumerate(zip(self.states, self.buffers, strict=True)):
            copies = {name: one.clone() for name, one in tensors.items()}
            pool, rows = state.clone(), [2, 4]
            before = {**{n: one.clone() for n, one in copies.items() if n != "o"}, "state": pool[rows]}
            step.__wrapped__(**copies, state=pool)  # type: ignore[attr-defined]
            self.seen[index, self.steps] = before, {"o": copies["o"], "state": pool[rows]}
        self.steps += 1


Spoil = Callable[[Engine, int], None]


@contextmanager
def on_cpu(store: Path, options: CaptureOptions) -> Iterator[Counts]:
    with capturing(store, options) as counts:
        yield counts


@contextmanager
def on_device(store: Path, options: CaptureOptions) -> Iterator[Counts]:
    streams = StandInStreams()
    with capturing_stand_in(store, streams, options) as counts:
        streams.gate.set()
        yield counts


WAYS = pytest.mark.parametrize("way", ["cpu", "device", "graph"])


def recorded(
    way: str, store: Path, options: CaptureOptions, steps: int, spoil: Spoil = lambda engine, at: None
) -> tuple[list[StoredRecord], Engine, Counts]:
    """The records of an engine's steps. `spoil` may change the buffers of a step before it runs."""
    engine = Engine()
    engine.refill()
    with (on_cpu if way == "cpu" else on_device)(store, options) as counts:
        run = engine.calls
        if way == "graph":
            graph = StandInGraph()
            with graph_of(graph):
                engine.calls()
            # As on a GPU, nothing runs while it is captured: the stand-in's states are as new.
            engine.states[0].copy_(torch.ones(1))
            engine.states[1].copy_(torch.ones(1))
            run = graph.replay
        for at in range(steps):
            engine.refill()
            spoil(engine, at)
            engine.spy()
            run()
    found = list(Store.open(store).records) if (store / "zarr.json").exists() else []
    return found, engine, counts


def kept(records: list[StoredRecord]) -> list[tuple[int | None, int, str]]:
    return [(r.info.layer_index, r.info.step, r.info.dispatch["trigger"]) for r in records]


def assert_bits(records: list[StoredRecord], engine: Engine) -> None:
    """The records hold what the spy saw of just these calls."""
    for one in records:
        assert one.info.layer_index is not None
        before, after = engine.seen[one.info.layer_index, one.info.step]
        for handles, tensors in ((one.before, before), (one.after, after)):
            assert set(handles) == set(tensors)
            for name, tensor in tensors.items():
                assert torch.equal(
                    handles[name].read().contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
                ), (one.info.step, name)


def nan_in_v(engine: Engine, at: int) -> None:
    if at == 3:
        engine.buffers[1]["v"][2, 0, 1, 5] = NAN


@pytest.mark.every(2)
@WAYS
def test_calls_with_a_nan_are_kept_with_those_around_them(way: str, tmp_path: Path) -> None:
    """By hand: in layer 1 the NaN of step 3 stays in the state of slot 2, so that every later call has it."""
    options = CaptureOptions(on_nonfinite=True, around=1, first=1)
    records, engine, counts = recorded(way, tmp_path / "run.zarr", options, 6, nan_in_v)
    call = next(r.info.call for r in records if r.info.step == 3 and r.info.layer_index == 1)
    around = f"around:call {call}"
    assert kept(records) == [
        (1, 2, around),
        (0, 3, around),
        (1, 3, "nonfinite:v,state,o"),
        (0, 4, around),
        (1, 4, around),
    ]
    assert_bits(records, engine)
    assert (counts.failures, counts.looked_at, counts.triggered) == (0, 12, 1)


@pytest.mark.every(2)
@WAYS
def test_without_around_only_the_calls_themselves_are_kept(way: str, tmp_path: Path) -> None:
    options = CaptureOptions(on_nonfinite=True)
    records, engine, counts = recorded(way, tmp_path / "run.zarr", options, 5, nan_in_v)
    assert kept(records) == [(1, 3, "nonfinite:v,state,o"), (1, 4, "nonfinite:state")]
    assert_bits(records, engine)
    assert counts.failures == 0


@pytest.mark.every(2)
@WAYS
def test_what_does_not_count_is_no_trigger(way: str, tmp_path: Path) -> None:
    def spoil(engine: Engine, at: int) -> None:
        for tensors, state in zip(engine.buffers, engine.states, strict=True):
            tensors["v"][1] = NAN  # the padding sequence's, and its row of o
            tensors["o"][1] = NAN
            state[5] = INF  # a slot that no sequence has
            tensors["g"][0, 0, 1] = -INF  # a decay to nothing

    records, _, counts = recorded(way, tmp_path / "run.zarr", CaptureOptions(on_nonfinite=True), 3, spoil)
    assert kept(records) == []
    assert (counts.failures, counts.looked_at) == (0, 6)


@pytest.mark.parametrize(("value", "name"), quick(product([NAN, INF, -INF], ["q", "beta", "g"]), 0, 4, 8))
def test_each_kind_of_value_in_an_input(value: float, name: str, tmp_path: Path) -> None:
    def spoil(engine: Engine, at: int) -> None:
        engine.buffers[0][name][2].view(-1)[-1] = value

    records, _, _ = recorded("cpu", tmp_path / "run.zarr", CaptureOptions(on_nonfinite=True), 1, spoil)
    names = [one.info.dispatch["trigger"].removeprefix("nonfinite:").split(",")[0] for one in records]
    assert names == ([] if (name, value) == ("g", -INF) else [name])


@pytest.mark.parametrize(
    ("dtype", "codes", "finite"),
    [
        (torch.float8_e4m3fn, (0x7F, 0xFF), (0x7E, 0xFE, 0x80)),
        (torch.float8_e5m2, (0x7C, 0xFC, 0x7D, 0xFF), (0x7B, 0xFB, 0x80)),
        (torch.float8_e4m3fnuz, (0x80,), (0x7F, 0xFF)),
        (torch.float8_e5m2fnuz, (0x80,), (0x7F, 0xFF)),
        (torch.float8_e8m0fnu, (0xFF,), (0xFE, 0x00)),
    ],
)
def test_codes_of_fp8(dtype: torch.dtype, codes: tuple[int, ...], finite: tuple[int, ...]) -> None:
    """The codes are those of the formats' definitions: OCP's for e4m3fn, e5m2 and e8m0, the others' only NaN
    is the code of a negative zero."""
    o = operation("gdn_decode").spec("o")
    for code in (*codes, *finite):
        data = torch.tensor([0x38, code, 0x30], dtype=torch.uint8).view(dtype)
        assert _odd(o, *_extremes(data).tolist()) is (code in codes), hex(code)


def test_bits_of_wider_formats() -> None:
    o, lse = operation("swa_decode").spec("o"), operation("swa_decode").spec("lse")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        for value, odd in ((NAN, True), (INF, True), (-INF, True), (largest, False), (-largest, False)):
            found = _extremes(torch.tensor([0.0, value, 1.0], dtype=dtype)).tolist()
            assert _odd(o, *found) is odd
            assert _odd(lse, *found) is (odd and value != -INF), "the log of an empty sum"


@pytest.mark.every(2)
@WAYS
def test_calls_for_which_an_expression_holds(way: str, tmp_path: Path) -> None:
    options = CaptureOptions(when="step >= 2 and layer_index == 0 and Hv == 4 and q.shape[-1] == 8", first=2)
    records, engine, counts = recorded(way, tmp_path / "run.zarr", options, 6)
    assert kept(records) == [(0, 2, "when"), (0, 3, "when")]
    assert_bits(records, engine)
    assert (counts.failures, counts.triggered) == (0, 2)


@pytest.mark.every(2)
@WAYS
def test_either_trigger_is_enough(way: str, tmp_path: Path) -> None:
    options = CaptureOptions(when="step == 1", on_nonfinite=True, layer=("1",))
    records, engine, _ = recorded(way, tmp_path / "run.zarr", options, 4, nan_in_v)
    assert kept(records) == [(1, 1, "when"), (1, 3, "nonfinite:v,state,o")]
    assert_bits(records, engine)


@pytest.mark.every(2)
@WAYS
def test_every_and_the_expression(way: str, tmp_path: Path) -> None:
    """Every third call is looked at; of those the ones around are those looked at."""
    options = CaptureOptions(when="step == 6 and layer_index == 1", around=1, every=3)
    records, _, _ = recorded(way, tmp_path / "run.zarr", options, 12)
    assert [(layer, at) for layer, at, _ in kept(records)] == [(1, 3), (0, 6), (1, 6), (0, 9), (1, 9)]


@pytest.mark.every(2)
@WAYS
def test_the_ring_keeps_within_its_bytes(way: str, tmp_path: Path) -> None:
    """Room for one call of the two that wait: a call is 2,776 bytes of tensors, on a device 256 more a
    tensor at most."""
    options = CaptureOptions(when="step == 4 and layer_index == 1", around=2, ring_bytes=11_000)
    records, engine, counts = recorded(way, tmp_path / "run.zarr", options, 5)
    assert (1, 4, "when") in kept(records)
    assert 1 < len(records) < 5
    assert_bits(records, engine)
    assert counts.ring_short > 0


def test_calls_that_are_larger_than_the_ring_do_not_wait(tmp_path: Path) -> None:
    options = CaptureOptions(when="step == 2", around=2, ring_bytes=100)
    records, _, counts = recorded("cpu", tmp_path / "run.zarr", options, 3)
    assert [(layer, at) for layer, at, _ in kept(records)] == [(0, 2), (1, 2)]
    assert counts.ring_short == 4


@pytest.mark.every(2)
@WAYS
def test_where_max_bytes_end_the_call_itself_goes_before_those_that_waited(way: str, tmp_path: Path) -> None:
    """Room for two calls of five: one is 5,356 bytes of elements, on a device 1,024 more for the row of the
    state that padding names and 1,024 for it once more after the call, until they are here."""
    options = CaptureOptions(when="step == 4 and layer_index == 1", around=2, max_bytes=15_000)
    records, engine, counts = recorded(way, tmp_path / "run.zarr", options, 6)
    assert [(layer, at) for layer, at, _ in kept(records)] == [(0, 4), (1, 4)]
    assert_bits(records, engine)
    assert counts.reached_max_bytes


def test_what_no_trigger_holds_for_stays_on_the_device(tmp_path: Path) -> None:
    """Of a call that is let go, 16 bytes a tensor are asked for and nothing else."""
    streams = StandInStreams()
    options = CaptureOptions(on_nonfinite=True, around=1)
    engine = Engine(layers=1)
    with capturing_stand_in(tmp_path / "run.zarr", streams, options):
        streams.gate.set()
        for _ in range(5):
            engine.refill()
            engine.calls()
    asked = [thread for what, thread in streams.log if what == "arrived"]
    sent = [thread for what, thread in streams.log if what == "to_host"]
    # A call has two stretches of copies and their extremes in two more.
    assert (len(sent), len(asked)) == (5 * 4, 5 * 2)
    assert "MainThread" not in asked


def test_an_error_in_the_expression_is_counted_and_the_call_goes_on(tmp_path: Path) -> None:
    options = CaptureOptions(when="1 // (step - 1) == 1")
    records, _, counts = recorded("cpu", tmp_path / "run.zarr", options, 3)
    assert [(layer, at) for layer, at, _ in kept(records)] == [(0, 2), (1, 2)]
    assert counts.failures == 2
    assert "ZeroDivisionError" in str(counts.first_failure)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (CaptureOptions(on_nonfinite=True), "raised"),
        (CaptureOptions(when="step == 9", around=1), "raised"),
        (CaptureOptions(when="step == 0"), "when"),
    ],
)
def test_a_call_that_raises_is_kept(options: CaptureOptions, reason: str, tmp_path: Path) -> None:
    @record("gdn_decode")
    def fails(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        raise RuntimeError("no")

    engine = Engine(layers=1)
    tensors = {name: one for name, one in engine.buffers[0].items() if name != "o"}
    with capturing(tmp_path / "run.zarr", options), pytest.raises(RuntimeError):
        fails(**tensors, state=engine.states[0])
    (found,) = Store.open(tmp_path / "run.zarr").records
    assert (found.info.status, found.info.dispatch["trigger"]) == ("unfinished", reason)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"around": 2}, wording("capture.around-alone")),
        ({"around": -1, "when": "q"}, wording("capture.around-negative")),
        ({"sync": True, "on_nonfinite": True}, wording("capture.sync-with-trigger")),
        ({"signal": "KILL"}, "'signal' is 'KILL', must be one of USR1, USR2"),
        ({"ring_bytes": 0}, wording("capture.option-above-zero")),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, object], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        CaptureOptions(**options)  # type: ignore[arg-type]


FORKED = """
    import multiprocessing, torch, toyframe

    def work(model):
        torch.set_num_threads(1)
        model(1, slots=(0, 2, 4))

    model = toyframe.Model(1)
    model(0)
    process = multiprocessing.get_context("fork").Process(target=work, args=(model,))
    process.start()
    process.join()
    assert process.exitcode == 0
    model(2)
    model(3, slots=(0, 2, 4))
"""


@pytest.mark.slow  # processes that import torch
def test_a_forked_process_lets_out_calls_of_its_own(toy: Any, tmp_path: Path) -> None:
    """The first call waits in the parent; the child's trigger is no reason to keep it there, nor a second
    time."""
    ran = toy.capture(tmp_path / "run.zarr", toy.script(FORKED), {"when": "B == 3", "around": 5})
    assert ran.status == 0
    by_segment: dict[str, list[tuple[int, str]]] = {}
    for one in Store.open(tmp_path / "run.zarr").records:
        told = one.info.step, one.info.dispatch["trigger"]
        by_segment.setdefault(one.key.partition("/")[0], []).append(told)
    assert sorted(by_segment.values()) == [
        [(0, "around:call 2"), (1, "around:call 2"), (2, "when")],
        [(1, "when")],
    ]
    assert re.search(wording("capture.calls-seen", calls=4, triggered=2), ran.err)


KILLED = """
    import os, signal, toyframe

    model = toyframe.Model(1)
    for step in range(8):
        model(step, slots=(0, 2, 4) if step == 4 else (1, 3))
    os.kill(os.getpid(), getattr(signal, os.environ["BY"]))
"""


@pytest.mark.parametrize("by", quick(["SIGTERM", "SIGKILL"], 1))
def test_what_a_trigger_let_out_is_there_after_a_kill(by: str, toy: Any, tmp_path: Path) -> None:
    """What waits is gone with the process: no trigger held for it."""
    ran = toy.capture(tmp_path / "run.zarr", toy.script(KILLED), {"when": "B == 3", "around": 2}, BY=by)
    assert ran.status == 128 + getattr(signal, by)
    steps = [one.info.step for one in Store.open(tmp_path / "run.zarr").records]
    assert steps == [2, 3, 4, 5, 6]
