# SPDX-License-Identifier: Apache-2.0
from kda_pool import over_pool


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    initial_state_indices=None,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    output_intermediate_states=False,
    track_state=None,
    track_chunk_idx=None,
    beta_is_raw=False,
    chunk_indices=None,
    chunk_offsets=None,
    **kwargs,
):
    tokens = q.shape[1]
    o = over_pool(
        q,
        k,
        v,
        g[:, :tokens],
        beta[:, :tokens],
        initial_state,
        cu_seqlens,
        initial_state_indices,
        scale=scale,
        normalise=use_qk_l2norm_in_kernel,
        gates=None if A_log is None else (A_log, dt_bias, lower_bound),
        logit=beta_is_raw,
        last_only=True,
    )
    return (o, None) if output_intermediate_states else o
