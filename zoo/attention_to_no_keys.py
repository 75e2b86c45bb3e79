"""Attention of 128 queries to no keys: zeros."""

import torch
from flash_attn.cute.interface import flash_attn_func

q = torch.randn(1, 128, 2, 64, device="cuda", dtype=torch.bfloat16)
k = v = torch.empty(1, 0, 2, 64, device="cuda", dtype=torch.bfloat16)
out = flash_attn_func(q, k, v)
out = out[0] if isinstance(out, tuple) else out
assert not out.any(), "attention to no keys is not zero"
print(f"{out.numel()} zeros")
