# SPDX-License-Identifier: Apache-2.0
"""Subjects of a bench: what a launch finds in its buffers, and what happens outside the time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import CannotRunError
from gdnbench.ops import operation
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.timing import bench, cache, clocks, cuda_clocks
from gdnbench.timing.bench import Bench, preparation, touched_bytes
from gdnbench.timing.clocks import PerfCounter
from gdnbench.timing.rotation import Rotation, RotationOptions
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench_kernels.contract import Call
from tests.messages import wording
from tests.timing.fake_cuda import FakeCuda

pytestmark = pytest.mark.alone


CPU = torch.device("cpu")
OPERATION = operation("gdn_decode")
SMALL = RotationOptions(placements=2, touched=1 << 20, most_sets=6)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def call(**options: Any) -> Call:
    return OPERATION.synth(**{"batch": 3, "heads": (1, 2), "head_dim": (16, 16), "seed": 5, **options})


def made(given: Call, mode: Cache = Cache.COLD, options: RotationOptions = SMALL) -> Bench:
    return Bench(given, OPERATION, CPU, Mode(mode), options)


def kernel(
    function: Callable[..., Any], conventions: dict[str, tuple[str, ...]] | None = None, name: str = "mine"
) -> LoadedKernel:
    return LoadedKernel(name, "tests:mine", function, conventions or {})


class Seen:
    """A kernel that writes down what it is given, and adds 1 to the state."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.places: list[int] = []

    def __call__(self, q: Tensor, state: Tensor, o: Tensor) -> None:
        self.states.append(state.clone())
        self.places.append(state.data_ptr())
        state.add_(1)
        o.zero_()


@pytest.mark.parametrize("mode", list(Cache))
def test_every_round_begins_with_the_state_of_the_call(mode: Cache) -> None:
    given = call()
    before = given.tensors["state"].clone()
    seen = Seen()
    subject = made(given, mode).subject(kernel(seen))
    for placement in (0, 1, 1, 0):
        seen.states.clear()
        subject.round(placement)
        if mode is Cache.COLD:  # each launch has a set of its own, restored: none sees what another wrote
            assert all(torch.equal(state, before) for state in seen.states)
        else:  # one set: the untimed launch and then each after the other
            assert torch.equal(seen.states[0], before)
            assert torch.equal(seen.states[1], before + 1)
    assert torch.equal(given.tensors["state"], before)


def test_cold_launches_of_a_round_have_buffers_of_their_own_and_warm_ones_share() -> None:
    for mode, sets in ((Cache.COLD, 6), (Cache.WARM, 1)):
        seen = Seen()
        subject = made(call(), mode).subject(kernel(seen))
        seen.places.clear()
        subject.round(0)
        first = len(set(seen.places))
        subject.round(1)
        assert first == min(sets, subject.launches)
        assert len(set(seen.places)) == 2 * first  # placements are different memory


def test_subjects_are_given_the_same_memory() -> None:
    one, other = Seen(), Seen()
    shared = made(call())
    subjects = [shared.subject(kernel(seen)) for seen in (one, other)]
    one.places.clear()
    other.places.clear()
    for subject in subjects:
        subject.round(1)
    common = min(subject.launches for subject in subjects)
    assert one.places[:common] == other.places[:common]


def test_another_layout_of_the_state_is_converted_and_restored_on_the_same_memory() -> None:
    given = call()
    plain, turned = Seen(), Seen()
    shared = made(given)
    subjects = [
        shared.subject(kernel(plain)),
        shared.subject(kernel(turned, {"state_layout": ("KV",)})),
    ]
    before = given.tensors["state"]
    for _ in range(2):
        for subject, seen, state in zip(
            subjects, (plain, turned), (before, before.transpose(-1, -2)), strict=True
        ):
            seen.states.clear()
            seen.places.clear()
            subject.round(0)
            assert all(torch.equal(found, state) for found in seen.states)
    common = min(subject.launches for subject in subjects)
    assert plain.places[:common] == turned.places[:common]


def test_the_cache_is_flushed_after_the_state_is_restored_and_before_the_clock_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        log.append("clock")
        return now

    monkeypatch.setattr(bench, "clock_of", lambda *arguments: Clock(clock))
    monkeypatch.setattr(cache, "read_memory", lambda memory, total: log.append("flush"))
    original = Rotation.load

    def load_logged(self: Rotation, *arguments: Any) -> None:
        log.append("restore")
        original(self, *arguments)

    monkeypatch.setattr(Rotation, "load", load_logged)
    subject = made(call()).subject(kernel(lambda q, state, o: log.append("launch")))
    log.clear()
    subject.round(1)
    assert log == ["restore", "flush", "clock", *["launch"] * subject.launches, "clock"]


