"""The steps of gdn_prefill: those of the chunked form, in torch's arithmetic and in the oracle's, and those
of `sm100`."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdnbench_kernels.contract import Step
from gdnbench_kernels.delta_prefill.steps import ChunkedSteps, steps_of
from gdnbench_kernels.gdn_prefill.chunked import inputs_of
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import EXACT, tensor_core_arithmetic


def _params_of(call: Mapping[str, Any]) -> PrefillParams:
    return from_call(PrefillParams, call)


torch_steps = ChunkedSteps(tensor_core_arithmetic, _params_of, inputs_of)
exact_steps = ChunkedSteps(lambda dtype: EXACT, _params_of, inputs_of)

TORCH_STEPS, EXACT_STEPS = steps_of(f"{__name__}:torch_steps"), steps_of(f"{__name__}:exact_steps")

_SM100 = "gdnbench_kernels.gdn_prefill.sm100_steps"
SM100_STEPS = (
    Step("form_a", (), ("g_cu", "A"), f"{_SM100}:form_a"),
    Step("invert", ("A",), ("Ai",), f"{_SM100}:invert"),
    Step("form_uw", ("Ai",), ("U", "W"), f"{_SM100}:form_uw"),
    Step("chunk_state", ("g_cu", "U", "W"), ("h", "V_new", "final_state"), f"{_SM100}:carry_state"),
    Step("chunk_output", ("g_cu", "h", "V_new"), ("o",), f"{_SM100}:read_out"),
)
"""The steps of `sm100`: builds of chunk_uw with different taps compute g_cu, A, Ai, U and W one by one."""
