# SPDX-License-Identifier: Apache-2.0
"""Right kernels of v4_compress: orders of summation, forms of the softmax and of the norm."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.power.library import Shelf
from tests.power.number_formats import approximate_exp, exp2_of_scaled, flushed
from tests.power.v4_compress_kernel import Compressor


class Online(Compressor):
    """One slot after another, with a running maximum, sum and mean; the last slot first if `descending`."""

    def __init__(self, *, descending: bool = False) -> None:
        super().__init__()
        self.descending = descending

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        most = torch.full_like(z[0], -torch.inf)
        total, out = torch.zeros_like(most), torch.zeros_like(most)
        order = range(len(z) - 1, -1, -1) if self.descending else range(len(z))
        for s in order:
            larger = torch.maximum(most, z[s])
            safe = larger.masked_fill(larger.isneginf(), 0.0)
            kept, p = torch.exp(most - safe), torch.exp(z[s] - safe)
            total, out, most = total * kept + p, out * kept + p * x[s], larger
        return out / total


class Normalised(Compressor):
    """Weights are divided by their sum before the mean."""

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        return (z.softmax(0) * x).sum(0)


class Pairwise(Compressor):
    """Sums over slots in pairs."""

    def pooled(self, x: Tensor, z: Tensor) -> Tensor:
        p = self.exp(z - z.amax(0))
        return self.tree(p * x) / self.tree(p)

    def tree(self, terms: Tensor) -> Tensor:
        while len(terms) > 1:
            odd = terms[len(terms) // 2 * 2 :]
            terms = torch.cat([terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2], odd])
        return terms[0]


class ReciprocalNorm(Compressor):
    """x rsqrt(mean), the weight first, the mean summed in halves."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        halves = c.square().tensor_split(2)
        mean = (halves[0].sum() + halves[1].sum()) / len(c)
        return c * weight * (mean + self.eps).rsqrt()


class ApproximateNorm(Compressor):
    """rsqrt.approx: 2^-22.9 of its result (PTX ISA)."""

    def normalised(self, c: Tensor, weight: Tensor) -> Tensor:
        return c * ((c.square().mean() + self.eps).rsqrt() * (1 + 2.0**-22.9)) * weight


class ScoreLast(Compressor):
    """ape is added to a score in fp64 and rounded once."""

    def token(self, kv: Tensor, score: Tensor, ape: Tensor, position: int) -> Tensor:
        z = (score.double() + ape[self.place(position)].double()).to(self.compute)
        return torch.cat([kv.to(self.compute), z])


class Flushed(Compressor):
    """Subnormal numbers are 0."""

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return flushed(x).to(dtype)


shelf = Shelf("v4_compress", right=True)
shelf.add("rounding", "in fp32", Compressor())
shelf.add("rounding", "in fp64", Compressor(compute=torch.float64))
shelf.add("rounding", "scores summed in fp64", ScoreLast())
shelf.add("rounding", "denormals flushed", Flushed())
shelf.add("order", "online softmax", Online())
shelf.add("order", "online softmax, descending", Online(descending=True))
shelf.add("order", "weights normalised first", Normalised())
shelf.add("order", "sums in pairs", Pairwise())
shelf.add("norm", "the weight first, by rsqrt", ReciprocalNorm())
shelf.add("norm", "rsqrt.approx", ApproximateNorm())
shelf.add("exponentials", "2^(x log2 e)", Compressor(exp=exp2_of_scaled))
shelf.add("exponentials", "ex2.approx", Compressor(exp=approximate_exp))
VARIANTS = shelf.done()
