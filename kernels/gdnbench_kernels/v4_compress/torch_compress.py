# SPDX-License-Identifier: Apache-2.0
"""The kernel named `torch` of v4_compress: everything in fp32, entries rounded at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.params import takes_params
from gdnbench_kernels.v4_compress.compress import compress
from gdnbench_kernels.v4_compress.params import CompressParams


@takes_params(CompressParams)
def torch_compress(params: CompressParams) -> dict[str, Tensor]:
    """entries [T, D] of `entries_dtype`; the state is updated in place."""
    found = compress(params, torch.float32)
    params.state.copy_(found["state"])
    return {"entries": found["entries"].to(getattr(torch, params.entries_dtype))}
