# SPDX-License-Identifier: Apache-2.0
"""The special-function unit of an H200, as the simulator has it, on torch's tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gdnbench.sim.interpreter import mufu


def _of_tensors(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    """An instruction of float32 tensors, from its function of their bits."""

    def compute(x: Tensor) -> Tensor:
        bits = function(x.float().contiguous().numpy().view(np.uint32))
        return torch.from_numpy(np.asarray(bits).view(np.float32).reshape(tuple(x.shape)))

    return compute


ex2, lg2, rcp, sqrt = (_of_tensors(function) for function in (mufu.ex2, mufu.lg2, mufu.rcp, mufu.sqrt))
