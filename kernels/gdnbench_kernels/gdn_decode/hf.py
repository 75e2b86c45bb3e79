"""The kernel named `hf` of gdn_decode: transformers' torch_recurrent_gated_delta_rule on gathered slots."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.gdn_decode.slots import PADDING, plan_slots
from gdnbench_kernels.transformers_functions import check_scale, transformers_function


def hf(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    read_indices: Tensor | None = None,
    scale: float | None = None,
    qk: str = "normalised",
) -> dict[str, Tensor]:
    """Update `state` [slots, Hv, K, V] in place and return o [B, 1, Hv, V], NaN for padding sequences.

    Raises NotImplementedError for more than one token per sequence: the function writes one state, not one
    per token.
    """
    recurrent = transformers_function("torch_recurrent_gated_delta_rule")
    check_scale(scale, k.shape[3])
    if q.shape[1] != 1:
        raise NotImplementedError(f"transformers decodes one token a sequence, the call has S = {q.shape[1]}")
    # With one token per sequence num_accepted can only be 1.
    plan = plan_slots(state_indices, read_indices=read_indices)
    active, value_heads = plan.active, v.shape[2]
    o = torch.full_like(v, torch.nan)
    out, final = recurrent(
        per_value_head(q[active], value_heads, axis=2),
        per_value_head(k[active], value_heads, axis=2),
        v[active],
        g=g[active],
        beta=beta[active],
        initial_state=state[plan.read],
        output_final_state=True,
        use_qk_l2norm_in_kernel=qk == "raw",
    )
    assert final is not None
    o[active] = out
    written = plan.write[:, 0]
    kept = written != PADDING
    state[written[kept]] = final[kept].to(state.dtype)
    return {"o": o}
