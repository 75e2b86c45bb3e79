# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of gdn_decode: norms, exponentials, rounding, and errors of a given size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.gdn_decode_kernel import At, Decode, dot
from tests.power.library import Shelf
from tests.power.number_formats import exp_by_polynomial, exp_in, keep_bits, truncated
from tests.power.repetition import OffEverySecondCall, RandomOrders

shelf = Shelf("gdn_decode", right=False)


# Norms


class WrongNorm(Decode):
    """q, k or both normalised by another rule."""

    def __init__(self, rule: Any, names: str = "qk") -> None:
        super().__init__()
        self.rule, self.names = rule, names

    def normalise(self, x: Tensor, name: str) -> Tensor:
        return self.rule(x.float()) if name in self.names else super().normalise(x, name)


def l2(x: Tensor, eps: float = 1e-6, dim: int = -1) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim, keepdim=True) + eps)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def half_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x[..., : x.shape[-1] // 2].square().sum(-1, keepdim=True) + 1e-6)


shelf.add("norms", "q and k are not normalised", WrongNorm(lambda x: x))
shelf.add("norms", "q is not normalised", WrongNorm(lambda x: x, "q"))
shelf.add("norms", "k is not normalised", WrongNorm(lambda x: x, "k"))
shelf.add("norms", "eps 1e-3", WrongNorm(lambda x: l2(x, 1e-3)))
shelf.add("norms", "eps 1e-5", WrongNorm(lambda x: l2(x, 1e-5)))
shelf.add("norms", "over heads", WrongNorm(lambda x: l2(x, dim=2)))
shelf.add("norms", "RMS norm", WrongNorm(rms_norm))
shelf.add("norms", "of the first half of K", WrongNorm(half_norm))
shelf.add("norms", "q and k rounded to bf16 after it", WrongNorm(lambda x: l2(x).bfloat16().float()))


# Exponentials and sums


def dot_in_bf16(state: Tensor, x: Tensor) -> Tensor:
    return dot(state.bfloat16().float(), x.bfloat16().float())


def dot_in_tf32(state: Tensor, x: Tensor) -> Tensor:
    return dot(keep_bits(state, 10), keep_bits(x, 10))


def sum_in_bf16(state: Tensor, x: Tensor) -> Tensor:
    terms = state * x.unsqueeze(-2)
    terms = terms.reshape(*terms.shape[:-1], -1, 16).sum(-1)
    total = torch.zeros_like(terms[..., 0])
    for i in range(terms.shape[-1]):
        total = (total + terms[..., i]).bfloat16().float()
    return total


def without_last_lane(state: Tensor, x: Tensor) -> Tensor:
    """The last 8 terms of K are not summed."""
    return dot(state[..., :-8], x[..., :-8])


for bits in (10, 12, 14, 18):
    shelf.add(
        "exponentials", f"a polynomial with an error of 2^-{bits}", Decode(exp=exp_by_polynomial(2.0**-bits))
    )
shelf.add("exponentials", "in fp16", Decode(exp=exp_in("float16")))
shelf.add("exponentials", "in bf16", Decode(exp=exp_in("bfloat16")))
shelf.add("sums", "operands in bf16", Decode(dot=dot_in_bf16))
shelf.add("sums", "operands in tf32", Decode(dot=dot_in_tf32))
shelf.add("sums", "partial sums in bf16", Decode(dot=sum_in_bf16))
shelf.add("sums", "the last 8 of K are missing", Decode(dot=without_last_lane))
shelf.add("sums", "delta rounded to bf16", Decode(delta=lambda x, _: x.bfloat16().float()))
shelf.add("sums", "S k rounded to bf16", Decode(seen=lambda x, _: x.bfloat16().float()))


# Sizes


def of_sequence(edit: spoil.Edit) -> spoil.Edit:
    """`edit` on the first active sequence alone."""

    def edited(x: Tensor, at: At) -> Tensor:
        chosen = (torch.arange(len(x)) == 0).view(-1, *(1,) * (x.ndim - 1))
        return torch.where(chosen, edit(x, at), x)

    return edited


def every_row(step: int, edit: spoil.Edit) -> spoil.Edit:
    """`edit` on one row of V in `step`."""

    def edited(x: Tensor, at: At) -> Tensor:
        chosen = torch.arange(x.shape[-2]) % step == step - 1
        return torch.where(chosen[:, None], edit(x, at), x)

    return edited


for size in spoil.SIZES:
    text = f"{size:.1%}".replace(".0%", "%")
    shelf.add(
        "gain", f"o {text} too large", Decode(o=spoil.gain(size)), excuse=spoil.excuse(size, spoil.SMALL_GAIN)
    )
    shelf.add(
        "gain",
        f"o of the last head {text} too large",
        Decode(o=spoil.gain(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_GAIN),
    )
    shelf.add("gain", f"stored state {text} too large", Decode(stored=spoil.gain(size)))
    shelf.add(
        "noise",
        f"noise of {text} on o",
        Decode(o=spoil.noise(size)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
    shelf.add(
        "noise",
        f"noise of {text} on the last head of o",
        Decode(o=spoil.noise(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
    shelf.add("noise", f"noise of {text} on the stored state", Decode(stored=spoil.noise(size)))
for size in spoil.SIZES[2:]:
    text = f"{size:.0%}"
    gain = spoil.gain(size)
    shelf.add("gain", f"o of one sequence {text} too large", Decode(o=of_sequence(gain)))
    shelf.add("gain", f"stored state of one sequence {text} too large", Decode(stored=of_sequence(gain)))
    shelf.add("gain", f"every 64th row of the state {text} too large", Decode(stored=every_row(64, gain)))
shelf.add("gain", "beta 0.1% too large", Decode(beta=lambda x, _: x * 1.001))
shelf.add("gain", "scale of 0.088", Decode(o=lambda x, at: x / at.scale * 0.088))


# Rounding


class Truncating(Decode):
    """o, or states, are cut off instead of rounded."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(x, dtype) if self.what == "o" else super().round_output(x, dtype)

    def round_state(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(x, dtype) if self.what == "state" else super().round_state(x, dtype)


shelf.add("rounding", "o is truncated", Truncating("o"))
shelf.add(
    "rounding",
    "a pool in bf16 or fp16 is truncated",
    Truncating("state"),
    excuse="twice the error of rounding, which k = 2 allows",
)
shelf.add(
    "rounding", "o in fp16, then bf16", Decode(o=lambda x, _: x.half().float()), excuse="11 bits, then 8"
)
shelf.add(
    "zeros",
    "values of o below 1e-3 of the row's largest",
    Decode(o=spoil.without_small_values(1e-3)),
    excuse="less than bf16 rounds the row's largest",
)
shelf.add("zeros", "values of o below 1e-2 of the row's largest", Decode(o=spoil.without_small_values(1e-2)))
shelf.add("zeros", "rows of o with norms below a tenth", Decode(o=spoil.without_small_rows(0.1)))
shelf.add(
    "zeros",
    "values of the state below 1e-3 of the row's largest",
    Decode(stored=spoil.without_small_values(1e-3)),
)
shelf.add(
    "zeros", "values of the state below 1e-6", Decode(stored=lambda s, _: torch.where(s.abs() < 1e-6, 0.0, s))
)


# Repetition and NaN


class DependsOnCalls(OffEverySecondCall, Decode):
    """Its results depend on how often it was called."""


class UnwrittenRow(Decode):
    """The last row of V of o is never written."""

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        found = x.to(dtype)
        found[..., -1] = torch.nan
        return found


def one_value(value: float) -> spoil.Edit:
    def edit(x: Tensor, _: At) -> Tensor:
        x = x.clone()
        x[-1:, -1:, 0] = value
        return x

    return edit


shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
shelf.add(
    "repeat",
    "partial sums in a random order",
    Decode(dot=RandomOrders(lambda state, x, order: dot(state[..., order], x[..., order]))),
    repeats=True,
)
shelf.add("nan", "the last row of V of o is NaN", UnwrittenRow())
shelf.add("nan", "one value of o is NaN", Decode(o=one_value(torch.nan)))
shelf.add("nan", "one value of o is infinite", Decode(o=one_value(torch.inf)))
shelf.add("nan", "one row of the state is NaN", Decode(stored=one_value(torch.nan)))
shelf.add("nan", "one sequence is NaN", Decode(o=of_sequence(lambda x, _: x * torch.nan)))
FAULTS = shelf.done()
