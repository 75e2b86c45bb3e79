# SPDX-License-Identifier: Apache-2.0
from fla.rule import batch


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    chunk_indices=None,
    chunk_offsets=None,
    use_qk_l2norm_in_kernel=False,
    core_attn_out=None,
):
    plain = (False, None, None, False, False, True)  # gates and beta as they are, states [V, K]
    o, final = batch(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        *plain,
        cu_seqlens,
    )
    if core_attn_out is not None:
        core_attn_out.copy_(o[0])
        o = core_attn_out[None]
    return o, final
