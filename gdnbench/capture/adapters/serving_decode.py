# SPDX-License-Identifier: Apache-2.0
"""Shared by adapters of serving engines whose sequences own slots of a state pool.

An engine decodes a batch of packed tokens [T, ...]: sequence n has rows query_start_loc[n] up to
query_start_loc[n + 1], and slots [N] or [N, S]. gdn_decode takes [B, S, ...]. If T = N S the packed tensor
can be viewed so; capture checks this when the offsets are on the host. If sequences have different numbers of
tokens (a speculative step with fewer drafts), the tokens are copied into [N, S] with zeros after each
sequence; padded tokens have slot -1 and so have no effect.

Engines use null slots (vLLM: 0, SGLang: below 0), where gdn_decode uses -1. They are replaced on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gdnbench.capture.adapter import Finish, NotCaptured, OnlyPadding, Seen
from gdnbench.capture.adapters.gdn import STATE_DTYPES
from gdnbench.capture.adapters.slots import PADDING

if TYPE_CHECKING:
    from torch import Tensor

BESIDE = "beside."
"""Name prefix of a tensor that no operation has: `move_beside_to_dispatch` removes it from the record and
puts its values into `dispatch` under "metadata"."""
OFFSETS = "query_start_loc"
BIAS_DTYPES = ("float32", "bfloat16")
NO_TOKENS = "a decode call has no tokens"


def metadata_tensors(tensors: Mapping[str, Tensor | None]) -> dict[str, Seen]:
    """Tensors of a step's metadata, to be copied along with a call's inputs."""
    return {f"{BESIDE}{name}": Seen(tensor) for name, tensor in tensors.items() if tensor is not None}


def move_beside_to_dispatch(
    tensors: dict[str, Tensor], known: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Remove the `beside` tensors; returns the others, and `dispatch` entries with `known` and the removed
    tensors' values."""
    named = [name for name in tensors if name.startswith(BESIDE)]
    values = {name.removeprefix(BESIDE): tensors[name].tolist() for name in named}
    rest = {name: tensor for name, tensor in tensors.items() if name not in named}
    metadata = {**known, **values}
    return rest, {"metadata": metadata} if metadata else {}


def finish_with_metadata(known: Mapping[str, Any]) -> Finish:
    """A `Finish` that only moves metadata to `dispatch`."""
    return lambda tensors: move_beside_to_dispatch(tensors, known)


