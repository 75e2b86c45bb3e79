"""Synthetic inputs for gdn_prefill."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn import convert_call
from gdnbench_kernels.gdn_inputs import (
    Span,
    add_gate_spikes,
    made_conventions,
    made_nan,
    named_dtypes,
    queries_and_keys,
    random_betas,
    random_gates,
    span_bounds,
)


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
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `seqlens`: tokens of each sequence, zero allowed. `heads`: (H, Hv). `head_dim`: (K, V). `key_correlation`:
    expected cosine of two keys of a head, in [0, 1]; `query_correlation`: the same of its queries, which
    share the keys' common vector. `gate_span`: expected sum of |g| over 64 tokens. `gate_spike`: by how much
    |g| of one drawn token in every 64 is larger. `beta`: one value or a range; beyond 1 the call's beta_max
    is 2. `nan_at`: tokens, counted over the whole batch, whose q, k, v, g and beta are NaN. `gate`,
    `state_layout`, `qk`: conventions of the call.
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
    scalars = {"beta_max": 2.0 if span_bounds(beta)[1] > 1 else 1.0}
    call = Call(tensors, scalars, {"gate": "log", "state_layout": "VK", "qk": qk})
    return convert_call("gdn_prefill", call, conventions, ("initial_state",))
