# SPDX-License-Identifier: Apache-2.0
"""Commands with a kernel that takes tensors on CUDA, on the simulator: they are those of a virtual GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.trial import toolchain
from gdnbench.replay.simulated import replay_gpu
from tests.messages import wording

Invoke = Any

# torch's kernel on the virtual GPU, whose output a kernel of PTX copies; `wrong` errs in a stage and later.
KERNELS = """
import torch
from gdnbench.sim.virtual import current_gpu
from tests.replay.test_virtual_gpu import computed, copy


def decode(*, stages=None, **call):
    assert all(x.is_cuda for x in call.values() if isinstance(x, torch.Tensor))
    if stages is not None:
        call["stages"] = stages
    o = computed(call)
    copy(o, call["o"], o.numel())


def wrong(*, stages=None, **call):
    if current_gpu().device.multiprocessors != 3:
        raise NotImplementedError("another GPU")
    decode(stages=stages, **call)
    call["o"] *= 1.5
    if stages is not None:
        stages["delta_t"] *= 1.5


for kernel in decode, wrong:
    kernel.cuda_tensors = True
    kernel.requires = {"*": "contiguous", "g": "float32"}
    kernel.conventions = {"qk": ("normalised", "raw")}
"""


@pytest.fixture
def stored(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two decode calls and the kernels, in the current folder."""
    monkeypatch.chdir(tmp_path)
    options = ("--heads", "1,2", "--head-dim", "32,32", "--batch", "1", "--count", "2")
    assert gdnbench("synth", "calls.zarr", "--op", "gdn_decode", *options).code == 0
    Path("mine.py").write_text(KERNELS)
    return Path("calls.zarr")


@pytest.mark.slow
def test_prove(gdnbench: Invoke, stored: Path) -> None:
    options = ("--op", "gdn_decode", "--on", "sim", "--captures", ".", "--only", "captures", "--no-isolate")
    result = gdnbench("prove", "mine.py:decode", *options, "--sms", "4")
    assert result.code == 0, result.out
    refused = gdnbench("prove", "mine.py:wrong", *options)
    assert refused.code == 3
    said = wording("prove.refused-checks", reason=re.compile(".*another GPU.*"), count=2, plural="s")
    assert re.search(said, refused.out)
    failed = gdnbench("prove", "mine.py:wrong", *options, "--sms", "3")
    assert failed.code == 1
    assert "numeric mismatch: captures" in failed.out


def test_instructions_are_counted(gdnbench: Invoke, stored: Path) -> None:
    """The simulator has no clock, so the exit status is that of what cannot run here."""
    result = gdnbench("time", stored, "0", "--kernel", "mine.py:decode", "--on", "sim", "--json")
    assert result.code == 3
    (record,) = json.loads(result.out)["records"]
    assert record["kernels"][0]["counts"]["launches"] == 1


@pytest.mark.slow
def test_a_suite(gdnbench: Invoke, stored: Path) -> None:
    entry = '[[replay]]\ncaptures = "calls.zarr"\nkernels = "mine.py:decode"\non = "sim"\nisolate = false\n'
    Path("suite.toml").write_text(entry)
    result = gdnbench("suite", "suite.toml")
    assert result.code == 0, result.err
    assert "2 pass" in result.out


@pytest.mark.slow  # a virtual GPU in each of its processes
@pytest.mark.usefixtures("probes_here", "replays_here")
def test_bisect_record_and_stage(gdnbench: Invoke, stored: Path) -> None:
    given = (stored, "--kernel", "mine.py:wrong", "--on", "sim", "--sms", "3", "--state", "state", "--json")
    record = gdnbench("bisect", "record", *given)
    assert record.code == 1, record.err
    assert json.loads(record.out)["answer"].startswith("the first bad call")
    stage = gdnbench("bisect", "stage", *given)
    assert stage.code == 1, stage.err
    assert "delta_t" in json.loads(stage.out)["answer"]


@pytest.mark.slow  # a virtual GPU in each of its processes
@pytest.mark.usefixtures("probes_here", "replays_here")
def test_bisect_input(gdnbench: Invoke, stored: Path) -> None:
    given = ("--kernel", "mine.py:wrong", "--on", "sim", "--sms", "3", "--state", "state", "--json")
    found = gdnbench("bisect", "input", stored, "0", *given, "--out", "small.zarr", "--budget", "2")
    assert found.code == 1, found.err
    assert json.loads(found.out)["kind"] == "numeric mismatch"


def test_a_verdict_is_of_the_gpu_that_was_asked_for() -> None:
    with replay_gpu("h100", 4):
        assert toolchain("sim")["gpu"] == ["h100", 4]
    assert "gpu" not in toolchain("sim")
