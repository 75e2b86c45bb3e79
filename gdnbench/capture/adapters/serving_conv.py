# SPDX-License-Identifier: Apache-2.0
"""The causal convolution of serving engines, whose sequences own slots of a pool of windows: shared by the
adapters of vLLM and SGLang.

    causal_conv1d_fn         x [D, T], packed                        conv_prefill
    causal_conv1d_update     x [N, D], [N, D, S] or packed [T, D]    conv_decode

A pool is [slots, D, L] in any strides, with more columns where drafts are verified. A call without accepted
tokens uses the first W-1 of them; one with them keeps the windows after all of its tokens in the first
W-1 + S-1, S being the most tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.adapters import conv
from gdnbench.capture.adapters.gdn import own_slots
from gdnbench.capture.kept_states import KeptStates, kept_states

if TYPE_CHECKING:
    from torch import Tensor

FORWARD, UPDATE = "causal_conv1d_fn", "causal_conv1d_update"
FUNCTIONS = (FORWARD, UPDATE)
ACCEPTED = ("num_accepted_tokens", "num_accept_tokens")
REFUSED = {
    "block_idx_last_scheduled_token": "blocks of states for the prefix cache",
    "initial_state_idx": "blocks of states for the prefix cache",
    "cache_seqlens": "a circular buffer",
    "retrieve_next_token": "drafts that are a tree",
}


def null_slot(arguments: Mapping[str, Any]) -> int:
    """The slot that the call gives padding; those below it are none either."""
    known = (arguments.get(name) for name in ("null_block_id", "pad_slot_id"))
    return max((int(slot) for slot in known if slot is not None), default=-1)


def keeps_windows(arguments: Mapping[str, Any]) -> bool:
    """Whether the call keeps the window after each draft outside the pool, where one of them is put later."""
    return arguments.get("intermediate_conv_window") is not None


def kept_windows(seen: Observation, arguments: Mapping[str, Any]) -> KeptStates | None:
    """The windows after each draft, if the call `seen` keeps them outside the pool."""
    if not keeps_windows(arguments):
        return None
    buffer, rows = arguments["intermediate_conv_window"], arguments.get("intermediate_state_indices")
    sequences = len(seen.tensors["cu_seqlens"].tensor) - 1
    x = arguments["x"]
    tokens = x.shape[2] if x.ndim == 3 else 1
    return kept_states(buffer, rows, sequences, tokens, seen.tensors[conv.STATE].tensor)


def conv_observation(function: str, arguments: Mapping[str, Any], known: Mapping[str, Any]) -> Observation:
    """A call of `function`; `known` are counts for `dispatch`. NotCaptured for one that the operations do not
    describe."""
    conv.refuse_missing(arguments, REFUSED)
    made = _prefill(arguments) if function == FORWARD else _decode(arguments)
    return Observation(
        op=conv.PREFILL if function == FORWARD else conv.DECODE,
        tensors={**made, **conv.parameters(arguments["weight"], arguments["bias"])},
        scalars={"activation": conv.activation_of(arguments.get("activation"))},
        conventions={},
        dispatch={
            "path": function,
            **(
                {"not_recorded": "the window after each draft, and its commit"}
                if keeps_windows(arguments)
                else {}
            ),
        },
        finish=conv.without_padding(null_slot(arguments), known),
    )


def _prefill(arguments: Mapping[str, Any]) -> dict[str, Seen]:
    x, pool, offsets = arguments["x"], arguments["conv_states"], arguments["query_start_loc"]
    slots, initial = arguments.get("cache_indices"), arguments.get("has_initial_state")
    if x.ndim != 2 or offsets is None or pool is None:
        raise NotCaptured("a prefill of the convolution is not packed, or has no states")
    conv.refuse_dtypes(x, pool)
    sequences = offsets.shape[0] - 1
    seen = {
        "x": Seen(x.detach().T, None, x),
        "cu_seqlens": Seen(offsets),
        conv.STATE: conv.first_columns(pool, arguments["weight"]),
        "state_indices": Seen(
            own_slots(sequences)[:, 0] if slots is None else slots[:sequences], None, slots
        ),
    }
    if initial is not None:
        seen["has_initial_state"] = Seen(initial[:sequences].bool(), None, initial)
    return seen


def _decode(arguments: Mapping[str, Any]) -> dict[str, Seen]:
    x, pool, slots = arguments["x"], arguments["conv_state"], arguments.get("conv_state_indices")
    accepted = next((arguments[name] for name in ACCEPTED if arguments.get(name) is not None), None)
    offsets = arguments.get("query_start_loc")
    conv.refuse_dtypes(x, pool)
    if slots is not None and slots.ndim != 1:
        raise NotCaptured("the convolution's slots are blocks for the prefix cache; the operation has one")
    if offsets is None:
        sequences, steps = x.shape[0], x.shape[2] if x.ndim == 3 else 1
        bounds = conv.even_offsets(sequences, steps)
    else:
        sequences, steps = len(slots) if slots is not None else len(offsets) - 1, arguments["max_query_len"]
        bounds = Seen(offsets[: sequences + 1], None, offsets)
        if accepted is None and steps != 1:
            raise NotCaptured("packed sequences of several tokens come without accepted tokens")
    if sequences == 0:
        raise NotCaptured("a decode call of the convolution has no sequences")
    indices = own_slots(sequences) if slots is None else slots[:sequences].unsqueeze(1)
    seen = {
        "x": conv.tokens_of(x),
        "cu_seqlens": bounds,
        conv.STATE: conv.first_columns(pool, arguments["weight"], steps - 1 if accepted is not None else 0),
        "state_indices": Seen(indices, None, slots),
    }
    if accepted is not None:
        import torch

        seen["num_accepted"] = Seen(accepted[:sequences].to(torch.int32), None, accepted)
    return seen


def conv_results(seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
    """y, and the pool as the call left it."""
    pool: Tensor = arguments["conv_states" if seen.op == conv.PREFILL else "conv_state"]
    columns = seen.tensors[conv.STATE].tensor.shape[-1]
    left = Seen(pool.detach()[..., :columns], None, pool)
    y = Seen(result.detach().T, None, result) if seen.op == conv.PREFILL else conv.tokens_of(result)
    return {"y": y, conv.STATE: left}