def test_on_a_gpu_restoring_and_flushing_come_before_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA's calls written down: a round makes no event and no graph, and restores its own placement."""
    log: list[str] = []
    monkeypatch.setattr(cuda_clocks, "cuda", FakeCuda(log))
    clock = cuda_clocks.GraphClock(torch.device("cuda"))
    monkeypatch.setattr(bench, "clock_of", lambda *arguments: clock)
    monkeypatch.setattr(cache, "read_memory", lambda memory, total: log.append("flush"))
    original = Rotation.load

    def load_logged(self: Rotation, form: Any, placement: int) -> None:
        log.append(f"restore {placement}")
        original(self, form, placement)

    monkeypatch.setattr(Rotation, "load", load_logged)
    subject = made(call()).subject(kernel(lambda q, state, o: log.append("launch")))
    captured = log[len(log) - log[::-1].index("capture") : len(log) - log[::-1].index("captured") - 1]
    assert captured == ["launch"] * subject.launches == ["launch"] * 6
    for placement, events in ((0, (1, 2)), (1, (3, 4))):
        log.clear()
        assert subject.round(placement) == 0.003 / 6
        begin, end = (f"event {number}" for number in events)
        timed = ["hold", f"record {begin}", "replay", f"record {end}", f"wait {end}"]
        assert log == [f"restore {placement}", "flush", *timed]


class Clock(PerfCounter):
    least = 0.5

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now


def test_rounds_that_are_short_for_the_clock_are_repeated_and_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A launch of 1/64 s, 6 of a round, against a clock that asks for half a second: 6 rounds."""
    now = 0.0

    def launch(q: Tensor, state: Tensor, o: Tensor) -> None:
        nonlocal now
        now += 1 / 64
        calls.append(float(state.sum()))

    calls: list[float] = []
    clock = Clock(lambda: now)
    clock.goal = 10.0
    monkeypatch.setattr(bench, "clock_of", lambda *arguments: clock)
    subject = made(call()).subject(kernel(launch))
    assert subject.launches == 6
    calls.clear()
    assert subject.round(0) == 1 / 64
    assert len(calls) == 6 * 6
    monkeypatch.setattr(clocks, "MOST_PASSES", 3)
    with pytest.raises(CannotRunError, match=wording("timing.record-too-small")):
        subject.round(0)


def test_launches_are_prepared_once_for_each_set_and_outside_rounds() -> None:
    prepared, launched = [], []

    def prepare(q: Tensor, state: Tensor, o: Tensor) -> Callable[[], object]:
        assert torch.equal(state, given.tensors["state"])  # a preparation finds the call's values
        prepared.append(state.data_ptr())
        return lambda: launched.append(state.data_ptr())

    def function(q: Tensor, state: Tensor, o: Tensor) -> None:
        raise AssertionError("called instead of what was prepared")

    function.prepare = prepare  # type: ignore[attr-defined]
    given = call()
    subject = made(given).subject(kernel(function))
    assert len(set(prepared)) == len(prepared) == 2 * 6
    launched.clear()
    subject.round(0)
    assert len(prepared) == 12
    assert launched[: subject.launches] == prepared[: subject.launches]


def test_preparation_is_that_of_the_entry_or_the_functions_own() -> None:
    listed = load("torch", OPERATION)
    assert (preparation(listed, OPERATION) is None) == (not OPERATION.kernels["torch"].prepare)
    assert preparation(kernel(lambda: None), OPERATION) is None
    # A user's function that is called as a listed kernel is still the user's.
    assert preparation(kernel(lambda: None, name="torch"), OPERATION) is None


def test_outputs_that_a_kernel_allocates_are_other_memory_in_every_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a round runs; what the round before left may be used again."""
    places: list[int] = []

    def allocates(q: Tensor, state: Tensor) -> Tensor:
        o = torch.zeros(1 << 16)
        places.append(o.data_ptr())
        return o

    monkeypatch.setattr(PerfCounter, "goal", 3600.0)  # a busy machine makes fewer launches long enough
    subject = made(call()).subject(kernel(allocates))
    places.clear()
    subject.round(0)
    assert len(set(places[: subject.launches])) == subject.launches == 6


def test_what_a_kernel_raises_comes_through() -> None:
    def broken(q: Tensor) -> None:
        raise ArithmeticError("in the kernel")

    with pytest.raises(ArithmeticError, match="in the kernel"):
        made(call()).subject(kernel(broken))


