# SPDX-License-Identifier: Apache-2.0
"""Kernels of Kimi Delta Attention that are right on the records of `test_kda_laws.py`. `prefill` and `decode`
keep all laws of `gdnbench prove`; each of the others has one fault that breaks a law.

The prefill kernels are written apart from gdnbench's own: chunks of 16 tokens, in which gates are scaled by
those of one of the chunk's tokens, the anchor, and products of queries and keys are those of tf32.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.kda_decode.torch_recurrent import torch_recurrent

CHUNK = 16
LEAK = 3e-4
LARGEST = 8.0


def _no_change(x: Tensor) -> Tensor:
    return x


def _tf32(x: Tensor) -> Tensor:
    """`x`, fp32, rounded to tf32's 10 bits after the first one."""
    return ((x.contiguous().view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def _chunk(
    rows: dict[str, Tensor], state: Tensor, scale: float, anchor: Callable[[int], int]
) -> tuple[Tensor, Tensor]:
    """o [T, Hv, V], and the state [Hv, V, K] after up to 16 tokens."""
    q, k, v, g, beta = (rows[name].float().movedim(0, 1) for name in ("q", "k", "v", "g", "beta"))
    sums = g.cumsum(1)
    at = sums[:, anchor(g.shape[1]), None]
    later, earlier = _tf32(k * (sums - at).exp()), _tf32(k * (at - sums).exp()).mT
    mixed = torch.tril(beta[..., None] * (later @ earlier), -1)
    identity = torch.eye(g.shape[1]).expand_as(mixed)
    wanted = beta[..., None] * (v - (k * sums.exp()) @ state.mT)
    update = torch.linalg.solve_triangular(identity + mixed, wanted, upper=False, unitriangular=True)
    scores = torch.tril(_tf32(q * (sums - at).exp()) @ earlier)
    o = scale * ((q * sums.exp()) @ state.mT + scores @ update)
    last = sums[:, -1:]
    return o.movedim(1, 0), state * last.exp() + update.mT @ (k * (last - sums).exp())


def prefill(
    *,
    o: Tensor,
    cu_seqlens: Tensor,
    scale: float | None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    anchor: Callable[[int], int] = lambda rows: 0,
    limited: Callable[[Tensor], Tensor] = _no_change,
    **call: Any,
) -> None:
    """Right. A token's result has the gates of the chunk's first token in it, and those of no later one."""
    scale = call["k"].shape[-1] ** -0.5 if scale is None else scale
    value_heads, value_dim = call["v"].shape[1:]
    heads, key_dim = call["k"].shape[1:]
    rows = {name: call[name] for name in ("v", "g", "beta")}
    rows |= {name: call[name].repeat_interleave(value_heads // heads, 1) for name in ("q", "k")}
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        state = torch.zeros(value_heads, value_dim, key_dim)
        if initial_state is not None:
            state = initial_state[n].float()
        for first in range(start, stop, CHUNK):
            part = slice(first, min(first + CHUNK, stop))
            o[part], state = _chunk({name: x[part] for name, x in rows.items()}, state, scale, anchor)
            state = limited(state)
        if final_state is not None:
            final_state[n] = state


def middle_anchor(**call: Any) -> None:
    """Gates of a chunk are scaled by those of its middle token, which is later than half of them, as in
    flash-linear-attention #1240."""
    prefill(anchor=lambda rows: min(CHUNK // 2, rows - 1), **call)


def leaks_between_sequences(**call: Any) -> None:
    """A share of the final state of the sequence before."""
    prefill(**call)
    final = call["final_state"]
    final[1:] += LEAK * final[:-1].clone()


def as_many_chunks_as_the_last(**call: Any) -> None:
    """Every sequence is computed as far as the last one is long, which is right if that is the longest."""
    bounds = call["cu_seqlens"].tolist()
    longest = bounds[-1] - bounds[-2]
    for n, (start, stop) in enumerate(pairwise(bounds)):
        part = slice(start, min(stop, start + longest))
        given = {name: call[name][part] for name in ("q", "k", "v", "g", "beta", "o")}
        final = {"final_state": call["final_state"][n : n + 1]} if "final_state" in call else {}
        if "initial_state" in call:
            final["initial_state"] = call["initial_state"][n : n + 1]
        prefill(scale=call["scale"], cu_seqlens=torch.tensor([0, part.stop - start]), **given, **final)


def masks_by_zero(**call: Any) -> None:
    """Rows past the end of a sequence's last chunk are multiplied by 0: those of the next sequence."""
    prefill(**call)
    v = call["v"]
    for start, stop in pairwise(call["cu_seqlens"].tolist()):
        past = slice(stop, stop + -(stop - start) % CHUNK)
        if stop > start:
            call["o"][stop - 1] += 0 * v[past].float().sum(0).to(v.dtype)


def own_scale(**call: Any) -> None:
    prefill(**{**call, "scale": None})


def clamps_states(**call: Any) -> None:
    prefill(limited=lambda state: state.clamp(-LARGEST, LARGEST), **call)


def transposes_the_initial_state(initial_state: Tensor | None = None, **call: Any) -> None:
    """The state is taken to be [K, V], as in vLLM #41292."""
    if initial_state is not None:
        call["initial_state"] = initial_state.mT
    prefill(**call)


DECODE = ("q", "k", "v", "g", "beta", "state", "state_indices", "num_accepted", "read_indices", "scale")


def decode(**call: Any) -> dict[str, Tensor]:
    """torch's own."""
    return dict(torch_recurrent(**{name: call[name] for name in DECODE if name in call}))


def last_draft_anchor(**call: Any) -> dict[str, Tensor]:
    """The state of each token is scaled by the gates up to the last draft and back, and rounded twice."""
    found = decode(**call)
    state, indices = call["state"], call["state_indices"]
    sums = call["g"].float().cumsum(1)
    for row, token in torch.nonzero(indices >= 0).tolist():
        factor = (sums[row, -1] - sums[row, token]).exp().unsqueeze(-2)
        slot = int(indices[row, token])
        state[slot] = state[slot] * factor / factor
    return found


def leaks_between_rows(**call: Any) -> dict[str, Tensor]:
    """A share of the output of the sequence before."""
    found = decode(**call)
    before = found["o"].roll(1, 0).nan_to_num(0.0)
    return {**found, "o": (found["o"].float() + LEAK * before).to(before.dtype)}


def no_slot_0(**call: Any) -> dict[str, Tensor]:
    """Slot 0 is padding, as in vLLM."""
    indices = call["state_indices"]
    return decode(**{**call, "state_indices": torch.where(indices == 0, -1, indices)})


def common_scale(**call: Any) -> dict[str, Tensor]:
    """v is divided by a power of two that all sequences have in common, padding too."""
    v, state = call["v"], call["state"]
    size = torch.exp2(v.float().abs().amax().log2().ceil())
    state /= size.to(state.dtype)
    found = decode(**{**call, "v": v / size.to(v.dtype)})
    state *= size.to(state.dtype)
    return {**found, "o": found["o"] * size.to(v.dtype)}


def ignores_reads(read_indices: Tensor | None = None, **call: Any) -> dict[str, Tensor]:
    return decode(**call)


def decode_with_own_scale(**call: Any) -> dict[str, Tensor]:
    return decode(**{**call, "scale": None})


def decode_clamps_states(**call: Any) -> dict[str, Tensor]:
    found = decode(**call)
    call["state"].clamp_(-LARGEST, LARGEST)
    return found
