"""The chunked form of the gated delta rule in a given arithmetic, with one step per published kernel.

    g_cu      = cumsum(g) inside the chunk
    Gamma[i,j]= exp(g_cu[i] - g_cu[j])                  i >= j only: the exponent is never positive
    A         = strict_lower(beta_i (K K^T)[i,j] Gamma[i,j])
    Ai        = (I + A)^-1
    U         = (Ai beta_j) V
    W         = (Ai beta_j exp(g_cu_j)) K               1. form_a, invert, form_uw
    V_new     = U - W S^T                               S = state before the chunk, h its rounding
    S_next    = exp(g_last) S + (V_new exp(g_last - g_cu))^T K        2. advance_state
    P         = lower(Q K^T Gamma)
    O         = scale (exp(g_cu) Q S^T + P V_new)       3. form_p, read_out

These are stored and therefore rounded: A, Ai, Ai beta, Ai beta exp(g), U, W, h, V_new, V_new exp(g_last -
g_cu), P, O. V_new and its scaled form are both rounded from the same unrounded difference. The state itself
is not rounded between chunks. The inverse is a triangular solve in fp64 of the stored A, then rounded. So the
error of a kernel's inversion is compared with the error of storage alone.

Shapes: c chunks of C tokens; q, k [c, H, C, K], v [c, Hv, C, V], gates [c, Hv, C], states [.., Hv, V, K].
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import ChunkMath, PrefillInputs, prefill_inputs
from gdnbench_kernels.gdn import decay, log_decay, per_value_head
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.rounding import Arithmetic


@dataclass(frozen=True, slots=True)
class GdnGates:
    """The gates of a call: g in the convention `gate`, beta as it is."""

    gate: str = "log"

    def log_decay(self, g: Tensor, compute: torch.dtype) -> Tensor:
        return log_decay(g, self.gate, compute)

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        return decay(g, self.gate, compute)

    def step_size(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        return beta.to(compute)


def causal_decay(g_cu: Tensor) -> Tensor:
    """Gamma [c, Hv, C, C]: exp(g_cu[i] - g_cu[j]) for i >= j, 0 above; no exponent is positive."""
    size = g_cu.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=g_cu.device).triu(1)
    return (g_cu.unsqueeze(-1) - g_cu.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()


def form_a(k: Tensor, g_cu: Tensor, beta: Tensor, arithmetic: Arithmetic) -> Tensor:
    """A [c, Hv, C, C], rounded to the stored dtype."""
    k = arithmetic.load(k)
    products = per_value_head(k @ k.mT, g_cu.shape[1], axis=1)
    # tril after the product: above the diagonal the decay is 0, and 0 * NaN is NaN.
    return arithmetic.store((beta.unsqueeze(-1) * products * causal_decay(g_cu)).tril(-1))


def form_uw(
    k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """U [c, Hv, C, V] and W [c, Hv, C, K], rounded to the stored dtype."""
    load, store = arithmetic.load, arithmetic.store
    ai_beta = load(ai) * beta.unsqueeze(-2)
    u = load(store(ai_beta)) @ load(v)
    w = load(store(ai_beta * g_cu.exp().unsqueeze(-2))) @ per_value_head(load(k), v.shape[1], axis=1)
    return store(u), store(w)


def form_p(q: Tensor, k: Tensor, g_cu: Tensor, arithmetic: Arithmetic) -> Tensor:
    """P [c, Hv, C, C], rounded to the stored dtype."""
    products = per_value_head(arithmetic.load(q) @ arithmetic.load(k).mT, g_cu.shape[1], axis=1)
    return arithmetic.store((products * causal_decay(g_cu)).tril())


def advance_state(
    state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """(h, V_new, next state) of one chunk of each sequence; the first two are rounded, the state is not.

    state is [n, Hv, V, K] in the arithmetic's `compute`. Rows past a sequence's end have U = W = 0 and the
    last token's g_cu, so they add nothing.
    """
    load, store = arithmetic.load, arithmetic.store
    h = store(state)
    v_new = load(u) - load(w) @ load(h).mT
    g_last = g_cu[..., -1:]
    scaled = load(store(v_new * (g_last - g_cu).exp().unsqueeze(-1)))
    added = scaled.mT @ per_value_head(load(k), u.shape[1], axis=1)
    return h, store(v_new), state * g_last.exp().unsqueeze(-1) + added


def read_out(
    q: Tensor, g_cu: Tensor, p: Tensor, h: Tensor, v_new: Tensor, scale: float, arithmetic: Arithmetic
) -> Tensor:
    """O [c, Hv, C, V], rounded to the stored dtype."""
    load = arithmetic.load
    from_state = per_value_head(load(q), h.shape[1], axis=1) @ load(h).mT
    return arithmetic.store(scale * (g_cu.exp().unsqueeze(-1) * from_state + load(p) @ load(v_new)))


MATH = ChunkMath(form_a, form_uw, form_p, advance_state, read_out)


def inputs_of(params: PrefillParams) -> PrefillInputs:
    """The inputs of the chunked form for that call. Waits for the device, to read cu_seqlens."""
    return prefill_inputs(params, GdnGates(params.gate), MATH)
