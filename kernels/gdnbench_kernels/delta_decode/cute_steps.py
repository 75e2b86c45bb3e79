# SPDX-License-Identifier: Apache-2.0
"""The steps of the kernels named `cute` of gdn_decode and kda_decode, by builds with taps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gdnbench_kernels.delta_decode.launch import LaunchArguments, launch_tapped


class TappedSteps:
    """The steps, each runnable alone: `gates` returns the kernel's gates, `update` replaces them and returns
    everything else. k . q and the norms of q and k belong to `update`. `arguments` checks a call, given by
    tensors, scalars and conventions, and makes the arguments of its launch."""

    def __init__(self, arguments: Callable[[Mapping[str, Any]], LaunchArguments]) -> None:
        self._arguments = arguments

    def gates(self, *, state: Tensor, **call: Any) -> dict[str, Tensor]:
        given = self._arguments({**call, "state": state.clone(), "o": None})
        found = launch_tapped(given, "dump", given.stage_tensors())
        return {name: found[name] for name in ("alpha_t", "beta_t")}

    def update(self, *, stages: Mapping[str, Tensor], **call: Any) -> dict[str, Tensor]:
        given = self._arguments(call)
        shown = given.stage_tensors()
        for name in ("alpha_t", "beta_t"):
            shown[name].copy_(stages[name])
        found = launch_tapped(given, "inject", shown)
        return {"delta_t": found["delta_t"], "state": call["state"], **given.finish()}
