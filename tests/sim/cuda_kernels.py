# SPDX-License-Identifier: Apache-2.0
"""Small kernels in CUDA C++, compiled with NVRTC and run on CPU tensors.

NVRTC is a wheel of tests/sim/third_party/requirements.txt; where GDNBENCH_THIRD_PARTY names the folder of
these, NVRTC has to be there.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gdnbench import sim
from gdnbench.sim.cuda_source import compile_cuda
from gdnbench.sim.errors import ExportError
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import keep_entry, parse

THIRD_PARTY = "GDNBENCH_THIRD_PARTY"
REQUIREMENTS = "tests/sim/third_party/requirements.txt"


def use_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take NVRTC from the folder of third-party packages, or else from this environment; skip the test if it
    is not there."""
    folder = os.environ.get(THIRD_PARTY)
    if folder is not None:
        toolkit = Path(folder) / "nvidia" / "cu13"
        assert list((toolkit / "lib").glob("libnvrtc.so*")), (
            f"{THIRD_PARTY} is set to {folder}, but NVRTC is not there: pip install --no-deps --target"
            f" ${THIRD_PARTY} -r {REQUIREMENTS}"
        )
        monkeypatch.setenv("CUDA_PATH", str(toolkit))
        return
    try:
        compile_cuda("")
    except ExportError as error:
        pytest.skip(f"{error}, and {THIRD_PARTY} is not set")


@cache
def ptx_of(source: str) -> str:
    """The PTX of a source, whose kernels are all `extern "C"`."""
    return compile_cuda(source, file="kernels.cu").ptx


def run(
    source: str,
    entry: str,
    block: int,
    *arguments: Any,
    grid: int = 1,
    shared: int = 0,
    engine: str = "compiled",
    check: bool = True,
) -> sim.Report:
    """Run a kernel of a source. The report has the checker's findings."""
    module = parse(keep_entry(ptx_of(source), entry))
    kernel = PtxKernel(module, entry, (grid, 1, 1), (block, 1, 1), shared_bytes=shared)
    return sim.launch(kernel, *arguments, check=check, engine=engine, raises=False, threads=1)
