# SPDX-License-Identifier: Apache-2.0
from kda_states import prefill


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    **kwargs,
):
    return prefill(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        scale=scale,
        normalise=use_qk_l2norm_in_kernel,
        logit=False,
    )


def chunk_kda_with_fused_gate(
    q,
    k,
    v,
    raw_g,
    raw_beta,
    A_log,
    g_bias,
    scale=None,
    initial_state=None,
    output_final_state=False,
    lower_bound=None,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    out=None,
    **kwargs,
):
    return prefill(
        q,
        k,
        v,
        raw_g,
        raw_beta,
        initial_state,
        cu_seqlens,
        scale=scale,
        normalise=use_qk_l2norm_in_kernel,
        gates=(A_log, g_bias, lower_bound),
    )
