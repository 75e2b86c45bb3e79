#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""A program on vLLM's Gated DeltaNet functions that knows nothing of gdnbench: two layers, each with a pool
of states, three prompts, eight tokens of each, and a padding request in every step.

    gdnbench capture run.zarr -- python scripts/examples/capture_vllm.py

A whole server is captured the same way: `gdnbench capture run.zarr --first 8 -- vllm serve MODEL`. This
program needs a GPU and vLLM 0.24 or newer, and ends with status 3 without them.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch
from gpu_program import needed, next_steps

LAYERS, HEADS, VALUE_HEADS, DIM, SLOTS, TOKENS = 2, 16, 32, 128, 8, 8
PROMPTS = (0, 200, 230, 500)  # offsets
OWNED = (4, 1, 6)  # a slot of each prompt; slot 0 is none


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def functions() -> ModuleType:
    """vLLM's, from where it has them since 0.28 at the latest, or before."""
    try:
        return import_module("vllm.third_party.flash_linear_attention.ops")
    except ModuleNotFoundError:
        return import_module("vllm.model_executor.layers.fla.ops")


def main() -> None:
    needed("vllm", "vllm", "vllm")
    ops = functions()
    torch.manual_seed(0)
    slots = torch.tensor([*OWNED, 0], dtype=torch.int32, device="cuda")
    offsets = torch.tensor(PROMPTS, dtype=torch.int32, device="cuda")
    with torch.no_grad():
        pools = [torch.zeros(SLOTS, VALUE_HEADS, DIM, DIM, device="cuda") for _ in range(LAYERS)]
        for pool in pools:
            total = PROMPTS[-1]
            _, final = ops.chunk_gated_delta_rule(
                q=random(1, total, HEADS, DIM),
                k=random(1, total, HEADS, DIM),
                v=random(1, total, VALUE_HEADS, DIM),
                g=-torch.nn.functional.softplus(torch.randn(1, total, VALUE_HEADS, device="cuda")),
                beta=torch.rand(1, total, VALUE_HEADS, device="cuda"),
                initial_state=pool[slots[:3].long()],
                output_final_state=True,
                cu_seqlens=offsets,
                use_qk_l2norm_in_kernel=True,
            )
            pool[slots[:3].long()] = final
        for _ in range(TOKENS):
            for pool in pools:
                ops.fused_recurrent_gated_delta_rule_packed_decode(
                    mixed_qkv=random(len(slots), (2 * HEADS + VALUE_HEADS) * DIM),
                    a=random(len(slots), VALUE_HEADS),
                    b=random(len(slots), VALUE_HEADS),
                    A_log=torch.zeros(VALUE_HEADS, device="cuda"),
                    dt_bias=torch.zeros(VALUE_HEADS, device="cuda"),
                    scale=DIM**-0.5,
                    initial_state=pool,
                    out=torch.empty(len(slots), 1, VALUE_HEADS, DIM, device="cuda", dtype=torch.bfloat16),
                    ssm_state_indices=slots,
                    use_qk_l2norm_in_kernel=True,
                )
    torch.cuda.synchronize()
    next_steps("torch")


if __name__ == "__main__":
    main()
