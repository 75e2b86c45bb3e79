# SPDX-License-Identifier: Apache-2.0
"""The causal convolution of transformers' Gated DeltaNet layers, for `transformers.TransformersAdapter`.

x and y are [B, D, T], the state [B, D, L] with L >= W - 1, of which the last W - 1 columns count. A prefill
has no state: its caller puts the state before it into x and has put the state after it into the cache. The
first prefill of a cache is recorded with that, as the rows that the call leaves. The functions of the
package causal-conv1d, which earlier releases bind, have another name for x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.adapters import conv
from gdnbench.capture.adapters.gdn import own_slots

if TYPE_CHECKING:
    from torch import Tensor

FORWARD = ("causal_conv1d_fn",)
UPDATE = ("causal_conv1d_update", "torch_causal_conv1d_update")
REFUSED = {
    "seq_idx": "several sequences in a row",
    "initial_states": "states that are given",
    "cache_seqlens": "a circular buffer",
    "conv_state_indices": "a pool of states",
}


def first_state(cache: Any, layer: object, x: Tensor) -> Tensor | None:
    """The state [B, D, L] that a cache has of a layer whose first prefill has the inputs `x` [B, D, T]; None
    for a cache that is built in another way."""
    number, layers = getattr(layer, "layer_idx", None), getattr(cache, "layers", None)
    if not isinstance(number, int) or not isinstance(layers, list) or number >= len(layers):
        return None
    kept = getattr(layers[number], "conv_states", None)
    state: Tensor | None = kept.get(0) if isinstance(kept, dict) else None
    if state is None or state.ndim != 3 or state.shape[:2] != x.shape[:2] or state.dtype != x.dtype:
        return None
    return state


def conv_observation(
    function: str, arguments: Mapping[str, Any], first_cache: Callable[[int], Any], layer: object | None
) -> Observation:
    """A call of `function`. `first_cache` gives the cache that is filled with its first tokens, from how many
    there are: inputs with a state before them, or zeros, are more. NotCaptured for a call that the operations
    do not describe."""
    conv.refuse_missing(arguments, REFUSED)
    x, weight = _inputs(arguments), arguments["weight"]
    batch, tokens = x.shape[0], x.shape[2] if x.ndim == 3 else 1
    seen = {
        "x": conv.tokens_of(x),
        **conv.parameters(weight, arguments.get("bias")),
        "cu_seqlens": conv.even_offsets(batch, tokens),
    }
    if function in UPDATE:
        conv.refuse_dtypes(x, arguments["conv_state"])
        seen[conv.STATE] = conv.latest_columns(arguments["conv_state"], weight)
        seen["state_indices"] = conv.own_windows(batch)
    elif x.ndim == 3 and (state := first_state(first_cache(tokens), layer, x)) is not None:
        seen[conv.STATE] = conv.latest_columns(state, weight)
        seen["state_indices"] = Seen(own_slots(batch)[:, 0])
    return Observation(
        op=conv.DECODE if function in UPDATE else conv.PREFILL,
        tensors=seen,
        scalars={"activation": conv.activation_of(arguments.get("activation"))},
        conventions={},
        dispatch={"path": function},
        whole_pools=frozenset({conv.STATE}),
    )


def conv_results(seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
    """y, and the state as the call left it."""
    y = {"y": conv.tokens_of(result)}
    if seen.op == conv.PREFILL:
        return {**y, conv.STATE: seen.tensors[conv.STATE]} if conv.STATE in seen.tensors else y
    return {**y, conv.STATE: conv.latest_columns(arguments["conv_state"], arguments["weight"])}


def _inputs(arguments: Mapping[str, Any]) -> Tensor:
    x: Tensor = arguments["hidden_states"] if "hidden_states" in arguments else arguments["x"]
    return x
