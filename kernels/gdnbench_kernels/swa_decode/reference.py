"""The fp64 oracle of swa_decode. It reads every layout, so no conversion changes the caller's inputs first.

    s[t, h, j] = scale q[t, h] . row[j]          j over the slots that row t attends to
    lse[t, h]  = log sum_j exp s[t, h, j]
    o[t, h]    = sum_j exp(s[t, h, j]) row[j] / (exp(lse[t, h]) + exp(attn_sink[h]))

lse does not include the sink, which callers that merge with another part of the attention need (FlashMLA's
convention). A row that attends to nothing has o = 0 and lse = -inf, whatever the sink.

A kernel may round the dequantised rows to bf16 before the products, as serving engines do. That moves a score
of 100 by some 0.1, and so `lse`, which has a tolerance of 1e-3. `leeway` is how far it moves each element.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.latent_attention import exact_row
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.swa_decode.params import SwaParams
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.window import attended, flat_indices


@takes_params(SwaParams)
def reference(params: SwaParams) -> dict[str, Tensor]:
    """o [T, H, 512], and on request lse [T, H]; fp64, on q's device."""
    return _attend(params, torch.float64)


def leeway(call: Call, output: str) -> Tensor | None:
    """|lse of rows rounded to bf16 - lse| [T, H]; None for o, whose bound torch's own rounding sets."""
    if output != "lse":
        return None
    given: dict[str, Any] = {**call.tensors, **call.scalars, **call.conventions}
    params = SwaParams(**given)
    moved = _attend(params, torch.bfloat16)["lse"] - _attend(params, torch.float64)["lse"]
    return moved.abs().nan_to_num(0.0, 0.0, 0.0)  # -inf - -inf where a row attends to nothing


def _attend(params: SwaParams, rows_dtype: torch.dtype) -> dict[str, Tensor]:
    indices = flat_indices(params.swa_indices, params.index_shape)
    counts = attended(indices, params.swa_lens)
    q, scale = params.q, HEAD_DIM**-0.5 if params.scale is None else params.scale
    tokens, heads, _ = q.shape
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float64, device=q.device)
    sink = None if params.attn_sink is None else params.attn_sink.double()
    for token in torch.nonzero(counts.any(1)).flatten().tolist():
        slots = indices[token][counts[token]]
        rows = read_rows(params.cache, params.inv_scale, slots, params.cache_layout, torch.float64)
        rows = rows.to(rows_dtype).double()
        o[token], lse[token] = exact_row(q[token].double(), rows, scale, sink)
    found = {"o": o}
    if params.output_lse:
        found["lse"] = lse
    return found
