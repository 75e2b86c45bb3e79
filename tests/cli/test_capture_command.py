# SPDX-License-Identifier: Apache-2.0
"""`gdnbench capture` from the outside: a real child process and what it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gdnbench.store.reader import Store

PROGRAM = """
import sys
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as chunk

torch.manual_seed(0)
q, k, v = (torch.randn(1, 70, 2, 16) for _ in range(3))
g, beta = -torch.rand(1, 70, 2), torch.rand(1, 70, 2)
o, _ = chunk(q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
print(o.double().sum().item())
sys.exit(int(sys.argv[1]))
"""


def capture(store: Path, *command: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "gdnbench", "capture", store, "--", *command]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


@pytest.mark.slow  # imports transformers twice; the tutorial has it too
@pytest.mark.parametrize("status", [0, 5])
def test_output_and_status_are_the_programs_own(tmp_path: Path, status: int) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    plain = subprocess.run([sys.executable, script, str(status)], capture_output=True, text=True, check=False)
    captured = capture(tmp_path / "run.zarr", sys.executable, script, status)
    assert (
        (captured.returncode, captured.stdout) == (plain.returncode, plain.stdout) == (status, plain.stdout)
    )
    assert "gdnbench: 1 record" in captured.stderr
    with Store.open(tmp_path / "run.zarr") as store:
        assert [record.info.op for record in store.records] == ["gdn_prefill"]


def test_nothing_captured_is_exit_1_and_says_why(tmp_path: Path) -> None:
    result = capture(tmp_path / "run.zarr", sys.executable, "-c", "print('no model here')")
    assert result.returncode == 1
    assert result.stdout == "no model here\n"
    assert "torch_chunk_gated_delta_rule" in result.stderr


def test_a_command_that_is_not_there_is_exit_2(tmp_path: Path) -> None:
    result = capture(tmp_path / "run.zarr", "/no/such/program")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
