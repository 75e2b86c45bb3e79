# SPDX-License-Identifier: Apache-2.0
"""Timing in a process of its own: what ends it is one kernel's outcome, and the others have their times."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gdnbench.errors import BadInputError, Exit
from gdnbench.ops import operation
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing.isolated import NOBODY, Judged, TimingProcess
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.run import time_records
from gdnbench.timing.statistics import Verdict
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench.timing.worker import Mark
from tests.messages import wording

WARM = Mode(Cache.WARM, Form.PLAIN)
KERNELS = Path(__file__).with_name("timed_kernels.py")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def named(function: str) -> str:
    return f"{KERNELS}:{function}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    call = synthesise("gdn_decode", batch=3, heads=(2, 4), head_dim=(32, 32), slots=9)
    path = tmp_path_factory.mktemp("timed") / "store.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def timer(store: Store) -> Iterator[TimingProcess]:
    """On the CPU, whoever else computes there."""
    # A run is 6 blocks of some 60 ms, and an interval needs 4 runs: 10 s are enough on a busy machine.
    options = TimingOptions(WARM, seconds=10.0, precision=0.9, timeout=60.0)
    made = TimingProcess(store.path, "cpu", options)
    yield made
    made.close()


@pytest.mark.alone
@pytest.mark.slow
def test_the_others_are_timed_without_the_culprits(store: Store, timer: TimingProcess) -> None:
    """One kernel ends the process, another raises: each is named, and the last two are compared."""
    record = store.records[0]
    names = [named(name) for name in ("correct", "aborts", "raises", "slow")]
    found = timer.time(record, operation("gdn_decode"), names)
    reasons = {kernel.name: kernel.reason for kernel in found.failed}
    assert {kernel.outcome for kernel in found.failed} == {Outcome.CRASH}
    assert reasons.keys() == {named("aborts"), named("raises")}
    ended = wording("process.ended", how="signal 6 (SIGABRT)")
    assert re.fullmatch(rf"timing: {ended} \(.*: os\.abort\(\)\)", reasons[named("aborts")])
    assert reasons[named("raises")].startswith("timing: ValueError: not a second time (")
    timing = found.timing
    assert timing is not None
    assert [kernel.name for kernel in timing.kernels] == [named("correct"), named("slow")]
    assert timing.mode == WARM
    # The work of the operation, by its own formula, over the median that was measured.
    op = operation("gdn_decode")
    assert op.work is not None
    for kernel in timing.kernels:
        assert kernel.summary is not None
        assert kernel.rates is not None
        assert kernel.rates.bytes_per_second == kernel.rates.bytes / kernel.summary.median
        assert len(kernel.samples) == len(timing.blocks)
    # `slow` sleeps 20 ms more: never less, whatever else the machine does.
    (slow,) = (kernel for kernel in timing.kernels if kernel.name == named("slow"))
    assert min(slow.samples) >= 0.02
    assert [pair.verdict for pair in timing.pairs] == [Verdict.SLOWER]
    assert timing.discarded == {}  # as --busy asks
    assert timing.machine.kind == "cpu"


def test_a_hang_is_killed_and_named(store: Store) -> None:
    timer = TimingProcess(store.path, "cpu", TimingOptions(WARM, seconds=0.5, timeout=5.0))
    try:
        found = timer.time(store.records[0], operation("gdn_decode"), [named("hangs")])
    finally:
        timer.close()
    assert found.timing is None
    (hung,) = found.failed
    assert hung.outcome is Outcome.HANG
    assert re.match("timing: " + wording("process.hung", seconds="5.5"), hung.reason)


@pytest.mark.slow
def test_one_process_judges_and_times_and_what_ends_it_is_an_outcome(
    store: Store, timer: TimingProcess
) -> None:
    """Until a kernel ends it, the same process answers; the next one goes on."""
    record, op = store.records[0], operation("gdn_decode")
    assert timer.judge(record, op, named("correct")) == Judged(Outcome.PASS)
    process = timer._worker
    wrong = timer.judge(record, op, named("is_wrong"))
    assert wrong.outcome is Outcome.MISMATCH
    assert "over" in wrong.reason  # the judge's words: what is over which bound
    assert timer.judge(record, op, "sm100").outcome is Outcome.UNSUPPORTED
    with pytest.raises(BadInputError, match=wording("replay.function-missing", function="nosuch")):
        timer.judge(record, op, named("nosuch"))
    assert timer.time(record, op, [named("correct")]).timing is not None
    assert timer._worker is process
    judged = timer.judge(record, op, named("aborts_when_judged"))
    assert judged == Judged(Outcome.CRASH, judged.reason)
    assert re.match(wording("process.ended", how="signal 6 (SIGABRT)"), judged.reason)
    assert timer.judge(record, op, "torch") == Judged(Outcome.PASS)


@pytest.mark.slow
def test_a_mark_outlives_what_it_marks(tmp_path: Path) -> None:
    """The file names the kernel while its code runs, and after a process that ended there."""
    file = tmp_path / "mark"
    mark = Mark(str(file))
    with mark.at(2):
        assert file.read_bytes() == bytes([2])
    assert file.read_bytes() == bytes([NOBODY])
    dies = (
        "import os\n"
        "from gdnbench.timing.worker import Mark\n"
        f"with Mark({str(file)!r}).at(1):\n"
        "    os._exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", dies], check=False).returncode == 7
    assert file.read_bytes() == bytes([1])


class TestGpu:
    pytestmark = gpu

    def test_a_context_that_is_lost_ends_one_kernel(self, store: Store) -> None:
        """10 s are over 4 runs, an interval's least: 6 blocks of 3 rounds, each of 50 to 70 ms."""
        options = TimingOptions(
            Mode(Cache.COLD, Form.PLAIN),
            seconds=10.0,
            precision=0.5,
            timeout=120.0,
            clock="events",
        )
        kernels = [named("correct"), named("faults_on_the_gpu"), named("slow")]
        report = time_records(store, kernels, on="cuda", options=options)
        (record,) = report.records
        outcomes = {kernel.name: (kernel.outcome, kernel.timed) for kernel in record.kernels}
        assert outcomes == {
            named("correct"): (Outcome.PASS, True),
            named("slow"): (Outcome.PASS, True),
            named("faults_on_the_gpu"): (Outcome.CRASH, False),
        }, [f"{kernel.name}: {kernel.reason}" for kernel in record.kernels]
        verdicts = [pair.verdict for pair in record.pairs]
        assert verdicts == [Verdict.SLOWER], f"{record.pairs}, {len(record.blocks)} blocks: {record.notes}"
        assert report.exit_code is Exit.MISMATCH, report.outcomes
        assert record.machine.kind == "cuda"
        assert record.machine.driver, record.machine
