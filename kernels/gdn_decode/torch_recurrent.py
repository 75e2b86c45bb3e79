"""The kernel named `torch` of gdn_decode: the recurrence with the served dtypes.

fp32 arithmetic on the recorded operands; the state is loaded from its dtype, carried in fp32 over the tokens
of a call, and rounded to its dtype on each store; o is rounded to v's dtype. q and k, where raw, are
normalised in fp32 and not rounded. g and beta are used at the precision they were recorded in; where raw,
they are computed in fp32 and not rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.gdn_decode.recurrence import decode
from gdnbench_kernels.gdn_decode.slots import plan_slots


def torch_recurrent(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    beta_max: float = 1.0,
    gate: str = "log",
    qk: str = "normalised",
) -> dict[str, Tensor]:
    """Updates `state` in place and returns o [B, S, Hv, V] in v's dtype, NaN for padding sequences."""
    o = torch.full_like(v, torch.nan)
    decode(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        source=state,
        pool=state,
        o=o,
        plan=plan_slots(state_indices, num_accepted, read_indices),
        gates=Gates(gate, A_log, dt_bias, beta_max),
        scale=default_scale(scale, k.shape[3]),
        qk=qk,
        compute=torch.float32,
    )
    return {"o": o}
