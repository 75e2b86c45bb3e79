# SPDX-License-Identifier: Apache-2.0
"""Shared by the laws of Gated DeltaNet and Kimi Delta Attention: other values for tokens, other scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
SCALE_FACTOR = 4.0
"""Of the scalar `scale`."""
SCALED = 2.0**10
"""Factor of v and states. It takes values of 1 beyond the largest of fp8 (E4M3, 448), and 1e-3 beyond a
threshold of 1."""
LARGEST_SCALED = 2.0**100
"""Of v and states in magnitude before they are scaled up; larger ones are scaled down. fp32 ends at 2^128,
and a state sums many v."""
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
    return g + 2 if gate in ("raw", "bounded") else 2 * g - 0.5


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


@dataclass(frozen=True, slots=True)
class Scaled:
    """A call in which v and the states are `factor` times as large: u, states and o are linear in them.

    A factor of a power of two changes no rounding of a sum or product, except where a value is too small for
    fp32: then each of up to 2^24 operations that lead to an element (2^7 channels, 2^17 tokens) loses 2^-126,
    which keys of norm 1 and a step size of at most 2 increase to less than `underflow` = 2^-100 in a state,
    and `scale` times that in an output. float16 loses more; there the law is not exact.
    """

    tensors: Mapping[str, Tensor]
    factor: float
    exact: bool

    def underflow(self, call: Call, output: str) -> float:
        """Allowed difference of the rows of `output`, divided by the factor."""
        scale = abs(float(call.scalars.get("scale") or 1.0)) if output == "o" else 1.0
        return 2.0**-100 * max(1.0, scale) * max(1.0, 1 / self.factor)


def scaled_values(call: Call, state: str, copy: Callable[[Tensor], Tensor] = Tensor.clone) -> Scaled | None:
    """`call` with v and the tensor `state`, if it has one, scaled; `copy` copies a state. None where no power
    of two keeps all of them finite."""
    names = [name for name in ("v", state) if name in call.tensors]
    dtypes = {call.tensors[name].dtype for name in names}
    largest = max((_largest(call.tensors[name]) for name in names), default=0.0)
    narrow = torch.float16 in dtypes or call.scalars.get("final_state_dtype") == "float16"
    factor = SCALED if largest <= LARGEST_SCALED else 1 / SCALED
    if narrow:
        factor = min(SCALED, math.ldexp(1.0, math.floor(math.log2(LARGEST_V / max(largest, 1.0)))))
        if factor < 2:
            return None
    tensors = {}
    for name in names:
        tensors[name] = copy(call.tensors[name]) if name == state else call.tensors[name].clone()
        tensors[name] *= factor
    return Scaled({**call.tensors, **tensors}, factor, exact=not narrow)


def scaled_outputs(call: Call) -> Call:
    """`call` with `SCALE_FACTOR` times its scale: o is that many times as large, and states stay."""
    scale = call.scalars.get("scale")
    given = float(call.tensors["q"].shape[-1]) ** -0.5 if scale is None else float(scale)
    return Call(call.tensors, {**call.scalars, "scale": SCALE_FACTOR * given}, call.conventions)


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
