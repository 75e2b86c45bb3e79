"""Shared by the two Kimi Delta Attention operations: conventions and gates.

KDA is Gated DeltaNet with one gate for each key channel: a state S [V, K] advances by

    S' = S diag(alpha);   u = beta (v - S' k);   S = S' + u k^T;   o = scale S q        alpha = exp(g) [K]

(arXiv 2510.26692). With equal channels this is Gated DeltaNet. g and beta come in one of these forms:

    gate log         g holds the log-space decay, <= 0
    gate raw         g = -exp(A_log) softplus(x + dt_bias)                softplus(x) = log(1 + exp(x))
    gate bounded     g = lower_bound sigmoid(exp(A_log) (x + dt_bias))    lower_bound < 0, -5 in served models
    beta_form value  beta holds the step size, in [0, beta_max]
    beta_form logit  beta = beta_max sigmoid(b)

where x and b, the outputs of the model's projections, stand in the tensors g and beta. dt_bias may be absent
and is then 0; with gate bounded A_log may be absent and is then 0.

Shapes use the contract's symbols: H key heads, Hv value heads, K and V head dims.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.contract import Convention
from gdnbench_kernels.gate_errors import bounded_gate_error, raw_gate_error
from gdnbench_kernels.gdn import OFFSETS_DTYPE, QK, STATE_LAYOUT

GATE = Convention(
    "gate",
    ("log", "raw", "bounded"),
    "g holds the log-space decay (<= 0) of each key channel, or x: g = -exp(A_log) softplus(x + dt_bias)"
    " where raw, g = lower_bound sigmoid(exp(A_log) (x + dt_bias)) where bounded",
    rounds=True,
)
BETA = Convention(
    "beta_form",
    ("value", "logit"),
    "beta holds the step size, or b: beta = beta_max sigmoid(b) where logit",
    rounds=True,
)
CONVENTIONS = (GATE, BETA, STATE_LAYOUT, QK, OFFSETS_DTYPE)


@dataclass(frozen=True, slots=True)
class KdaGates:
    """The gates of a call."""

    form: str
    """Value of the convention gate."""
    beta_form: str
    """Value of the convention beta_form."""
    beta_max: float
    """Upper end of beta's range, 1 or 2."""
    A_log: Tensor | None = None
    """[Hv]: log of a head's rate; needed if `form` is raw, 0 if None where bounded."""
    dt_bias: Tensor | None = None
    """[Hv, K]: added to x; 0 if None."""
    lower_bound: float | None = None
    """Least log-space decay; set if `form` is bounded."""

    def log_decay(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The log-space decay [..., Hv, K] in `compute`, from the call's g of that shape."""
        x = g.to(compute)
        if self.form == "log":
            return x
        if self.dt_bias is not None:
            x = x + self.dt_bias.to(compute)
        if self.form == "raw":
            assert self.A_log is not None
            # log(exp(x) + exp(0)) is accurate at both ends. torch's softplus becomes linear at 20, with an
            # error of 2e-9, too much for an oracle.
            softplus = torch.logaddexp(x, torch.zeros_like(x))
            return -self.A_log.to(compute).exp().unsqueeze(-1) * softplus
        assert self.lower_bound is not None
        if self.A_log is not None:
            x = self.A_log.to(compute).exp().unsqueeze(-1) * x
        return self.lower_bound * x.sigmoid()

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The factor of each column of the state [..., Hv, K], in `compute`."""
        return self.log_decay(g, compute).exp()

    def decay_error(self, g: Tensor) -> Tensor:
        """By how much approximate instructions may move the log-space decay, from its exact magnitude
        [..., Hv, K] in fp64; see `gate_errors`. 0 where the call has the decay itself."""
        log_rate = None if self.A_log is None else self.A_log.double().unsqueeze(-1)
        if self.form == "raw":
            assert log_rate is not None
            return raw_gate_error(g, log_rate)
        if self.form == "bounded":
            assert self.lower_bound is not None
            return bounded_gate_error(g, self.lower_bound, log_rate)
        return torch.zeros_like(g)

    def step_size(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        """The step size [..., Hv] in `compute`, from the call's beta of that shape."""
        wide = beta.to(compute)
        return self.beta_max * wide.sigmoid() if self.beta_form == "logit" else wide
