"""The fp64 oracle of gdn_decode. It accepts every convention itself, to judge the caller's very bits."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn import default_scale, in_vk
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.gdn_decode.recurrence import decode
from gdnbench_kernels.gdn_decode.slots import plan_slots


def reference(
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
    state_layout: str = "VK",
    qk: str = "normalised",
) -> dict[str, Tensor]:
    """o [B, S, Hv, V] and the whole pool after the call, both fp64; the pool passed in is left as it was.

    o of padding sequences is NaN.
    """
    pool = state.double()
    if pool is state:
        pool = state.clone()
    o = torch.full(v.shape, torch.nan, dtype=torch.float64, device=v.device)
    decode(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        source=in_vk(state, state_layout),
        pool=in_vk(pool, state_layout),
        o=o,
        plan=plan_slots(state_indices, num_accepted, read_indices),
        gates=Gates(gate, A_log, dt_bias, beta_max),
        scale=default_scale(scale, k.shape[3]),
        qk=qk,
        compute=torch.float64,
    )
    return {"o": o, "state": pool}