def finish_prefill_with_metadata(known: Mapping[str, Any]) -> Finish:
    """A `Finish` for a prefill: moves metadata to `dispatch`; NotCaptured if some tokens belong to no
    sequence."""

    def finish(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        bounds = tensors["cu_seqlens"]
        if len(bounds) and int(bounds[-1]) < len(tensors["q"]):
            raise NotCaptured("tokens of a prefill lie behind its last sequence: padding of the engine")
        return move_beside_to_dispatch(tensors, known)

    return finish


class Packed(NamedTuple):
    """q, k [1, T, H, K] and v [1, T, Hv, V]."""

    q: Tensor
    k: Tensor
    v: Tensor


def split_features(mixed: Tensor, state: Tensor) -> Packed:
    """Views of mixed [T, 2 H K + Hv V], whose rows are q, k and v of one token; `state` [slots, Hv, V, K]
    gives the sizes."""
    heads, value_dim, key_dim = state.shape[1:]
    width = (mixed.shape[-1] - heads * value_dim) // 2
    tokens = mixed.detach().unsqueeze(0)

    def part(begin: int, end: int, dim: int) -> Tensor:
        return tokens[..., begin:end].view(*tokens.shape[:2], -1, dim)

    return Packed(
        part(0, width, key_dim),
        part(width, 2 * width, key_dim),
        part(2 * width, 2 * width + heads * value_dim, value_dim),
    )


def gate_parameters(A_log: Tensor, dt_bias: Tensor) -> dict[str, Seen]:
    """A_log and dt_bias, [Hv] each, of raw gates, in the dtypes that the operations take."""
    from gdnbench_kernels.validate import dtype_name

    kept = dtype_name(dt_bias.dtype) in BIAS_DTYPES
    bias = dt_bias.detach() if kept else dt_bias.detach().float()
    return {"A_log": Seen(A_log.detach().float(), None, A_log), "dt_bias": Seen(bias, None, dt_bias)}


def refuse_step_sizes(beta: Tensor | None, v: Tensor | None) -> None:
    """NotCaptured for a call without step sizes, or with one for each value channel of `v`, if there is v."""
    if beta is None or (v is not None and beta.ndim == v.ndim):
        raise NotCaptured("beta is left out, or of every value channel; the operation has one of a head")


def refuse_states(state: Tensor | None) -> None:
    """NotCaptured for states of a dtype that the operations do not take."""
    from gdnbench_kernels.validate import dtype_name

    if state is not None and dtype_name(state.dtype) not in STATE_DTYPES:
        raise NotCaptured(f"states are {dtype_name(state.dtype)}; the operations take no such ones")


class Batch:
    """Maps the packed tokens of a decode call to sequences.

    `tokens`: total number T. `slots` [N'] or [N', S] with N' >= N; `accepted` [N'] as the engine passes it.
    """

    def __init__(
        self, tokens: int, slots: Tensor, offsets: Tensor | None, accepted: Tensor | None, null: int
    ) -> None:
        self.caller = slots
        slots = slots.unsqueeze(1) if slots.ndim == 1 else slots
        self.steps = slots.shape[1]
        self.sequences = tokens // self.steps if offsets is None else offsets.shape[0] - 1
        if tokens == 0 or self.sequences == 0:
            raise NotCaptured(NO_TOKENS)
        self.slots = slots[: self.sequences]
        if len(self.slots) != self.sequences:
            raise NotCaptured("a decode call has fewer slots than sequences")
        self.accepted = None if accepted is None else accepted[: self.sequences]
        self.offsets = offsets
        self.null = null
        self.ragged = tokens != self.sequences * self.steps
        if self.ragged and offsets is None:
            raise NotCaptured("several tokens of a sequence are given without their offsets")
        if self.ragged and _in_graph(slots):
            raise NotCaptured("sequences of a decode call differ in tokens in a CUDA graph")

    def rows(self, packed: Tensor, leading: int = 2) -> Seen:
        """Packed tokens, [T, ...] or [B, T, ...] by the number of `leading` axes, as [N, S, ...]."""
        packed = packed.detach()
        rest = packed.shape[leading:]
        if not self.ragged:
            return Seen(packed, (self.sequences, self.steps, *rest))
        tokens = packed.flatten(0, leading - 1)
        index, inside = self._places(len(tokens))
        laid = tokens.index_select(0, index.flatten()).view(*index.shape, *rest)
        absent = ~inside.view(*inside.shape, *[1] * len(rest))
        return Seen(laid.masked_fill(absent, 0), None, packed)

    def indices(self) -> dict[str, Seen]:
        """state_indices, and read_indices if a sequence does not read its first slot."""
        import torch

        if not self.ragged:
            found = {"state_indices": Seen(self.slots, None, self.caller)}
            if self.accepted is not None:
                found["num_accepted"] = Seen(self.accepted.to(torch.int32), None, self.accepted)
            return found
        _, inside = self._places(1)
        column = torch.zeros_like(self.slots[:, :1], dtype=torch.int64)
        if self.accepted is not None:
            column = (self.accepted.long() - 1).clamp(0, self.steps - 1).unsqueeze(1)
        read = self.slots.gather(1, column).squeeze(1)
        # A sequence without tokens reads nothing.
        read = read.masked_fill(~inside[:, 0], PADDING).to(torch.int32)
        return {
            "state_indices": Seen(self.slots.masked_fill(~inside, PADDING), None, self.caller),
            "read_indices": Seen(read, None, self.caller),
        }

    def _places(self, tokens: int) -> tuple[Tensor, Tensor]:
        """For each token of [N, S], its row of the packed tokens and whether the token exists."""
        import torch

        assert self.offsets is not None
        offsets = self.offsets.long()
        column = torch.arange(self.steps, device=offsets.device)
        inside = column < offsets.diff().unsqueeze(1)
        return (offsets[:-1].unsqueeze(1) + column).clamp(0, max(tokens - 1, 0)), inside

    def finish(self, known: Mapping[str, Any]) -> Finish:
        """A `Finish` that replaces null slots by -1; NotCaptured for a batch of padding only, or one that is
        not [N, S]."""
        null, steps, ragged = self.null, self.steps, self.ragged

        def finish(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
            given, dispatch = move_beside_to_dispatch(tensors, known)
            offsets = tensors.get(f"{BESIDE}{OFFSETS}")
            for name in ("state_indices", "read_indices"):
                if name in given:
                    given[name] = given[name].masked_fill(given[name] <= null, PADDING)
            _settle_tokens(given, offsets, steps, ragged)
            if not _active(given).any():
                raise OnlyPadding("every sequence of a decode call is padding: a dummy run of the engine")
            if ragged:
                dispatch["laid_out_by_capture"] = "sequences of fewer tokens, zeros behind them"
            return given, dispatch

        return finish


def _settle_tokens(given: dict[str, Tensor], offsets: Tensor | None, steps: int, ragged: bool) -> None:
    """Turn a sequence without tokens into padding; NotCaptured if another does not have `steps` tokens in
    order."""
    import torch

    if offsets is None:
        return
    counts = offsets.diff()
    if int(counts.amax()) > steps:
        raise NotCaptured("a sequence of a decode call has more tokens than slots")
    if ragged:
        return
    slots = given["state_indices"]
    given["state_indices"] = slots.masked_fill((counts == 0).unsqueeze(1), PADDING)
    begins = torch.arange(len(counts), dtype=offsets.dtype) * steps
    right = (counts == steps) & (offsets[:-1] == begins)
    if not bool((right | ~_active(given)).all()):
        raise NotCaptured("sequences of a decode call differ in tokens though their number fits")


def _active(given: Mapping[str, Tensor]) -> Tensor:
    """bool [N]: whether a sequence reads a slot."""
    slots = given["state_indices"]
    if "read_indices" in given:
        read = given["read_indices"]
    elif "num_accepted" in given:
        column = (given["num_accepted"].long() - 1).clamp(0, slots.shape[1] - 1)
        read = slots.gather(1, column.unsqueeze(1)).squeeze(1)
    else:
        read = slots[:, 0]
    return read != PADDING


def _in_graph(tensor: Tensor) -> bool:
    import torch

    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
