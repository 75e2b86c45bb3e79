# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of kda_decode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KdaDecodeParams:
    """B sequences of S tokens, H key heads, Hv value heads, K and V head dims.

    Dtypes that are not given here are those of the contract.
    """

    q: Tensor
    """[B, S, H, K]: queries."""
    k: Tensor
    """[B, S, H, K]: keys, of q's dtype."""
    v: Tensor
    """[B, S, Hv, V]: values, of q's dtype; Hv is a multiple of H."""
    g: Tensor
    """[B, S, Hv, K]: the decay of each key channel, in the form that `gate` names."""
    beta: Tensor
    """[B, S, Hv]: the step size, in [0, beta_max]; b with beta_form logit."""
    state: Tensor
    """[slots, Hv, V, K], or [slots, Hv, K, V] with state_layout KV: the pool of states, updated in place."""
    state_indices: Tensor
    """[B, S] int32 or int64: slot of each token's state; -1 is padding."""
    num_accepted: Tensor | None = None
    """[B] int32: which token's slot holds the state to read, counted from 1; None means 1."""
    read_indices: Tensor | None = None
    """[B] int32: slot that each sequence reads, -1 for padding; not together with num_accepted."""
    A_log: Tensor | None = None
    """[Hv] float32: log of a head's rate; given with gate raw, optional with gate bounded."""
    dt_bias: Tensor | None = None
    """[Hv, K] float32 or bfloat16: added to x; optional with gate raw and bounded."""
    scale: float | None = None
    """Factor of the output; None means K ** -0.5."""
    beta_max: float = 1.0
    """Upper end of beta's range, 1 or 2."""
    lower_bound: float | None = None
    """The least log-space decay, below 0; with gate bounded only."""
    gate: str = "log"
    """What g holds: log alpha ("log"), or x, the input of alpha ("raw", "bounded"). See `kda`."""
    beta_form: str = "value"
    """What beta holds: the step size ("value"), or b ("logit")."""
    state_layout: str = "VK"
    """Order of the last two axes of the state."""
    qk: str = "normalised"
    """Whether q and k are normalised or raw."""
