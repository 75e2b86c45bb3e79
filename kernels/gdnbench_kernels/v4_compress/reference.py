# SPDX-License-Identifier: Apache-2.0
"""The fp64 oracle of v4_compress: `compress` has the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.params import takes_params
from gdnbench_kernels.v4_compress.compress import compress
from gdnbench_kernels.v4_compress.params import CompressParams


@takes_params(CompressParams)
def reference(params: CompressParams) -> dict[str, Tensor]:
    """entries [T, D] and state in fp64; rows of tokens that close no window are zero."""
    return compress(params, torch.float64)
