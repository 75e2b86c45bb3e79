# SPDX-License-Identifier: Apache-2.0
"""The whole way of a timing on a GPU, without one: so that no typo costs a minute on a machine that has one.

Left out: what only a device answers, which is whether launches can be captured, how long anything takes,
CUPTI, and what a compiled kernel or a peer does. The process that times is this one.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gdnbench.cli.main import console_main as main
from gdnbench.errors import Exit
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing import ceiling, measure, run
from gdnbench.timing.isolated import Judged, Timed
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.worker import Mark
from gdnbench_kernels.contract import Operation
from tests.messages import wording
from tests.timing.fake_gpu import FakeGpu, OnTheCpu

SMALL = partial(RotationOptions, touched=1 << 20, most_sets=3)


class Here:
    """Judges and times in this process, as the process of a timing does."""

    def __init__(self, path: Path, on: str, options: TimingOptions, mark: Path) -> None:
        self._session = measure.Session(on, options, Mark(str(mark)).at)

    def judge(self, record: StoredRecord, operation: Operation, kernel: str) -> Judged:
        if kernel == "cute":  # a compiled kernel that does nothing is wrong; here it is to be timed
            assert self._session.judge(record, kernel, lambda: None).outcome is Outcome.MISMATCH
            return Judged(Outcome.PASS)
        found = self._session.judge(record, kernel, lambda: None)
        return Judged(found.outcome, found.reason)

    def time(self, record: StoredRecord, operation: Operation, kernels: Sequence[str]) -> Timed:
        return Timed(self._session.time(record, operation, kernels), ())

    def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    fake = FakeGpu(monkeypatch)
    for module in (measure, ceiling):
        monkeypatch.setattr(module, "RotationOptions", SMALL)
    monkeypatch.setattr(ceiling, "SHAPES", ((256, 4),))
    monkeypatch.setattr(run, "TimingProcess", lambda *given: Here(*given, tmp_path / "mark"))
    with OnTheCpu():
        yield fake


@pytest.fixture
def bench(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.import_module("scripts.benchmarks.bench_gdn_decode")
    monkeypatch.setattr(found, "RotationOptions", SMALL)
    shapes = [found.Shape(dtype, (1, 2), 2, steps) for dtype, steps in (("float32", 1), ("bfloat16", 2))]
    monkeypatch.setattr(found, "groups", lambda batches, tiny, *shape: {"tiny": shapes})
    return found


def command(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Exit:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    found: Exit = bench.main()
    return found


@pytest.mark.slow
def test_the_bench_of_decode(
    gpu: FakeGpu, bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    gpu.nvml.pids = [900, 901]  # a container shows the host's numbers
    code = command(bench, monkeypatch, "--kernels", "cute,torch", "--out", str(tmp_path))
    out, err = capsys.readouterr()
    assert code is Exit.PASS, out + err
    kept = bench.load_kept(tmp_path / "timings.json")["tiny"]
    assert [shape.state_dtype for shape, _ in kept] == ["float32", "bfloat16"]
    for _, timing in kept:
        assert (timing.clock, timing.mode.form, timing.placements) == ("events", "graph", 8)
        assert (timing.machine.kind, timing.machine.device) == ("cuda", "fake H200")
        # Events are 3 ms apart, and 3 sets are launched between them.
        assert [set(kernel.samples) for kernel in timing.kernels] == [{0.001}, {0.001}]
        assert [pair.interval.ratio for pair in timing.pairs if pair.interval] == [1.0]
        assert timing.conditions is not None
        assert timing.conditions.source == "NVML"
        assert timing.conditions.highest.clock == 1980
        assert timing.discarded == {}
        assert timing.ceiling is not None
        assert len(timing.ceiling.candidates) == 2 + 2 * 2  # the grids are one where tiles are few
        assert timing.control is not None
        assert timing.control.holds is None  # what always takes as long shows no cache
    assert gpu.log.count("capture") == gpu.log.count("captured") > 2 * 2 * 8
    assert {name.partition(".")[0] for name in gpu.launched} == {"gdn_decode", "memory_ceiling"}
    assert "fake H200" in (tmp_path / "README.md").read_text()


def test_a_stranger_on_the_gpu_ends_a_record_and_busy_keeps_it(
    gpu: FakeGpu, bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    gpu.nvml.reasons = 0x40  # slowed down by heat, all the time
    monkeypatch.setattr("gdnbench.timing.comparison.FIRST_PAUSE", 0.0)
    arguments = ("--kernels", "torch", "--seconds", "0.5", "--out", str(tmp_path))
    assert command(bench, monkeypatch, *arguments) is Exit.CANNOT_RUN
    assert "HwThermalSlowdown" in capsys.readouterr().err
    command(bench, monkeypatch, *arguments, "--busy")
    kept = bench.load_kept(tmp_path / "timings.json")["tiny"]
    assert all(set(timing.disturbed) == {"slowed down: HwThermalSlowdown"} for _, timing in kept)


@pytest.mark.slow
def test_the_sweep(
    gpu: FakeGpu, bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Of two plans for one shape: each compiles for a second."""
    plans, groups = bench.plans_of, bench.groups
    monkeypatch.setattr(bench, "groups", lambda *given: {"tiny": groups(*given)["tiny"][:1]})
    monkeypatch.setattr(bench, "plans_of", lambda shape: plans(shape)[:2])
    # Kernels that do nothing leave what was there.
    monkeypatch.setattr(bench, "same_bits", lambda found, expected: True)
    code = command(bench, monkeypatch, "--sweep", "--seconds", "0.2", "--out", str(tmp_path))
    assert code is Exit.PASS, capsys.readouterr()
    kept = json.loads((tmp_path / "sweep.json").read_text())
    assert [len(one["samples"]) for one in kept] == [2]
    assert (tmp_path / "sweep.md").read_text().count("(chosen)") == 1


def test_the_command_with_a_baseline(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    def exit_of(*more: str) -> object:
        arguments = ("time", path, "--kernel", "torch", "--on", "cuda", "--seconds", "2", *more)
        monkeypatch.setattr("sys.argv", ["gdnbench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    path, saved = str(tmp_path / "calls.zarr"), str(tmp_path / "times.zarr")
    with StoreWriter(path, kind="synth", durable=False) as writer:
        call = synthesise("gdn_decode", batch=2, heads=(1, 2), head_dim=(32, 32))
        writer.write("0", [draft("gdn_decode", call)])
    assert exit_of("--clock", "events", "--save", saved) == 0, capsys.readouterr()
    assert exit_of("--clock", "events", "--compare", saved) == 0, capsys.readouterr()
    assert exit_of("--cache", "warm", "--form", "plain") == 0, capsys.readouterr()
    with Store.open(saved) as store:
        assert store.records[0].info.run["timing"]["clock"] == "events"
    monkeypatch.setattr("gdnbench.timing.cuda_clocks.cupti.installed", lambda: True)
    assert exit_of("--compare", saved) == 2
    assert re.search(
        wording("timing.baseline-differs", field="clock", ours="cupti", theirs="events"),
        capsys.readouterr().err,
    )


def test_it_says_which_device_it_pretends_to_be(gpu: FakeGpu) -> None:
    """What asks for the GPU gets memory of the CPU, or the tests above would test nothing."""
    assert torch.zeros(2, device=torch.device("cuda")).device.type == "cpu"
    assert torch.ones(2).to("cuda").device.type == "cpu"
