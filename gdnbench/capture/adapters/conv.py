# SPDX-License-Identifier: Apache-2.0
"""Shared by the adapters of the causal convolution: maps a call to the tensors of conv_prefill and
conv_decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Finish, NotCaptured, OnlyPadding, Seen
from gdnbench.capture.adapters.gdn import own_slots
from gdnbench.capture.adapters.serving_decode import move_beside_to_dispatch
from gdnbench.capture.adapters.slots import PADDING

if TYPE_CHECKING:
    from torch import Tensor

PREFILL, DECODE = "conv_prefill", "conv_decode"
STATE = "conv_state"
CHANNELS_FIRST = "channels first"
FUNCTIONS = {None: "none", False: "none", True: "silu", "silu": "silu", "swish": "silu"}


def activation_of(given: Any) -> str:
    """The scalar `activation`; NotCaptured for a function that the operations do not have."""
    try:
        return FUNCTIONS[given]
    except (KeyError, TypeError):
        raise NotCaptured("the convolution has another activation than SiLU; the operations do not") from None


def refuse_missing(arguments: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """NotCaptured for a call that gives one of these arguments, for the reason."""
    for name, reason in reasons.items():
        if arguments.get(name) is not None:
            raise NotCaptured(f"the convolution is called with {reason} ({name}); the operations have none")


def parameters(weight: Tensor | None, bias: Tensor | None) -> dict[str, Seen]:
    """weight [D, W] and, if given, bias [D]."""
    if weight is None:
        raise NotCaptured("the convolution is called without weights; the operations have them")
    found = {"weight": Seen(weight.detach())}
    return found if bias is None else {**found, "bias": Seen(bias.detach())}


def tokens_of(x: Tensor) -> Seen:
    """x [B, D, S], or [B, D] for a token each, as [B*S, D]."""
    if x.ndim == 2:
        return Seen(x)
    batch, channels, tokens = x.shape
    return Seen(x.detach().transpose(1, 2), (batch * tokens, channels), x)


def even_offsets(batch: int, tokens: int) -> Seen:
    """cu_seqlens [B + 1] of B sequences of that many tokens, on the CPU."""
    import torch

    return Seen(torch.arange(batch + 1, dtype=torch.int32, device="cpu") * tokens)


def latest_columns(pool: Tensor, weight: Tensor) -> Seen:
    """The last W-1 columns of a pool [slots, D, L >= W-1] whose rows are shifted as wholes: no output depends
    on the columns before them."""
    return _columns(pool, slice(pool.shape[-1] - (weight.shape[1] - 1), None), weight)


def first_columns(pool: Tensor, weight: Tensor, more: int = 0) -> Seen:
    """The first W-1 columns, and `more` of them, of a pool [slots, D, L] that has them."""
    return _columns(pool, slice(0, weight.shape[1] - 1 + more), weight)


def _columns(pool: Tensor, columns: slice, weight: Tensor) -> Seen:
    if pool.ndim != 3 or pool.shape[-1] < weight.shape[1] - 1:
        raise NotCaptured("conv_state has another shape than [slots, D, W - 1 or more]")
    pool_columns = pool.detach()[..., columns]
    return Seen(pool_columns, None, pool)


def refuse_dtypes(x: Tensor, pool: Tensor | None) -> None:
    """NotCaptured for a pool of another dtype than the inputs."""
    if pool is not None and pool.dtype != x.dtype:
        raise NotCaptured("conv_state has another dtype than the inputs; the operations have one")


def own_windows(batch: int) -> Seen:
    """state_indices [B, 1] of a batch whose states are the whole pool."""
    return Seen(own_slots(batch))


def without_padding(null: int, known: Mapping[str, Any]) -> Finish:
    """A `Finish` that replaces null slots by -1 and moves metadata to `dispatch`; OnlyPadding for a batch of
    padding only."""

    def finish(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        given, dispatch = move_beside_to_dispatch(tensors, known)
        for name in ("state_indices", "read_indices"):
            if name in given:
                given[name] = given[name].masked_fill(given[name] <= null, PADDING)
        read = given.get("read_indices", given.get("state_indices"))
        if read is not None and not bool((read != PADDING).any()):
            raise OnlyPadding("every sequence of a convolution is padding: a dummy run of the engine")
        return given, dispatch

    return finish
