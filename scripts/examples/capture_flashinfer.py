#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""A program on FlashInfer that knows nothing of gdnbench: two layers, three prompts, eight tokens of each.

    gdnbench capture run.zarr -- python scripts/examples/capture_flashinfer.py

Prefill hands its states to a pool of slots, decoding updates them there. It needs a GPU and
`pip install 'gdnbench[peers]'`, and ends with status 3 without them.
"""

from __future__ import annotations

import torch
from gpu_program import needed, next_steps

LAYERS, HEADS, VALUE_HEADS, DIM, TOKENS = 2, 16, 32, 128, 8
PROMPTS = (130, 7, 64)
SLOTS = (5, 0, 9)  # of the sequences, in a pool of 12


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def prompts() -> dict[str, torch.Tensor]:
    """Packed: q, k [T, H, 128], v [T, Hv, 128] bf16; alpha, the gate itself, and beta [T, Hv] fp32."""
    tokens = sum(PROMPTS)
    q, k = (random(tokens, HEADS, DIM).bfloat16() for _ in range(2))
    gate = -torch.nn.functional.softplus(random(tokens, VALUE_HEADS))
    return {
        "q": q,
        "k": k,
        "v": random(tokens, VALUE_HEADS, DIM).bfloat16(),
        "g": gate.exp(),
        "beta": random(tokens, VALUE_HEADS).sigmoid(),
        "cu_seqlens": torch.tensor([0, *PROMPTS], device="cuda").cumsum(0),
    }


def token() -> dict[str, torch.Tensor]:
    """One of each sequence: q, k [B, 1, H, 128], v [B, 1, Hv, 128], raw gates a, b [B, 1, Hv], all bf16."""
    batch = len(PROMPTS)
    q, k = (random(batch, 1, HEADS, DIM).bfloat16() for _ in range(2))
    a, b = (random(batch, 1, VALUE_HEADS).bfloat16() for _ in range(2))
    return {"q": q, "k": k, "v": random(batch, 1, VALUE_HEADS, DIM).bfloat16(), "a": a, "b": b}


def main() -> None:
    needed("flashinfer", "flashinfer-python")
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    torch.manual_seed(0)
    slots = torch.tensor(SLOTS, dtype=torch.int32, device="cuda")
    pools = [torch.zeros(12, VALUE_HEADS, DIM, DIM, device="cuda") for _ in range(LAYERS)]
    gates = {"A_log": random(VALUE_HEADS), "dt_bias": random(VALUE_HEADS)}
    for pool in pools:
        _, final = chunk_gated_delta_rule(**prompts(), output_final_state=True, use_qk_l2norm_in_kernel=True)
        pool[slots.long()] = final
    for _ in range(TOKENS):
        for pool in pools:
            gated_delta_rule_decode_pretranspose(
                **token(), **gates, state=None, initial_state=pool, initial_state_indices=slots
            )
    torch.cuda.synchronize()
    next_steps("flashinfer")


if __name__ == "__main__":
    main()
