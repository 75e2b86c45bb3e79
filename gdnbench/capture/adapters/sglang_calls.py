# SPDX-License-Identifier: Apache-2.0
"""Shared by SGLang's Gated DeltaNet and Kimi Delta Attention: where a call has its pool, slots and offsets.

SGLang's class of kernels is one for both. Its methods and the functions below them use different names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured
from gdnbench.capture.adapters.serving_decode import (
    BESIDE,
    NO_TOKENS,
    Batch,
)
from gdnbench.capture.adapters.slots import unwritten_slots
from gdnbench.capture.kept_states import kept_states

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.capture.adapter import Finish
    from gdnbench.capture.kept_states import KeptStates

POOLS = ("ssm_states", "initial_state_source", "initial_state")
SLOTS = ("cache_indices", "ssm_state_indices", "initial_state_indices")
OFFSET_NAMES = ("query_start_loc", "cu_seqlens")
SLOTS_BESIDE = "state_indices"
NULL_SLOT = -1
RING = ("replayssm_d", "replayssm_k", "replayssm_g", "replayssm_write_pos")


def refusing_padding(finish: Finish) -> Finish:
    """A `Finish` that also refuses padding (NotCaptured): backends differ in which slot they use for it, if
    any."""

    def refuse_padding(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        slots = tensors.get(f"{BESIDE}{SLOTS_BESIDE}")
        if slots is not None and bool((slots < 0).any()):
            raise NotCaptured("a sequence of a prefill has no slot: padding of the engine")
        return finish(tensors)

    return refuse_padding


def batch_of(arguments: Mapping[str, Any]) -> Batch:
    mixed, slots = arguments.get("mixed_qkv"), first_of(arguments, SLOTS)
    tokens = len(mixed) if mixed is not None else arguments["q"].shape[:2].numel()
    bounds = first_of(arguments, OFFSET_NAMES)
    if verifies(arguments):
        sequences = len(bounds) - 1 if bounds is not None else len(arguments["q"])
        if sequences == 0:
            raise NotCaptured(NO_TOKENS)
        if len(slots) < sequences or tokens % sequences:
            raise NotCaptured("requests that are verified differ in drafts, or have fewer slots")
        slots = unwritten_slots(sequences, tokens // sequences, slots.device)
    return Batch(tokens, slots, bounds, None, null=NULL_SLOT)


def verifies(arguments: Mapping[str, Any]) -> bool:
    """Whether the call leaves the pool as it is."""
    return bool(arguments.get("disable_state_update", "retrieve_parent_token" in arguments))


def kept_of(arguments: Mapping[str, Any], batch: Batch) -> KeptStates | None:
    """Where a verification keeps the states after each draft."""
    buffer, rows = (arguments.get(f"intermediate_{name}") for name in ("states_buffer", "state_indices"))
    return kept_states(buffer, rows, batch.sequences, batch.steps, pool_of(arguments))


def pool_of(arguments: Mapping[str, Any]) -> Any:
    """States [slots, Hv, V, K], updated in place; None if the call has none."""
    return first_of(arguments, POOLS)


def first_of(arguments: Mapping[str, Any], given: tuple[str, ...]) -> Any:
    """The first of the parameters `given` that the call has: methods and functions use different names."""
    return next((arguments[name] for name in given if arguments.get(name) is not None), None)
