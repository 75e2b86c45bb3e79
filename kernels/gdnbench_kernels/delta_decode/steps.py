"""The steps of gdn_decode and kda_decode, each runnable alone, in any arithmetic.

    step        reads                          returns
    gates                                      alpha_t, beta_t
    normalise                                  q_t, k_t
    update      alpha_t, beta_t, q_t, k_t      delta_t, o, state

`update` passes the state from token to token: from the second token on, delta_t depends on the earlier
tokens' updates.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Step
from gdnbench_kernels.delta_decode.recurrence import Terms, decode
from gdnbench_kernels.gdn import default_scale, in_vk, normalised
from gdnbench_kernels.rounding import Arithmetic
from gdnbench_kernels.state_slots import plan_slots

_TAKES_AND_GIVES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("gates", (), ("alpha_t", "beta_t")),
    ("normalise", (), ("q_t", "k_t")),
    ("update", ("alpha_t", "beta_t", "q_t", "k_t"), ("delta_t", "o", "state")),
)


Gate = Callable[[Tensor, torch.dtype], Tensor]
"""The factor of the state, or the step size, in a dtype, from the call's g or beta."""


class DecodeSteps:
    """The steps in the arithmetic that `arithmetic` returns for a dtype: o is stored in v's dtype, states in
    the pool's. Each method is the function of a step; it takes a call's tensors, scalars and conventions by
    name. `gates` returns how alpha_t and beta_t are computed from the g and beta of a call."""

    def __init__(
        self,
        arithmetic: Callable[[torch.dtype], Arithmetic],
        gates: Callable[[Mapping[str, Any]], tuple[Gate, Gate]],
    ) -> None:
        self._arithmetic = arithmetic
        self._gates = gates

    def gates(self, **call: Any) -> dict[str, Tensor]:
        (alpha, step_size), compute = self._gates(call), self._compute(call)
        return {
            "alpha_t": _by_token(lambda g: alpha(g, compute), call["g"]),
            "beta_t": _by_token(lambda beta: step_size(beta, compute), call["beta"]),
        }

    def normalise(self, **call: Any) -> dict[str, Tensor]:
        qk, compute = call.get("qk", "normalised"), self._compute(call)
        return {"q_t": normalised(call["q"], qk, compute), "k_t": normalised(call["k"], qk, compute)}

    def update(self, *, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
        """Writes `state` in place if it has the stored dtype."""
        v, state, layout = call["v"], call["state"], call.get("state_layout", "VK")
        pool = state.to(self._arithmetic(state.dtype).stored)
        o = torch.full(v.shape, torch.nan, dtype=self._arithmetic(v.dtype).stored, device=v.device)
        delta = decode(
            Terms(*(stages[name] for name in ("alpha_t", "beta_t", "q_t", "k_t"))),
            v=v,
            source=in_vk(state, layout),
            pool=in_vk(pool, layout),
            o=o,
            plan=plan_slots(call["state_indices"], call.get("num_accepted"), call.get("read_indices")),
            scale=default_scale(call.get("scale"), call["k"].shape[3]),
            compute=self._compute(call),
        )
        return {"delta_t": delta, "o": o, "state": pool}

    def run_steps(self, stages: dict[str, Tensor] | None, **call: Any) -> dict[str, Tensor]:
        """Run all steps and return o and the pool, which is as in `update`; fill `stages`, if given, with
        every stage."""
        made = {**self.gates(**call), **self.normalise(**call)}
        found = self.update(stages=made, **call)
        made["delta_t"] = found.pop("delta_t")
        if stages is not None:
            stages.update(made)
        return found

    def _compute(self, call: Mapping[str, Any]) -> torch.dtype:
        return self._arithmetic(call["v"].dtype).compute


def _by_token(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of x [B, S, ...], one token at a time. So the bits do not depend on the number of tokens: a
    CPU computes the last elements of a long row differently."""
    return torch.stack([function(x[:, token].contiguous()) for token in range(x.shape[1])], dim=1)


def steps_of(module: str, name: str) -> tuple[Step, ...]:
    """The steps of the `DecodeSteps` that `module` has as `name`."""
    return tuple(
        Step(step, takes, gives, f"{module}:{name}.{step}") for step, takes, gives in _TAKES_AND_GIVES
    )


def compiled_steps(module: str) -> tuple[Step, ...]:
    """The steps of a compiled kernel: builds that store their stages or load the gates."""
    return (
        Step("gates", (), ("alpha_t", "beta_t"), f"{module}:gates"),
        Step("update", ("alpha_t", "beta_t"), ("delta_t", "o", "state"), f"{module}:update"),
    )
