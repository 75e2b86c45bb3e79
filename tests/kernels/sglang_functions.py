# SPDX-License-Identifier: Apache-2.0
"""Functions with the documented arguments of SGLang's, computed token by token in fp64: a stand-in for its
package on a CPU. States are [HV, V, K]; a slot below 0 is no slot."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

CHUNK = 64


def _unit(x: Tensor) -> Tensor:
    return x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()


def _gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    softplus = torch.nn.functional.softplus(a.double() + dt_bias.double(), threshold=1e9)
    return -A_log.double().exp() * softplus, b.double().sigmoid()


def _sequence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, list[Tensor]]:
    """o [T, HV, V], and the state after each token: S' = exp(g) S, S = S' + (beta (v - S' k)) k^T,
    o = scale S q; q, k [T, H, K], v [T, HV, V], g, beta [T, HV]."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    out, states = torch.empty_like(v), []
    for t in range(len(v)):
        state = g[t].exp()[:, None, None] * state
        update = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
        state = state + torch.einsum("hv,hk->hvk", update, k[t])
        out[t] = scale * torch.einsum("hvk,hk->hv", state, q[t])
        states.append(state)
    return out, states


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, None, None]:
    """Writes final states to the rows `initial_state_indices` of `initial_state`, over the first ones."""
    assert initial_state is not None
    assert initial_state_indices is not None
    assert cu_seqlens is not None
    assert len(q) == 1
    assert not head_first
    assert initial_state_indices.shape[0] == len(cu_seqlens) - 1
    out = torch.empty_like(v)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    for slot, (start, end) in zip(initial_state_indices.tolist(), pairwise(cu_seqlens.tolist()), strict=True):
        rows = [x[0, start:end] for x in (q, k, v, g, beta)]
        o, states = _sequence(*rows, initial_state[slot], k.shape[-1] ** -0.5 if scale is None else scale)
        out[0, start:end] = o.to(v.dtype)
        if states:
            initial_state[slot] = states[-1].to(initial_state.dtype)
    return out, None, None


def prepare_metadata_cutedsl(
    cu_seqlens: Tensor, total_tokens: int, chunk_size: int = CHUNK
) -> tuple[Tensor, Tensor]:
    counts = (cu_seqlens.diff() + chunk_size - 1) // chunk_size
    rows = [(n, i) for n, count in enumerate(counts.tolist()) for i in range(count)]
    return torch.tensor(rows, dtype=torch.int32), torch.cat([counts[:0].new_zeros(1), counts.cumsum(0)]).int()


def chunk_gated_delta_rule_cutedsl(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    chunk_indices: Tensor,
    chunk_offsets: Tensor,
    core_attn_out: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    assert torch.equal(chunk_indices, prepare_metadata_cutedsl(cu_seqlens, q.shape[1])[0])
    assert initial_state_indices is not None
    out, _, _ = chunk_gated_delta_rule(
        q, k, v, g, beta, None, initial_state, initial_state_indices, cu_seqlens
    )
    return out, initial_state


def chunk_gated_delta_rule_without_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    chunk_indices: Tensor,
    chunk_offsets: Tensor,
    core_attn_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As chunk_gated_delta_rule_cutedsl was before it had initial_state_indices: returns new states."""
    final = initial_state.clone()
    rows = torch.arange(len(cu_seqlens) - 1)
    out, _, _ = chunk_gated_delta_rule(q, k, v, g, beta, None, final, rows, cu_seqlens)
    return out, final


def fused_recurrent_gated_delta_rule_packed_decode(
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
) -> tuple[Tensor, Tensor]:
    assert initial_state[:1].is_contiguous()
    values, value_dim, key_dim = initial_state.shape[1:]
    keys = (mixed_qkv.shape[1] - values * value_dim) // 2
    q, k, v = mixed_qkv.split([keys, keys, values * value_dim], 1)
    q, k = (x.unflatten(1, (-1, key_dim)) for x in (q, k))
    g, beta = _gates(A_log, a, dt_bias, b)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    for n, slot in enumerate(ssm_state_indices.tolist()):
        out[n] = 0
        if slot >= 0:
            rows = [x[n : n + 1] for x in (q, k, v.unflatten(1, (values, value_dim)), g, beta)]
            o, states = _sequence(*rows, initial_state[slot], scale)
            out[n], initial_state[slot] = o.to(out.dtype), states[0].to(initial_state.dtype)
    return out, initial_state


def fused_recurrent_gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    disable_state_update: bool = False,
    disable_output_calculation: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    assert initial_state_source is not None
    assert initial_state_source.is_contiguous()
    assert initial_state_indices is not None
    assert cu_seqlens is not None
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    out = torch.empty_like(v)
    for n, (slot, (start, end)) in enumerate(
        zip(initial_state_indices.tolist(), pairwise(cu_seqlens.tolist()), strict=True)
    ):
        if slot < 0:
            continue
        rows = [x[0, start:end] for x in (q, k, v, g, beta)]
        o, states = _sequence(
            *rows, initial_state_source[slot], k.shape[-1] ** -0.5 if scale is None else scale
        )
        out[0, start:end] = o.to(v.dtype)
        if intermediate_states_buffer is not None:
            assert intermediate_state_indices is not None
            assert cache_steps == intermediate_states_buffer.shape[1] == len(states)
            place = int(intermediate_state_indices[n])
            intermediate_states_buffer[place] = torch.stack(states).to(intermediate_states_buffer.dtype)
        if not disable_state_update:
            initial_state_source[slot] = states[-1].to(initial_state_source.dtype)
    return out


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
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    assert (softplus_beta, softplus_threshold) == (1.0, 20.0)
    g, beta = _gates(A_log, a, dt_bias, b)
    return fused_recurrent_gated_delta_rule_update(
        q,
        k,
        v,
        g.unsqueeze(0),
        beta.unsqueeze(0),
        scale,
        initial_state_source,
        initial_state_indices,
        cu_seqlens,
        use_qk_l2norm_in_kernel,
        disable_state_update,
        False,
        intermediate_states_buffer,
        intermediate_state_indices,
        cache_steps,
        retrieve_parent_token,
    )


def cutedsl_fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
) -> Tensor:
    return fused_sigmoid_gating_delta_rule_update(
        A_log,
        a,
        dt_bias,
        softplus_beta,
        softplus_threshold,
        q,
        k,
        v,
        b,
        initial_state_source,
        initial_state_indices,
        scale,
        use_qk_l2norm_in_kernel,
        cu_seqlens,
    )
