"""The chunked form of Kimi Delta Attention in a given arithmetic.

    g_cu    = cumsum(g) inside the chunk                                           [C, K]
    A[i,j]  = beta_i sum_c k_i[c] exp(g_cu[i,c] - g_cu[j,c]) k_j[c]                i > j
    Ai      = (I + A)^-1
    U       = (Ai beta_j) V
    W       = (Ai beta_j) (exp(g_cu) o K)                                          1. form_a, invert, form_uw
    V_new   = U - W S^T                                S = state before the chunk, h its rounding
    S_next  = S diag(exp(g_last)) + V_new^T (exp(g_last - g_cu) o K)               2. advance_state
    P[i,j]  = sum_c q_i[c] exp(g_cu[i,c] - g_cu[j,c]) k_j[c]                       i >= j
    O       = scale ((exp(g_cu) o Q) S^T + P V_new)                                3. form_p, read_out

o is the product of elements. These are stored and therefore rounded: A, Ai, Ai beta, U, W, h, V_new, P, O.
The operands of a product have the served dtype, so these are rounded too: exp(g_cu) o K, exp(g_last - g_cu) o
K, exp(g_cu) o Q, and in A and P the decayed row, k_i or q_i times exp(g_cu[i] - g_cu[j]). The state itself is
not rounded between chunks.

No exponent is positive. A kernel that forms A as a product of two matrices needs the exponentials of both
g_cu[i] - r and r - g_cu[j] for some r, and one of them overflows where the gates of a chunk span more than
88. Here each pair of rows has its own exponent, so that any gates are right.

Shapes: c chunks of C tokens; q, k [c, H, C, K], v [c, Hv, C, V], g_cu [c, Hv, C, K], beta [c, Hv, C], states
[.., Hv, V, K].
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import ChunkMath, PrefillInputs, prefill_inputs
from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.kda import KdaGates
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.rounding import Arithmetic


def decayed_products(x: Tensor, k: Tensor, g_cu: Tensor, arithmetic: Arithmetic) -> Tensor:
    """sum_c x_i[c] exp(g_cu[i,c] - g_cu[j,c]) k_j[c] for i >= j, 0 above: [c, Hv, C, C], not rounded.

    One column at a time: all of them would take C tensors of the size of g_cu. Rows of x before j are not
    multiplied, so that a NaN in a later token reaches no earlier row.
    """
    load, store = arithmetic.load, arithmetic.store
    rows = per_value_head(load(x), g_cu.shape[1], axis=1)
    keys = per_value_head(load(k), g_cu.shape[1], axis=1)
    size = g_cu.shape[2]
    found = g_cu.new_zeros(*g_cu.shape[:2], size, size)
    for j in range(size):
        span = g_cu[:, :, j:] - g_cu[:, :, j, None]
        decayed = load(store(rows[:, :, j:] * span.exp()))
        found[:, :, j:, j] = (decayed @ keys[:, :, j, :, None]).squeeze(-1)
    return found


def form_a(k: Tensor, g_cu: Tensor, beta: Tensor, arithmetic: Arithmetic) -> Tensor:
    """A [c, Hv, C, C], rounded to the stored dtype."""
    products = decayed_products(k, k, g_cu, arithmetic)
    return arithmetic.store((beta.unsqueeze(-1) * products).tril(-1))


def form_uw(
    k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """U [c, Hv, C, V] and W [c, Hv, C, K], rounded to the stored dtype."""
    load, store = arithmetic.load, arithmetic.store
    ai_beta = load(store(load(ai) * beta.unsqueeze(-2)))
    decayed = load(store(per_value_head(load(k), v.shape[1], axis=1) * g_cu.exp()))
    return store(ai_beta @ load(v)), store(ai_beta @ decayed)


def form_p(q: Tensor, k: Tensor, g_cu: Tensor, arithmetic: Arithmetic) -> Tensor:
    """P [c, Hv, C, C], rounded to the stored dtype."""
    return arithmetic.store(decayed_products(q, k, g_cu, arithmetic))


def advance_state(
    state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """(h, V_new, next state) of one chunk of each sequence; the first two are rounded, the state is not.

    state is [n, Hv, V, K] in the arithmetic's `compute`. Rows past a sequence's end have U = W = 0 and the
    last token's g_cu, so they add nothing.
    """
    load, store = arithmetic.load, arithmetic.store
    h = store(state)
    v_new = store(load(u) - load(w) @ load(h).mT)
    g_last = g_cu[:, :, -1:]
    keys = per_value_head(load(k), u.shape[1], axis=1)
    decayed = load(store(keys * (g_last - g_cu).exp()))
    return h, v_new, state * g_last.exp() + load(v_new).mT @ decayed


def read_out(
    q: Tensor, g_cu: Tensor, p: Tensor, h: Tensor, v_new: Tensor, scale: float, arithmetic: Arithmetic
) -> Tensor:
    """O [c, Hv, C, V], rounded to the stored dtype."""
    load, store = arithmetic.load, arithmetic.store
    decayed = load(store(per_value_head(load(q), h.shape[1], axis=1) * g_cu.exp()))
    return store(scale * (decayed @ load(h).mT + load(p) @ load(v_new)))


MATH = ChunkMath(form_a, form_uw, form_p, advance_state, read_out)


def gates_of_params(params: KdaPrefillParams) -> KdaGates:
    """The gates of that call."""
    return KdaGates(
        params.gate, params.beta_form, params.beta_max, params.A_log, params.dt_bias, params.lower_bound
    )


def inputs_of(params: KdaPrefillParams) -> PrefillInputs:
    """The inputs of the chunked form for that call. Waits for the device, to read cu_seqlens."""
    return prefill_inputs(params, gates_of_params(params), MATH)
