# SPDX-License-Identifier: Apache-2.0
"""Shared by the adapters of Kimi Delta Attention: how a call gives its gates, as the operations name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdnbench.capture.adapter import NotCaptured, Seen
from gdnbench.capture.adapters.serving_decode import BIAS_DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench_kernels.contract import Scalar


@dataclass(frozen=True, slots=True)
class KdaForms:
    """The forms of a call's g and beta, and the tensors that belong to them."""

    gate: str  # values of the conventions gate and beta_form
    beta_form: str
    beta_max: float = 1.0
    lower_bound: float | None = None
    parameters: dict[str, Seen] = field(default_factory=dict)  # A_log and dt_bias

    def scalars(self, scale: float | None, key_dim: int) -> dict[str, Scalar]:
        """scale, beta_max and, with a bounded gate, lower_bound."""
        found: dict[str, Scalar] = {
            "scale": float(scale) if scale is not None else float(key_dim) ** -0.5,
            "beta_max": self.beta_max,
        }
        return found if self.lower_bound is None else {**found, "lower_bound": self.lower_bound}

    def conventions(self, state_layout: str, *, raw_keys: bool) -> dict[str, str]:
        return {
            "gate": self.gate,
            "beta_form": self.beta_form,
            "state_layout": state_layout,
            "qk": "raw" if raw_keys else "normalised",
        }


def kda_forms(
    *,
    raw_gate: bool,
    raw_beta: bool,
    lower_bound: float | None = None,
    beta_max: float = 1.0,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    sizes: tuple[int, int],
) -> KdaForms:
    """The forms of a call. `raw_gate`: g is the input of the gate's formula, that with a bound if
    `lower_bound` is given; otherwise g is the log decay, and the other parameters of the gate are unused.
    `raw_beta`: beta is a logit. `sizes`: (Hv, K). NotCaptured for a raw gate without a rate or a bound."""
    beta_form = "logit" if raw_beta else "value"
    if not raw_gate:
        return KdaForms("log", beta_form, beta_max)
    if lower_bound is None and A_log is None:
        raise NotCaptured("a gate without A_log and without a lower bound; no convention here has neither")
    return KdaForms(
        "raw" if lower_bound is None else "bounded",
        beta_form,
        beta_max,
        None if lower_bound is None else float(lower_bound),
        _parameters(A_log, dt_bias, sizes),
    )


def _parameters(A_log: Tensor | None, dt_bias: Tensor | None, sizes: tuple[int, int]) -> dict[str, Seen]:
    """A_log [Hv] and dt_bias [Hv, K], those that the call has, in the dtypes that the operations take.
    Frameworks keep them as [1, 1, Hv, 1] or [Hv * K] too."""
    from gdnbench_kernels.validate import dtype_name

    found = {}
    if A_log is not None:
        found["A_log"] = Seen(A_log.detach().float(), sizes[:1], A_log)
    if dt_bias is not None:
        kept = dtype_name(dt_bias.dtype) in BIAS_DTYPES
        found["dt_bias"] = Seen(dt_bias.detach() if kept else dt_bias.detach().float(), sizes, dt_bias)
    return found
