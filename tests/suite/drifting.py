# SPDX-License-Identifier: Apache-2.0
"""Torch's decode kernel, with an error of its own in `o`: the hundredths that the file `hundredths` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

NAMES = ("q", "k", "v", "g", "beta", "state", "state_indices", "num_accepted", "scale")


def decode(**call: Any) -> dict[str, Tensor]:
    found = torch_recurrent(**{name: call[name] for name in NAMES if name in call})
    hundredths = float(Path("hundredths").read_text())
    return {**found, "o": found["o"] * (1 + hundredths / 100)}
