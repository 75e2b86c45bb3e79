# SPDX-License-Identifier: Apache-2.0
"""The script that times decode kernels: what it asks for, what it makes of times, what it keeps. Times
themselves are the business of tests/timing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench.poison import same_bits
from gdnbench.replay.kernels import load
from gdnbench.replay.simulated import simulated
from gdnbench.report.outcome import Outcome
from gdnbench.timing.result import Block, End, KernelTiming, Machine, PairTiming, Rates, RecordTiming
from gdnbench.timing.statistics import Interval, Verdict, summary
from gdnbench.timing.types import Mode
from gdnbench_kernels.gdn_decode.contract import OPERATION
from tests.messages import wording
from tests.seeds import drawn

FAULTY = Path(__file__).with_name("faulty_gdn_decode.py")


@pytest.fixture
def bench(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks.bench_gdn_decode")


@pytest.fixture
def run(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Exit, str, str]]:
    def command(*arguments: str) -> tuple[Exit, str, str]:
        monkeypatch.setattr("sys.argv", ["bench", *arguments])
        return bench.main(), *capsys.readouterr()

    return command


def timing(speed_up: float | None, outcome: Outcome = Outcome.PASS) -> RecordTiming:
    """Two microseconds of `cute`, and `speed_up` times that of `flashinfer` in all of four blocks."""
    samples = (2e-6, 2.5e-6, 2e-6, 2e-6)
    kernels = [
        KernelTiming(
            "cute", outcome, "", samples, summary(samples), 8, Rates.of_kernel(8_000_000, 9, 2e-6, 4.1e12)
        )
    ]
    pairs = []
    if speed_up is None:
        kernels.append(KernelTiming("flashinfer", Outcome.CRASH, "timing: an illegal memory access"))
    else:
        others = tuple(speed_up * sample for sample in samples)
        kernels.append(KernelTiming("flashinfer", Outcome.PASS, "", others, summary(others), 8))
        interval = Interval(speed_up, 0.99 * speed_up, 1.01 * speed_up, 0.99, 4, "stretch")
        pairs.append(PairTiming("cute", "flashinfer", interval, Verdict.SLOWER, 0.0))
    return RecordTiming(
        "gdn_decode synth step 0",
        0,
        "0",
        "gdn_decode",
        Mode(),
        Machine("cuda", "NVIDIA H200", "host", "580.1", "13.0", "3.12", "Linux", {"torch": "2.11"}),
        tuple(kernels),
        tuple(pairs),
        blocks=tuple(Block(0, run, (0, 1)) for run in range(4)),
        end=End.PRECISE,
        notes=("timed by CUDA events",),
    )


def test_targets_are_those_of_the_same_bytes(bench: ModuleType) -> None:
    """From the issue: Hv 8 at batch 64 is Hv 32 at batch 16."""
    target = {
        (dtype, heads, batch): bench.Shape(dtype, heads, batch).target
        for dtype in ("float32", "bfloat16")
        for heads, batch in (((16, 32), 16), ((2, 8), 64), ((16, 32), 512), ((16, 48), 16), ((16, 64), 32))
    }
    assert list(target.values()) == [1.08, 1.08, 1.0, None, 1.03, 1.2, 1.2, None, None, 1.15]
    assert bench.Shape("float32", (16, 32), 16, steps=4).target is None


def test_the_tables_that_are_asked_for(bench: ModuleType) -> None:
    found = bench.groups(bench.BATCHES, tiny=False)
    assert set(found) == {
        f"{dtype}{what}" for dtype in ("fp32", "bf16") for what in ("", " heads", " drafts")
    }
    for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
        whole = found[name]
        assert {1, 4, 16, 64, 256} <= {shape.batch for shape in whole}
        assert {shape.heads for shape in whole} == {(16, 32)}
        assert {shape.state_dtype for shapes in (whole, found[f"{name} drafts"]) for shape in shapes} == {
            dtype
        }
        others = found[f"{name} heads"]
        assert {shape.batch * shape.heads[1] for shape in others} == {512, 2048}
        assert all(shape.target is not None for shape in others)
        assert {shape.steps for shape in found[f"{name} drafts"]} == {4}


@pytest.mark.parametrize(
    ("speed_up", "says", "line"),
    [
        (1.081, "met", None),
        (1.079, "missed", "16/32 x 16, 1 token, float32: 1.079 x flashinfer, not 1.08"),
        (None, "crash: timing: an illegal memory access", "flashinfer has no time to hold it to"),
    ],
)
def test_a_target_is_met_or_missed(
    bench: ModuleType, speed_up: float | None, says: str, line: str | None
) -> None:
    timed = [(bench.Shape("float32", (16, 32), 16), timing(speed_up))]
    own, peer = bench.table(timed)
    assert own[:7] == ("16/32 x 16", "1", "cute", "2.00", "2.00 .. 2.12", "4.00", "97.6%")
    assert peer[-1] == says
    found = bench.failed(timed, "cute")
    assert len(found) == (line is not None)
    assert all(line in one for one in found if line is not None)


def test_a_peer_that_is_wrong_is_timed_with_its_error(bench: ModuleType) -> None:
    whole = timing(1.09)
    wrong = replace(whole.kernels[1], outcome=Outcome.MISMATCH, reason="state: RMS error 3.3e-07 over 1e-07")
    timed = [(bench.Shape("float32", (16, 32), 16), replace(whole, kernels=(whole.kernels[0], wrong)))]
    _, peer = bench.table(timed)
    assert peer[3] == "2.18"
    assert peer[-1] == "met; numeric mismatch: state: RMS error 3.3e-07 over 1e-07"
    assert bench.failed(timed, "cute") == []


def test_events_time_on_a_gpu_whatever_is_installed(bench: ModuleType) -> None:
    clocks = [bench.timing_options(bench.parser().parse_args(["--on", on])).clock for on in ("cuda", "cpu")]
    assert clocks == ["events", "auto"]


def test_a_kernel_that_is_wrong_fails_the_bench(bench: ModuleType) -> None:
    wrong = [(bench.Shape("float32", (16, 32), 4), timing(2.0, Outcome.MISMATCH))]
    assert bench.failed(wrong, "cute") == ["16/32 x 4, 1 token, float32: cute: numeric mismatch"]


def test_results_are_kept_and_read_again(bench: ModuleType, tmp_path: Path) -> None:
    kept = {
        "fp32": [(bench.Shape("float32", (16, 32), 16), timing(1.2))],
        "bf16": [(bench.Shape("bfloat16", (16, 32), 64, 4), timing(None))],
    }
    bench.save_kept(tmp_path, kept)
    assert bench.load_kept(tmp_path / "timings.json") == kept
    page = (tmp_path / "README.md").read_text()
    assert "NVIDIA H200, driver 580.1, CUDA 13.0, Python 3.12, Linux. torch 2.11." in page
    assert "| 16/32 x 16 | 1 | flashinfer | 2.40 |" in page
    assert "1.200 (1.188 .. 1.212) | 1.08 | met |" in page
    assert page.index("## fp32") < page.index("## bf16")


def test_groups_that_are_timed_again_replace_their_own_table_alone(
    bench: ModuleType, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def timed(shapes: Any, kernels: Any, on: str, options: Any, found: Any) -> None:
        asked.append((len(shapes), kernels, options.mode.form))
        for shape in shapes:
            found(shape, timing(1.5 + len(asked)))

    monkeypatch.setattr(bench, "timed", timed)
    arguments = ("--on", "cpu", "--out", str(tmp_path), "--kernels", "cute,flashinfer", "--batches", "1,64")
    code, out, _ = run(*arguments, "--groups", "fp32,bf16")
    assert code is Exit.PASS, out
    assert out.splitlines()[-1] == "4 calls, 4 with a target, 0 failed"
    first = bench.load_kept(tmp_path / "timings.json")
    run(*arguments, "--groups", "bf16")
    again = bench.load_kept(tmp_path / "timings.json")
    assert asked == [(4, ["cute", "flashinfer"], "plain"), (2, ["cute", "flashinfer"], "plain")]
    assert [len(first[name]) for name in ("fp32", "bf16")] == [2, 2]
    assert again["fp32"] == first["fp32"]
    assert again["bf16"][0][1].pairs[0].interval.ratio == 3.5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--on", "tpu"), Exit.BAD_INPUT, "error: --on 'tpu' is no device; there are cpu, cuda and sim"),
        (
            ("--on", "cpu", "--groups", "fp16"),
            Exit.BAD_INPUT,
            "error: --groups has no 'fp16'; there are fp32,",
        ),
        (("--on", "cpu", "--batches", "1,x"), Exit.BAD_INPUT, "error: --batches '1,x' are no numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    run: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], code: Exit, message: str
) -> None:
    found, _, err = run(*arguments, "--out", str(tmp_path))
    assert found is code
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_row_is_of_its_own_call(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than ten: names of numbers once ordered them otherwise, and rows had other calls' times."""
    batches: list[int] = []

    def look(store: Any, *args: Any, **options: Any) -> None:
        batches.extend(record.before["q"].meta.shape[0] for record in store.records)

    monkeypatch.setattr(bench, "time_records", look)
    shapes = [bench.Shape("float32", (1, 1), batch) for batch in range(1, 13)]
    bench.timed(shapes, ["torch"], "cpu", bench.TimingOptions(bench.Mode()), lambda shape, timing: None)
    assert batches == [shape.batch for shape in shapes]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(run: Callable[..., Any], tmp_path: Path) -> None:
    code, _, err = run("--out", str(tmp_path))
    assert code is Exit.CANNOT_RUN
    assert re.match("error: " + wording("replay.gpu-missing"), err)


