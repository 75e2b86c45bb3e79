# SPDX-License-Identifier: Apache-2.0
"""Shared by the Gated DeltaNet adapters: maps a batch [B, T, ...] to the tensors of the two operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from gdnbench.capture.adapter import NotCaptured, Seen

if TYPE_CHECKING:
    from torch import Tensor

STATE_DTYPES = ("float32", "bfloat16", "float16")


def flatten_tokens(tensor: Tensor, caller: Tensor | None = None) -> Seen:
    """[B, T, ...] as [B*T, ...]; `caller` as in `Seen`."""
    batch, tokens, *rest = tensor.shape
    return Seen(tensor, (batch * tokens, *rest), caller)


def refuse_mixed_dtypes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """NotCaptured unless q, k and v have one dtype."""
    if not q.dtype == k.dtype == v.dtype:
        raise NotCaptured("q, k and v differ in dtype; the operations take one")


def refuse_beta_of_channels(beta: Tensor, v: Tensor) -> None:
    """NotCaptured for a step size of every value channel: as many axes as v has."""
    if beta.ndim == v.ndim:
        raise NotCaptured("beta is of every value channel; the operations have one of a head")


@cache
def own_slots(batch: int) -> Tensor:
    """int32 [B, 1] on the CPU: sequence i owns slot i, as the batch's states are the whole pool."""
    import torch

    return torch.arange(batch, dtype=torch.int32, device="cpu").unsqueeze(1)


def sequence_offsets(q: Tensor, cu_seqlens: Tensor | None) -> Seen:
    """cu_seqlens of q [B, T, ...]: the caller's, or [B + 1] on the CPU for B sequences of T tokens."""
    import torch

    if cu_seqlens is None:
        batch, tokens = q.shape[:2]
        cu_seqlens = torch.arange(batch + 1, dtype=torch.int32, device="cpu") * tokens
    return Seen(cu_seqlens)


def decode_tensors(tensors: Mapping[str, Tensor], state: Tensor) -> dict[str, Seen]:
    """Tensors of gdn_decode, where `state` [B, ...] holds one state per sequence."""
    seen = {name: Seen(tensor) for name, tensor in tensors.items()}
    return seen | {"state": Seen(state), "state_indices": Seen(own_slots(state.shape[0]))}


def prefill_tensors(
    tensors: Mapping[str, Tensor], state: Tensor | None, cu_seqlens: Tensor | None
) -> dict[str, Seen]:
    """Tensors of gdn_prefill; `tensors` are [B, T, ...]."""
    seen = {name: flatten_tokens(tensor) for name, tensor in tensors.items()}
    seen["cu_seqlens"] = sequence_offsets(tensors["q"], cu_seqlens)
    if state is not None:
        seen["initial_state"] = Seen(state)
    return seen
