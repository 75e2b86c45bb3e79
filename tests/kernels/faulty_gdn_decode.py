# SPDX-License-Identifier: Apache-2.0
"""Kernels of gdn_decode, each with one fault that has been met in practice; `correct` has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

TAKES = {"gate": ("log", "linear", "raw"), "qk": ("normalised", "raw")}
Kernel = Callable[..., dict[str, Tensor]]


def _kernel(change: Callable[[dict[str, Any]], None]) -> Kernel:
    def kernel(**given: Any) -> dict[str, Tensor]:
        known = {name: value for name, value in given.items() if name not in ("state_layout", "offsets", "o")}
        change(known)
        return torch_recurrent(**known)

    kernel.conventions = TAKES  # type: ignore[attr-defined]
    return kernel


def _beta_of(given: dict[str, Any]) -> Tensor:
    if given["gate"] != "raw":
        return given["beta"].float()
    return given["beta_max"] * given["beta"].float().sigmoid()


def _log_gates(given: dict[str, Any], softplus: Callable[[Tensor], Tensor]) -> None:
    """Replaces raw gates by log ones."""
    if given["gate"] == "raw":
        beta = _beta_of(given)
        g = -given.pop("A_log").exp() * softplus(given["g"].float() + given.pop("dt_bias").float())
        given |= {"g": g, "beta": beta, "gate": "log"}


def _round_beta(given: dict[str, Any]) -> None:
    _log_gates(given, torch.nn.functional.softplus)
    given["beta"] = given["beta"].to(torch.bfloat16)


def _coarse_softplus(given: dict[str, Any]) -> None:
    """log(1 + exp(x)), the sum rounded to 2^-18; an error of 2^-22 in its logarithm is allowed."""
    _log_gates(given, lambda x: ((1 + x.exp()) * 2**18).round().div(2**18).log())


def _bias_in_bf16(given: dict[str, Any]) -> None:
    if given["gate"] == "raw":
        given["g"] = (given["g"].bfloat16() + given["dt_bias"].bfloat16()).bfloat16()
        given["dt_bias"] = torch.zeros_like(given["dt_bias"])


def _beta_of_one(given: dict[str, Any]) -> None:
    given["beta_max"] = 1.0


def _ignore_accepted(given: dict[str, Any]) -> None:
    given.pop("num_accepted", None)


def _ignore_reads(given: dict[str, Any]) -> None:
    given.pop("read_indices", None)


def _forget_scale(given: dict[str, Any]) -> None:
    given["scale"] = None


correct = _kernel(lambda _: None)
rounds_beta = _kernel(_round_beta)
coarse_softplus = _kernel(_coarse_softplus)
bias_in_bf16 = _kernel(_bias_in_bf16)
beta_to_one = _kernel(_beta_of_one)
ignores_accepted = _kernel(_ignore_accepted)
ignores_reads = _kernel(_ignore_reads)
own_scale = _kernel(_forget_scale)


def other_heads(**given: Any) -> dict[str, Tensor]:
    """Value head hv uses key head hv % H."""
    heads, values = given["k"].shape[2], given["v"].shape[2]
    order = torch.arange(values) % heads
    return correct(**{**given, "q": given["q"][:, :, order], "k": given["k"][:, :, order]})


def writes_what_it_reads(**given: Any) -> dict[str, Tensor]:
    """Slots to read are written to, whoever else reads them."""
    found, read = correct(**given), given.get("read_indices")
    if read is not None:
        given["state"][read[read >= 0].long()] = 0
    return found


def writes_holes(**given: Any) -> dict[str, Tensor]:
    """Slot -1 is taken for the last one, as indexing does."""
    found = correct(**given)
    if bool((given["state_indices"] == -1).any()):
        given["state"][-1] = 0
    return found


def leans(**given: Any) -> dict[str, Tensor]:
    """Rounds fp32 states towards zero, to an even last bit."""
    found = correct(**given)
    state = given["state"]
    if state.dtype == torch.float32:
        bits = state.view(torch.int32)
        bits &= -2
    return found


for _wrong in (other_heads, writes_what_it_reads, writes_holes, leans):
    _wrong.conventions = TAKES  # type: ignore[attr-defined]
