# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --kernel vllm --on sim`: vLLM's own functions, without its compiled extensions.

Tests do not install the packages, about 600 MB: GDNBENCH_VLLM names a folder that has them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.replay.engines import folder, replay, shared_memory_races

FOLDER = "GDNBENCH_VLLM"
INSTALL = "pip install --no-deps --target FOLDER vllm==0.33.0 quack-kernels==0.6.5 triton==3.7.1"


def packages() -> str:
    return folder(FOLDER, "vLLM", INSTALL)


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
    status, (record,) = replay(packages(), f"captures/{capture}.zarr.zip", "0", "--kernel", kernel)
    assert (status, record["outcome"], record["reason"]) == (0, "pass", "")
    assert any(note.startswith(f"simulated: {launches} launch") for note in record["notes"])


def test_tensor_memory_is_freed_while_it_is_written() -> None:
    """The MMA warp of kernel_kkt_inv_uw waits for the epilogue of the chunk before the last one, and then
    frees the tensor memory that the last chunk's products are written to."""
    status, (record,) = replay(packages(), "captures/prefill.zarr.zip", "0", "--kernel", "vllm")
    assert (status, record["outcome"]) == (1, "crash")
    assert "tcgen05.dealloc of columns 0..511 that are being written" in record["reason"]
    assert "kernel_kkt_inv_uw.py" in record["reason"]


@pytest.mark.slow
def test_kernel_o_overwrites_gate_sums_that_are_read() -> None:
    """A warp stores `s_g_cu` of the next chunk while others read that of this one: SGLang issue 37288."""
    assert ("kernel_o.py", 376, 395) in shared_memory_races(packages(), "vllm")


@pytest.mark.slow  # a program of its own
def test_a_missing_package_is_named_with_the_command(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    status, (record,) = replay(str(tmp_path), "captures/decode.zarr.zip", "0", "--kernel", "vllm")
    assert status == 3
    assert f"vllm is not installed: with --kernel-env FOLDER, {INSTALL}" in record["reason"]
