"""The gate and beta of gdn_decode in each convention.

If the convention gate is raw, g contains a and beta contains b, the outputs of the model's projections, and

    g    = -exp(A_log) softplus(a + dt_bias)          softplus(x) = log(1 + exp(x))
    beta = beta_max sigmoid(b)

as Gated DeltaNet defines them (arXiv 2412.06464; transformers' qwen3_next, with beta_max 1).
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.contract import Convention
from gdnbench_kernels.gdn import OFFSETS_DTYPE, QK, STATE_LAYOUT, decay

GATE = Convention(
    "gate",
    ("log", "linear", "raw"),
    "g holds the log-space decay (<= 0), or alpha = exp(g) in [0, 1] where linear; where raw, g holds a and"
    " beta holds b: g = -exp(A_log) softplus(a + dt_bias), beta = beta_max sigmoid(b)",
    rounds=True,
)
CONVENTIONS = (GATE, STATE_LAYOUT, QK, OFFSETS_DTYPE)


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a call; `A_log` and `dt_bias` [Hv] are set if `form` is raw."""

    form: str  # value of the convention gate
    A_log: Tensor | None
    dt_bias: Tensor | None
    beta_max: float

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The factor of the state, from g or a [..., Hv], in `compute`."""
        if self.form != "raw":
            return decay(g, self.form, compute)
        return self.log_decay(g, compute).exp()

    def log_decay(self, a: Tensor, compute: torch.dtype) -> Tensor:
        """g, from a [..., Hv], in `compute`; only for raw gates."""
        assert self.A_log is not None
        assert self.dt_bias is not None
        x = a.to(compute) + self.dt_bias.to(compute)
        # log(exp(x) + exp(0)) is accurate at both ends. torch's softplus becomes linear at 20, with an error
        # of 2e-9, too much for an oracle.
        softplus = torch.logaddexp(x, torch.zeros_like(x))
        return -self.A_log.to(compute).exp() * softplus

    def beta(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        """The step size, from beta or b [..., Hv], in `compute`."""
        wide = beta.to(compute)
        return self.beta_max * wide.sigmoid() if self.form == "raw" else wide
