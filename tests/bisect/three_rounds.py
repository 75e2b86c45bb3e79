# SPDX-License-Identifier: Apache-2.0
"""A kernel whose inverse of 16 x 16 blocks has three Newton-Schulz rounds in bf16 instead of four.

Without rounding three are enough: X <- 2 X - X M X with M = I + A, from X = I - A on, squares the residual
each time, and A^16 = 0. In bf16 the fourth round takes back the rounding of the first ones where keys are
alike and the inverse is large.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import ChunkedPrefill
from gdnbench_kernels.gdn_prefill.chunked import inputs_of
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.rounding import tensor_core_arithmetic

ROUNDS, BLOCK = 3, 16


def _served(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).double()


def _invert_block(a: Tensor) -> Tensor:
    """(I + A)^-1 of strictly lower triangular blocks [..., 16, 16]."""
    eye = torch.eye(BLOCK, dtype=a.dtype)
    inverse = _served(eye - a)
    for _ in range(ROUNDS):
        stored = _served(inverse)
        inverse = 2 * inverse - _served(stored @ (eye + a)) @ stored
    return inverse


def _invert(a: Tensor) -> Tensor:
    """(I + A)^-1 [c, Hv, C, C] by block rows, from the inverses of the blocks on the diagonal."""
    a = a.double()
    found = torch.zeros_like(a)
    for begin in range(0, a.shape[-1], BLOCK):
        rows = slice(begin, begin + BLOCK)
        block = _invert_block(a[..., rows, rows])
        found[..., rows, rows] = block
        found[..., rows, :begin] = -block @ a[..., rows, :begin] @ found[..., :begin, :begin]
    return found


class _ThreeRounds(ChunkedPrefill):
    def invert(self) -> None:
        self.stages["Ai"][:] = _invert(self.stages["A"]).to(self.stages["Ai"].dtype)


@takes_params(PrefillParams, without=("beta_max", "gate", "state_layout", "qk"))
def prefill(params: PrefillParams) -> dict[str, Tensor]:
    run = _ThreeRounds(inputs_of(params), tensor_core_arithmetic(params.v.dtype))
    outputs = {"o": run.run_steps()}
    if params.output_final_state:
        outputs["final_state"] = run.state.float()
    return outputs
