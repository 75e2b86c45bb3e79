"""Shared by the wrappers of other packages' kernels for Kimi Delta Attention: arguments of gates."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


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
        rate = params.A_log
        if rate is None:
            rate = torch.zeros(params.v.shape[-2], dtype=torch.float32, device=params.v.device)
        bias = params.dt_bias
        given |= {"use_gate_in_kernel": True, "A_log": rate.contiguous()}
        given |= {"dt_bias": None if bias is None else bias.contiguous().view(-1)}
    if params.gate == "bounded":
        given["lower_bound"] = params.lower_bound
    return given
