# SPDX-License-Identifier: Apache-2.0
"""gdn_decode in torch, token by token, every step of which a variant or a fault replaces.

    alpha = exp(g)                        raw: g = -exp(A_log) softplus(a + dt_bias)
    beta                                  raw: beta_max sigmoid(b)
    q, k                                  raw: x / sqrt(sum x^2 + 1e-6)
    S'    = alpha S
    delta = beta (v - S' k)
    S     = S' + delta k^T
    o     = scale S q

Written from these equations alone. The state is fp32 over the tokens of a call and rounded to the pool's
dtype when it is stored. `Decode(delta=function)` passes that intermediate through `function(delta, at)`.

Shapes: A active sequences; a token's q, k are [A, Hv, K], v, delta, o [A, Hv, V], gates [A, Hv], states
[A, Hv, V, K].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.power.number_formats import Exp


@dataclass(frozen=True)
class At:
    """What a step works on: the active sequences of a call, and which of its tokens."""

    active: Tensor  # [A]
    token: int
    scale: float


Edit = Callable[[Tensor, At], Tensor]
Dot = Callable[[Tensor, Tensor], Tensor]


def dot(state: Tensor, x: Tensor) -> Tensor:
    """S x [A, Hv, V]."""
    return (state @ x.unsqueeze(-1)).squeeze(-1)


def softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


class Decode:
    """A kernel of gdn_decode."""

    conventions: Mapping[str, Any] = {
        "gate": ("log", "raw"),
        "state_layout": ("VK",),
        "qk": ("normalised", "raw"),
    }

    def __init__(
        self,
        *,
        compute: torch.dtype = torch.float32,
        exp: Exp = torch.exp,
        dot: Dot = dot,
        conventions: Mapping[str, Any] | None = None,
        **edits: Edit,
    ) -> None:
        self.compute, self.exp, self.dot = compute, exp, dot
        self.edits = edits
        self.conventions = {**self.conventions, **(conventions or {})}

    def __call__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        state_indices: Tensor,
        o: Tensor,
        num_accepted: Tensor | None = None,
        read_indices: Tensor | None = None,
        A_log: Tensor | None = None,
        dt_bias: Tensor | None = None,
        scale: float | None = None,
        beta_max: float = 1.0,
        gate: str = "log",
        qk: str = "normalised",
        **_: Any,
    ) -> dict[str, Tensor]:
        write = state_indices.long()
        read = self.slots_to_read(write, num_accepted, read_indices)
        active = self.active_sequences(read)
        factor = k.shape[-1] ** -0.5 if scale is None else scale
        if gate == "raw":
            g, beta = self.raw_gates(g, beta, A_log, dt_bias, beta_max)
        if qk == "raw":
            q, k = self.normalise(q, "q"), self.normalise(k, "k")
        keys = self.key_heads(k.shape[2], v.shape[2])
        at = At(active, 0, factor)
        source = self.edit("read", read[active], at)
        running = self.edit("S0", state[source].to(self.compute), at)
        for token in range(q.shape[1]):
            at = At(active, token, factor)
            row = {"q": q[:, token, keys], "k": k[:, token, keys], "v": v[:, token]}
            row |= {"g": g[:, token], "beta": beta[:, token]}
            now = {name: self.edit(name, x[active].to(self.compute), at) for name, x in row.items()}
            running, _delta = self.advance(running, now, at)
            out = self.dot(self.edit("S_read", running, at), now["q"]) * factor
            o[active, token] = self.round_output(self.edit("o", out, at), o.dtype)
            self.write_slots(state, write[active], token, self.edit("stored", running, at), source)
        return self.finish({"o": o, "state": state}, at)

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return self.edits[name](x, at) if name in self.edits else x

    def slots_to_read(
        self, write: Tensor, num_accepted: Tensor | None, read_indices: Tensor | None
    ) -> Tensor:
        """[B], -1 for padding."""
        if read_indices is not None:
            return read_indices.long()
        if num_accepted is None:
            return write[:, 0]
        column = (num_accepted.long() - 1).clamp(0, write.shape[1] - 1)
        return write.gather(1, column.unsqueeze(1)).squeeze(1)

    def active_sequences(self, read: Tensor) -> Tensor:
        return torch.nonzero(read >= 0).flatten()

    def raw_gates(
        self, a: Tensor, b: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, beta_max: float
    ) -> tuple[Tensor, Tensor]:
        assert A_log is not None
        assert dt_bias is not None
        rate = A_log.to(self.compute).exp()
        g = -rate * self.softplus(a.to(self.compute) + dt_bias.to(self.compute))
        return g, beta_max * torch.sigmoid(b.to(self.compute))

    def softplus(self, x: Tensor) -> Tensor:
        return softplus(x)

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(self.compute)
        return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.arange(value_heads) // (value_heads // heads)

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        """The state after a token, and its delta."""
        alpha = self.edit("alpha", self.exp(now["g"]), at)
        state = state * alpha[..., None, None]
        seen = self.edit("seen", self.dot(state, now["k"]), at)
        delta = self.edit("delta", now["beta"].unsqueeze(-1) * (now["v"] - seen), at)
        return self.edit("S", state + delta.unsqueeze(-1) * now["k"].unsqueeze(-2), at), delta

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        """Store states [A, Hv, V, K] in the token's slots; -1 is no slot. `read` are the slots read."""
        slots = write[:, token]
        there = slots >= 0
        pool[slots[there]] = self.round_state(state[there], pool.dtype)

    def round_state(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def finish(self, found: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        return found
