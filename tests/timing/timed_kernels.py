# SPDX-License-Identifier: Apache-2.0
"""Kernels that pass when they are judged, and each end in its own way once they are timed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

IN_WORKER = "gdnbench.timing.worker" in sys.orig_argv
calls = 0
NAMES = ("q", "k", "v", "g", "beta", "state", "state_indices", "num_accepted", "scale")


def timed() -> bool:
    """Whether a call is not the first of this import of the file, which judges: a timing has many."""
    global calls
    calls += 1
    return IN_WORKER and calls > 1


def correct(**call: Any) -> dict[str, Tensor]:
    return torch_recurrent(**{name: call[name] for name in NAMES if name in call})


def slow(**call: Any) -> dict[str, Tensor]:
    """Correct, and 20 ms longer."""
    if timed():
        time.sleep(0.02)
    return correct(**call)


def aborts_when_judged(**call: Any) -> dict[str, Tensor]:
    if IN_WORKER:
        os.abort()
    return correct(**call)


def aborts(**call: Any) -> dict[str, Tensor]:
    if timed():
        os.abort()
    return correct(**call)


def raises(**call: Any) -> dict[str, Tensor]:
    if timed():
        raise ValueError("not a second time")
    return correct(**call)


def hangs(**call: Any) -> dict[str, Tensor]:
    if timed():
        time.sleep(600)
    return correct(**call)


def is_wrong(**call: Any) -> dict[str, Tensor]:
    results = correct(**call)
    results["o"] = results["o"] * 1.5
    return results


def faults_on_the_gpu(**call: Any) -> dict[str, Tensor]:
    """An index past the end in a kernel of the device, which leaves a context that nothing runs in."""
    if timed():
        device = call["q"].device
        torch.zeros(4, device=device)[torch.full((4,), 1 << 40, device=device)].sum().item()
    return correct(**call)
