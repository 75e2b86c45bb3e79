# SPDX-License-Identifier: Apache-2.0
"""The steps of kda_prefill: those of the chunked form, in torch's arithmetic and in the oracle's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdnbench_kernels.delta_prefill.steps import ChunkedSteps, steps_of
from gdnbench_kernels.kda_prefill.chunked import inputs_of
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import EXACT, tensor_core_arithmetic


def _params_of(call: Mapping[str, Any]) -> KdaPrefillParams:
    return from_call(KdaPrefillParams, call)


torch_steps = ChunkedSteps(tensor_core_arithmetic, _params_of, inputs_of)
exact_steps = ChunkedSteps(lambda dtype: EXACT, _params_of, inputs_of)

TORCH_STEPS, EXACT_STEPS = steps_of(f"{__name__}:torch_steps"), steps_of(f"{__name__}:exact_steps")
