# SPDX-License-Identifier: Apache-2.0
from kda_pool import over_pool
from kda_states import prefill


def fused_recurrent_kda(
    q,
    k,
    v,
    g,
    beta=None,
    scale=None,
    initial_state=None,
    inplace_final_state=True,
    use_qk_l2norm_in_kernel=True,
    cu_seqlens=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    out=None,
    sigmoid_beta=False,
    a_log=None,
    g_bias=None,
    compute_gate=False,
    lower_bound=-5.0,
    **kwargs,
):
    o = over_pool(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        ssm_state_indices,
        scale=scale,
        accepted=num_accepted_tokens,
        normalise=use_qk_l2norm_in_kernel,
        gates=(a_log, g_bias, lower_bound) if compute_gate else None,
        logit=sigmoid_beta,
        null=0,
    )
    return o, initial_state


def chunk_kda_with_fused_gate(
    q,
    k,
    v,
    raw_g,
    beta,
    A_log,
    g_bias,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    safe_gate=False,
    lower_bound=-5.0,
    **kwargs,
):
    return prefill(
        q,
        k,
        v,
        raw_g,
        beta,
        initial_state,
        cu_seqlens,
        scale=scale,
        normalise=use_qk_l2norm_in_kernel,
        gates=(A_log, g_bias, lower_bound if safe_gate else None),
        logit=False,
    )
