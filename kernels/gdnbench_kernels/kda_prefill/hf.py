# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of kda_prefill: transformers' chunk_kimi_delta_attention, sequence by sequence."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.hf import run_by_sequence
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import KIMI, transformers_function

OTHERS = ("A_log", "dt_bias", "beta_max", "lower_bound", "gate", "beta_form", "state_layout")


@takes_params(KdaPrefillParams, without=OTHERS)
def hf(params: KdaPrefillParams) -> dict[str, Tensor]:
    """See `run_by_sequence`."""
    return run_by_sequence(transformers_function("chunk_kimi_delta_attention", modeling=KIMI), params)
