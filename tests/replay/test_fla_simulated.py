# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --kernel fla --on sim`: flash-linear-attention's own functions and Triton kernels."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.third_party.apart import TRITON_REQUIREMENTS, WITH_TRITON, need, triton_folder
from tests.subset import quick

ROOT = Path(__file__).resolve().parents[2]


def replay(folder: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of the command, whose packages are in `folder`."""
    command = [sys.executable, "-m", "gdnbench", "replay", *words, "--kernel", "fla", "--on", "sim"]
    done = subprocess.run(
        [*command, "--kernel-env", folder, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# A prefill of raw q and k, in several sequences; states in another layout; a decode step of one sequence.
@pytest.mark.parametrize(
    ("capture", "launches"),
    quick([("decode", 1), ("batched_decode", 1), ("prefill", 7), ("packed", 7), ("chunked", 7)], 0),
)
def test_captured_calls_pass(capture: str, launches: int) -> None:
    need("fla", WITH_TRITON, TRITON_REQUIREMENTS)
    status, report = replay(str(triton_folder()), f"captures/{capture}.zarr.zip", "0")
    (record,) = report["records"]
    assert (status, record["outcome"], record["reason"]) == (0, "pass", "")
    assert any(note.startswith(f"simulated: {launches} launch") for note in record["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["b200", "h100"])
def test_gradients(machine: str) -> None:
    """The script compares them with autograd of the recurrence in fp64."""
    need("fla", WITH_TRITON, TRITON_REQUIREMENTS)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(triton_folder()))))
    command = [sys.executable, "-m", "gdnbench", "sim", "--machine", machine, "--"]
    command += [sys.executable, str(ROOT / "scripts" / "fla_backward.py"), "--tokens", "70"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^d \w+ +\d", done.stdout, re.M)) == 6


@pytest.mark.slow  # vLLM has the same
def test_a_missing_package_is_named_with_the_command(tmp_path: Path) -> None:
    if importlib.util.find_spec("fla") is not None:
        pytest.skip("flash-linear-attention is installed here")
    status, report = replay(str(tmp_path), "captures/decode.zarr.zip", "0")
    assert status == 3
    (record,) = report["records"]
    assert "flash-linear-attention is not installed: pip install 'gdnbench[peers]'" in record["reason"]
    assert "pip install --no-deps --target FOLDER flash-linear-attention==0.6.0" in record["reason"]
