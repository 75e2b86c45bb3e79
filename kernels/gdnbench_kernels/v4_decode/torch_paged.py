"""The kernel named `torch` of v4_decode: the rows of both segments gathered, dequantised to bfloat16 and
joined, then SDPA.

A serving engine without a fused kernel computes this; its error is the yardstick of other kernels. lse is
computed in fp32 from the rows before that rounding.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.latent_attention import attend
from gdnbench_kernels.params import by_name, takes_params
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.lse_forms import in_form
from gdnbench_kernels.v4_decode.params import V4Params
from gdnbench_kernels.v4_decode.segments import segments_of
from gdnbench_kernels.v4_decode.sizes import GATHERED_ENTRIES


@takes_params(V4Params)
def torch_paged(params: V4Params) -> dict[str, Tensor]:
    """o [B, S, H, 512] in q's dtype, and on request lse [B, S, H] fp32. No host synchronisation.

    With the window alone all query rows are one batch; with an extra segment, batches of few rows."""
    given = by_name(params)
    segments = segments_of(given, given)
    scale = HEAD_DIM**-0.5 if params.scale is None else params.scale
    q = params.q.flatten(0, 1)
    slots, counts = [one.slots for one in segments], [one.counts for one in segments]
    entries = sum(one.shape[1] for one in slots)
    step = len(q) if len(segments) == 1 else max(1, GATHERED_ENTRIES // entries)
    parts = []
    for start in range(0, max(1, len(q)), max(1, step)):
        at = slice(start, start + step)
        wide = [
            one.read(where[at], chosen[at], torch.float32)
            for one, where, chosen in zip(segments, slots, counts, strict=True)
        ]
        chosen = torch.cat([one[at] for one in counts], dim=1)
        parts.append(attend(q[at], torch.cat(wide, dim=1), chosen, scale, params.attn_sink))
    found = {"o": torch.cat([o for o, _ in parts]).view(params.q.shape)}
    if params.output_lse:
        lse = torch.cat([lse for _, lse in parts])
        form = {"base": params.lse_base, "with_sink": params.lse_sink, "empty": params.lse_empty}
        found["lse"] = in_form(lse, params.attn_sink, **form).view(params.q.shape[:3])
    return found
