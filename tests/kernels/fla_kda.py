# SPDX-License-Identifier: Apache-2.0
"""Loads flash-linear-attention's recurrence of Kimi Delta Attention in plain torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

FOLDER = "GDNBENCH_THIRD_PARTY"


def fla_recurrence() -> Callable[..., tuple[Tensor, Tensor]]:
    """flash-linear-attention's naive_recurrent_kda, without its package, which needs Triton."""
    folder = Path(os.environ.get(FOLDER, "")).absolute()
    path = folder / "with-triton" / "fla" / "ops" / "kda" / "naive.py"
    if not os.environ.get(FOLDER) or not path.is_file():
        pytest.skip(f"{FOLDER} has no flash-linear-attention: see tests/sim/third_party")
    spec = importlib.util.spec_from_file_location("naive_kda", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))  # einops
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    found: Callable[..., tuple[Tensor, Tensor]] = module.naive_recurrent_kda
    return found
