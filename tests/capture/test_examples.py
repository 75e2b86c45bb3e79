# SPDX-License-Identifier: Apache-2.0
"""The example programs where they cannot run: status 3 and what they need, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "examples"


@pytest.mark.slow  # a program for each example
@pytest.mark.parametrize(
    "name",
    ["capture_fla.py", "capture_flashinfer.py", "capture_vllm.py", "capture_sglang.py"],
)
def test_without_a_gpu(name: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, SCRIPTS / name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert " needs a CUDA GPU that torch can use" in line
