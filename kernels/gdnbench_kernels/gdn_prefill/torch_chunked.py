"""The kernel named `torch` of gdn_prefill: the chunked form with the roundings of the served dtype.

It emulates the published three-kernel design (see `chunked`): operands in q's dtype, exact products, fp32
sums, and every intermediate that the design stores rounded to that dtype. With fp32 inputs everything is at
least fp32. Within one chunk a NaN reaches earlier tokens too, as in any kernel that multiplies a masked tile
by dense values (0 * NaN); it never leaves its sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn_prefill.chunked import ChunkedPrefill, PrefillInputs, published_stages
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic


@takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))
def torch_chunked(params: PrefillParams, *, stages: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """o [T, Hv, V] in v's dtype and final_state [N, Hv, V, K] in `final_state_dtype`; fills `stages` if
    given."""
    run = ChunkedPrefill(PrefillInputs.from_params(params), tensor_core_arithmetic(params.v.dtype))
    outputs = {"o": run.run_steps()}
    if params.output_final_state:
        outputs["final_state"] = run.state.to(final_dtype(params.initial_state, params.final_state_dtype))
    if stages is not None:
        stages.update(published_stages(run))
    return outputs


def final_dtype(initial_state: Tensor | None, asked: str | None) -> torch.dtype:
    """The dtype of final_state: `asked`, else the initial state's, else float32."""
    if asked is not None:
        dtype: torch.dtype = getattr(torch, asked)
        return dtype
    return torch.float32 if initial_state is None else initial_state.dtype