def test_a_sweep_times_what_leaves_the_same_bits(bench: ModuleType) -> None:
    kernels = [load(name, OPERATION) for name in ("torch", f"{FAULTY}:correct", f"{FAULTY}:rounds_beta")]
    options = bench.TimingOptions(bench.Mode(form=bench.Form.PLAIN), seconds=0.3)
    shape = bench.Shape("float32", (1, 1), 1)
    found, wrong = bench.sweep(shape, kernels, "cpu", options)
    assert found.names == ("torch", f"{FAULTY}:correct")
    assert wrong == {f"{FAULTY}:rounds_beta": "other bits than the first plan leaves"}
    lines = bench.swept(shape, found, wrong)
    assert {line[1] for line in lines} == {"torch (chosen)", *(kernel.name for kernel in kernels[1:])}
    assert all(float(line[2]) > 0 for line in lines[:2])


@pytest.mark.slow
def test_plans_of_the_compiled_kernel_leave_the_same_bits(bench: ModuleType) -> None:
    """Two of those that a sweep would time, in the simulator."""
    shape = bench.Shape("bfloat16", (1, 1), 1)
    kernels = bench.plans_of(shape)
    assert len({kernel.name for kernel in kernels}) == len(kernels) > 2
    seed = drawn("bench gdn_decode", 20)
    with simulated("sim"):
        first, other = (bench.left_by(kernel, shape.call(seed)) for kernel in (kernels[0], kernels[-1]))
    assert all(same_bits(first[name], other[name]) for name in ("o", "state"))
    # And these are not the bits of another call.
    with simulated("sim"):
        fresh = bench.left_by(kernels[0], shape.call(seed + 1))
    assert not same_bits(first["o"], fresh["o"])


@pytest.mark.slow
def test_it_times_kernels_of_this_machine(
    bench: ModuleType, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some seconds, most of them processes that start."""
    one = {"tiny": [bench.Shape("float32", (1, 1), 1)]}
    monkeypatch.setattr(bench, "groups", lambda *_: one)
    kernels = f"torch,{FAULTY}:correct,{FAULTY}:rounds_beta"
    code, out, err = run(
        *("--tiny", "--on", "cpu", "--busy", "--seconds", "0.5", "--kernels", kernels, "--out", str(tmp_path))
    )
    assert code is Exit.PASS, err
    assert out.count("numeric mismatch: ") == 1
    assert (tmp_path / "README.md").is_file()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_it_times_the_compiled_kernel(run: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ("--tiny", "--seconds", "2", "--kernels", "cute,torch", "--out", str(tmp_path))
    code, out, err = run(*arguments)
    assert code is Exit.PASS, out + err
    code, out, err = run("--tiny", "--seconds", "1", "--sweep", "--out", str(tmp_path))
    assert code is Exit.PASS, out + err
    assert out.count("(chosen)") == 4
