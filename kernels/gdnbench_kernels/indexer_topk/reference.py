"""The oracle of indexer_topk: a stable sort of each row's candidates.

    indices[r] = the first min(lens[r], K) of  argsort(-logits[r, start : start + lens[r]]), then -1

Equal logits are in order of their indices, NaNs after all numbers. The result is one of the right ones:
order, and the choice between equal logits, are free.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import PADDING
from gdnbench_kernels.indexer_topk.params import TopkParams
from gdnbench_kernels.params import takes_params


@takes_params(TopkParams)
def reference(params: TopkParams) -> dict[str, Tensor]:
    """indices [R, K], whole numbers in fp64, on the device of the logits."""
    logits, k = params.logits, params.top_k
    indices = torch.full((len(logits), k), PADDING, dtype=torch.float64, device=logits.device)
    spans = zip(params.starts.tolist(), params.lens.tolist(), strict=True)
    for row, (start, length) in enumerate(spans):
        candidates = logits[row, start : start + length].double()
        descending = (-candidates).argsort(stable=True)  # torch sorts NaN after +inf
        indices[row, : min(length, k)] = descending[:k].double()
    return {"indices": indices}
