# SPDX-License-Identifier: Apache-2.0
from kda_pool import over_pool
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


def fused_recurrent_kda_fwd(
    q,
    k,
    v,
    g,
    beta,
    scale,
    initial_state,
    inplace_final_state=True,
    cu_seqlens=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    use_qk_l2norm_in_kernel=False,
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
        logit=False,
        null=0,
    )
    return o, initial_state


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
    **kwargs,
):
    return fused_recurrent_kda_fwd(
        q,
        k,
        v,
        g,
        beta,
        k.shape[-1] ** -0.5 if scale is None else scale,
        initial_state,
        inplace_final_state,
        cu_seqlens,
        ssm_state_indices,
        None,
        use_qk_l2norm_in_kernel,
    )
