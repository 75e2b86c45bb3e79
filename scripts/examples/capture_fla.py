#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""A program on flash-linear-attention that knows nothing of gdnbench: two layers, one prompt, eight tokens.

    gdnbench capture run.zarr -- python scripts/examples/capture_fla.py

It needs a GPU and `pip install 'gdnbench[peers]'`, and ends with status 3 without them. FLA_FLASH_QLA=0 and
FLA_DISABLE_BACKEND_DISPATCH=1 in the environment keep the work with the package's own kernels.
"""

from __future__ import annotations

import torch
from gpu_program import needed, next_steps

LAYERS, HEADS, DIM, PROMPT, TOKENS = 2, 16, 128, 200, 8


def inputs(tokens: int) -> dict[str, torch.Tensor]:
    """Of one sequence: q, k, v [1, T, H, 128] bf16, log gates and beta [1, T, H] fp32."""
    q, k, v = (torch.randn(1, tokens, HEADS, DIM, device="cuda").bfloat16() for _ in range(3))
    a, b = (torch.randn(1, tokens, HEADS, device="cuda") for _ in range(2))
    return {"q": q, "k": k, "v": v, "g": -torch.nn.functional.softplus(a), "beta": b.sigmoid()}


def main() -> None:
    needed("fla", "flash-linear-attention")
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    torch.manual_seed(0)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    with torch.no_grad():
        states = [chunk_gated_delta_rule(**inputs(PROMPT), **options)[1] for _ in range(LAYERS)]
        for _ in range(TOKENS):
            for layer, state in enumerate(states):
                _, states[layer] = fused_recurrent_gated_delta_rule(
                    **inputs(1), initial_state=state, **options
                )
    torch.cuda.synchronize()
    next_steps("fla")


if __name__ == "__main__":
    main()
