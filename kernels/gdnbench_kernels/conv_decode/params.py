# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call of conv_decode."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvDecodeParams:
    """T tokens of N sequences, D channels, W taps, P slots a sequence. Dtypes that are not given here are
    those of the contract."""

    x: Tensor
    """[T, D]: inputs of all sequences, one after another."""
    weight: Tensor
    """[D, W]: taps of each channel; the last is that of the token itself."""
    cu_seqlens: Tensor
    """[N+1] int32 or int64: sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1."""
    conv_state: Tensor
    """[slots, D, L], of x's dtype: the pool of windows, updated in place."""
    state_indices: Tensor
    """[N, P] int32 or int64: one slot of each sequence, or one for the window after each token; -1 is
    padding."""
    bias: Tensor | None = None
    """[D]: added before the activation."""
    num_accepted: Tensor | None = None
    """[N] int32: tokens of the step before that were accepted, which says what window is read; None means
    1."""
    read_indices: Tensor | None = None
    """[N] int32: slot that each sequence reads, -1 for padding; not together with num_accepted."""
    activation: str = "silu"
    """silu or none."""
