# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of gdn_decode: transformers' torch_recurrent_gated_delta_rule on gathered slots."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_decode.hf import recur_on_slots
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import transformers_function


@takes_params(DecodeParams, without=("num_accepted", "A_log", "dt_bias", "beta_max", "gate", "state_layout"))
def hf(params: DecodeParams) -> dict[str, Tensor]:
    """See `recur_on_slots`."""
    return recur_on_slots(transformers_function("torch_recurrent_gated_delta_rule"), params)
