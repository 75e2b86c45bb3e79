# SPDX-License-Identifier: Apache-2.0
"""A right kernel of each kind and kernels with one mistake each, for `gdnbench prove`.

The prefill kernels are the gated delta rule token by token in fp32, written apart from gdnbench's own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    scale: float | None,
    o: Tensor,
    final_state: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> None:
    """Right."""
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    repeats = v.shape[1] // k.shape[1]
    queries, keys = (x.float().repeat_interleave(repeats, 1) for x in (q, k))
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        state = torch.zeros(v.shape[1], v.shape[2], k.shape[2])
        if initial_state is not None:
            state = initial_state[n].float()
        for t in range(start, stop):
            state = state * g[t, :, None, None].exp()
            update = beta[t, :, None] * (v[t] - (state @ keys[t, :, :, None])[..., 0])
            state = state + update[:, :, None] * keys[t, :, None, :]
            o[t] = scale * (state @ queries[t, :, :, None])[..., 0]
        if final_state is not None:
            final_state[n] = state


def ignores_the_initial_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    scale: float | None,
    o: Tensor,
    final_state: Tensor | None = None,
) -> None:
    prefill(q, k, v, g, beta, cu_seqlens, scale, o, final_state)


def leaks_later_tokens(o: Tensor, **call: Any) -> None:
    """1 % of the next token's output of the same sequence."""
    _run(o, call)
    for start, stop in pairwise(call["cu_seqlens"].tolist()):
        if stop > start:
            o[start : stop - 1] += 0.01 * o[start + 1 : stop].clone()


def leaks_between_sequences(o: Tensor, **call: Any) -> None:
    """1 % of the final state of the sequence before."""
    _run(o, call)
    final = call["final_state"]
    final[1:] += 0.01 * final[:-1].clone()


calls = 0


def counts_its_calls(o: Tensor, **call: Any) -> None:
    """One bit of one element differs from call to call, in bf16 and fp16."""
    global calls
    _run(o, call)
    calls += 1
    if o.numel():
        o.view(torch.int16)[0, 0, 0] ^= calls % 2


def leaves_nan(o: Tensor, **call: Any) -> None:
    _run(o, call)
    o[-1:] = torch.nan


def leaves_the_last_token_out(o: Tensor, **call: Any) -> None:
    last = o[-1:].clone()
    _run(o, call)
    o[-1:] = last


def crashes(**call: Any) -> None:
    raise RuntimeError("an index out of range")


def takes_no_float16(q: Tensor, o: Tensor, **call: Any) -> None:
    if q.dtype is torch.float16:
        raise NotImplementedError("float16")
    _run(o, {"q": q, **call})


def interrupts_the_third_call(o: Tensor, **call: Any) -> None:
    global calls
    calls += 1
    if calls == 3:
        raise KeyboardInterrupt
    _run(o, call)


def aborts(**call: Any) -> None:
    import os

    os.abort()


def _run(o: Tensor, call: dict[str, Any]) -> None:
    names = ("q", "k", "v", "g", "beta", "cu_seqlens", "scale", "final_state", "initial_state")
    prefill(o=o, **{name: call[name] for name in names if name in call})


DECODE = ("q", "k", "v", "g", "beta", "state", "state_indices", "num_accepted", "read_indices", "scale")


def decode(o: Tensor, **call: Any) -> dict[str, Tensor]:
    """torch's own."""
    return dict(torch_recurrent(**{name: call[name] for name in DECODE if name in call}))


def writes_an_unnamed_slot(state: Tensor, state_indices: Tensor, o: Tensor, **call: Any) -> dict[str, Tensor]:
    named = {*state_indices.flatten().tolist(), *call.get("read_indices", torch.empty(0)).tolist()}
    results = decode(o, state=state, state_indices=state_indices, **call)
    free = [slot for slot in range(len(state)) if slot not in named]
    if free:
        results.get("state", state)[free[0]] = 0
    return results


def lets_drafts_change_earlier_tokens(o: Tensor, **call: Any) -> dict[str, Tensor]:
    """1 % of the last draft's output in all earlier ones."""
    results = decode(o, **call)
    results["o"] = results["o"].clone()
    results["o"][:, :-1] += 0.01 * results["o"][:, -1:]
    return results


def returns_a_number(o: Tensor, **call: Any) -> Tensor:
    return torch.tensor(1.0)


def leaves_a_row_out(o: Tensor, **call: Any) -> Tensor:
    _run(o, call)
    return o[:-1]


def returns_complex(o: Tensor, **call: Any) -> Tensor:
    _run(o, call)
    return o.to(torch.complex64)


def returns_sparse(o: Tensor, **call: Any) -> Tensor:
    _run(o, call)
    return o.to_sparse()


def returns_meta(o: Tensor, **call: Any) -> Tensor:
    _run(o, call)
    return o.to("meta")


def returns_a_negated_view(o: Tensor, **call: Any) -> Tensor:
    """Right: its bits are those of -o, with the flag that .imag of a conjugate has."""
    _run(o, call)
    return torch._neg_view(-o)


buffer = torch.empty(1 << 20, dtype=torch.bfloat16)


def leaks_in_its_own_buffer(o: Tensor, **call: Any) -> Tensor:
    """As `leaks_later_tokens`, with o in the same memory in every call."""
    leaks_later_tokens(o, **call)
    return buffer[: o.numel()].view(o.shape).copy_(o)
