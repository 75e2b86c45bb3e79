# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of kda_prefill."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gdnbench_kernels.kda_prefill.sizes import CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class KdaPrefillParams:
    """T tokens of N sequences, H key heads, Hv value heads, K and V head dims.

    Floating dtypes without a name are those of the contract. `gdnbench_kernels.kda` has the formulas of
    gates.
    """

    q: Tensor
    """[T, H, K]: queries."""
    k: Tensor
    """[T, H, K]: keys, of q's dtype."""
    v: Tensor
    """[T, Hv, V]: values, of q's dtype; Hv is a multiple of H."""
    g: Tensor
    """[T, Hv, K]: what `gate` says."""
    beta: Tensor
    """[T, Hv]: what `beta_form` says."""
    cu_seqlens: Tensor
    """[N+1] int32 or int64: sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1."""
    initial_state: Tensor | None = None
    """[N, Hv, V, K], or [N, Hv, K, V] with state_layout KV: states before the first token; None means 0."""
    A_log: Tensor | None = None
    """[Hv] float32: log of a head's rate; needed with gate raw, 0 if None with gate bounded."""
    dt_bias: Tensor | None = None
    """[Hv, K] float32 or bfloat16: added to x with gate raw or bounded; None means 0."""
    scale: float | None = None
    """Factor of the output; None means K ** -0.5."""
    chunk_size: int = CHUNK
    """C, tokens of a chunk."""
    output_final_state: bool = True
    """Whether final_state is an output."""
    final_state_dtype: str | None = None
    """Dtype of final_state; None means that of initial_state, or float32 without one."""
    beta_max: float = 1.0
    """Upper end of beta's range, 1 or 2."""
    lower_bound: float | None = None
    """Least log-space decay, negative; with gate bounded only."""
    gate: str = "log"
    """What g holds: the log-space decay ("log"), or x, of which "raw" and "bounded" make it."""
    beta_form: str = "value"
    """What beta holds: the step size ("value"), or b = logit(beta / beta_max) ("logit")."""
    state_layout: str = "VK"
    """Order of the last two axes of states."""
    qk: str = "normalised"
    """Whether q and k are normalised or raw."""
