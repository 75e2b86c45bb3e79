# SPDX-License-Identifier: Apache-2.0
"""Calls that are not selected: nothing is asked of them, and the same are kept as if it had been."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gdnbench.capture import record, runtime
from gdnbench.capture.adapter import NotCaptured, Observation, Target
from gdnbench.capture.adapters.fla import FlaAdapter
from gdnbench.capture.adapters.flashinfer import FlashinferAdapter
from gdnbench.capture.adapters.paged import Paged
from gdnbench.capture.adapters.sglang import SglangAdapter
from gdnbench.capture.adapters.transformers import ADAPTER as TRANSFORMERS
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.capture.functions import FunctionAdapter
from gdnbench.capture.layers import Layer
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.report import Report
from gdnbench.capture.sealing import seal_segment
from gdnbench.capture.selection import Selection
from gdnbench.capture.session import Session
from gdnbench.store.reader import Store
from scripts.benchmarks import adapter_loops
from tests.messages import wording

DIM = 8


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """`beta` of the calls that reached `before`: their number. Those of 100 and more are refused there."""
    seen: list[float] = []
    before = FunctionAdapter.before

    def spy(self: Any, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        seen.append(float(arguments["beta"].max()))
        if seen[-1] >= 100:
            raise NotCaptured("of another kind")
        return before(self, target, arguments, layer)

    monkeypatch.setattr(FunctionAdapter, "before", spy)
    return seen


@record("gdn_decode")
def inner(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
) -> Tensor:
    state += beta.sum()
    return v


@record("gdn_decode")
def outer(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
) -> Tensor:
    return inner(q, k, v, g, beta, state, state_indices)


@record("gdn_decode")
def broken(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
) -> Tensor:
    raise ZeroDivisionError


def given(number: int, state: Tensor) -> dict[str, Tensor]:
    """A call's tensors; `beta` is its number."""
    q = torch.full((1, 1, 1, DIM), 0.5)
    gates = {"g": torch.zeros(1, 1, 2), "beta": torch.full((1, 1, 2), float(number))}
    slots = torch.tensor([[1]], dtype=torch.int32)
    return {"q": q, "k": q, "v": torch.ones(1, 1, 2, DIM), **gates, "state": state, "state_indices": slots}


@contextmanager
def captured(store: Path, options: CaptureOptions, failures: int = 0) -> Iterator[Session]:
    """`capturing` without a sealer beside it."""
    capture = runtime.Capture(store, options, report=Report(None), on_first_record=None)
    session = capture.session
    runtime.running.append(capture)
    try:
        yield session
    finally:
        runtime.running.remove(capture)
        session.close()
    assert session.counts.failures == failures, session.counts.first_failure
    if session.segment is not None:
        seal_segment(store, session.segment)


def records(store: Path) -> list[tuple[str, int, int, float]]:
    """(layer, call, step, number) of the records."""
    if not store.exists():
        return []
    found = sorted(Store.open(store).records, key=lambda one: one.info.call)
    return [
        (one.info.layer, one.info.call, one.info.step, float(one.before["beta"].read().max()))
        for one in found
    ]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("options", "kept", "looked"),
    [
        ({"every": 4}, [0, 4, 8], [0, 4, 8]),
        ({"every": 4, "first": 2}, [0, 4], [0, 4]),
        ({"first": 3}, [0, 1, 2], [0, 1, 2]),
        ({"op": ("gdn_decode",), "every": 4}, [0, 4, 8], [0, 4, 8]),
        ({"op": ("gdn_prefill",)}, [], []),
        ({"layer": ("7",)}, [], []),
        ({"paused": True}, [], []),
        ({"when": "step == 6", "every": 3}, [6], [0, 3, 6, 9]),
        ({"when": "step >= 6", "every": 3, "first": 1}, [6], [0, 3, 6]),
        # Call 3 waits for one to hold, and 9 is behind it.
        ({"when": "step >= 6", "around": 1, "every": 3, "first": 1}, [3, 6, 9], [0, 3, 6, 9]),
    ],
)
def test_calls_that_are_not_kept_are_not_looked_at(
    looked_at: list[float], options: dict[str, Any], kept: list[int], looked: list[int], tmp_path: Path
) -> None:
    state = torch.zeros(2, 2, DIM, DIM)
    with captured(tmp_path / "run.zarr", CaptureOptions(**options)):
        for number in range(10):
            inner(**given(number, state))
    assert [(call, step, number) for _, call, step, number in records(tmp_path / "run.zarr")] == [
        (n, n, float(n)) for n in kept
    ]
    assert looked_at == looked


