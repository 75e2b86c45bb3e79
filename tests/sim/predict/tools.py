# SPDX-License-Identifier: Apache-2.0
"""The programs that predicted times need, for tests: on PATH, of NVIDIA's packages, or those that Triton
brings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.machine_code import tool

OF_TRITON = Path(os.environ.get("GDNBENCH_THIRD_PARTY", "")) / "with-triton/triton/backends/nvidia/bin"


def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ptxas and nvdisasm known; skip the test if they are nowhere."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{OF_TRITON}")
    try:
        for name in ("ptxas", "nvdisasm"):
            tool(name)
    except UnsupportedError as error:
        pytest.skip(str(error))
