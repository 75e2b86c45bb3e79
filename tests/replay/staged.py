# SPDX-License-Identifier: Apache-2.0
"""Kernels that show their stages, rightly or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked

PREFILL = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "output_final_state")


def shows_all(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    return torch_chunked(**{name: call[name] for name in PREFILL if name in call}, stages=stages)


def wrong_at_w(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    """Outputs are right; W is not, at chunk 3, which is the second of sequence 3, row 4, head 1, key 7."""
    results = shows_all(stages=stages, **call)
    if stages is not None:
        stages["W"][3 * 64 + 4, 1, 7] += 1
    return results


def shows_u(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    filled: dict[str, Tensor] = {}
    results = shows_all(stages=filled, **call)
    if stages is not None:
        stages["U"] = filled["U"]
    return results


def linear(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    """Takes alpha and a state of the other layout; its stages are the contract's all the same."""
    call["g"] = call["g"].log()
    call["initial_state"] = call["initial_state"].transpose(-1, -2).contiguous()
    results = shows_all(stages=stages, **call)
    return results | {"final_state": results["final_state"].transpose(-1, -2).contiguous()}


linear.conventions = {"gate": "linear", "state_layout": "KV"}  # type: ignore[attr-defined]


def shows_none(*, stages: dict[str, Tensor] | None = None, **call: Any) -> dict[str, Tensor]:
    return shows_all(**call)


def shows_a_stranger(*, stages: dict[str, Any] | None = None, **call: Any) -> dict[str, Tensor]:
    if stages is not None:
        stages["QK"] = torch.zeros(1)
    return shows_all(**call)


def shows_no_tensor(*, stages: dict[str, Any] | None = None, **call: Any) -> dict[str, Tensor]:
    if stages is not None:
        stages["U"] = [1.0]
    return shows_all(**call)
