# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim` on CuTe DSL kernels with TMA, tcgen05 and a persistent grid, from shapes to files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.subset import quick

ROOT = Path(__file__).parents[2]
OBJECTS = """
import cutlass
from cutlass.cute.nvgpu import OperandMajorMode
from tests.sim.kernels.persistent import PersistentGemm
from tests.sim.kernels.tcgen05_gemm import Gemm
from tests.sim.kernels.tma_copy import TmaStream

K = OperandMajorMode.K
copy = TmaStream()
gemm = Gemm(cutlass.BFloat16, K, K, 128, 64, load_shape="32x32b")
persistent = PersistentGemm(cutlass.BFloat16, 3)
"""
# A sum over K in steps of 16: each step cuts 17 terms at 2^-25 of the largest and the result at 2^-23.
STEP = 17 * 2.0**-25 + 2.0**-23


def simulate(folder: Path, kernel: str, *args: str) -> dict[str, torch.Tensor]:
    """The tensors that the command saved, by the names of the kernel's parameters."""
    (folder / "objects.py").write_text(OBJECTS)
    command = [sys.executable, "-m", "gdnbench", "sim", f"{folder / 'objects.py'}:{kernel}", *args]
    ran = subprocess.run(
        [*command, "--save", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "no error found" in ran.stdout
    return {path.stem: torch.load(path) for path in folder.glob("*.pt")}


@pytest.mark.slow
def test_a_tma_copy(tmp_path: Path) -> None:
    saved = simulate(tmp_path, "copy", "bf16[300,72]", "bf16[300,72]:nan")
    source, target = saved.values()
    assert torch.equal(source, target)
    assert source.float().std() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kernel", quick(["gemm", "persistent"], 0))
def test_a_tcgen05_gemm(tmp_path: Path, kernel: str) -> None:
    saved = simulate(tmp_path, kernel, "bf16[130,104]", "bf16[200,104]", "f32[130,200]:nan")
    a, b, c = (saved[name].double() for name in "abc")
    allowed = -(-104 // 16) * STEP * (a.abs() @ b.abs().mT)
    assert ((c - a @ b.mT).abs() <= allowed).all()
