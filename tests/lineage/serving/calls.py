# SPDX-License-Identifier: Apache-2.0
"""The recurrence of the serving loop: two functions that take a pool, or gathered states, as vLLM's do.

Both are recorded by `gdnbench.capture` if a capture is running. Their arithmetic is written here from the
equations in docs/operations.md and shares no code with the project.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import gdnbench.capture

CLAIMS = {
    "requests": "request_ids",
    "positions": "positions",
    "padding": "padding",
    "prefixes": "prefixes",
    "slots": "slots",
}
"""Parameter of each claim about a call's sequences."""


def _token(
    current: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """States [B, Hv, V, K] after one token of each sequence, and o [B, Hv, V]. q, k [B, H, K]; v [B, Hv, V];
    g, beta [B, Hv]."""
    heads = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(heads, 1), k.repeat_interleave(heads, 1)
    current = current * g.exp()[..., None, None]
    update = beta[..., None] * (v - torch.einsum("bhvk,bhk->bhv", current, k))
    current = current + update[..., None] * k[..., None, :]
    return current, torch.einsum("bhvk,bhk->bhv", current, q) * q.shape[-1] ** -0.5


@gdnbench.capture.record("gdn_decode", lineage=CLAIMS, layer="layer")
def gdn_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    *,
    layer: int = 0,
    request_ids: Sequence[str | None] = (),
    positions: Sequence[int] = (),
    padding: Sequence[int] = (),
    prefixes: Sequence[str | None] | None = None,
    slots: Sequence[int] | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """o [B, S, Hv, V] of the next S tokens of each sequence. Tensors are those of the contract of
    gdn_decode; `state` [slots, Hv, V, K] is updated in place. `steps` [B, S, Hv, V, K], if given, receives
    the state after each token."""
    if read_indices is None:
        column = torch.zeros_like(state_indices[:, 0]) if num_accepted is None else num_accepted - 1
        read_indices = state_indices.gather(1, column.to(state_indices.dtype)[:, None].long())[:, 0]
    live = read_indices >= 0
    current = state[read_indices.clamp(min=0).long()].to(v.dtype)
    o = torch.zeros_like(v)
    for t in range(q.shape[1]):
        current, o[:, t] = _token(current, q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t])
        if steps is not None:
            steps[:, t] = current
        written = live & (state_indices[:, t] >= 0)
        state[state_indices[written, t].long()] = current[written].to(state.dtype)
    return o


@gdnbench.capture.record("gdn_prefill", lineage=CLAIMS, layer="layer")
def gdn_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None = None,
    *,
    layer: int = 0,
    request_ids: Sequence[str | None] = (),
    positions: Sequence[int] = (),
    padding: Sequence[int] = (),
    prefixes: Sequence[str | None] | None = None,
    slots: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """o [T, Hv, V] of packed sequences and their final states [N, Hv, V, K]. Tensors are those of the
    contract of gdn_prefill; q, k [T, H, K]."""
    starts = cu_seqlens.long()
    lengths = starts[1:] - starts[:-1]
    shape = (len(lengths), v.shape[1], v.shape[2], k.shape[2])
    current = torch.zeros(shape) if initial_state is None else initial_state.clone()
    o = torch.zeros_like(v)
    for t in range(int(lengths.max())):
        live = torch.nonzero(lengths > t).flatten()
        at = starts[live] + t
        current[live], o[at] = _token(current[live], q[at], k[at], v[at], g[at], beta[at])
    return o, current


def conv_decode(
    x: Tensor,
    weight: Tensor,
    conv_state: Tensor,
    state_indices: Tensor,
    read_indices: Tensor,
    steps: Tensor | None = None,
) -> Tensor:
    """silu of the causal convolution of x [B, S, D] with weight [D, width]; conv_state [slots, D, width - 1]
    is updated in place."""
    live = read_indices >= 0
    current = conv_state[read_indices.clamp(min=0)]
    o = torch.zeros_like(x)
    for t in range(x.shape[1]):
        window = torch.cat([current, x[:, t, :, None]], -1)
        o[:, t] = (window * weight).sum(-1)
        current = window[..., 1:]
        if steps is not None:
            steps[:, t] = current
        written = live & (state_indices[:, t] >= 0)
        conv_state[state_indices[written, t]] = current[written]
    return torch.nn.functional.silu(o)


def conv_prefill(x: Tensor, weight: Tensor, lengths: Sequence[int], initial: Tensor) -> tuple[Tensor, Tensor]:
    """The same of packed sequences, x [T, D], from and to their states [N, D, width - 1]."""
    outs, finals = [], []
    for part, state in zip(x.split(list(lengths)), initial, strict=True):
        row = torch.cat([state, part.mT], -1)
        outs.append((row.unfold(1, weight.shape[1], 1) * weight[:, None]).sum(-1).mT)
        finals.append(row[:, part.shape[0] :])
    return torch.nn.functional.silu(torch.cat(outs)), torch.stack(finals)
