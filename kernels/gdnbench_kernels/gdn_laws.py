"""Shared by the laws of both Gated DeltaNet operations: other values for tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call

LOUDER = 8
"""Changed values v are 2^8 times as large. A leak of a share e of them moves an output of the unchanged
tokens, of the size of v, by 256 e, far above any limit of rounding for e from 1e-4."""
LARGEST_V = 2.0**13
"""Of a changed v in magnitude: float16 ends at 65504, and a state sums several v."""
STATE_FACTOR = -16.0
"""Of a changed state."""
BY_TOKEN = ("q", "k", "v", "g", "beta")


def changed_tokens(call: Call, chosen: Tensor) -> dict[str, Tensor]:
    """q, k, v, g and beta with other finite values where `chosen`, a mask over their leading axes, is true.

    The chosen tokens exchange their values in a cycle, so that each keeps to its convention; v is louder and
    of the other sign, and gates decay more.
    """
    tensors = {name: call.tensors[name].clone() for name in BY_TOKEN}
    for name, tensor in tensors.items():
        rolled = tensor[chosen].roll(1, 0)
        if name == "v":
            rolled = rolled * -_louder(call.tensors["v"])
        elif name == "g":
            rolled = _stronger(rolled, call.conventions.get("gate", "log"))
        tensor[chosen] = rolled
    return tensors


def _louder(v: Tensor) -> float:
    """A power of two, so that no product of v rounds otherwise."""
    largest = float(v[v.isfinite()].abs().max()) if bool(v.isfinite().any()) else 0.0
    if largest == 0 or v.dtype is not torch.float16:
        return 2.0**LOUDER
    return math.ldexp(1.0, max(1, min(LOUDER, math.floor(math.log2(LARGEST_V / largest)))))


def _stronger(g: Tensor, gate: str) -> Tensor:
    if gate == "linear":
        return g * 0.5
    return g + 2 if gate == "raw" else 2 * g - 0.5


def output_factor(call: Call) -> float:
    """By how much an error of a state, in the Frobenius norm, moves an output at most, in the 2-norm, over
    sqrt(K): the factor between RMS errors of states and of outputs.

    o = scale S q, hence |scale dS q| <= scale |dS|_F |q|. |dS|_F is sqrt(V K) times its RMS and |o| sqrt(V)
    times that of o, so that rms(do) <= scale |q| sqrt(K) rms(dS). Raw queries are normalised first.
    """
    q = call.tensors["q"]
    key_dim = q.shape[-1]
    scale = call.scalars.get("scale")
    factor = float(key_dim) ** -0.5 if scale is None else abs(float(scale))
    longest = 1.0
    if call.conventions.get("qk", "normalised") == "normalised" and q.numel():
        longest = float(q.float().norm(dim=-1).nan_to_num(0.0, 0.0).max())
    return factor * longest * math.sqrt(key_dim)
