from vllm.third_party.flash_linear_attention.ops.pool import over_pool_raw, split


def fused_gdn_decode_post_conv_mtp(
    mixed_qkv,
    a,
    b,
    A_log,
    dt_bias,
    state_indices,
    cu_seqlens,
    num_accepted_tokens,
    state,
    output_gate,
    norm_weight,
    out=None,
    scale=128**-0.5,
    norm_eps=1e-5,
    output_gate_activation="silu",
):
    of = (*split(mixed_qkv, state), a, b, A_log, dt_bias, scale, state, cu_seqlens)
    o = over_pool_raw(*of, state_indices, num_accepted_tokens, True)[0].nan_to_num().float()
    root = (o.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    gate = output_gate.float()
    gated = o / root * norm_weight.float() * gate * gate.sigmoid()
    out.copy_(gated.to(out.dtype))
    return out
