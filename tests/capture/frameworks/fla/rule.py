# SPDX-License-Identifier: Apache-2.0
"""What both functions compute; outputs have v's dtype, final states are fp32, as the package's are."""

from itertools import pairwise

import torch
from delta_rule import kda_gates, raw_gates, tokens_of, unit


def batch(
    q,
    k,
    v,
    g,
    beta,
    scale,
    initial_state,
    output_final_state,
    normalise,
    raw_gate,
    A_log,
    dt_bias,
    raw_beta,
    doubled,
    value_first,
    cu_seqlens,
    lower_bound=None,
):
    g = torch.zeros(v.shape[:3]) if g is None else g
    beta = torch.ones(v.shape[:3]) if beta is None else beta
    if raw_gate and g.ndim == 4:
        g = kda_gates(g, A_log, dt_bias, lower_bound)
    elif raw_gate:
        g = raw_gates(g, g, A_log, dt_bias)[0]
    if raw_beta:
        beta = raw_gates(beta, beta, torch.zeros(()), None)[1] * (2 if doubled else 1)
    if normalise:
        q, k = unit(q), unit(k)
    if cu_seqlens is None:
        rows = [(n, slice(None)) for n in range(len(v))]
    else:
        rows = [(0, slice(*pair)) for pair in pairwise(cu_seqlens.tolist())]
    heads, K, V = v.shape[2], k.shape[3], v.shape[3]
    states = torch.zeros(len(rows), heads, V, K)
    if initial_state is not None:
        states = initial_state if value_first else initial_state.transpose(-1, -2)
    out, final = torch.empty_like(v), torch.empty(len(rows), heads, V, K)
    for n, (one, part) in enumerate(rows):
        o, after = tokens_of(
            *(x[one, part] for x in (q, k, v, g.double().exp(), beta)),
            states[n],
            K**-0.5 if scale is None else scale,
        )
        out[one, part] = o.to(v.dtype)
        final[n] = (after[-1] if after else states[n]).float()
    if not value_first:
        final = final.transpose(-1, -2).contiguous()
    return out, final if output_final_state else None
