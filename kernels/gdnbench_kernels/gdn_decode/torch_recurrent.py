"""The kernel named `torch` of gdn_decode: the recurrence with the served dtypes.

The arithmetic is fp32 on the recorded operands. The state is loaded from its dtype, stays in fp32 over the
tokens of a call, and is rounded to its dtype on each store; o is rounded to v's dtype. Raw q and k are
normalised in fp32 and not rounded. g and beta are used in their recorded precision; raw ones are computed in
fp32 and not rounded.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.steps import torch_steps
from gdnbench_kernels.params import by_name, takes_params


@takes_params(DecodeParams, without=("state_layout",))
def torch_recurrent(params: DecodeParams, *, stages: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Update `state` in place and return o [B, S, Hv, V] in v's dtype, NaN for padding sequences; fill
    `stages`, if given, with every stage."""
    return {"o": torch_steps.run_steps(stages, **by_name(params))["o"]}
