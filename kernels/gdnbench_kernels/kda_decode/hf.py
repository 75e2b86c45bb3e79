# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of kda_decode: transformers' recurrent_kimi_delta_attention on gathered slots."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_decode.hf import recur_on_slots
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import KIMI, transformers_function

OTHERS = ("num_accepted", "A_log", "dt_bias", "beta_max", "lower_bound", "gate", "beta_form", "state_layout")


@takes_params(KdaDecodeParams, without=OTHERS)
def hf(params: KdaDecodeParams) -> dict[str, Tensor]:
    """See `recur_on_slots`."""
    return recur_on_slots(transformers_function("recurrent_kimi_delta_attention", modeling=KIMI), params)
