# SPDX-License-Identifier: Apache-2.0
"""The kernel named `torch` of indexer_topk: torch.topk of rows whose other columns are -inf."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import PADDING
from gdnbench_kernels.indexer_topk.params import TopkParams
from gdnbench_kernels.params import takes_params


@takes_params(TopkParams)
def torch_topk(params: TopkParams) -> dict[str, Tensor]:
    """indices [R, K] int32, in descending order of the logits. No host synchronisation."""
    logits, k = params.logits, params.top_k
    rows, columns = logits.shape
    starts, lens = params.starts.unsqueeze(1), params.lens.unsqueeze(1)
    column = torch.arange(columns, device=logits.device)
    candidate = (column >= starts) & (column < starts + lens)
    indices = torch.full((rows, k), PADDING, dtype=torch.int32, device=logits.device)
    taken = min(k, columns)
    # In fp64 a candidate of -inf can be above the columns that are none, and below all other candidates.
    wide = logits.double().clamp(min=torch.finfo(torch.float64).min)
    found = wide.masked_fill(~candidate, -torch.inf).topk(taken, dim=1).indices
    there = torch.arange(taken, device=logits.device) < lens
    indices[:, :taken] = (found - starts).where(there, PADDING).to(torch.int32)
    return {"indices": indices}
