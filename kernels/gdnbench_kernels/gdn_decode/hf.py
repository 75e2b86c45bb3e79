"""The kernel named `hf` of gdn_decode: transformers' torch_recurrent_gated_delta_rule on gathered slots."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.slots import PADDING, plan_slots
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.transformers_functions import check_scale, transformers_function


@takes_params(DecodeParams, without=("num_accepted", "A_log", "dt_bias", "beta_max", "gate", "state_layout"))
def hf(params: DecodeParams) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, K, V] in place and return o [B, 1, Hv, V], NaN for padding sequences.

    Raises NotImplementedError for more than one token per sequence: the function writes one state, not one
    per token.
    """
    q, k, v, state = params.q, params.k, params.v, params.state
    recurrent = transformers_function("torch_recurrent_gated_delta_rule")
    check_scale(params.scale, k.shape[3])
    if q.shape[1] != 1:
        raise NotImplementedError(f"transformers decodes one token a sequence, the call has S = {q.shape[1]}")
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(params.state_indices, read_indices=params.read_indices)
    active, value_heads = plan.active, v.shape[2]
    o = torch.full_like(v, torch.nan)
    out, final = recurrent(
        per_value_head(q[active], value_heads, axis=2),
        per_value_head(k[active], value_heads, axis=2),
        v[active],
        g=params.g[active],
        beta=params.beta[active],
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=params.qk == "raw",
    )
    assert final is not None
    o[active] = out
    written = plan.write[:, 0]
    kept = written != PADDING
    state[written[kept]] = final[kept].to(state.dtype)
    return {"o": o}
