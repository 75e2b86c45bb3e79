# SPDX-License-Identifier: Apache-2.0
"""Runs one of transformers' chunked functions, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import PrefillTensors, final_dtype
from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.transformers_functions import check_scale
from gdnbench_kernels.validate import element_name, first_true


def run_by_sequence(chunked: Callable[..., Any], params: PrefillTensors) -> dict[str, Tensor]:
    """o [T, Hv, V] in v's dtype and final_state [N, Hv, K, V]; gates are in log space, states have layout KV.

    The functions do not take a sequence without tokens; its state stays unchanged. They subtract sums of
    gates, and -inf - -inf is NaN: raises NotImplementedError for a gate of -inf.
    """
    q, k, v, initial_state = params.q, params.k, params.v, params.initial_state
    check_scale(params.scale, k.shape[2])
    closed = first_true(params.g.isneginf())
    if closed is not None:
        raise NotImplementedError(
            f"transformers takes no closed gate, and {element_name('g', closed)} is -inf;"
            " replay another kernel"
        )
    bounds = params.cu_seqlens.tolist()
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
            g=params.g[rows].unsqueeze(0),
            beta=params.beta[rows].unsqueeze(0),
            chunk_size=params.chunk_size,
            initial_state=states[n : n + 1],
            output_final_state=True,
            use_qk_l2norm_in_kernel=params.qk == "raw",
        )
        assert final is not None
        o[rows], finals[n] = out[0], final[0]
    if not params.output_final_state:
        return {"o": o}
    return {"o": o, "final_state": finals.to(final_dtype(initial_state, params.final_state_dtype))}
