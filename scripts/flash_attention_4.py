# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-4's forward and backward, compared with its own reference by the rule of its own tests.

    pip install --no-deps --target peers flash-attn-4 quack-kernels torch-c-dlpack-ext einops triton
    PYTHONPATH=peers gdnbench sim --sms 4 -- python scripts/flash_attention_4.py --shape 1,512,384,2,128

An error may be twice that of PyTorch in the same dtype, plus the rounding of the reference, as in
`tests/cute/test_flash_attn.py` of FlashAttention. The exit status is 1 if one is above it.
"""

from __future__ import annotations

import argparse
import sys

import torch
from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func
from flash_attn.cute.testing import attention_ref
from torch import Tensor


def compare(name: str, found: Tensor, exact: Tensor, torch_in_bf16: Tensor) -> bool:
    """Print the largest error of `found` and its limit. Whether it is within it."""
    rounding = 2 * (exact + 0.3 - 0.3 - exact).abs().max().item()
    limit = 2 * (torch_in_bf16 - exact).abs().max().item() + rounding
    error = (found - exact).abs().max().item()
    print(f"{name}: error {error:.2e}, limit {limit:.2e}, largest element {exact.abs().max().item():.3g}")
    return error <= limit


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, varlen: bool, splits: int) -> Tensor:
    """flash_attn_func's output, with `varlen` that of flash_attn_varlen_func for packed sequences."""
    if not varlen:
        out = flash_attn_func(q, k, v, causal=causal, num_splits=splits)
        return out[0] if isinstance(out, tuple) else out
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    out = flash_attn_varlen_func(
        *(x.flatten(0, 1) for x in (q, k, v)),
        cu_seqlens_q=torch.arange(0, batch + 1, device="cuda", dtype=torch.int32) * queries,
        cu_seqlens_k=torch.arange(0, batch + 1, device="cuda", dtype=torch.int32) * keys,
        max_seqlen_q=queries,
        max_seqlen_k=keys,
        causal=causal,
    )
    return (out[0] if isinstance(out, tuple) else out).unflatten(0, (batch, queries))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1,256,256,2,128", help="batch,queries,keys,heads,head_dim")
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--varlen", action="store_true", help="the batch as packed sequences")
    parser.add_argument("--splits", type=int, default=1, help="num_splits")
    parser.add_argument("--backward", action="store_true")
    options = parser.parse_args()
    batch, queries, keys, heads, dim = map(int, options.shape.split(","))
    kv_heads = options.kv_heads or heads
    torch.manual_seed(0)
    lengths = {"q": (queries, heads), "k": (keys, kv_heads), "v": (keys, kv_heads)}
    inputs = [
        torch.randn(batch, *length, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for length in lengths.values()
    ]
    exact, _ = attention_ref(*inputs, causal=options.causal)
    in_bf16, _ = attention_ref(*inputs, causal=options.causal, upcast=False, reorder_ops=True)
    out = attention(*inputs, causal=options.causal, varlen=options.varlen, splits=options.splits)
    right = [compare("out", out, exact, in_bf16)]
    if options.backward:
        dout = torch.randn_like(out)
        gradients = [torch.autograd.grad(x, inputs, dout, retain_graph=True) for x in (out, exact, in_bf16)]
        for name, *three in zip(lengths, *gradients, strict=True):
            right.append(compare(f"d{name}", *three))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
