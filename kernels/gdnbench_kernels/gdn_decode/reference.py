"""The fp64 oracle of gdn_decode. It accepts every convention, so no conversion changes the caller's inputs
first."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.gdn_decode.steps import exact_steps


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
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """o [B, S, Hv, V] and the whole pool after the call, both fp64; the given pool stays unchanged. Fills
    `stages`, if given, with every stage.

    o of padding sequences is NaN.
    """
    return exact_steps.run_steps(
        stages,
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        state=state.clone() if state.dtype == torch.float64 else state,
        state_indices=state_indices,
        num_accepted=num_accepted,
        read_indices=read_indices,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        beta_max=beta_max,
        gate=gate,
        state_layout=state_layout,
        qk=qk,
    )
