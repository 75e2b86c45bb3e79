# SPDX-License-Identifier: Apache-2.0
"""Limits of kda_decode's stages besides the ratio to torch's error, from `delta_decode.stage_rules`."""

from __future__ import annotations

from gdnbench_kernels.contract import Call, Limit
from gdnbench_kernels.delta_decode.stage_rules import computed_beta_limit


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limit of a stage; None without one, and for a beta that is an input."""
    return computed_beta_limit(call, stage) if call.conventions.get("beta_form") == "logit" else None
