# SPDX-License-Identifier: Apache-2.0
"""Functions of other packages for Kimi Delta Attention, as they document their arguments, in fp64 on the CPU,
as far as the wrappers in `gdnbench_kernels` call them. Tests put them in modules of the packages' names."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def core(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float | None
) -> tuple[Tensor, list[Tensor]]:
    """One sequence: q, k [T, H, K], v [T, HV, V], g [T, HV, K] in log space, beta [T, HV], state [HV, V, K].
    o, and the state after each token."""
    out, after = torch.empty_like(v), []
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    for t in range(len(v)):
        of_head = []
        for head in range(v.shape[1]):
            key, query = (x[t, head // (v.shape[1] // q.shape[1])].double() for x in (k, q))
            decayed = state[head].double() * g[t, head].double().exp()
            update = beta[t, head].double() * (v[t, head].double() - decayed @ key)
            of_head.append(decayed + torch.outer(update, key))
            out[t, head] = (scale * (of_head[-1] @ query)).to(out.dtype)
        state = torch.stack(of_head)
        after.append(state)
    return out, after


def unit(x: Tensor) -> Tensor:
    return x.double() / ((x.double() ** 2).sum(-1, keepdim=True) + 1e-6).sqrt()


def activated(g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None) -> Tensor:
    """The log-space decay of a raw or bounded gate [..., HV, K]; a rate that is absent is 1."""
    heads, size = g.shape[-2:]
    x = g.double() if dt_bias is None else g.double() + dt_bias.double().view(heads, size)
    speed = torch.ones(heads, 1) if A_log is None else A_log.double().exp().view(heads, 1)
    if lower_bound is None:
        return -speed * torch.nn.functional.softplus(x, threshold=100.0)
    return lower_bound * torch.sigmoid(speed * x)


def packed(
    inputs: list[Tensor], bounds: Tensor, states: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Packed sequences, inputs [1, T, ...] contiguous, states [N, HV, V, K]: o and final states."""
    assert all(x.is_contiguous() and len(x) == 1 for x in inputs)
    out, finals = torch.empty_like(inputs[2][0]), []
    for n, (start, end) in enumerate(pairwise(bounds.tolist())):
        o, after = core(*(x[0, start:end] for x in inputs), states[n], scale)
        out[start:end] = o
        finals.append(after[-1] if after else states[n].double())
    return out.unsqueeze(0), torch.stack(finals)


def inputs_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
    sigmoid: bool,
    beta_max: int = 1,
) -> list[Tensor]:
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    if use_gate_in_kernel:
        g = activated(g, A_log, dt_bias, lower_bound)
    else:
        assert A_log is None
        assert dt_bias is None
        assert lower_bound is None
    return [q, k, v, g, beta.double().sigmoid() * beta_max if sigmoid else beta]


# flash-linear-attention 0.6.0


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    assert chunk_size in (32, 64)
    assert cu_seqlens is not None
    assert not (safe_gate and use_gate_in_kernel) or lower_bound is not None
    assert not allow_neg_eigval or use_beta_sigmoid_in_kernel
    inputs = inputs_of(
        *(q, k, v, g, beta, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias, lower_bound),
        use_beta_sigmoid_in_kernel,
        2 if allow_neg_eigval else 1,
    )
    states = torch.zeros(len(cu_seqlens) - 1, v.shape[2], v.shape[3], k.shape[3])
    if initial_state is not None:
        assert initial_state.dtype == torch.float32
        states = initial_state if state_v_first else initial_state.transpose(2, 3)
    out, final = packed(inputs, cu_seqlens, states, scale)
    final = (final if state_v_first else final.transpose(2, 3)).float().contiguous()
    return out, final if output_final_state else None


def fused_recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state_v_first: bool = False, **more: Any
) -> tuple[Tensor, Tensor | None]:
    """One token a sequence, [B, 1, ...]."""
    assert q.shape[1] == 1
    initial = more.pop("initial_state").float()
    rows = (x.transpose(0, 1) for x in (q, k, v, g, beta))
    offsets = torch.arange(len(q) + 1)
    out, final = chunk_kda(
        *rows, initial_state=initial, cu_seqlens=offsets, state_v_first=state_v_first, **more
    )
    return out.transpose(0, 1), final