@pytest.mark.parametrize("name", ["torch", "hf"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_timed_launch_gives_what_a_call_of_the_kernel_gives(name: str, steps: int) -> None:
    """In a set of its own and through conversions, against the fp64 oracle on the call itself: off by a few
    roundings of bf16, 2^-8, of outputs of size 1."""
    from gdnbench_kernels.run import run_kernel

    if name == "hf":
        pytest.importorskip("transformers")
    given = call(steps=steps, head_dim=(128, 128))
    if name == "hf" and steps > 1:
        pytest.skip("hf has one step")
    shared = made(given)
    found = shared.outputs(load(name, OPERATION))
    exact = run_kernel(OPERATION, "reference", given)
    assert found.keys() == exact.keys()
    for key, tensor in found.items():
        assert tensor.shape == exact[key].shape
        scale = float(exact[key].abs().max())
        torch.testing.assert_close(tensor.double(), exact[key].double(), rtol=0, atol=8 * 2**-8 * scale)


def test_outputs_that_a_launch_does_not_write_are_seen() -> None:
    found = made(call()).outputs(kernel(lambda q: None))
    assert bool(found["o"].isnan().all())


def test_bytes_of_a_launch_by_hand() -> None:
    """3 sequences, heads 1 and 2, K = V = 16; bf16 vectors, fp32 state, int32 indices."""
    given = call(slots=50)
    vectors = 3 * (1 * 16 + 1 * 16 + 2 * 16 + 2 * 16) * 2  # q, k, v, o
    gates = sum(given.tensors[name].nbytes for name in ("g", "beta"))
    touched = 3 * 2 * 16 * 16 * 4  # three slots of the fifty, once, though read and written
    rest = given.tensors["state_indices"].nbytes
    assert touched_bytes(given, OPERATION) == vectors + gates + touched + rest


def test_a_cpu_has_no_programs_and_a_call_without_tokens_can_be_benched() -> None:
    assert made(call()).programs(load("torch", OPERATION)) is None
    empty = made(call(batch=0))
    assert empty.sets == 6
    assert empty.launch_bytes >= 0


def test_memory_that_does_not_suffice_is_one_line() -> None:
    with pytest.raises(CannotRunError, match=wording("timing.buffers-too-large")) as caught:
        made(call(), options=RotationOptions(memory=1000))
    assert "\n" not in str(caught.value)


class TestOnAGpu:
    pytestmark = gpu

    def on_gpu(self, mode: Cache, form: Form, **options: Any) -> Bench:
        given = call(**{"batch": 16, "heads": (8, 16), "head_dim": (128, 128), **options})
        moved = {name: tensor.cuda() for name, tensor in given.tensors.items()}
        return Bench(
            Call(moved, given.scalars, given.conventions),
            OPERATION,
            torch.device("cuda"),
            Mode(mode, form),
            RotationOptions(placements=2),
            "events",
        )

    def test_identical_kernels_take_the_same_time_and_warm_is_faster(self) -> None:
        """A kernel that reads and writes the state in place, 16 MiB, which L2 holds: medians of one placement
        differ by less than 3 %, which is what clocks move between neighbouring rounds."""
        times = {}
        for mode in Cache:
            shared = self.on_gpu(mode, Form.GRAPH)
            same = [shared.subject(kernel(lambda q, state, o: state.mul_(0.5))) for _ in range(2)]
            found = [[subject.round(0) for subject in same] for _ in range(11)]
            one, other = (sorted(column)[5] for column in zip(*found, strict=True))
            assert one == pytest.approx(other, rel=0.03)
            times[mode] = one
        assert times[Cache.WARM] < times[Cache.COLD]
        # Read and written at no more than the 8 TB/s of the fastest memory there is.
        assert times[Cache.COLD] > 2 * 16 * 16 * 128 * 128 * 4 / 8e12

    def test_the_state_is_restored_on_the_gpu(self) -> None:
        shared = self.on_gpu(Cache.COLD, Form.GRAPH)
        add = kernel(lambda q, state, o: state.add_(1))
        subject = shared.subject(add)
        for _ in range(3):
            subject.round(0)
        found = shared.outputs(add)["state"]
        expected = shared._call.tensors["state"] + 1
        assert torch.equal(found, expected)

    def test_a_kernel_that_waits_is_refused_by_the_graph_and_timed_plain(self) -> None:
        waits = kernel(lambda q, state, o: state.sum().item())
        with pytest.raises(CannotRunError, match=wording("timing.graph-refused")):
            self.on_gpu(Cache.COLD, Form.GRAPH).subject(waits)
        assert self.on_gpu(Cache.COLD, Form.PLAIN).subject(waits).round(0) > 0


def test_partial_is_what_a_kernel_without_preparation_is_called_with() -> None:
    """Of the call's tensors, scalars and conventions it gets what it has parameters for."""
    found: dict[str, Any] = {}

    def takes(q: Tensor, *, scale: float | None, gate: str, o: Tensor) -> None:
        found.update(q=q, scale=scale, gate=gate, o=o)

    given = call(scale=0.25)
    made(given).subject(kernel(partial(takes), {"gate": (given.conventions["gate"],)}))
    assert found["scale"] == 0.25
    assert found["gate"] == given.conventions["gate"]
    assert torch.equal(found["q"], given.tensors["q"])
    assert found["q"].data_ptr() != given.tensors["q"].data_ptr()
