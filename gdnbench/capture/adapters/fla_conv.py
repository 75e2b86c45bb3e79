# SPDX-License-Identifier: Apache-2.0
"""The short convolution of flash-linear-attention, for `fla.FlaAdapter`.

    causal_conv1d            x [B, T, D], states [N, D, W] in and out     conv_prefill
    causal_conv1d_update     a token of each sequence, cache [N, D, W]    conv_decode

The first column of a state is never read. States are those of the batch: sequence n owns row n. The layer is
the running `ShortConvolution`: a layer of three has three states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters import conv
from gdnbench.capture.adapters.fla_signatures import CONV, CONV_UPDATE
from gdnbench.capture.adapters.gdn import flatten_tokens, own_slots, sequence_offsets

if TYPE_CHECKING:
    from torch import Tensor

REFUSED = {
    "residual": "a residual that is added",
    "cp_context": "context parallelism",
    "seq_idx": "several sequences in a row",
}


def conv_observation(name: str, arguments: Mapping[str, Any]) -> Observation:
    """A call of the function known as `name`. NotCaptured for one that the operations do not describe."""
    conv.refuse_missing(arguments, REFUSED)
    x, weight = arguments["x"], arguments["weight"]
    if weight is None or x.shape[-1] != weight.shape[0]:
        raise NotCaptured("the convolution is called without weights, or with heads apart")
    made = _update(x, arguments) if name == CONV_UPDATE else _prefill(x, arguments)
    return Observation(
        op=conv.DECODE if name == CONV_UPDATE else conv.PREFILL,
        tensors={**made, **conv.parameters(weight, arguments.get("bias"))},
        scalars={"activation": conv.activation_of(arguments.get("activation"))},
        conventions={},
        dispatch={"path": CONV if name == CONV else CONV_UPDATE},
        whole_pools=frozenset({conv.STATE}),
    )


def _prefill(x: Tensor, arguments: Mapping[str, Any]) -> dict[str, Seen]:
    import torch

    state, weight = arguments.get("initial_state"), arguments["weight"]
    offsets = sequence_offsets(x, arguments.get("cu_seqlens"))
    seen = {"x": flatten_tokens(x.detach()), "cu_seqlens": offsets}
    if state is None and not arguments.get("output_final_state"):
        return seen
    sequences = len(offsets.tensor) - 1
    given = torch.full((sequences,), state is not None, device="cpu")
    if state is None:
        state = torch.zeros(sequences, weight.shape[0], weight.shape[1] - 1, dtype=x.dtype, device=x.device)
    conv.refuse_dtypes(x, state)
    return {
        **seen,
        conv.STATE: conv.latest_columns(state, weight),
        "state_indices": Seen(own_slots(sequences)[:, 0]),
        "has_initial_state": Seen(given),
    }


def _update(x: Tensor, arguments: Mapping[str, Any]) -> dict[str, Seen]:
    cache = arguments["cache"]
    conv.refuse_dtypes(x, cache)
    sequences = x.numel() // max(1, x.shape[-1])
    return {
        "x": Seen(x.detach(), (sequences, x.shape[-1])),
        "cu_seqlens": conv.even_offsets(sequences, 1),
        conv.STATE: conv.latest_columns(cache, arguments["weight"]),
        "state_indices": conv.own_windows(sequences),
    }


def conv_results(seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
    """y, and the states as the call left them."""
    y, state = result if isinstance(result, tuple) else (result, None)
    rows = {"y": Seen(y, (y.numel() // max(1, y.shape[-1]), y.shape[-1]))}
    if seen.op == conv.DECODE:
        state = arguments["cache"]
    return rows if state is None else {**rows, conv.STATE: conv.latest_columns(state, arguments["weight"])}
