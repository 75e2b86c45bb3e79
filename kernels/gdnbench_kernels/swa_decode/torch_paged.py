"""The kernel named `torch` of swa_decode: the window gathered and dequantised to bfloat16, then SDPA.

A serving engine without a fused kernel computes this; its error is the yardstick of other kernels. lse is
computed in fp32 from the rows before that rounding.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.latent_attention import attend
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.swa_decode.params import SwaParams
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.window import attended, flat_indices


@takes_params(SwaParams)
def torch_paged(params: SwaParams) -> dict[str, Tensor]:
    """o [T, H, 512] in q's dtype, and on request lse [T, H] fp32. No host synchronisation."""
    indices = flat_indices(params.swa_indices, params.index_shape)
    counts = attended(indices, params.swa_lens)
    q, scale = params.q, HEAD_DIM**-0.5 if params.scale is None else params.scale
    if len(params.cache):
        # Read slot 0 where a row does not attend, then overwrite the values, which may be NaN.
        slots = indices.where(counts, 0)
        wide = read_rows(params.cache, params.inv_scale, slots, params.cache_layout, torch.float32)
        wide = wide.masked_fill(~counts.unsqueeze(-1), 0.0)
    else:  # a record in which no row attends to anything has no pages
        wide = torch.zeros(*counts.shape, HEAD_DIM, device=q.device)
    o, lse = attend(q, wide, counts, scale, params.attn_sink)
    found = {"o": o}
    if params.output_lse:
        found["lse"] = lse
    return found