def test_no_call_is_looked_at_once_there_is_no_room_or_no_more_is_asked_for(
    looked_at: list[float], tmp_path: Path
) -> None:
    state = torch.zeros(2, 2, DIM, DIM)
    with captured(tmp_path / "full.zarr", CaptureOptions(max_bytes=1)):
        for number in range(4):
            inner(**given(number, state))
    assert looked_at == [0], "it did not fit"
    with captured(tmp_path / "next.zarr", CaptureOptions(paused=True)) as session:
        session.selection.switch.next(2)
        for number in range(10, 16):
            inner(**given(number, state))
        session.selection.switch.next(1)
        for number in range(20, 24):
            inner(**given(number, state))
    assert looked_at == [0, 10, 11, 20]
    assert [step for _, _, step, _ in records(tmp_path / "next.zarr")] == [0, 1, 6]


def test_a_call_that_is_due_and_is_refused_leaves_the_next_one_due(
    looked_at: list[float], tmp_path: Path
) -> None:
    """By hand: calls 2, 4 and 9 are refused. After a kept one three go by, refused ones among them."""
    state = torch.zeros(2, 2, DIM, DIM)
    with captured(tmp_path / "run.zarr", CaptureOptions(every=4)) as session:
        for number in (0, 1, 102, 3, 104, 5, 6, 7, 8, 109, 10):
            inner(**given(number, state))
    assert [step for _, _, step, _ in records(tmp_path / "run.zarr")] == [0, 5, 10]
    assert looked_at == [0, 104, 5, 109, 10]
    assert session.counts.passed_over == {"of another kind": 2}, "those that were looked at"


class Mixer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.state = torch.zeros(2, 2, DIM, DIM)

    def forward(self, function: Callable[..., object], number: int) -> None:
        function(**given(number, self.state))


def run_layers(session: Session, steps: int) -> None:
    """Numbers are layer * 20 + step. Layer 0 calls a captured function that calls another, layer 1 calls one
    twice, of which the second raises in step 3, and layer 2 calls one."""
    mixers = [Mixer(index) for index in range(3)]
    forward = session.wrap_scope(TRANSFORMERS, Target(__name__, "Mixer.forward"), Mixer.forward)
    for at in range(steps):
        forward(mixers[0], outer, at)
        forward(mixers[1], inner, 20 + at)
        with pytest.raises(ZeroDivisionError) if at == 3 else nullcontext():
            forward(mixers[1], broken if at == 3 else inner, 20 + at)
        forward(mixers[2], inner, 40 + at)


def step_of_every_call(selection: Selection, layer: Layer, operations: frozenset[str] | None) -> int:
    """As if nothing could be said before a call is looked at."""
    return selection.step(layer)


