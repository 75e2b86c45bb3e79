"""The kernel named `hf` of gdn_prefill: transformers' torch_chunk_gated_delta_rule, sequence by sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.gdn_prefill.torch_chunked import final_dtype
from gdnbench_kernels.transformers_functions import check_scale, transformers_function


def hf(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = 64,
    output_final_state: bool = True,
    final_state_dtype: str | None = None,
    qk: str = "normalised",
) -> dict[str, Tensor]:
    """o [T, Hv, V] in v's dtype and final_state [N, Hv, K, V]; states have layout KV.

    The function does not take a sequence without tokens; its state stays unchanged.
    """
    chunked = transformers_function("torch_chunk_gated_delta_rule")
    check_scale(scale, k.shape[2])
    bounds = cu_seqlens.tolist()
    sequences, value_heads = len(bounds) - 1, v.shape[1]
    if initial_state is None:
        states = torch.zeros(sequences, value_heads, k.shape[2], v.shape[2], device=v.device)
    else:
        states = initial_state.float()
    finals = torch.empty_like(states)
    o = torch.empty_like(v)
    for n in range(sequences):
        rows = slice(bounds[n], bounds[n + 1])
        if rows.start == rows.stop:
            finals[n] = states[n]
            continue
        # Repeat heads here: releases before 5.23 expect their caller to do it.
        out, final = chunked(
            per_value_head(q[rows], value_heads, axis=1).unsqueeze(0),
            per_value_head(k[rows], value_heads, axis=1).unsqueeze(0),
            v[rows].unsqueeze(0),
            g=g[rows].unsqueeze(0),
            beta=beta[rows].unsqueeze(0),
            chunk_size=chunk_size,
            initial_state=states[n : n + 1],
            output_final_state=True,
            use_qk_l2norm_in_kernel=qk == "raw",
        )
        assert final is not None
        o[rows], finals[n] = out[0], final[0]
    if not output_final_state:
        return {"o": o}
    return {"o": o, "final_state": finals.to(final_dtype(initial_state, final_state_dtype))}
