# SPDX-License-Identifier: Apache-2.0
"""Decode over a pool, slot 0 standing for none, as the Triton kernels do it; what they leave of o unwritten
is NaN here."""

import torch
from delta_rule import raw_gates, tokens_of, unit


def over_pool(q, k, v, g, beta, scale, pool, cu_seqlens, slots, accepted, normalise):
    """q, k, v [1, T, heads, dim], g and beta [1, T, Hv] as they are used; o like v."""
    if normalise:
        q, k = unit(q), unit(k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out = torch.full_like(v, float("nan"))
    for n in range(len(cu_seqlens) - 1):
        begin, end = int(cu_seqlens[n]), int(cu_seqlens[n + 1])
        own = slots[n].flatten().tolist()
        source = own[0 if accepted is None else int(accepted[n]) - 1]
        if begin == end or source <= 0:
            continue
        part = [x[0, begin:end] for x in (q, k, v, g.double().exp(), beta)]
        o, states = tokens_of(*part, pool[source].clone(), scale)
        out[0, begin:end] = o.to(v.dtype)
        for slot, state in zip(own, states, strict=False):
            if slot > 0:
                pool[slot] = state.to(pool.dtype)
    return out


def over_pool_raw(q, k, v, a, b, A_log, dt_bias, scale, pool, cu_seqlens, slots, accepted, normalise):
    """a and b [T, Hv]."""
    g, beta = raw_gates(a, b, A_log, dt_bias)
    return over_pool(q, k, v, g[None], beta[None], scale, pool, cu_seqlens, slots, accepted, normalise)


def split(mixed, pool):
    """q, k, v [1, T, heads, dim] of [T, 2 H K + Hv V]."""
    Hv, V, K = pool.shape[1:]
    width = (mixed.shape[1] - Hv * V) // 2
    q, k, v = mixed[:, :width], mixed[:, width : 2 * width], mixed[:, 2 * width :]
    return q.reshape(1, len(q), -1, K), k.reshape(1, len(k), -1, K), v.reshape(1, len(v), Hv, V)