@pytest.mark.every(3)
@pytest.mark.parametrize("asked", ["before the adapter", "after it"])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        # By hand: steps count the calls of a layer, two of layer 1 in each step of the program.
        ({"every": 3}, {0: [0, 3, 6], 1: [0, 3, 6, 9, 12], 2: [0, 3, 6]}),
        ({"every": 7}, {0: [0], 1: [0, 7], 2: [0]}),
        ({"every": 3, "first": 2}, {0: [0, 3], 1: [0, 3], 2: [0, 3]}),
        ({"every": 2, "layer": ("1-2",)}, {1: [0, 2, 4, 6, 8, 10, 12], 2: [0, 2, 4, 6]}),
        ({"when": "step >= 4", "every": 2}, {0: [4, 6], 1: [4, 6, 8, 10, 12], 2: [4, 6]}),
    ],
)
def test_the_same_calls_are_kept_whenever_the_selection_is_asked(
    asked: str,
    options: dict[str, Any],
    kept: dict[int, list[int]],
    looked_at: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if asked == "after it":
        monkeypatch.setattr(Selection, "step_if_due", step_of_every_call)
    with captured(tmp_path / "run.zarr", CaptureOptions(**options)) as session:
        run_layers(session, 7)
    # Four calls in each of the program's 7 steps, counted whether or not they are kept.
    first = {0: 0, 1: 1, 2: 3}
    expected = sorted(
        (4 * (step // 2) + 1 + step % 2, step, 20.0 + step // 2)
        if layer == 1
        else (4 * step + first[layer], step, 20.0 * layer + step)
        for layer, steps in kept.items()
        for step in steps
    )
    found = records(tmp_path / "run.zarr")
    assert [(call, step, number) for _, call, step, number in found] == expected
    assert [name for name, *_ in found] == [f"Mixer.{number // 20:.0f}" for _, _, _, number in found]
    assert (len(looked_at) == 28) == (asked == "after it")


DECODES = {
    "transformers": type(TRANSFORMERS),
    "fla": FlaAdapter,
    "flashinfer": FlashinferAdapter,
    "vllm": VllmAdapter,
    "sglang": SglangAdapter,
    "table": Paged,
    "record": FunctionAdapter,
}
MIXED = ("transformers", "fla")
"""Their recurrent function is a prefill or a decode by what it is given."""


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DECODES)
def test_no_adapter_is_asked_about_a_call_that_is_not_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand, of 8 decode steps of a layer: 0, 3 and 6 of every third. None is a prefill; a function that
    may be one is looked at each time."""
    asked: list[str] = []
    before = DECODES[name].before

    def spy(self: Any, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        asked.append(target.function)
        return before(self, target, arguments, layer)

    monkeypatch.setattr(DECODES[name], "before", spy)
    with adapter_loops.LOOPS[name](adapter_loops.Sizes("cpu", 1, 1, 2)) as loop:
        (tmp_path / "table.toml").write_text(loop.table)
        table = (str(tmp_path / "table.toml"),) if loop.table else ()
        other = "gdn_prefill"
        for given, looked in (({"every": 3}, 3), ({"op": (other,)}, 8 if name in MIXED else 0)):
            store = tmp_path / f"{looked}.zarr"
            with captured(store, CaptureOptions(**given, table=table)):  # type: ignore[arg-type]
                capture = runtime.innermost()
                assert capture is not None
                capture.patcher.patch_loaded()
                try:
                    for _ in range(8):
                        loop.step()
                finally:
                    capture.patcher.restore()
            assert len(asked) == looked
            asked.clear()
        steps = [one.info.step for one in Store.open(tmp_path / "3.zarr").records]
        assert steps == [0, 3, 6]


@pytest.mark.parametrize("known", [None, frozenset({"gdn_prefill", "gdn_decode"})])
def test_calls_that_may_be_of_another_operation_count_once_looked_at(known: frozenset[str] | None) -> None:
    """By hand: calls 1, 3, 4, 6 and 7 are decodes, of which every second is kept."""
    selection, layer = Selection(CaptureOptions(op=("gdn_decode",), every=2, first=3)), Layer("a", 0)
    kept = []
    for at in range(8):
        assert selection.step_if_due(layer, known) == at
        if selection.keeps("gdn_prefill" if at in (0, 2, 5) else "gdn_decode", layer):
            kept.append(at)
    assert kept == [1, 4, 7]
    assert selection.step_if_due(layer, known) is None, "--first is used up, whatever it is"


def test_threads_keep_as_many_as_one_would(looked_at: list[float], tmp_path: Path) -> None:
    """Of 4 x 50 calls of one layer every tenth, whichever they are, and each call has a step of its own."""

    def work() -> None:
        state = torch.zeros(2, 2, DIM, DIM)
        for number in range(50):
            inner(**given(number, state))

    with captured(tmp_path / "run.zarr", CaptureOptions(every=10)):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = records(tmp_path / "run.zarr")
    assert len({step for _, _, step, _ in found}) == len(found) == 20
    assert {call for _, call, _, _ in found} <= set(range(200))


def test_an_adapter_that_sees_another_operation_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FunctionAdapter, "operations", lambda adapter, target: ("gdn_prefill",))

    @record("gdn_decode")
    def mine(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
    ) -> Tensor:
        return v

    with captured(tmp_path / "run.zarr", CaptureOptions(), failures=1) as session:
        mine(**given(0, torch.zeros(2, 2, DIM, DIM)))
    seen_as = wording("capture.seen-as", operation="gdn_decode", known="gdn_prefill")
    assert re.search(seen_as, str(session.counts.first_failure))
