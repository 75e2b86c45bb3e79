# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect stage` on a copy of vLLM's GDN kernels whose inverse has three rounds instead of four.

Tests do not install vLLM: GDNBENCH_VLLM names a folder that has it, see tests/replay/test_vllm_simulated.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay.engines import vllm_with_three_rounds, write_vllm_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FOLDER = "GDNBENCH_VLLM"
SECONDS = 180


def test_the_inverse_of_three_rounds_is_named(gdnbench: Callable[..., Any], tmp_path: Path) -> None:
    if not (packages := os.environ.get(FOLDER)):
        pytest.skip(f"{FOLDER} names no folder with vLLM")
    engine = vllm_with_three_rounds(packages, tmp_path / "engine")
    options = ("--seqlens", "70,64", "--heads", "4,4", "--key-correlation", "1", "--beta", "1", "--seed", "5")
    store = tmp_path / "alike.zarr"
    assert gdnbench("synth", store, "--op", "gdn_prefill", *options).code == 0
    adapter = write_vllm_adapter(tmp_path / "theirs.py")
    begin = time.monotonic()
    result = gdnbench(
        *("bisect", "stage", store, "0", "--kernel", f"{adapter}:prefill", "--kernel-env", engine),
        *("--on", "sim", "--state", tmp_path / "state", "--json"),
    )
    seconds = time.monotonic() - begin
    assert result.code == 1, result.err
    found = json.loads(result.out)
    stages = {one["name"]: one for one in found["stages"]}
    assert found["first"] == "U"
    assert stages["U"]["hidden"] == ["A", "Ai"]
    assert stages["g_cu"]["chained"]["passed"]
    assert found["grafts"][0]["exact"] == ["U", "W"]
    assert found["grafts"][0]["passes"]
    assert seconds < SECONDS
