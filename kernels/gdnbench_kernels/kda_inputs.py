# SPDX-License-Identifier: Apache-2.0
"""Synthetic gates of the Kimi Delta Attention operations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import ContractError
from gdnbench_kernels.gdn_inputs import Span, inverse_softplus, named_dtype, random_gates
from gdnbench_kernels.kda import CONVENTIONS
from gdnbench_kernels.validate import check_conventions


def random_channel_gates(shape: tuple[int, int, int], span: Span, generator: Generator) -> Tensor:
    """Log-space gates [T, Hv, K], fp32, <= 0. A channel's expected sum of |g| over 64 tokens is `span`; a
    range gives every channel of a head its own, as `random_gates` does for heads. At the -5 a token that
    served models allow a span is 320."""
    tokens, heads, channels = shape
    return random_gates((tokens, heads * channels), span, generator).view(shape)


def made_forms(
    op: str, gate: str, beta_form: str, state_layout: str, qk: str
) -> tuple[dict[str, str], dict[str, str]]:
    """The conventions of those values, and those in which the tensors are made: states are VK. Raises
    ContractError for a value that does not exist."""
    conventions = {"gate": gate, "beta_form": beta_form, "state_layout": state_layout, "qk": qk}
    check_conventions(op, CONVENTIONS, conventions)
    return conventions, {**conventions, "state_layout": "VK"}


def gate_inputs(
    by_token: dict[str, Tensor],
    conventions: Mapping[str, str],
    *,
    beta_max: float,
    lower_bound: float,
    dt_bias_dtype: str,
    generator: Generator,
) -> dict[str, Tensor]:
    """Replace g [T, Hv, K] and beta [T, Hv] by the inputs that give them in these conventions, but for the
    rounding to their dtype; returns A_log and dt_bias unless the gate is log.

    Rates are in [1, 16) for each head and time steps in [0.001, 0.1) for each channel, as in the models'
    initialisation. With gate raw a gate of 0 makes x = -inf; with gate bounded a gate at an end of
    [lower_bound, 0] or below it makes x infinite, and with beta_form logit so does a beta at an end of its
    range. Raises ContractError for a lower_bound that is not below 0.
    """
    bias = named_dtype("dt_bias_dtype", dt_bias_dtype, ("float32", "bfloat16"))
    if not (math.isfinite(lower_bound) and lower_bound < 0):
        raise ContractError(f"lower_bound is {lower_bound:g}; it must be below 0")
    if conventions["beta_form"] == "logit":
        by_token["beta"] = torch.logit(by_token["beta"] / beta_max)
    if conventions["gate"] == "log":
        return {}
    g = by_token["g"]
    _, heads, channels = g.shape
    rate = 1 + 15 * torch.rand(heads, generator=generator)
    steps = 10 ** (-3 + 2 * torch.rand(heads, channels, generator=generator))
    dt_bias = inverse_softplus(steps).to(bias)
    if conventions["gate"] == "raw":
        x = inverse_softplus(-g / rate[:, None])
    else:
        x = torch.logit((g / lower_bound).clamp(max=1.0)) / rate[:, None]
    by_token["g"] = x - dt_bias.float()
    return {"A_log": rate.log(), "dt_bias": dt_bias}
