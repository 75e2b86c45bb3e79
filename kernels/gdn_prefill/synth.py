"""Made inputs for gdn_prefill."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn import convert_call
from gdnbench_kernels.gdn_inputs import Span, betas, ends, gates, queries_and_keys


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 63, 64, 65, 500),
    heads: tuple[int, int] = (2, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    gate_span: Span = 1.0,
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
    expected cosine of two keys of a head, in [0, 1]. `gate_span`: expected sum of |g| over 64 tokens. `beta`:
    one value or a range; beyond 1 the call's beta_max is 2. `nan_at`: tokens, counted over the whole batch,
    whose q, k, v, g and beta are NaN. `gate`, `state_layout`, `qk`: conventions of the call.
    """
    if min(seqlens, default=0) < 0:
        raise ContractError(f"seqlens has {min(seqlens)}; a sequence has 0 or more tokens")
    (key_heads, value_heads), (key_dim, value_dim) = heads, head_dim
    generator = torch.Generator().manual_seed(seed)
    activations: torch.dtype = getattr(torch, dtype)
    tokens, per_head = sum(seqlens), (sum(seqlens), value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim), key_correlation, activations, qk == "raw", generator
    )
    tensors = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(activations),
        "g": gates(per_head, gate_span, generator),
        "beta": betas(per_head, beta, generator),
        "cu_seqlens": torch.tensor([0, *seqlens]).cumsum(0).to(getattr(torch, offsets_dtype)),
    }
    if initial_state:
        state = torch.randn(len(seqlens), value_heads, value_dim, key_dim, generator=generator)
        tensors["initial_state"] = (state * key_dim**-0.5).to(getattr(torch, state_dtype))
    for token in nan_at:
        if not 0 <= token < tokens:
            raise ContractError(f"nan_at names token {token}; there are {tokens}")
        for name in ("q", "k", "v", "g", "beta"):
            tensors[name][token] = torch.nan
    scalars = {"beta_max": 2.0 if ends(beta)[1] > 1 else 1.0}
    call = Call(tensors, scalars, {"gate": "log", "state_layout": "VK", "qk": qk})
    return convert_call("gdn_prefill", call, {"gate": gate, "state_layout": state_layout}, ("initial_state",))
