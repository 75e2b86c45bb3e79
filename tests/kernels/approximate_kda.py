# SPDX-License-Identifier: Apache-2.0
"""kda_decode and kda_prefill in float32 with approximate functions, token by token, from the equations in
`gdnbench_kernels.kda`; and faults of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from tests.kernels.approximate_functions import Functions


@dataclass(frozen=True)
class Kernel:
    """A kernel with the functions; right by default."""

    functions: Functions
    gate_factor: float = 1.0
    """Multiplies g."""
    bound_factor: float = 1.0
    """Multiplies lower_bound."""
    beta_factor: float = 1.0
    """Multiplies beta."""
    linear_above: float = 20.0
    """softplus(x) is x above."""

    def decode(self, call: Call) -> dict[str, Tensor]:
        """o and the pool of a call of one token a sequence and no padding, states VK."""
        tensors = call.tensors
        slots, pool = tensors["state_indices"][:, 0].long(), tensors["state"].clone()
        terms = self.terms(call)
        v = tensors["v"]
        out, state = self.advance(
            pool[slots].float(), {name: x[:, 0] for name, x in terms.items()}, v[:, 0].float()
        )
        pool[slots] = state.to(pool.dtype)
        return {"o": out.unsqueeze(1).to(v.dtype), "state": pool}

    def prefill(self, call: Call) -> dict[str, Tensor]:
        """o and final_state of a call with initial states, VK."""
        v, first = call.tensors["v"], call.tensors["initial_state"]
        terms, o, final = self.terms(call), torch.empty_like(v), first.clone()
        for n, (start, stop) in enumerate(pairwise(call.tensors["cu_seqlens"].tolist())):
            state = first[n : n + 1].float()
            for token in range(start, stop):
                here = slice(token, token + 1)
                now = {name: x[here] for name, x in terms.items()}
                out, state = self.advance(state, now, v[here].float())
                o[here] = out.to(o.dtype)
            final[n] = state[0].to(final.dtype)
        return {"o": o, "final_state": final}

    def terms(self, call: Call) -> dict[str, Tensor]:
        """alpha, beta, and q and k of value heads, in float32."""
        tensors, scalars, forms = call.tensors, call.scalars, call.conventions
        beta = tensors["beta"].float()
        if forms.get("beta_form") == "logit":
            beta = float(scalars.get("beta_max") or 1.0) * self.functions.sigmoid(beta)
        q, k = tensors["q"], tensors["k"]
        if forms.get("qk") == "raw":
            q, k = self.functions.normalise(q), self.functions.normalise(k)
        repeats = tensors["v"].shape[-2] // k.shape[-2]
        found = {name: x.float().repeat_interleave(repeats, -2) for name, x in (("q", q), ("k", k))}
        found["q"] = found["q"] * k.shape[-1] ** -0.5
        g = self.gate_factor * self.gate(tensors, forms, scalars)
        return {**found, "alpha": self.functions.exp(g), "beta": self.beta_factor * beta}

    def gate(self, tensors: Mapping[str, Tensor], forms: Mapping[str, str], scalars: Any) -> Tensor:
        x, form = tensors["g"].float(), forms.get("gate", "log")
        if form == "log":
            return x
        x = x + tensors["dt_bias"].float()
        rate = self.functions.exp(tensors["A_log"].float()).unsqueeze(-1)
        if form == "raw":
            return -rate * self.functions.softplus(x, self.linear_above)
        return self.bound_factor * float(scalars["lower_bound"]) * self.functions.sigmoid(rate * x)

    def advance(self, state: Tensor, now: Mapping[str, Tensor], v: Tensor) -> tuple[Tensor, Tensor]:
        """o and the state [B, Hv, V, K] after a token; sums in pairs."""
        state = state * now["alpha"].unsqueeze(-2)
        update = now["beta"].unsqueeze(-1) * (v - _sum(state * now["k"].unsqueeze(-2)))
        state = state + update.unsqueeze(-1) * now["k"].unsqueeze(-2)
        return _sum(state * now["q"].unsqueeze(-2)), state


def _sum(terms: Tensor) -> Tensor:
    while terms.shape[-1] > 1:
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]
