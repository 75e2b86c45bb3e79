# SPDX-License-Identifier: Apache-2.0
"""Sequences of packed tokens over a pool, slots below 0 standing for none, as the Triton kernels do it."""

import torch
from delta_rule import raw_gates, tokens_of, unit


def over_pool(q, k, v, g, beta, scale, pool, bounds, slots, normalise, update=True, each=None, rows=None):
    """q, k, v [1, T, heads, dim], g and beta [T, Hv] as they are used; o like v, NaN for padding. `each`
    [R, S, Hv, V, K] gets the state after each token, in row `rows[n]`, or n without `rows`."""
    if normalise:
        q, k = unit(q), unit(k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out = torch.full_like(v, float("nan"))
    for n, slot in enumerate(slots.tolist()):
        part = slice(int(bounds[n]), int(bounds[n + 1]))
        if slot < 0 or part.start == part.stop:
            continue
        tokens = (q[0, part], k[0, part], v[0, part], g[part].double().exp(), beta[part])
        o, states = tokens_of(*tokens, pool[slot].clone(), scale)
        out[0, part] = o.to(v.dtype)
        if each is not None:
            row = n if rows is None else int(rows[n])
            each[row, : len(states)] = torch.stack(states).to(each.dtype)
        if update:
            pool[slot] = states[-1].to(pool.dtype)
    return out


def over_pool_raw(q, k, v, a, b, A_log, dt_bias, scale, pool, bounds, slots, normalise, **more):
    """a and b [T, Hv]."""
    g, beta = raw_gates(a, b, A_log, dt_bias)
    return over_pool(q, k, v, g, beta, scale, pool, bounds, slots, normalise, **more)
