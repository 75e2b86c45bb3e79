"""Synthetic inputs for gdn_prefill."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Scalar
from gdnbench_kernels.gdn import STATES, convert_call
from gdnbench_kernels.gdn_inputs import (
    Span,
    add_gate_spikes,
    made_conventions,
    made_nan,
    named_dtype,
    named_dtypes,
    queries_and_keys,
    random_betas,
    random_gates,
    span_bounds,
)
from gdnbench_kernels.gdn_prefill.chunks import plan_chunks
from gdnbench_kernels.gdn_prefill.shrink import CHUNK_SIZE, UNREAD


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 63, 64, 65, 500),
    heads: tuple[int, int] = (2, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    query_correlation: float = 0.0,
    gate_span: Span = 1.0,
    gate_spike: float = 0.0,
    beta: Span = (0.0, 1.0),
    initial_state: bool = False,
    state_dtype: str = "float32",
    dtype: str = "bfloat16",
    offsets_dtype: str = "int32",
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    chunk_tables: bool = False,
    final_state_dtype: str = "",
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `seqlens`: tokens of each sequence, zero allowed. `heads`: (H, Hv). `head_dim`: (K, V). `key_correlation`:
    expected cosine of two keys of a head, in [0, 1]; `query_correlation`: the same of its queries, which
    share the keys' common vector. `gate_span`: expected sum of |g| over 64 tokens. `gate_spike`: by how much
    |g| of one drawn token in every 64 is larger. `beta`: one value or a range; beyond 1 the call's beta_max
    is 2. `nan_at`: tokens, counted over the whole batch, whose q, k, v, g and beta are NaN. `gate`,
    `state_layout`, `qk`: conventions of the call. `chunk_tables`: the call has chunk_indices, with two rows
    past the last chunk that name no sequence, and chunk_offsets. `final_state_dtype`, `scale`: scalars of the
    call, not set unless given.
    """
    if min(seqlens, default=0) < 0:
        raise ContractError(f"seqlens has {min(seqlens)}; a sequence has 0 or more tokens")
    (key_heads, value_heads), (key_dim, value_dim) = heads, head_dim
    generator = torch.Generator().manual_seed(seed)
    dtypes = named_dtypes(dtype, state_dtype, offsets_dtype)
    conventions = made_conventions("gdn_prefill", gate, state_layout, qk)
    tokens, per_head = sum(seqlens), (sum(seqlens), value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim),
        key_correlation,
        dtypes.activations,
        qk == "raw",
        generator,
        query_correlation,
    )
    tensors = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(dtypes.activations),
        "g": random_gates(per_head, gate_span, generator),
        "beta": random_betas(per_head, beta, generator),
        "cu_seqlens": torch.tensor([0, *seqlens]).cumsum(0).to(dtypes.offsets),
    }
    add_gate_spikes(tensors["g"], gate_spike, generator)
    if initial_state:
        state = torch.randn(len(seqlens), value_heads, value_dim, key_dim, generator=generator)
        tensors["initial_state"] = (state * key_dim**-0.5).to(dtypes.states)
    made_nan("gdn_prefill", tensors, nan_at, "token")
    if chunk_tables:
        tensors |= _chunk_tables(tensors["cu_seqlens"])
    scalars: dict[str, Scalar] = {"beta_max": 2.0 if span_bounds(beta)[1] > 1 else 1.0}
    if final_state_dtype:
        named_dtype("final_state_dtype", final_state_dtype, STATES)
        scalars["final_state_dtype"] = final_state_dtype
    if scale is not None:
        scalars["scale"] = scale
    call = Call(tensors, scalars, {"gate": "log", "state_layout": "VK", "qk": qk})
    return convert_call("gdn_prefill", call, conventions, ("initial_state",))


def _chunk_tables(cu_seqlens: Tensor) -> dict[str, Tensor]:
    """chunk_indices and chunk_offsets of the default chunk size, of the dtype of `cu_seqlens`."""
    plan = plan_chunks(cu_seqlens, CHUNK_SIZE)
    indices = torch.full((plan.total + 2, 2), UNREAD)
    indices[: plan.total] = torch.stack([plan.sequence, plan.index], dim=1)
    return {
        "chunk_indices": indices.to(cu_seqlens.dtype),
        "chunk_offsets": plan.offsets.to(cu_seqlens.dtype),
    }
