# SPDX-License-Identifier: Apache-2.0
"""The steps of `cute`, each runnable alone; see `delta_decode.cute_steps`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdnbench_kernels.delta_decode.cute_steps import TappedSteps
from gdnbench_kernels.delta_decode.launch import LaunchArguments
from gdnbench_kernels.gdn_decode.launch_args import arguments
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import from_call


def _arguments(call: Mapping[str, Any]) -> LaunchArguments:
    return arguments(from_call(DecodeParams, call), call.get("o"))


_steps = TappedSteps(_arguments)
gates, update = _steps.gates, _steps.update
