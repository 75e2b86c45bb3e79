# SPDX-License-Identifier: Apache-2.0
"""`sim.launch` from end to end: host code, launches, report. What kernels compute is tested elsewhere."""

from __future__ import annotations

import functools
import json
import re
import threading
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr
from torch import Tensor

from gdnbench import sim
from tests.messages import wording
from tests.sim.host import host_kernels

each_engine = pytest.mark.parametrize("engine", ["interpreter", "compiled"])


def rows() -> Any:
    return make_fake_tensor(cutlass.Float32, (cute.sym_int(), 8), (8, 1), assumed_align=16)


@functools.cache
def scale() -> Any:
    return sim.compile(
        host_kernels.scale, rows(), rows(), cutlass.Float32(1), cutlass.Int32(1), make_fake_stream()
    )


@functools.cache
def scale_twice() -> Any:
    return sim.compile(host_kernels.scale_twice, rows(), rows(), cutlass.Float32(1), make_fake_stream())


def operands(count: int = 70) -> tuple[Tensor, Tensor]:
    return torch.arange(count * 8.0).view(count, 8), torch.zeros(count, 8)


@each_engine
def test_tensors_are_written_in_place(engine: str) -> None:
    x, y = operands()
    report = sim.launch(scale(), x, y, 0.5, 65, engine=engine)
    wanted = torch.zeros(70, 8)
    wanted[:65, 0] = x[:65, 0] * 0.5
    assert torch.equal(y, wanted)
    assert torch.equal(x, operands()[0])
    assert report.ok
    assert report.findings == ()
    (one,) = report.launches
    assert (one.grid, one.block, one.ctas, one.finished) == ((2, 1, 1), (64, 1, 1), 2, True)
    assert (report.engine, report.schedule, report.mma) == (engine, "late", "hardware")


@each_engine
def test_launches_follow_one_another(engine: str) -> None:
    """The second launch reads what the first wrote: x[i] = 3 * (3 * x[i]) for the seven that it covers."""
    x, y = operands(9)
    report = sim.launch(scale_twice(), x, y, 3.0, engine=engine)
    first = operands(9)[0][:, 0]
    assert torch.equal(y[:, 0], 3 * first)
    assert torch.equal(x[:, 0], torch.cat([9 * first[:7], first[7:]]))
    assert [launch.grid for launch in report.launches] == [(9, 2, 3), (1, 1, 1)]


@each_engine
def test_a_fault_is_raised_or_reported(engine: str) -> None:
    x, y = operands(66)
    with pytest.raises(sim.KernelFault, match="out-of-bounds") as caught:
        sim.launch(scale(), x, y, 2.0, 67, engine=engine)
    assert caught.value.place is not None
    report = sim.launch(scale(), x, y, 2.0, 67, engine=engine, raises=False)
    assert not report.ok
    (finding,) = report.findings
    assert (finding.severity, finding.kind, finding.launch) == ("error", "out-of-bounds access", 0)
    assert re.search(wording("sim.machine.nearest-allocation", name="x"), finding.message)
    assert finding.ptx is not None
    assert finding.ptx.startswith("ld.global")
    assert finding.file is not None
    assert finding.file.endswith("host_kernels.py")
    with open(finding.file, encoding="utf-8") as source:
        assert "y[index, 0] = x[index, 0] * factor" in source.read().splitlines()[(finding.line or 0) - 1]
    assert finding.thread is not None
    assert "CTA (1, 0, 0)" in finding.thread


def test_launches_after_a_fault_are_not_run() -> None:
    """Nine rows, but the second launch is told of seven of five."""
    x, y = operands(9)
    report = sim.launch(scale_twice(), x[:5], y, 3.0, raises=False)
    assert [launch.finished for launch in report.launches] == [True, False]
    short = sim.launch(scale_twice(), x, y[:5], 3.0, raises=False)
    assert [launch.finished for launch in short.launches] == [False]


def test_the_report_as_text_and_as_data() -> None:
    x, y = operands(66)
    report = sim.launch(scale(), x, y, 2.0, 67, engine="interpreter", raises=False)
    text = str(report)
    settings = wording("sim.settings", engine="interpreter", schedule="late", mma="hardware", checked="")
    assert re.fullmatch(settings, text.splitlines()[0])
    shared = re.compile(wording("sim.shared-bytes", bytes=0))
    assert re.search(wording("sim.launch-size", grid="2x1x1", block="64x1x1", shared=shared), text)
    kind = "out-of-bounds access"
    assert re.search(wording("sim.finding", severity="error", launch=0, kind=kind), text)
    assert text.splitlines()[-1] == "1 error found"
    data = json.loads(json.dumps(report.as_json()))
    assert data["ok"] is False
    assert data["findings"][0]["kind"] == "out-of-bounds access"
    assert data["launches"][0]["grid"] == [2, 1, 1]


