# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of conv_prefill."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPrefillParams:
    """T tokens of N sequences, D channels, W taps. Dtypes that are not given here are those of the
    contract."""

    x: Tensor
    """[T, D]: inputs of all sequences, one after another."""
    weight: Tensor
    """[D, W]: taps of each channel; the last is that of the token itself."""
    cu_seqlens: Tensor
    """[N+1] int32 or int64: sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1."""
    bias: Tensor | None = None
    """[D]: added before the activation."""
    conv_state: Tensor | None = None
    """[slots, D, W-1], of x's dtype: the pool of windows, updated in place. None: zeros before every
    sequence, and nothing is kept."""
    state_indices: Tensor | None = None
    """[N] int32 or int64: slot of each sequence, -1 for padding; with conv_state only."""
    has_initial_state: Tensor | None = None
    """[N] bool: whether the slot holds the window before the sequence; None means no: zeros."""
    activation: str = "silu"
    """silu or none."""
