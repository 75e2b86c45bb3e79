# SPDX-License-Identifier: Apache-2.0
"""Right kernels of v4_decode: those of swa_decode over both segments, splits and their merge."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.power import products
from tests.power.library import Shelf
from tests.power.number_formats import approximate_exp, exp2_of_scaled
from tests.power.swa_decode_kernel import Window
from tests.power.swa_decode_variants import (
    UNROUNDED,
    BaseTwo,
    Flushed,
    NormalisedP,
    Online,
    ScaledQueries,
    SinkLast,
    SummedRounded,
)
from tests.power.v4_decode_kernel import V4, Splits


class V4Online(V4, Online):
    """Tiles of entries; one may have entries of both segments."""


class V4Base(V4, BaseTwo): ...


class V4Flushed(V4, Flushed): ...


class V4Normalised(V4, NormalisedP): ...


class V4Scaled(V4, ScaledQueries): ...


class V4SinkLast(V4, SinkLast): ...


class V4Summed(V4, SummedRounded): ...


class ExtraFirst(V4):
    """The entries of the extra segment come before those of the window."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        turned = Window(
            window.indices.flip(1),
            window.lens,
            window.counts.flip(1),
            window.layout,
            window.scale,
            window.io,
        )
        return super().attend(q, rows.flip(1), sink, turned)


class MergedInBaseTwo(Splits):
    """The merge weighs by 2^x."""

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        log2_e = 1.4426950408889634
        twos = logs * log2_e
        most = twos.amax(0)
        most = most.masked_fill(most.isneginf(), 0.0)
        weights = torch.exp2(twos - most)
        total = weights.sum(0)
        below = total if sink is None else total + torch.exp2(sink * log2_e - most)
        out = (weights.unsqueeze(-1) * outs).sum(0) / below.unsqueeze(-1)
        return out, (most + total.log2()) / log2_e


shelf = Shelf("v4_decode", right=True)
shelf.add("rounding", "rows and p in bf16", V4())
shelf.add("rounding", "rows in fp32, p in bf16", V4(stored={"rows": "float32"}))
shelf.add("rounding", "rows in bf16, p in fp16", V4(stored={"p": "float16"}))
shelf.add("rounding", "rows in bf16, p in fp32", V4(stored={"p": "float32"}))
shelf.add("rounding", "nothing rounded", V4(stored=UNROUNDED))
shelf.add("rounding", "fp64 throughout", V4(compute=torch.float64))
shelf.add("rounding", "p normalised first", V4Normalised())
shelf.add("rounding", "the sum of rounded p", V4Summed())
shelf.add("rounding", "denormals flushed", V4Flushed())
for tile in (16, 128):
    shelf.add("order", f"online softmax in tiles of {tile}", V4Online(tile))
shelf.add("order", "online softmax, descending", V4Online(64, descending=True))
shelf.add("order", "the extra segment first", ExtraFirst())
shelf.add("order", "scale applied to q", V4Scaled())
shelf.add("splits", "a segment each", Splits(by_segment=True))
shelf.add("splits", "two halves", Splits())
shelf.add("splits", "seven parts", Splits(7))
shelf.add("splits", "seven parts, merged in base 2", MergedInBaseTwo(7))
shelf.add("sinks", "at the end", V4SinkLast())
shelf.add("exponentials", "2^(x log2 e)", V4(exp=exp2_of_scaled))
shelf.add("exponentials", "base 2 throughout", V4Base())
shelf.add("exponentials", "ex2.approx", V4(exp=approximate_exp))
shelf.add("sums", "terms in descending order", V4(product=products.reversed_sums))
shelf.add("sums", "two halves of each sum", V4(product=products.split_k(2)))
shelf.add("sums", "tf32 products", V4(product=products.tf32(truncate=False)))
VARIANTS = shelf.done()
