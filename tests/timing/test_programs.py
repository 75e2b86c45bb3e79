# SPDX-License-Identifier: Apache-2.0
"""Programs of a kernel that launches several: which there are, on what data, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from gdnbench.timing.clocks import PerfCounter
from gdnbench.timing.programs import by_program
from gdnbench_kernels.artifacts import Parameter
from gdnbench_kernels.compiling import Program

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def named(name: str) -> Program:
    """A program that only a launcher of this file can run."""
    parameters = (Parameter("seconds", "f64"), Parameter("log", "i64"))
    return Program(name, "sm_90a", "", name, name, parameters, "", "", b"", b"", 0.0)


class Device:
    """Runs programs by moving its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        self.now += 1e-12
        return self.now

    def launch(self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.ran.append(program.name)
        self.now += args[0]


@pytest.fixture
def device() -> Device:
    return Device()


def timed(
    device: Device, launches: Sequence[Callable[[], object]], ready: Callable[[], None] = lambda: None
) -> dict[str, float] | None:
    return by_program(launches, PerfCounter(device), ready, device.launch)


def test_each_program_takes_its_time(device: Device) -> None:
    scan, state = named("op.scan"), named("op.state")

    def launch() -> None:
        scan(0.25, None)
        device.now += 100.0  # what the host does between is no program's
        state(1.5, None)

    found = timed(device, [launch] * 4)
    assert found == pytest.approx({"op.scan": 0.25, "op.state": 1.5}, rel=1e-9)
    assert list(found or {}) == ["op.scan", "op.state"]


def test_a_program_that_is_launched_again_counts_each_time(device: Device) -> None:
    one, other = named("one"), named("other")

    def launch() -> None:
        one(1.0, None)
        other(2.0, None)
        one(4.0, None)

    assert timed(device, [launch] * 3) == pytest.approx({"one": 5.0, "other": 2.0}, rel=1e-9)


def test_the_whole_call_runs_first_and_programs_are_made_ready_for(device: Device) -> None:
    one, other = named("one"), named("other")

    def launch() -> None:
        one(1.0, None)
        other(1.0, None)

    timed(device, [launch] * 2, lambda: device.ran.append("ready"))
    assert device.ran == ["one", "other", "one", "other", "ready", "one", "one", "ready", "other", "other"]


def test_a_kernel_of_one_program_or_none_is_not_divided(device: Device) -> None:
    only = named("only")
    assert timed(device, [lambda: only(1.0, None)]) is None
    assert timed(device, [lambda: torch.ones(2)]) is None


@pytest.mark.slow  # compiles four kernels
def test_programs_of_the_compiled_prefill_kernels() -> None:
    """With the simulator as the device: what a program of `sm100` was given is there for it to run again."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    from gdnbench.sim import active, launch
    from gdnbench_kernels.gdn_prefill.contract import OPERATION
    from gdnbench_kernels.gdn_prefill.sm100 import sm100

    made = OPERATION.synth(seqlens=(70,), heads=(1, 1), offsets_dtype="int32", seed=0)
    target = {name: values[0] for name, values in OPERATION.kernels["sm100"].conventions.items()}
    call = OPERATION.convert(made, {**made.conventions, **target})
    parameters = inspect.signature(sm100).parameters
    offered = {**call.tensors, **call.scalars, **call.conventions}
    given = {name: value for name, value in offered.items() if name in parameters}
    with active() as session:
        found = by_program(
            [lambda: sm100(**given)],
            PerfCounter(),
            lambda: None,
            lambda program, args, kwargs: launch(program, *args, **kwargs),
        )
    assert found is not None
    assert len(found) >= 2
    assert all(name.startswith("gdn_prefill.") for name in found)
    assert all(seconds > 0 for seconds in found.values())
    # Each program once for the whole call and once by itself.
    assert len(session.reports) == 2 * len(found)


class TestOnAGpu:
    pytestmark = gpu

    def test_programs_of_a_graph_take_what_their_bytes_take(self) -> None:
        """Two programs, one with twice the bytes of the other, both more than any L2 holds: a ratio between
        1.5 and 2.5 is neither 1 nor 4."""
        pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
        from gdnbench.timing.ceiling import arch_of
        from gdnbench.timing.cuda_clocks import GraphClock
        from gdnbench_kernels.compiling import program
        from gdnbench_kernels.source import Source

        arch = arch_of(torch.device("cuda"))
        options = {"threads": 256, "unroll": 4, "no_allocate": False}
        target = "gdnbench_kernels.memory_ceiling:build"
        small, large = (
            program(Source.create(f"program.{name}", target, **options), arch) for name in ("a", "b")
        )
        x = torch.zeros(1 << 26, dtype=torch.int32, device="cuda")
        y = torch.zeros(1 << 27, dtype=torch.int32, device="cuda")

        def launch() -> None:
            small(x, x, 1, 1056)
            large(y, y, 1, 1056)

        found = by_program([launch] * 10, GraphClock(torch.device("cuda")), torch.cuda.synchronize)
        assert found is not None
        assert 1.5 < found["program.b"] / found["program.a"] < 2.5
