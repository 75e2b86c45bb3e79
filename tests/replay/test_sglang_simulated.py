# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --kernel sglang --on sim`: SGLang's own functions, without its engine.

Tests do not install the packages, about 700 MB: GDNBENCH_SGLANG names a folder that has them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gdnbench_kernels.peers import PIP_TARGET, SGLANG_PACKAGES
from tests.replay.engines import folder, replay, shared_memory_races

FOLDER = "GDNBENCH_SGLANG"
INSTALL = f"{PIP_TARGET} {SGLANG_PACKAGES}"


def packages() -> str:
    return folder(FOLDER, "SGLang", INSTALL)


@pytest.mark.parametrize(
    ("capture", "launches"),
    [
        ("decode", 1),  # log gates: fused_recurrent_gated_delta_rule_update
        ("batched_decode", 1),
        ("drafts", 1),
        pytest.param("prefill", 7, marks=pytest.mark.slow),
    ],
)
def test_captured_calls_pass(capture: str, launches: int) -> None:
    status, (record,) = replay(packages(), f"captures/{capture}.zarr.zip", "0", "--kernel", "sglang")
    assert (status, record["outcome"], record["reason"]) == (0, "pass", "")
    assert any(note.startswith(f"simulated: {launches} launch") for note in record["notes"])


@pytest.mark.slow
def test_kernel_o_overwrites_gate_sums_that_are_read() -> None:
    """A warp stores `s_g_cu` of the next chunk while others read that of this one: SGLang issue 37288."""
    assert ("kernel_o.py", 340, 359) in shared_memory_races(packages(), "sglang_cutedsl")


@pytest.mark.slow  # vLLM has the same
def test_a_missing_package_is_named_with_the_command(tmp_path: Path) -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("SGLang is installed here")
    status, (record,) = replay(str(tmp_path), "captures/decode.zarr.zip", "0", "--kernel", "sglang")
    assert status == 3
    assert f"sglang is not installed: with --kernel-env FOLDER, {INSTALL}" in record["reason"]
