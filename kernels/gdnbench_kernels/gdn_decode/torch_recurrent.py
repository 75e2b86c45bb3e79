"""The kernel named `torch` of gdn_decode: the recurrence with the served dtypes.

The arithmetic is fp32 on the recorded operands. The state is loaded from its dtype, stays in fp32 over the
tokens of a call, and is rounded to its dtype on each store; o is rounded to v's dtype. Raw q and k are
normalised in fp32 and not rounded. g and beta are used in their recorded precision; raw ones are computed in
fp32 and not rounded.
"""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gdn_decode.steps import torch_steps


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
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Update `state` in place and return o [B, S, Hv, V] in v's dtype, NaN for padding sequences; fill
    `stages`, if given, with every stage."""
    found = torch_steps.run_steps(
        stages,
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        state=state,
        state_indices=state_indices,
        num_accepted=num_accepted,
        read_indices=read_indices,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        beta_max=beta_max,
        gate=gate,
        qk=qk,
    )
    return {"o": found["o"]}
