# SPDX-License-Identifier: Apache-2.0
"""The kernel named `hf` of gdn_prefill: transformers' torch_chunk_gated_delta_rule, sequence by sequence."""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.hf import run_by_sequence
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import transformers_function


@takes_params(PrefillParams, without=("beta_max", "gate", "state_layout"))
def hf(params: PrefillParams) -> dict[str, Tensor]:
    """See `run_by_sequence`."""
    return run_by_sequence(transformers_function("torch_chunk_gated_delta_rule"), params)
