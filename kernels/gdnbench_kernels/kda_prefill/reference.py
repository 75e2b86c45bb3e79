"""The fp64 oracles of kda_prefill: token by token, and the chunked form with every stage.

They accept every convention, so no conversion changes the caller's inputs first.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import run_chunked
from gdnbench_kernels.delta_prefill.recurrence import recurrence
from gdnbench_kernels.kda_prefill.chunked import gates_of_params, inputs_of
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import EXACT


@takes_params(KdaPrefillParams, without=("chunk_size", "final_state_dtype"))
def reference(params: KdaPrefillParams) -> dict[str, Tensor]:
    """The recurrence, one token at a time in fp64: o [T, Hv, V] and final_state [N, Hv, V, K] in the caller's
    layout."""
    return recurrence(params, gates_of_params(params))


@takes_params(KdaPrefillParams, without=("final_state_dtype",))
def reference_staged(
    params: KdaPrefillParams, *, stages: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The chunked form in fp64, nothing rounded; fills `stages`, if given, with every stage."""
    return run_chunked(inputs_of(params), EXACT, params, stages)
