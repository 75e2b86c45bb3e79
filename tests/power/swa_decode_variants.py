# SPDX-License-Identifier: Apache-2.0
"""Right kernels of swa_decode: the arithmetic and the orders of served kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.power import products
from tests.power.library import Shelf
from tests.power.number_formats import LOG2_E, approximate_exp, exp2_of_scaled, flushed
from tests.power.swa_decode_kernel import Swa, Window


class Online(Swa):
    """Tiles of entries, with a running maximum, sum and output; the last tile first if `descending`."""

    def __init__(self, tile: int, *, descending: bool = False, stored: dict[str, str] | None = None) -> None:
        super().__init__(stored=stored)
        self.tile, self.descending = tile, descending

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        scores = self.scores(q, rows, window)
        most = torch.full(scores.shape[:2], -torch.inf)
        total = torch.zeros(scores.shape[:2])
        out = torch.zeros(*scores.shape[:2], rows.shape[-1])
        starts = list(range(0, scores.shape[-1], self.tile))
        for start in reversed(starts) if self.descending else starts:
            part = scores[..., start : start + self.tile]
            larger = torch.maximum(most, part.amax(-1))
            safe = larger.masked_fill(larger.isneginf(), 0.0)
            kept = torch.exp(most - safe)
            p = torch.exp(part - safe.unsqueeze(-1))
            total = total * kept + p.sum(-1)
            weighted = self.product(self.store("p", p, window), rows[:, start : start + self.tile])
            out = out * kept.unsqueeze(-1) + weighted
            most = larger
        most = most.masked_fill(most.isneginf(), 0.0)
        return out / self.with_sink(total, most, sink, window).unsqueeze(-1), most + total.log()


class TwoHalves(Swa):
    """The window in two halves by two CTAs, merged by their lse."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        middle = (rows.shape[1] + 1) // 2
        parts = []
        for entries in (slice(0, middle), slice(middle, None)):
            half = Window(
                window.indices[:, entries],
                window.lens,
                window.counts[:, entries],
                window.layout,
                window.scale,
                window.io,
            )
            out, logs = super().attend(q, rows[:, entries], None, half)
            parts.append((out, logs, ~half.counts.any(1)))
        (one, log_one, none_one), (other, log_other, none_other) = parts
        one = torch.where(none_one[:, None, None], torch.zeros_like(one), one)
        other = torch.where(none_other[:, None, None], torch.zeros_like(other), other)
        both = torch.logaddexp(log_one, log_other)
        total = both if sink is None else torch.logaddexp(both, sink.expand(both.shape))
        out = one * torch.exp(log_one - total).unsqueeze(-1) + other * torch.exp(log_other - total).unsqueeze(
            -1
        )
        return out, both


class SinkFirst(Swa):
    """The running maximum begins at the sink, the sum at 1."""

    def maximum(self, scores: Tensor) -> Tensor:
        most = super().maximum(scores)
        return most if self.sink is None else torch.maximum(most, self.sink)

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        self.sink = sink
        return super().attend(q, rows, sink, window)


class SinkLast(Swa):
    """The output without the sink, times 1 / (1 + exp(sink - lse))."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        out, logs = super().attend(q, rows, None, window)
        return out if sink is None else out * torch.sigmoid(logs - sink).unsqueeze(-1), logs


class NormalisedP(Swa):
    """p divided by the sum before it is rounded, as softmax and then a product do."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        scores = self.scores(q, rows, window)
        most = self.maximum(scores)
        p = torch.exp(scores - most.unsqueeze(-1))
        total = p.sum(-1)
        below = self.with_sink(total, most, sink, window)
        return self.product(self.store("p", p / below.unsqueeze(-1), window), rows), most + total.log()


class BaseTwo(Swa):
    """Scores in units of log 2, 2^x, and lse brought back to base e at the end."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        scores = self.product(q, rows.mT) * (window.scale * LOG2_E)
        scores = scores.masked_fill(~window.counts.unsqueeze(1), -torch.inf)
        most = self.maximum(scores)
        p = torch.exp2(scores - most.unsqueeze(-1))
        total = p.sum(-1)
        below = total if sink is None else total + torch.exp2(sink * LOG2_E - most)
        out = self.product(self.store("p", p, window), rows) / below.unsqueeze(-1)
        return out, (most + torch.log2(total)) * math.log(2)


class ScaledQueries(Swa):
    """The scale multiplies q, in fp32."""

    def scores(self, q: Tensor, rows: Tensor, window: Window) -> Tensor:
        scores = self.product(q * window.scale, rows.mT)
        return scores.masked_fill(~window.counts.unsqueeze(1), -torch.inf)


class CodesInProducts(Swa):
    """A row's scale multiplies its scores and weights, not its codes (per_token_scale)."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        largest = rows.abs().amax(-1, keepdim=True)
        scale = torch.exp2(torch.floor(torch.log2(largest.where(largest > 0, 1.0))))
        codes = rows / scale
        scores = self.product(q, codes.mT) * scale.mT * window.scale
        scores = scores.masked_fill(~window.counts.unsqueeze(1), -torch.inf)
        most = self.maximum(scores)
        p = torch.exp(scores - most.unsqueeze(-1))
        total = p.sum(-1)
        reach = (p * scale.mT).amax(-1, keepdim=True)
        reach = reach.where(reach > 0, 1.0)
        weights = self.store("p", p * scale.mT / reach, window)
        below = self.with_sink(total, most, sink, window)
        return self.product(weights, codes) * (reach / below.unsqueeze(-1)), most + total.log()


