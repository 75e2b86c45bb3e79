# SPDX-License-Identifier: Apache-2.0
from sglang.kernels.ops.attention.fla.pool import over_pool


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    initial_state_indices=None,
    cu_seqlens=None,
    head_first=False,
    use_qk_l2norm_in_kernel=False,
    inplace_update=True,
):
    o = over_pool(
        q,
        k,
        v,
        g[0],
        beta[0],
        scale,
        initial_state,
        cu_seqlens,
        initial_state_indices,
        use_qk_l2norm_in_kernel,
        inplace_update,
    )
    return o, None, None
