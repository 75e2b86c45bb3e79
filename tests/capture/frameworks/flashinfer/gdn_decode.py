# SPDX-License-Identifier: Apache-2.0
"""Signatures are those of 0.7.2.post1."""

import torch
from delta_rule import raw_gates, tokens_of, unit


def _tokens(q, k, v, a, b, A_log, dt_bias, scale, normalise, states):
    """o [B, S, Hv, V], and the states [Hv, V, K] after each token of each sequence."""
    if normalise:
        q, k = unit(q), unit(k)
    g, beta = raw_gates(a, b, A_log, dt_bias)
    out, after = torch.zeros_like(v), []
    for i, state in enumerate(states):
        if state is None:
            after.append(None)
            continue
        of = [x[i] for x in (q, k, v, g.exp(), beta)]
        o, each = tokens_of(*of, state, q.shape[-1] ** -0.5 if scale is None else scale)
        out[i] = o.to(v.dtype)
        after.append(each)
    return out, after


def gated_delta_rule_decode(
    q,
    k,
    v,
    state,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    use_qk_l2norm=True,
    backend="auto",
):
    states = list(state.transpose(-1, -2))
    out, after = _tokens(q, k, v, a, b, A_log, dt_bias, scale, use_qk_l2norm, states)
    for i, each in enumerate(after):
        state[i] = each[-1].transpose(-1, -2).to(state.dtype)
    return out, state


def gated_delta_rule_decode_pretranspose(
    q,
    k,
    v,
    state,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    use_qk_l2norm=True,
    initial_state=None,
    initial_state_indices=None,
    output_state_indices=None,
    intermediate_states_buffer=None,
    disable_state_update=False,
    backend="auto",
):
    if initial_state is None:
        initial_state, initial_state_indices = state, torch.arange(len(q))
    return gated_delta_rule_mtp(
        q,
        k,
        v,
        initial_state,
        initial_state_indices,
        A_log,
        a,
        dt_bias,
        b,
        scale,
        output,
        intermediate_states_buffer,
        None,
        disable_state_update,
        use_qk_l2norm,
        output_state_indices,
    )


def gated_delta_rule_mtp(
    q,
    k,
    v,
    initial_state,
    initial_state_indices,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    intermediate_states_buffer=None,
    ssm_state_indices=None,
    disable_state_update=None,
    use_qk_l2norm=True,
    output_state_indices=None,
    cache_replayssm=False,
    replayssm_rawv=None,
    replayssm_rawk=None,
    replayssm_g=None,
    replayssm_beta=None,
):
    slots = initial_state_indices.tolist()
    states = [None if slot < 0 else initial_state[slot].clone() for slot in slots]
    out, after = _tokens(q, k, v, a, b, A_log, dt_bias, scale, use_qk_l2norm, states)
    written = slots if output_state_indices is None else output_state_indices.tolist()
    for i, each in enumerate(after):
        if each is None:
            continue
        if ssm_state_indices is not None:
            for t, slot in enumerate(ssm_state_indices[i].tolist()):
                initial_state[slot] = each[t].to(initial_state.dtype)
        elif not (disable_state_update is None or disable_state_update):
            initial_state[written[i]] = each[-1].to(initial_state.dtype)
        if intermediate_states_buffer is not None:
            intermediate_states_buffer[i, : len(each)] = torch.stack(each)
    return out, initial_state
