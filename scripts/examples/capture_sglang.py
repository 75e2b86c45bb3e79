#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""A program on SGLang's Gated DeltaNet kernels that knows nothing of gdnbench: two layers, each with a pool
of states, three prompts, eight tokens of each, and a padding request in every step.

    gdnbench capture run.zarr -- python scripts/examples/capture_sglang.py

A whole server is captured the same way: `gdnbench capture run.zarr --first 8 -- python -m
sglang.launch_server --model-path MODEL`. This program needs a GPU and SGLang 0.5.11 or newer, and ends with
status 3 without them.
"""

from __future__ import annotations

import torch
from gpu_program import needed, next_steps

LAYERS, HEADS, VALUE_HEADS, DIM, SLOTS, TOKENS = 2, 16, 32, 128, 8, 8
PROMPTS = (0, 200, 230, 500)  # offsets
OWNED = (4, 1, 6)  # a slot of each prompt; -1 is none


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def main() -> None:
    needed("sglang", "sglang", "sglang")
    from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

    torch.manual_seed(0)
    kernels = TritonGDNKernel()
    slots = torch.tensor([*OWNED, -1], dtype=torch.int32, device="cuda")
    offsets = torch.tensor(PROMPTS, dtype=torch.int32, device="cuda")
    with torch.no_grad():
        pools = [torch.zeros(SLOTS, VALUE_HEADS, DIM, DIM, device="cuda") for _ in range(LAYERS)]
        for pool in pools:
            total = PROMPTS[-1]
            kernels.extend(
                q=random(1, total, HEADS, DIM),
                k=random(1, total, HEADS, DIM),
                v=random(1, total, VALUE_HEADS, DIM),
                g=-torch.nn.functional.softplus(torch.randn(1, total, VALUE_HEADS, device="cuda")),
                beta=torch.rand(1, total, VALUE_HEADS, device="cuda"),
                ssm_states=pool,
                cache_indices=slots[:3],
                query_start_loc=offsets,
            )
        for _ in range(TOKENS):
            for pool in pools:
                kernels.packed_decode(
                    mixed_qkv=random(len(slots), (2 * HEADS + VALUE_HEADS) * DIM),
                    a=random(len(slots), VALUE_HEADS),
                    b=random(len(slots), VALUE_HEADS),
                    A_log=torch.zeros(VALUE_HEADS, device="cuda"),
                    dt_bias=torch.zeros(VALUE_HEADS, device="cuda"),
                    scale=DIM**-0.5,
                    ssm_states=pool,
                    cache_indices=slots,
                    num_v_heads=VALUE_HEADS,
                    head_v_dim=DIM,
                )
    torch.cuda.synchronize()
    next_steps("torch")


if __name__ == "__main__":
    main()
