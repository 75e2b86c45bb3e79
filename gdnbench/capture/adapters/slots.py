# SPDX-License-Identifier: Apache-2.0
"""Converts a call's pool slots to those of the Gated DeltaNet operations."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gdnbench.capture.adapter import NotCaptured

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PADDING = -1


def gather_states(states: Tensor, slots: Tensor | None) -> Tensor:
    """The states of a batch, [N, Hv, V, K]. A slot out of range is the function's error to report."""
    if slots is None:
        return states
    return states.detach().index_select(0, slots.long().clamp(0, max(len(states) - 1, 0)))


def int32_slots(indices: Tensor) -> Tensor:
    """Slots as int32, as read_indices requires."""
    import torch

    if indices.dtype == torch.int32:
        return indices
    refuse_in_graph(indices)
    return indices.int()


@lru_cache(maxsize=64)
def unwritten_slots(batch: int, steps: int, device: torch.device) -> Tensor:
    """int32 [B, S]: no token's state is written."""
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise NotCaptured("a call without an update of states came first in a CUDA graph; warm it up before")
    return torch.full((batch, steps), PADDING, dtype=torch.int32, device=device)


def refuse_in_graph(indices: Tensor) -> None:
    """NotCaptured for indices computed inside a CUDA graph: pool rows are gathered before the replay, when
    they do not exist."""
    import torch

    if indices.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotCaptured(
            "slots have to be made from the call's in a CUDA graph: pass int32 indices, or ssm_state_indices"
        )
