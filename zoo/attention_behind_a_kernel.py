# SPDX-License-Identifier: Apache-2.0
"""The gradients of attention of [1, 128, 2, 64] behind a Triton kernel, whose output is their `dout`. The
kernel lets dependent launches start early."""

import torch
import triton
import triton.language as tl
from flash_attn.cute.interface import flash_attn_func


@triton.jit
def twice(x, y, size: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(y + at, tl.load(x + at) * 2)


class Doubled(torch.autograd.Function):
    """2 x, and its gradient, by the kernel."""

    @staticmethod
    def forward(context, x):
        return launch(x)

    @staticmethod
    def backward(context, gradient):
        return launch(gradient)


def launch(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    twice[(x.numel() // 1024,)](x, y, 1024, launch_pdl=True)
    return y


torch.manual_seed(0)
q, k, v = (
    torch.randn(1, 128, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
)
out = flash_attn_func(q, k, v)
out = Doubled.apply(out[0] if isinstance(out, tuple) else out)
out.backward(torch.randn_like(out))
