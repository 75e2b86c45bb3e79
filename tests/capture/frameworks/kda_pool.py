# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention over a pool of states as the frameworks' kernels do it; rows of o that they leave
unwritten are NaN here."""

import torch
from delta_rule import kda_gates, tokens_of, unit


def over_pool(
    q,
    k,
    v,
    g,
    beta,
    pool,
    bounds,
    slots,
    *,
    scale=None,
    accepted=None,
    normalise=True,
    gates=None,
    logit=True,
    null=-1,
    last_only=False,
    update=True,
    read=None,
    each=None,
):
    """q, k, v, g [1, T, heads, dim], beta [1, T, Hv]; o like v. `slots` [N] or [N, S]; a slot up to `null` is
    none. `gates`: (A_log, dt_bias, lower_bound) of a raw gate. `last_only`: each sequence has one slot, for
    the state after its last token. `read` [N]: other slots that are read. `each` [N, S, Hv, V, K] gets the
    state after each token."""
    if normalise:
        q, k = unit(q), unit(k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    alpha = (g.double() if gates is None else kda_gates(g, *gates)).exp()
    beta = beta.double().sigmoid() if logit else beta
    out = torch.full_like(v, float("nan"))
    for n in range(len(bounds) - 1):
        begin, end = int(bounds[n]), int(bounds[n + 1])
        own = slots[n].flatten().tolist()
        source = own[0 if accepted is None else int(accepted[n]) - 1] if read is None else int(read[n])
        if begin == end or source <= null:
            continue
        part = [x[0, begin:end] for x in (q, k, v, alpha, beta)]
        o, states = tokens_of(*part, pool[source].clone(), scale)
        out[0, begin:end] = o.to(v.dtype)
        if each is not None:
            each[n, : len(states)] = torch.stack(states).to(each.dtype)
        if update:
            for slot, state in zip(own, states[-1:] if last_only else states, strict=False):
                if slot > null:
                    pool[slot] = state.to(pool.dtype)
    return out


def split(mixed, pool):
    """q, k, v [1, T, heads, dim] of [T, 2 H K + Hv V]."""
    Hv, V, K = pool.shape[1:]
    width = (mixed.shape[1] - Hv * V) // 2
    q, k, v = mixed[:, :width], mixed[:, width : 2 * width], mixed[:, 2 * width :]
    return q.reshape(1, len(q), -1, K), k.reshape(1, len(k), -1, K), v.reshape(1, len(v), Hv, V)
