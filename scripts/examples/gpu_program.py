# SPDX-License-Identifier: Apache-2.0
"""What the examples of capture share: what they need, and what to run with them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import torch

CANNOT_RUN = 3


def needed(package: str, distribution: str, requirement: str = "gdnbench[peers]") -> None:
    """Ends the program with status 3, saying what is missing and the requirement that installs it, where
    there is no GPU or no such package."""
    missing = [] if torch.cuda.is_available() else ["a CUDA GPU that torch can use"]
    if find_spec(package) is None:
        missing.append(f"{distribution} (pip install '{requirement}')")
    if missing:
        print(f"{sys.argv[0]} needs {' and '.join(missing)}", file=sys.stderr)
        raise SystemExit(CANNOT_RUN)


def next_steps(kernel: str) -> None:
    """The commands that capture this program and judge what it did."""
    print(
        f"""done; to record what its kernels get, and judge what they gave back:
    gdnbench capture run.zarr -- python {sys.argv[0]}
    gdnbench ls run.zarr
    gdnbench replay run.zarr --kernel torch --against recorded --k 3
    gdnbench replay run.zarr --kernel {kernel} --on cuda"""
    )
