# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention's forward and backward, compared with autograd of the recurrence in fp64.

    pip install --no-deps --target peers flash-linear-attention==0.6.0 fla-core==0.6.0 triton==3.7.1 einops
    PYTHONPATH=peers gdnbench sim --machine b200 -- python scripts/fla_backward.py

It prints the relative error of each output and gradient, the norm of the difference over the norm of the
exact one, and exits with status 1 if one is above `LIMIT`. `--function recurrent` takes
fused_recurrent_gated_delta_rule, whose backward flash-linear-attention does not have.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ |= {"FLA_FLASH_QLA": "0", "FLA_DISABLE_BACKEND_DISPATCH": "1"}  # its own kernels and no others

import torch
from torch import Tensor

LIMIT = 1e-2
"""A few roundings to bf16, each of at most 2^-9 of a value, lie behind every output and gradient: inputs of
matrix products, intermediates between kernels, and the result."""
DIM = 64


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """o [B, T, Hv, V] and the final state [B, Hv, K, V], token by token; q and k are normalised here."""
    q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    outputs = []
    for token in range(q.shape[1]):
        qt, kt, vt = q[:, token], k[:, token], v[:, token]
        state = g[:, token].exp()[..., None, None] * state
        update = beta[:, token, :, None] * (vt - (kt[..., None] * state).sum(-2))
        state = state + kt[..., None] * update[..., None, :]
        outputs.append(q.shape[-1] ** -0.5 * (qt[..., None] * state).sum(-2))
    return torch.stack(outputs, 1), state


def inputs(tokens: int, heads: int, value_heads: int) -> dict[str, Tensor]:
    """bf16 q, k, v, g and beta and fp32 states of one sequence, on the CPU."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    bf16 = {
        "q": normal(1, tokens, heads, DIM),
        "k": normal(1, tokens, heads, DIM),
        "v": normal(1, tokens, value_heads, DIM),
        "g": torch.nn.functional.logsigmoid(normal(1, tokens, value_heads)),
        "beta": normal(1, tokens, value_heads).sigmoid(),
    }
    found = {name: x.bfloat16() for name, x in bf16.items()}
    return found | {"state": 0.1 * normal(1, value_heads, DIM, DIM)}


def relative_error(found: Tensor, exact: Tensor) -> float:
    exact = exact.detach()
    return float((found.detach().cpu().double() - exact).norm() / exact.norm())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--function", choices=("chunk", "recurrent"), default="chunk")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--heads", type=int, nargs=2, default=(1, 2), metavar=("H", "HV"))
    options = parser.parse_args()
    from fla.ops import gated_delta_rule

    function = getattr(
        gated_delta_rule,
        {"chunk": "chunk", "recurrent": "fused_recurrent"}[options.function] + "_gated_delta_rule",
    )
    backward = options.function == "chunk"
    given = inputs(options.tokens, *options.heads)
    random = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(given["v"].shape, generator=random),
        torch.randn(given["state"].shape, generator=random),
    ]

    exact = {name: x.double().requires_grad_(backward) for name, x in given.items()}
    expected = recurrence(**exact)
    on_gpu = {name: x.cuda().requires_grad_(backward) for name, x in given.items()}
    state = on_gpu["state"]
    tensors = {name: x for name, x in on_gpu.items() if name != "state"}
    found = function(**tensors, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    rows = {
        name: relative_error(x, y) for name, x, y in zip(("o", "final_state"), found, expected, strict=True)
    }
    if backward:
        sum((w.double() * y).sum() for w, y in zip(weights, expected, strict=True)).backward()
        torch.autograd.backward(found, [w.cuda().to(x.dtype) for w, x in zip(weights, found, strict=True)])
        for name, x in on_gpu.items():
            assert x.grad is not None
            assert exact[name].grad is not None
            rows[f"d {name}"] = relative_error(x.grad, exact[name].grad)
    for name, error in rows.items():
        print(f"{name:12} {error:.2e}{'' if error <= LIMIT else f'  above {LIMIT}'}")
    return int(any(not error <= LIMIT for error in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
