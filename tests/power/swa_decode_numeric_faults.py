# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of swa_decode: softmax, exponentials, rounding, and errors of a given size."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.library import Shelf
from tests.power.number_formats import exp_by_polynomial, exp_in, keep_bits, truncated
from tests.power.products import parts
from tests.power.repetition import OffEverySecondCall, RandomOrders, product_in_order
from tests.power.swa_decode_kernel import Swa, Window

shelf = Shelf("swa_decode", right=False)


# Softmax


class FirstTileMaximum(Swa):
    """The maximum of the first 64 entries serves for all."""

    def maximum(self, scores: Tensor) -> Tensor:
        most = scores[..., :64].amax(-1)
        return most.masked_fill(most.isneginf(), 0.0)


class NoMaximum(Swa):
    """exp of the scores themselves, which overflows above 88."""

    def maximum(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores[..., 0])


class StaleOutput(Swa):
    """Online softmax in two tiles whose output is not rescaled when the maximum grows."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        scores = self.scores(q, rows, window)
        first, second = scores[..., :64], scores[..., 64:]
        one = self.maximum(first)
        most = torch.maximum(one, second.amax(-1)) if second.shape[-1] else one
        kept = torch.exp(one - most)
        p, r = torch.exp(first - one.unsqueeze(-1)), torch.exp(second - most.unsqueeze(-1))
        total = p.sum(-1) * (1.0 if self.what == "sum" else kept) + r.sum(-1)
        out = self.product(self.store("p", p, window), rows[:, :64])
        out = out * (1.0 if self.what == "output" else kept.unsqueeze(-1))
        out = out + self.product(self.store("p", r, window), rows[:, 64:])
        return out / self.with_sink(total, most, sink, window).unsqueeze(-1), most + total.log()


class SecondTileLost(Swa):
    """Entries past the 64th are in the sum, not in the output."""

    def store(self, name: str, x: Tensor, window: Window) -> Tensor:
        x = super().store(name, x, window)
        if name == "p":
            x = torch.where(torch.arange(x.shape[-1]) < 64, x, torch.zeros_like(x))
        return x


def without_small_weights(share: float) -> spoil.Edit:
    """Weights below `share` of the largest are 0."""
    return lambda p, _: torch.where(p < share, torch.zeros_like(p), p)


shelf.add(
    "softmax",
    "the maximum of the first 64 entries",
    FirstTileMaximum(),
    excuse="exact unless a later score is above it by 88",
)
shelf.add("softmax", "no maximum", NoMaximum(), excuse="exact unless a score is above 88")
shelf.add("softmax", "the output is not rescaled", StaleOutput("output"))
shelf.add("softmax", "the sum is not rescaled", StaleOutput("sum"))
shelf.add("softmax", "entries past 64 are not in o", SecondTileLost())
shelf.add("softmax", "weights below 1e-2 are 0", Swa(p=without_small_weights(1e-2)))
shelf.add("softmax", "weights below 1e-3 are 0", Swa(p=without_small_weights(1e-3)))
shelf.add("softmax", "no scale", Swa(s=lambda s, w: s / w.scale))
shelf.add("softmax", "scale of 448 features", Swa(s=lambda s, w: s / w.scale * 448**-0.5))
shelf.add("softmax", "scores 1% too large", Swa(s=lambda s, _: s * 1.01))
shelf.add("softmax", "scores rounded to bf16", Swa(s=lambda s, _: s.bfloat16().float()))
shelf.add("softmax", "scores rounded to fp16", Swa(s=lambda s, _: s.half().float()))
shelf.add("softmax", "scores clamped at 10", Swa(s=lambda s, _: s.clamp(max=10)))
shelf.add("softmax", "the sum in bf16", Swa(l=lambda x, _: x.bfloat16().float()))
shelf.add("softmax", "2^s instead of exp(s)", Swa(exp=torch.exp2))
for bits in (8, 10, 12, 14):
    shelf.add(
        "exponentials",
        f"a polynomial with an error of 2^-{bits}",
        Swa(exp=exp_by_polynomial(2.0**-bits)),
        excuse=None if bits < 10 else "p is rounded to bf16, 2^-9; its sum moves lse by less than 1e-3",
    )
shelf.add("exponentials", "in bf16", Swa(exp=exp_in("bfloat16")))
shelf.add("exponentials", "in fp16", Swa(exp=exp_in("float16")))
shelf.add("rounding", "q in e4m3", Swa(q=lambda x, _: x.to(torch.float8_e4m3fn).float()))
shelf.add("rounding", "p in e4m3", Swa(p=lambda x, _: x.to(torch.float8_e4m3fn).float()))
shelf.add(
    "rounding",
    "rows in e4m3 again, without a scale",
    Swa(rows=lambda x, _: x.to(torch.float8_e4m3fn).float()),
)
shelf.add("rounding", "rows truncated to bf16", Swa(stored={"rows": "bfloat16 truncated"}))
shelf.add("rounding", "p truncated to bf16", Swa(stored={"p": "bfloat16 truncated"}))
shelf.add("rounding", "p with 5 bits", Swa(p=lambda x, _: keep_bits(x, 5)))


class Truncating(Swa):
    """o is cut off instead of rounded."""

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(x, dtype)


class SumsInBf16(Swa):
    """The output is summed in bf16 from one tile of 16 entries to the next."""

    def __init__(self, *, outputs: bool) -> None:
        super().__init__(product=self.sum_in_bf16)
        self.outputs = outputs

    def sum_in_bf16(self, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(())
        step = 16 if b.shape[-1] == 512 else 64
        for left, right in zip(parts(a, step, -1), parts(b, step, -2), strict=True):
            total = total + left @ right
            if (b.shape[-1] == 512) == self.outputs:
                total = total.bfloat16().float()
        return total


shelf.add("rounding", "o is truncated", Truncating())
shelf.add("rounding", "o summed in bf16", SumsInBf16(outputs=True))
shelf.add("rounding", "scores summed in bf16", SumsInBf16(outputs=False))
shelf.add("rounding", "o in fp16, then bf16", Swa(o=lambda x, _: x.half().float()), excuse="11 bits, then 8")


# Sizes


def of_request(edit: spoil.Edit) -> spoil.Edit:
    """`edit` on the first request that has entries."""

    def edited(x: Tensor, window: Window) -> Tensor:
        there = window.counts.any(1)
        chosen = (there & (there.cumsum(0) == 1)).view(-1, *(1,) * (x.ndim - 1))
        return torch.where(chosen, edit(x, window), x)

    return edited


def every_64th(edit: spoil.Edit) -> spoil.Edit:
    """`edit` on one feature in 64."""

    def edited(x: Tensor, window: Window) -> Tensor:
        return torch.where(torch.arange(x.shape[-1]) % 64 == 63, edit(x, window), x)

    return edited


for size in spoil.SIZES:
    text = f"{size:.1%}".replace(".0%", "%")
    shelf.add(
        "gain", f"o {text} too large", Swa(o=spoil.gain(size)), excuse=spoil.excuse(size, spoil.SMALL_GAIN)
    )
    shelf.add(
        "gain",
        f"o of the last head {text} too large",
        Swa(o=spoil.gain(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_GAIN),
    )
    shelf.add(
        "noise",
        f"noise of {text} on o",
        Swa(o=spoil.noise(size)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
    shelf.add(
        "noise",
        f"noise of {text} on the last head of o",
        Swa(o=spoil.noise(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
for size in spoil.SIZES[2:]:
    text = f"{size:.0%}"
    shelf.add("gain", f"o of one request {text} too large", Swa(o=of_request(spoil.gain(size))))
    shelf.add("gain", f"every 64th feature of o {text} too large", Swa(o=every_64th(spoil.gain(size))))
    shelf.add("gain", f"rows {text} too large", Swa(rows=spoil.gain(size)))
shelf.add("zeros", "values of o below 1e-3 of the row's largest", Swa(o=spoil.without_small_values(1e-3)))
shelf.add("zeros", "values of o below 1e-2 of the row's largest", Swa(o=spoil.without_small_values(1e-2)))
shelf.add("zeros", "rows of o with norms below a tenth", Swa(o=spoil.without_small_rows(0.1)))
shelf.add(
    "zeros",
    "codes that are subnormal",
    Swa(
        rows=lambda x, _: torch.where(
            x.abs() < 2.0**-6 * x.abs().amax(-1, keepdim=True) / 448, torch.zeros_like(x), x
        )
    ),
    excuse="subnormal e4m3 codes are below 2^-14 of the row's largest",
)


# Repetition and NaN


class DependsOnCalls(OffEverySecondCall, Swa):
    """Its results depend on how often it was called."""


def one_value(value: float) -> spoil.Edit:
    def edit(x: Tensor, _: Window) -> Tensor:
        x = x.clone()
        x[:1, -1:, -1] = value
        return x

    return edit


shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
shelf.add("repeat", "entries in a random order", Swa(product=RandomOrders(product_in_order)), repeats=True)
shelf.add("nan", "one value of o is NaN", Swa(o=one_value(torch.nan)))
shelf.add("nan", "one value of o is infinite", Swa(o=one_value(torch.inf)))
shelf.add("nan", "one request is NaN", Swa(o=of_request(lambda x, _: x * torch.nan)))
shelf.add("nan", "NaN in a row is lost", Swa(rows=lambda x, _: x.nan_to_num(0.0)))
FAULTS = shelf.done()
