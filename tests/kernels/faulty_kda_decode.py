# SPDX-License-Identifier: Apache-2.0
"""Kernels of kda_decode, each with one fault of its gates; `correct` has none. faulty_gdn_decode.py has those
of slots, heads and scale, which the two operations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gdnbench_kernels.kda_decode.torch_recurrent import torch_recurrent

TAKES = {
    "gate": ("log", "raw", "bounded"),
    "beta_form": ("value", "logit"),
    "qk": ("normalised", "raw"),
}
Kernel = Callable[..., dict[str, Tensor]]


def _kernel(change: Callable[[dict[str, Any]], None]) -> Kernel:
    def kernel(**given: Any) -> dict[str, Tensor]:
        known = {name: value for name, value in given.items() if name not in ("state_layout", "offsets", "o")}
        change(known)
        return torch_recurrent(**known)

    kernel.conventions = TAKES  # type: ignore[attr-defined]
    return kernel


def _one_gate_a_head(given: dict[str, Any]) -> None:
    given["g"] = given["g"].mean(-1, keepdim=True).expand_as(given["g"]).contiguous()


def _next_channel(given: dict[str, Any]) -> None:
    given["g"] = given["g"].roll(1, -1)


def _other_head(given: dict[str, Any]) -> None:
    given["g"] = given["g"].roll(1, 2)


def _first_bias(given: dict[str, Any]) -> None:
    """The bias of the first head for all."""
    if "dt_bias" in given:
        given["dt_bias"] = given["dt_bias"][:1].expand_as(given["dt_bias"]).contiguous()


def _rate_after_bound(given: dict[str, Any]) -> None:
    """lower_bound sigmoid(x + dt_bias): the rate of bounded gates is forgotten."""
    if given["gate"] == "bounded":
        given["A_log"] = None


def _clamped(given: dict[str, Any]) -> None:
    """No channel below -5 a token, as a chunked kernel may assume."""
    if given["gate"] == "log":
        given["g"] = given["g"].clamp(min=-5.0)


def _rounds_gates(given: dict[str, Any]) -> None:
    if given["gate"] == "log":
        given["g"] = given["g"].bfloat16()


def _value_for_logit(given: dict[str, Any]) -> None:
    given["beta_form"] = "value"


def _beta_of_one(given: dict[str, Any]) -> None:
    given["beta_max"] = 1.0


correct = _kernel(lambda _: None)
one_gate_a_head = _kernel(_one_gate_a_head)
next_channel = _kernel(_next_channel)
other_head = _kernel(_other_head)
first_bias = _kernel(_first_bias)
forgets_the_rate = _kernel(_rate_after_bound)
clamped = _kernel(_clamped)
rounds_gates = _kernel(_rounds_gates)
value_for_logit = _kernel(_value_for_logit)
beta_to_one = _kernel(_beta_of_one)


def decays_after_the_update(**given: Any) -> dict[str, Tensor]:
    """The gate of a token multiplies what it adds, too: S = (S + u k^T) diag(alpha)."""
    found, read = correct(**given), given.get("read_indices")
    if read is None and given["gate"] == "log" and given["g"].shape[1] == 1 and len(given["g"]):
        slots = given["state_indices"][:, 0]
        kept = slots >= 0
        alpha = given["g"][kept, 0].exp().unsqueeze(2)
        state = given["state"]
        state[slots[kept].long()] = (state[slots[kept].long()] * alpha).to(state.dtype)
    return found


decays_after_the_update.conventions = TAKES  # type: ignore[attr-defined]