def test_profile_counts() -> None:
    """65 threads of 128 store one f32 each, and every warp of the four reads its thread index."""
    x, y = operands()
    (launch,) = sim.launch(scale(), x, y, 2.0, 65, engine="interpreter", profile=True).launches
    assert launch.traffic is not None
    assert launch.traffic["registers to global"] == 65 * 4
    assert launch.instructions is not None
    assert sum(launch.instructions.values()) == launch.warp_instructions
    assert sim.launch(scale(), x, y, 2.0, 65, engine="interpreter").launches[0].traffic is None


def test_progress_and_threads() -> None:
    seen: list[tuple[int, int]] = []
    x, y = operands(640)
    sim.launch(scale(), x, y, 2.0, 640, threads=1, progress=lambda *done: seen.append(done))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {10}
    assert seen[-1] == (10, 10)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"engine": "fast"}, "engine 'fast'; there are interpreter and compiled"),
        ({"mma": "sloppy"}, "mma 'sloppy'; there are hardware and exact"),
        ({"schedule": "soon"}, "schedule 'soon'"),
        ({"threads": 0}, "threads 0; 1 or more"),
    ],
)
def test_options_that_there_are_not(option: dict[str, Any], message: str) -> None:
    x, y = operands()
    with pytest.raises(ValueError, match=message):
        sim.launch(scale(), x, y, 2.0, 1, **option)
    assert not y.any()


def test_a_launch_in_clusters() -> None:
    example = make_fake_tensor(cutlass.Int32, (cute.sym_int(),), (1,))
    compiled = sim.compile(host_kernels.in_a_cluster, example, example, make_fake_stream())
    vector, result = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    sim.launch(compiled, vector, result)
    assert torch.equal(result[:32], vector[:32] + 1)
    assert not result[32:].any()


@each_engine
def test_memory_behind_a_pointer(engine: str) -> None:
    """A pointer says nothing of what lies behind it: the tensor has to be named as reachable."""
    compiled = sim.compile(
        host_kernels.through_pointer,
        make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16),
        make_fake_stream(),
    )
    data = torch.arange(32.0)
    pointer = make_ptr(cutlass.Float32, data.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
    with pytest.raises(sim.KernelFault, match="out-of-bounds"):
        sim.launch(compiled, pointer, engine=engine)
    sim.launch(compiled, pointer, reachable=[data], engine=engine)
    assert torch.equal(data, torch.arange(32.0) + 1)


def test_active_calls_are_simulated() -> None:
    x, y = operands()
    with sim.active(sim.Settings(engine="interpreter", schedule="early")) as session:
        scale()(x, y, 2.0, 70, 0)
        sim.launch(scale(), y, x, 2.0, 70, schedule="random:3")
    assert torch.equal(x[:, 0], 4 * operands()[0][:, 0])
    assert [report.schedule for report in session.reports] == ["early", "random:3"]
    assert [report.engine for report in session.reports] == ["interpreter", "interpreter"]


def test_an_inner_block_takes_the_settings_of_the_one_around_it() -> None:
    """Which is how a schedule reaches kernels that a replay runs, in a block of its own."""
    early = sim.Settings(schedule="early")
    with sim.active(early):
        with sim.active() as inner:
            assert inner.settings == early
        with sim.active(sim.Settings(mma="exact")) as inner:
            assert inner.settings == sim.Settings(mma="exact")
    with sim.active() as outer:
        assert outer.settings == sim.Settings()


def test_active_keeps_what_compiling_inside_it_needs() -> None:
    x, y = operands()
    with sim.active() as session:
        compiled = cute.compile(
            host_kernels.scale_without_annotation,
            rows(),
            rows(),
            cutlass.Float32(1),
            cutlass.Int32(1),
            make_fake_stream(),
        )
        compiled(x, y, 2.0, 70, 0)
    assert session.reports[0].ok
    assert y.any()


def test_active_ends() -> None:
    before = type(scale()).__call__
    with pytest.raises(sim.KernelFault), sim.active():
        scale()(*operands(3), 2.0, 9, 0)
    assert type(scale()).__call__ is before


def test_calls_of_several_threads_do_not_mix() -> None:
    failures = []

    def call(factor: float) -> None:
        for _ in range(5):
            x, y = operands()
            sim.launch(scale(), x, y, factor, 70, engine="interpreter")
            if not torch.equal(y[:, 0], x[:, 0] * factor):
                failures.append(factor)

    scale()
    threads = [threading.Thread(target=call, args=(factor,)) for factor in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"schedule": 3}, "^schedule 3"),
        ({"engine": ["compiled"]}, "^engine "),
        ({"mma": 1.0}, "^mma 1.0"),
        ({"threads": "2"}, "^threads '2'"),
        ({"progress": 5}, "^progress 5"),
        ({"reachable": 5}, "^reachable "),
        ({"reachable": [5]}, "^reachable "),
        ({"reachable": torch.zeros(3)}, "^reachable "),
    ],
)
def test_settings_of_a_wrong_type(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(sim.LaunchError, match=match):
        sim.launch(scale(), *operands(), 0.5, 65, **settings)
