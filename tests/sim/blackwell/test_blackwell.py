# SPDX-License-Identifier: Apache-2.0
"""The stored answers are the simulator's, on every engine and schedule; the script says what it compares."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.sim.blackwell.answers import all_kernels, differences, simulate, stale, stored
from tests.sim.blackwell.cases import assumptions
from tests.sim.silicon.capture import Capture
from tests.sim.silicon.microkernel import MicroKernel

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "verify_on_blackwell.py"


@pytest.fixture(scope="module")
def answers() -> Capture:
    return stored()


def test_no_stored_answer_is_stale(answers: Capture) -> None:
    assert stale(answers) == []


@pytest.mark.every(3)
@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.name)
def test_a_fresh_simulation_gives_the_stored_answer(kernel: MicroKernel, answers: Capture) -> None:
    np.testing.assert_array_equal(simulate(kernel, "interpreter"), answers.answers[kernel.name])


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "kernel",
    [
        # Half a second of compilation each: one in ten every time, all when asked for.
        pytest.param(kernel, marks=() if index % 10 == 0 else pytest.mark.slow)
        for index, kernel in enumerate(all_kernels())
    ],
    ids=lambda kernel: kernel.name,
)
def test_the_compiled_engine_gives_the_stored_answer(kernel: MicroKernel, answers: Capture) -> None:
    np.testing.assert_array_equal(simulate(kernel, "compiled"), answers.answers[kernel.name])


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", ["early", "random:1"])
@pytest.mark.parametrize("kernel", all_kernels()[::9], ids=lambda kernel: kernel.name)
def test_schedules_agree(kernel: MicroKernel, schedule: str, answers: Capture) -> None:
    np.testing.assert_array_equal(simulate(kernel, schedule=schedule), answers.answers[kernel.name])


def test_answers_tell_cases_apart(answers: Capture) -> None:
    """No two micro-kernels of an assumption have one answer: each adds something."""
    for assumption in assumptions():
        found = {answers.answers[kernel.name].tobytes() for kernel in assumption.kernels}
        assert len(found) == len(assumption.kernels), assumption.name


def test_differences_name_the_first_wrong_word(answers: Capture) -> None:
    assumption = next(a for a in assumptions() if a.name == "d-layout-M128-lane0")
    kernel = assumption.kernels[0]
    right = answers.answers[kernel.name]
    wrong = right.copy()
    wrong[5, 3] ^= 1
    assert differences(assumption, answers, {kernel.name: right}) == []
    (line,) = differences(assumption, answers, {kernel.name: wrong})
    assert "1 of 4096 words differ, the first in lane 5, word 3" in line
    assert f"{int(right[5, 3]):#010x}" in line
    (line,) = differences(assumption, answers, {kernel.name: "cuCtxSynchronize returned 700"})
    assert line == f"{kernel.name}: cuCtxSynchronize returned 700"


def test_without_a_blackwell_gpu_the_script_says_so_in_one_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has a Blackwell GPU, and it confirms everything")
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("cannot verify: ")


def test_a_gpu_that_answers_otherwise_refutes(
    answers: Capture, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("verify_on_blackwell")
    chosen = [assumption for assumption in assumptions() if assumption.name.startswith("cp-128x")]

    def pretend(kernels: list[MicroKernel]) -> dict[str, np.ndarray]:
        found = {kernel.name: answers.answers[kernel.name].copy() for kernel in kernels}
        found[chosen[0].kernels[0].name][0, 0] ^= 1
        return found

    monkeypatch.setattr(script, "run_all", pretend)
    assert script.verify(chosen, answers) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"refuted   {chosen[0].name}: ")
    assert lines[2].startswith(f"confirmed {chosen[1].name}: ")
    assert lines[-1] == f"{len(chosen) - 1} of {len(chosen)} assumptions confirmed"


class ObligingDriver:
    """The CUDA driver library: every call succeeds, and what is read back stays as it was."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0


class Sent:
    """The end of a pipe that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, object]] = []

    def send(self, message: tuple[str, object]) -> None:
        self.messages.append(message)


def test_what_a_gpu_answers_is_what_is_compared(answers: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the driver's launch to `differences`: every kernel's words arrive in the stored shape."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = importlib.import_module("verify_on_blackwell")
    monkeypatch.setattr(importlib.import_module("sim_silicon").ctypes, "CDLL", lambda name: ObligingDriver())
    sent = Sent()
    script.run_until_fault(all_kernels(), sent)
    assert [name for name, _ in sent.messages] == [kernel.name for kernel in all_kernels()]
    for name, words in sent.messages:
        assert isinstance(words, np.ndarray), (name, words)
        assert words.shape == answers.answers[name].shape
        assert words.dtype == answers.answers[name].dtype


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_ptxas_accepts_the_micro_kernels() -> None:
    names = [assumption.name for assumption in assumptions()[::9]]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--assemble", *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
