"""QuACK's GEMM of 256 x 256 x 128 in bf16, compared with fp32."""

import torch
from quack.gemm_interface import gemm

torch.manual_seed(0)
a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((256, 128), (128, 256)))
out = gemm(a, b, tuned=False)
exact = a.float() @ b.float()
assert (out.float() - exact).abs().max() <= 2**-8 * exact.abs().max(), "wrong product"  # half an ulp of bf16
