"""The fp64 oracle of v4_decode. It reads every layout and form, so no conversion changes the caller's inputs
first.

    s[r, h, j] = scale q[r, h] . row[j]          j over the entries of both segments that count
    lse[r, h]  = log sum_j exp s[r, h, j]
    o[r, h]    = sum_j exp(s[r, h, j]) row[j] / (exp(lse[r, h]) + exp(attn_sink[h]))

This is FlashMLA's definition (`flash_mla_with_kvcache` with `extra_k_cache`): one softmax over both segments.
A row that attends to nothing has o = 0, whatever the sink; `lse_forms` says what its lse is.

A kernel may round the dequantised rows to bf16 before the products; `leeway` is how far that moves each lse.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.latent_attention import exact_row
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.lse_forms import in_form
from gdnbench_kernels.v4_decode.params import V4Params
from gdnbench_kernels.v4_decode.segments import segments_of


@takes_params(V4Params)
def reference(params: V4Params) -> dict[str, Tensor]:
    """o [B, S, H, 512], and on request lse [B, S, H]; fp64, on q's device."""
    return _attend(params, torch.float64)


def leeway(call: Call, output: str) -> Tensor | None:
    """|lse of rows rounded to bf16 - lse| [B, S, H]; None for o, whose bound torch's own rounding sets."""
    if output != "lse":
        return None
    given: dict[str, Any] = {**call.tensors, **call.scalars, **call.conventions}
    params = V4Params(**given)
    moved = _attend(params, torch.bfloat16)["lse"] - _attend(params, torch.float64)["lse"]
    return moved.abs().nan_to_num(0.0, 0.0, 0.0)  # inf - inf where a row attends to nothing


def _attend(params: V4Params, rows_dtype: torch.dtype) -> dict[str, Tensor]:
    given = by_name(params)
    segments = segments_of(given, given)
    scale = HEAD_DIM**-0.5 if params.scale is None else params.scale
    q = params.q.flatten(0, 1)
    sink = None if params.attn_sink is None else params.attn_sink.double()
    o = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=q.device)
    places = [(segment, segment.slots, segment.counts) for segment in segments]
    some = torch.stack([counts.any(1) for _, _, counts in places]).any(0)
    for row in torch.nonzero(some).flatten().tolist():
        parts = [
            read_rows(one.cache, one.inv_scale, slots[row][counts[row]], one.layout, torch.float64)
            for one, slots, counts in places
            if bool(counts[row].any())
        ]
        rows = torch.cat(parts).to(rows_dtype).double()
        o[row], lse[row] = exact_row(q[row].double(), rows, scale, sink)
    found = {"o": o.view(params.q.shape)}
    if params.output_lse:
        form = {"base": params.lse_base, "with_sink": params.lse_sink, "empty": params.lse_empty}
        found["lse"] = in_form(lse, sink, **form).view(params.q.shape[:3])
    return found
