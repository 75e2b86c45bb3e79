# SPDX-License-Identifier: Apache-2.0
"""Ranges of a call of gdn_prefill."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.delta_prefill.ranges import ranges_of
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_prefill.sizes import CHUNK


def ranges(call: Call) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU, in any conventions."""
    g = log_decay(call.tensors["g"], call.conventions.get("gate", "log"), torch.float64)
    return ranges_of(call, g, call.tensors["beta"], int(call.scalars.get("chunk_size") or CHUNK))