class SummedRounded(Swa):
    """The denominator is the sum of the rounded p, so that weights sum to 1."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        scores = self.scores(q, rows, window)
        most = self.maximum(scores)
        exact = torch.exp(scores - most.unsqueeze(-1))
        p = self.store("p", exact, window)
        below = self.with_sink(p.sum(-1), most, sink, window)
        return self.product(p, rows) / below.unsqueeze(-1), most + exact.sum(-1).log()


class Flushed(Swa):
    """Subnormal numbers are 0."""

    def store(self, name: str, x: Tensor, window: Window) -> Tensor:
        return flushed(super().store(name, x, window))

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return flushed(flushed(x).to(dtype))


class LastRequestFirst(Swa):
    """Requests one by one, the last one first."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        out, logs = torch.zeros_like(q), torch.zeros(q.shape[:2])
        for t in reversed(range(len(q))):
            at = slice(t, t + 1)
            one = Window(
                window.indices[at], window.lens[at], window.counts[at], window.layout, window.scale, window.io
            )
            out[at], logs[at] = super().attend(q[at], rows[at], sink, one)
        return out, logs


UNROUNDED = {"rows": "float32", "p": "float32"}

shelf = Shelf("swa_decode", right=True)
shelf.add("rounding", "rows and p in bf16", Swa())
shelf.add("rounding", "rows in fp32, p in bf16", Swa(stored={"rows": "float32"}))
shelf.add("rounding", "rows in bf16, p in fp16", Swa(stored={"p": "float16"}))
shelf.add("rounding", "rows in bf16, p in fp32", Swa(stored={"p": "float32"}))
shelf.add("rounding", "rows and p in tf32", Swa(stored={"rows": "tf32", "p": "tf32"}))
shelf.add("rounding", "nothing rounded", Swa(stored=UNROUNDED))
shelf.add("rounding", "fp64 throughout", Swa(compute=torch.float64))
shelf.add("rounding", "p normalised first", NormalisedP())
shelf.add("rounding", "the sum of rounded p", SummedRounded())
shelf.add("rounding", "scales on scores and weights", CodesInProducts(stored={"rows": "float32"}))
shelf.add("rounding", "scales on scores and weights, rows in bf16", CodesInProducts())
shelf.add("rounding", "denormals flushed", Flushed())
for tile in (16, 32, 64):
    shelf.add("order", f"online softmax in tiles of {tile}", Online(tile))
shelf.add("order", "online softmax, descending", Online(32, descending=True))
shelf.add("order", "online softmax, nothing rounded", Online(64, stored=UNROUNDED))
shelf.add("order", "two halves, merged", TwoHalves())
shelf.add("order", "last request first", LastRequestFirst())
shelf.add("order", "scale applied to q", ScaledQueries())
shelf.add("sinks", "at the start", SinkFirst())
shelf.add("sinks", "at the end", SinkLast())
shelf.add("exponentials", "2^(x log2 e)", Swa(exp=exp2_of_scaled))
shelf.add("exponentials", "base 2 throughout", BaseTwo())
shelf.add("exponentials", "ex2.approx", Swa(exp=approximate_exp))
shelf.add("sums", "terms in descending order", Swa(product=products.reversed_sums))
shelf.add("sums", "two halves of each sum", Swa(product=products.split_k(2)))
shelf.add("sums", "pairwise", Swa(product=products.pairwise))
shelf.add("sums", "two halves of the columns", Swa(product=products.split_columns))
shelf.add("sums", "one FMA after another", Swa(product=products.fma_order))
shelf.add("sums", "tf32 products", Swa(product=products.tf32(truncate=False)))
shelf.add("sums", "tf32 products, operands truncated", Swa(product=products.tf32(truncate=True)))
VARIANTS = shelf.done()
