# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect input` on a copy of vLLM's GDN kernels whose inverse has three rounds instead of four.

Tests do not install vLLM: GDNBENCH_VLLM names a folder that has it, see tests/replay/test_vllm_simulated.py.
The stand-in of the quick tests is tests/bisect/three_rounds.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay.engines import replay, vllm_with_three_rounds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FOLDER = "GDNBENCH_VLLM"
BUDGET = 240


def test_the_input_of_an_inverse_of_three_rounds_is_shrunk_within_the_budget(
    gdnbench: Callable[..., Any], tmp_path: Path
) -> None:
    if not (packages := os.environ.get(FOLDER)):
        pytest.skip(f"{FOLDER} names no folder with vLLM")
    engine = vllm_with_three_rounds(packages, tmp_path / "engine")
    store, out = tmp_path / "alike.zarr", tmp_path / "small.zarr"
    options = ("--seqlens", "70,200,130,64", "--heads", "2,8", "--key-correlation", "1", "--beta", "1")
    assert gdnbench("synth", store, "--op", "gdn_prefill", *options, "--seed", "5").code == 0
    how = ("--kernel", "vllm", "--on", "sim", "--kernel-env", engine)
    begin = time.monotonic()
    result = gdnbench(
        *("bisect", "input", store, "0", *how, "--symptom", "numbers", "--budget", str(BUDGET)),
        *("--out", out, "--state", tmp_path / "state", "--json"),
    )
    seconds = time.monotonic() - begin
    assert result.code == 1, result.err
    assert seconds < BUDGET
    after = json.loads(result.out)["after"]
    # A block of the inverse has 16 rows; the kernel takes multiples of four value heads.
    assert after["token"] <= 16
    assert (after["sequence"], after["chunk"], after["value head"]) == (1, 1, 4)
    _, (record,) = replay(str(engine), str(out), "0", "--kernel", "vllm", "--keep-going")
    assert record["outcome"] == "numeric mismatch"
