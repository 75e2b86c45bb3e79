"""The gate and beta of gdn_decode in each of its forms.

Where the convention gate is raw, g holds a and beta holds b, what the model's projections gave, and

    g    = -exp(A_log) softplus(a + dt_bias)          softplus(x) = log(1 + exp(x))
    beta = beta_max sigmoid(b)

as Gated DeltaNet defines them (arXiv 2412.06464; transformers' qwen3_next, with beta_max 1).
"""

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
)
CONVENTIONS = (GATE, STATE_LAYOUT, QK, OFFSETS_DTYPE)


@dataclass(frozen=True, slots=True)
class Gates:
    """What a call says of its gates; `A_log` and `dt_bias` [Hv] are there where `form` is raw."""

    form: str  # value of the convention gate
    A_log: Tensor | None
    dt_bias: Tensor | None
    beta_max: float

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The factor of the state, of g or a [..., Hv]; computed and returned in `compute`."""
        if self.form != "raw":
            return decay(g, self.form, compute)
        return self.log_decay(g, compute).exp()

    def log_decay(self, a: Tensor, compute: torch.dtype) -> Tensor:
        """g of a [..., Hv], in `compute`; of raw gates alone."""
        assert self.A_log is not None
        assert self.dt_bias is not None
        x = a.to(compute) + self.dt_bias.to(compute)
        # log(exp(x) + exp(0)) keeps its relative accuracy at both ends, where torch's softplus turns linear
        # at 20: 2e-9 off, too much for an oracle.
        softplus = torch.logaddexp(x, torch.zeros_like(x))
        return -self.A_log.to(compute).exp() * softplus

    def beta(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        """The step size, of beta or b [..., Hv]; computed and returned in `compute`."""
        wide = beta.to(compute)
        return self.beta_max * wide.sigmoid() if self.form == "raw" else wide
