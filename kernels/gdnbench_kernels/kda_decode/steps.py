# SPDX-License-Identifier: Apache-2.0
"""The steps of kda_decode, in torch's arithmetic, in the oracle's, and those of `cute`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdnbench_kernels.delta_decode.steps import DecodeSteps, Gate, compiled_steps, steps_of
from gdnbench_kernels.kda_contract import gates_of
from gdnbench_kernels.rounding import EXACT, tensor_core_arithmetic


def _gates(call: Mapping[str, Any]) -> tuple[Gate, Gate]:
    gates = gates_of(call)
    return gates.alpha, gates.step_size


torch_steps = DecodeSteps(tensor_core_arithmetic, _gates)
exact_steps = DecodeSteps(lambda dtype: EXACT, _gates)
TORCH_STEPS, EXACT_STEPS = steps_of(__name__, "torch_steps"), steps_of(__name__, "exact_steps")
CUTE_STEPS = compiled_steps("gdnbench_kernels.kda_decode.cute_steps")
