"""Shared by the wrappers of other packages' kernels for Kimi Delta Attention: arguments of gates, and the
calls that serving engines' functions take."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from gdnbench_kernels.peers import contiguous_aligned


class Gated(Protocol):
    """The parameters of a call that tell how its gates are given."""

    @property
    def v(self) -> Tensor: ...
    @property
    def A_log(self) -> Tensor | None: ...
    @property
    def dt_bias(self) -> Tensor | None: ...
    @property
    def beta_max(self) -> float: ...
    @property
    def lower_bound(self) -> float | None: ...
    @property
    def gate(self) -> str: ...
    @property
    def beta_form(self) -> str: ...


class Served(Gated, Protocol):
    """The same with q."""

    @property
    def q(self) -> Tensor: ...


def fla_gates(params: Gated) -> dict[str, Any]:
    """The arguments of flash-linear-attention's functions that tell what g and beta hold."""
    given: dict[str, Any] = {}
    if params.gate != "log":
        given = {"use_gate_in_kernel": True, "A_log": params.A_log, "dt_bias": params.dt_bias}
    if params.gate == "bounded":
        given["lower_bound"] = params.lower_bound
    if params.beta_form == "logit":
        given |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": params.beta_max == 2}
    return given


def flashinfer_gates(params: Gated) -> dict[str, Any]:
    """The arguments of FlashInfer's recurrent_kda that tell what g and beta hold. A rate that is absent, 0,
    is given as zeros. dt_bias is [H*K], the one form that all its kernels take."""
    given: dict[str, Any] = {"beta_is_logit": params.beta_form == "logit"}
    if params.gate != "log":
        given |= {"use_gate_in_kernel": True, "A_log": rate(params), "dt_bias": bias(params)}
    if params.gate == "bounded":
        given["lower_bound"] = params.lower_bound
    return given


def refuse_engine(params: Served, peer: str) -> None:
    """Raises NotImplementedError for a call that neither vLLM's nor SGLang's functions take."""
    heads = params.q.shape[-2], params.v.shape[-2]
    if heads[0] != heads[1]:
        raise NotImplementedError(
            f"{peer} takes as many key heads as value heads, not {heads[0]} and {heads[1]}"
        )
    if params.beta_form == "logit" and params.beta_max != 1:
        raise NotImplementedError(f"{peer} computes beta as sigmoid(b), at most 1")


def rate(params: Gated) -> Tensor:
    """A_log [Hv], zeros where it is absent."""
    if params.A_log is not None:
        return contiguous_aligned(params.A_log)
    return torch.zeros(params.v.shape[-2], dtype=torch.float32, device=params.v.device)


def bias(params: Gated) -> Tensor | None:
    """dt_bias [Hv * K], None where it is absent."""
    return None if params.dt_bias is None else contiguous_aligned(params.dt_bias).view(-1)