def fused_recurrent_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    """[B, S, ...], or with cu_seqlens [1, B*S, ...], on the slots of a pool."""
    assert initial_state is not None
    assert ssm_state_indices is not None
    assert inplace_final_state
    assert (ssm_state_indices >= 0).all()
    if cu_seqlens is not None:
        count = len(cu_seqlens) - 1
        assert cu_seqlens.tolist() == list(range(0, q.shape[1] + 1, q.shape[1] // count))
    pool = initial_state if state_v_first else initial_state.transpose(2, 3)
    inputs = inputs_of(
        *(q, k, v, g, beta, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias, lower_bound),
        use_beta_sigmoid_in_kernel,
        2 if allow_neg_eigval else 1,
    )
    batch, tokens = ssm_state_indices.shape
    rows = [x.reshape(batch, tokens, *x.shape[2:]) for x in inputs]
    out = torch.empty_like(rows[2])
    for n in range(batch):
        column = 0 if num_accepted_tokens is None else int(num_accepted_tokens[n]) - 1
        out[n], after = core(*(x[n] for x in rows), pool[int(ssm_state_indices[n, column])].clone(), scale)
        for t, state in enumerate(after):
            pool[int(ssm_state_indices[n, t])] = state.to(pool.dtype)
    return out.view(v.shape), initial_state


# FlashInfer 0.7.2.post1


def recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_spec_tokens: int | None = None,
    num_accepted_tokens: Tensor | None = None,
    output: Tensor | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    beta_is_logit: bool = False,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    assert initial_state is not None
    assert all(x.dtype == torch.bfloat16 for x in (q, k, v, g, beta))
    assert A_log is None or A_log.shape == (q.shape[2],)
    assert dt_bias is None or dt_bias.shape == (q.shape[2] * q.shape[3],)
    inputs = inputs_of(
        *(q, k, v, g, beta, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias, lower_bound),
        beta_is_logit,
    )
    if ssm_state_indices is None:  # prefill
        assert cu_seqlens is not None
        assert use_gate_in_kernel
        assert lower_bound is not None
        out, final = packed(inputs, cu_seqlens, initial_state, scale)
        initial_state.copy_(final)
        return out, initial_state if output_final_state else None
    tokens = 1 if num_spec_tokens is None else num_spec_tokens + 1
    if cu_seqlens is not None:
        assert cu_seqlens.tolist() == list(range(0, q.shape[1] + 1, tokens))
    indices = ssm_state_indices.view(-1, tokens)
    assert indices.dtype == torch.int32
    rows = [x.reshape(len(indices), tokens, *x.shape[2:]) for x in inputs]
    out = torch.empty_like(rows[2])
    for n, slots in enumerate(indices.tolist()):
        if slots[0] < 0:
            continue
        column = 0 if num_accepted_tokens is None else int(num_accepted_tokens[n]) - 1
        state = initial_state[slots[column]]
        if initial_state_source is not None:
            assert initial_state_indices is not None
            state = initial_state_source[int(initial_state_indices[n])]
        out[n], after = core(*(x[n] for x in rows), state.clone(), scale)
        for slot, state in zip(slots, after, strict=True):
            initial_state[slot] = state.to(initial_state.dtype)
    assert output is not None
    output.copy_(out.view(output.shape))
    return output, None


# SGLang 0.5.23


def sglang_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    beta_is_raw: bool = False,
) -> Tensor:
    """Writes o over v, and the final states over the initial ones."""
    assert initial_state is not None
    assert initial_state_indices is not None
    assert cu_seqlens is not None
    inputs = inputs_of(
        *(q, k, v, g, beta, use_qk_l2norm_in_kernel, A_log is not None, A_log, dt_bias, lower_bound),
        beta_is_raw,
    )
    out, final = packed(inputs, cu_seqlens, initial_state[initial_state_indices], scale)
    initial_state[initial_state_indices] = final.to(initial_state.dtype)
    return v.copy_(out)


def chunk_kda_cutedsl(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    h0: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    h0_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Takes and returns tensors without a batch axis."""
    assert beta.dtype == torch.float32
    rows = (x.unsqueeze(0) for x in (q, k, v.clone(), g, beta))
    out = sglang_chunk_kda(*rows, scale, h0, h0_indices, False, cu_seqlens, A_log, dt_bias)
    return out[0], h0


def fused_recurrent_kda_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequences whose slot is not negative."""
    heads, value, key = initial_state.shape[1:]
    on = ssm_state_indices >= 0
    q, k, v = mixed_qkv[on].split([(mixed_qkv.shape[1] - heads * value) // 2] * 2 + [heads * value], dim=1)
    slots = ssm_state_indices[on].long()
    found, _ = fused_recurrent_kda_fwd(
        *(q.unflatten(1, (-1, key)).unsqueeze(1), k.unflatten(1, (-1, key)).unsqueeze(1)),
        *(v.unflatten(1, (heads, value)).unsqueeze(1), a[on].view(-1, 1, heads, key), b[on].unsqueeze(1)),
        *(A_log, dt_bias),
        initial_state=initial_state,
        scale=scale,
        state_v_first=True,
        ssm_state_indices=slots.unsqueeze(1),
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        lower_bound=lower_bound,
    )
    out[on] = found
    return out, initial_state


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    is_kda: bool = False,
    lower_bound: float | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
) -> Tensor:
    """Verification of drafts: the state after each token goes to a buffer, the pool is unchanged."""
    assert is_kda
    assert disable_state_update
    assert intermediate_states_buffer is not None
    assert intermediate_state_indices is not None
    assert (softplus_beta, softplus_threshold) == (1.0, 20.0)
    inputs = inputs_of(q, k, v, a, b, use_qk_l2norm_in_kernel, True, A_log, dt_bias, lower_bound, True)
    batch = len(initial_state_indices)
    rows = [x.reshape(batch, cache_steps, *x.shape[2:]) for x in inputs]  # type: ignore[arg-type]
    out = torch.empty_like(rows[2])
    for n, slot in enumerate(initial_state_indices.tolist()):
        if slot < 0:
            continue
        out[n], after = core(*(x[n] for x in rows), initial_state_source[slot], scale)
        into = intermediate_states_buffer[int(intermediate_state_indices[n])]
        into[: len(after)] = torch.stack(after).to(into.dtype)
    return out.view(v.shape)


def cutedsl_fused_sigmoid_gating_kda_update(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **more: Any
) -> Tensor:
    """One token a sequence, [1, B, ...]."""
    assert dt_bias.dtype == torch.bfloat16
    out = torch.empty_like(v).transpose(0, 1)
    fused_recurrent_kda_packed_decode(
        *(torch.cat([x[0].flatten(1) for x in (q, k, v)], 1), a[0].flatten(1), b[0], A_log, dt_bias),
        *(more["scale"], more["initial_state_source"], out, more["initial_state_indices"], True),
    )
    return out.transpose(0, 1)


# vLLM 0.33.0


def vllm_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Writes o over v."""
    assert initial_state is not None
    assert cu_seqlens is not None
    assert output_final_state
    inputs = inputs_of(q, k, v, g, beta, use_qk_l2norm_in_kernel, False, None, None, None, False)
    out, final = packed(inputs, cu_seqlens, initial_state, scale)
    return v.copy_(out), final.float()


def chunk_kda_with_fused_gate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    g_bias: Tensor | None,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    assert out is not None
    inputs = inputs_of(
        q, k, v, raw_g, raw_beta, use_qk_l2norm_in_kernel, True, A_log, g_bias, lower_bound, True
    )
    found, final = packed(inputs, more["cu_seqlens"], more["initial_state"], more["scale"])
    return out.copy_(found), final.float()


def vllm_fused_recurrent_kda_fwd(
    *inputs: Tensor, ssm_state_indices: Tensor, initial_state: Tensor, **more: Any
) -> tuple[Tensor, Tensor]:
    """Slot 0 is no slot: such a sequence is skipped, which is here a state of its own that nobody reads."""
    spare = torch.cat([initial_state, initial_state[:1]])
    slots = ssm_state_indices.where(ssm_state_indices > 0, len(initial_state))
    out, _ = fused_recurrent_kda_fwd(
        *inputs, ssm_state_indices=slots, initial_state=spare, state_v_first=True, **more
    )
    initial_state.copy_(spare[:-1])
    return out, initial_state
