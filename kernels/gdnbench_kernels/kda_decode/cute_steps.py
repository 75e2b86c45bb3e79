"""The steps of `cute`, each runnable alone, by builds with taps: `gates` returns the kernel's gates, `update`
replaces them and returns everything else. k . q and the norms of q and k belong to `update`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gdnbench_kernels.delta_decode.launch import LaunchArguments, launch_tapped
from gdnbench_kernels.kda_decode.launch_args import arguments
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.params import from_call


def gates(*, state: Tensor, **call: Any) -> dict[str, Tensor]:
    found = launch_tapped(*_begun({**call, "state": state.clone(), "o": None}, "dump"))
    return {name: found[name] for name in ("alpha_t", "beta_t")}


def update(*, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
    given, tap, shown = _begun(call, "inject")
    for name in ("alpha_t", "beta_t"):
        shown[name].copy_(stages[name])
    found = launch_tapped(given, tap, shown)
    return {"delta_t": found["delta_t"], "state": call["state"], **given.finish()}


def _begun(call: Mapping[str, Any], tap: Any) -> tuple[LaunchArguments, Any, dict[str, Tensor]]:
    """The checked call, and tensors for its stages."""
    given = arguments(from_call(KdaDecodeParams, call), call.get("o"))
    return given, tap, given.stage_tensors()
