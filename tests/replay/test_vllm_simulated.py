"""`gdnbench replay --kernel vllm --on sim`: vLLM's own functions, without its compiled extensions.

Tests do not install the packages, about 600 MB: GDNBENCH_VLLM names a folder that has them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "GDNBENCH_VLLM"
INSTALL = "pip install --no-deps --target FOLDER vllm==0.33.0 quack-kernels==0.6.5 triton==3.7.1"


def folder() -> str:
    """The folder that has vLLM; skips the test if there is none."""
    if not (found := os.environ.get(FOLDER)):
        pytest.skip(f"{FOLDER} names no folder with vLLM: {INSTALL}")
    return found


def replay(packages: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and records of the command, whose packages are in `packages`."""
    command = [sys.executable, "-m", "gdnbench", "replay", *words, "--on", "sim", "--kernel-env", packages]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["records"]


@pytest.mark.parametrize(
    ("capture", "kernel", "launches"),
    [
        ("decode", "vllm", 1),  # log gates: fused_recurrent_gated_delta_rule
        ("batched_decode", "vllm", 1),
        ("drafts", "vllm", 1),
        pytest.param("prefill", "vllm_triton", 6, marks=pytest.mark.slow),
    ],
)
def test_captured_calls_pass(capture: str, kernel: str, launches: int) -> None:
    status, (record,) = replay(folder(), f"captures/{capture}.zarr.zip", "0", "--kernel", kernel)
    assert (status, record["outcome"], record["reason"]) == (0, "pass", "")
    assert any(note.startswith(f"simulated: {launches} launch") for note in record["notes"])


def test_tensor_memory_is_freed_while_it_is_written() -> None:
    """The MMA warp of kernel_kkt_inv_uw waits for the epilogue of the chunk before the last one, and then
    frees the tensor memory that the last chunk's products are written to."""
    status, (record,) = replay(folder(), "captures/prefill.zarr.zip", "0", "--kernel", "vllm")
    assert (status, record["outcome"]) == (1, "crash")
    assert "tcgen05.dealloc of columns 0..511 that are being written" in record["reason"]
    assert "kernel_kkt_inv_uw.py" in record["reason"]


def test_a_missing_package_is_named_with_the_command(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    status, (record,) = replay(str(tmp_path), "captures/decode.zarr.zip", "0", "--kernel", "vllm")
    assert status == 3
    assert f"vllm is not installed: with --kernel-env FOLDER, {INSTALL}" in record["reason"]
