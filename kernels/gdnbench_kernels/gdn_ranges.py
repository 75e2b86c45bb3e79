"""Ranges that determine the numerical difficulty of a gated delta rule: sums of gates over a chunk, and
cosines between keys of a chunk."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gdnbench_kernels.contract import Ranges

CHUNK = 64
_BINS = 1 << 14
"""Bins between -1 and 1: the error of a quantile is at most 2^-13."""


@dataclass(slots=True)
class KeyCosines:
    """A histogram of the cosines of all pairs of different keys of one head within a chunk; 65,536 tokens
    with 16 heads have 33 million pairs. Cosines that are not finite are left out."""

    count: int = 0
    total: float = 0.0
    largest: float = -1.0
    histogram: Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))

    def add(self, k: Tensor, bounds: Sequence[int], chunk: int = CHUNK) -> None:
        """Add the pairs of keys `k` [T, H, K], whose sequences are tokens [bounds[n], bounds[n + 1])."""
        for tokens in chunks_of(bounds, chunk):
            if tokens.stop - tokens.start > 1:
                self._add(torch.nn.functional.normalize(k[tokens].double(), dim=-1).movedim(1, 0))

    def _add(self, unit: Tensor) -> None:
        rows, columns = torch.tril_indices(unit.shape[1], unit.shape[1], -1)
        cosines = (unit @ unit.mT)[:, rows, columns].flatten()
        cosines = cosines[cosines.isfinite()].clamp(-1.0, 1.0)  # equal keys may give 1 + 1e-16
        if cosines.numel():
            self.count += cosines.numel()
            self.total += float(cosines.sum())
            self.largest = max(self.largest, float(cosines.max()))
            bins = ((cosines + 1) * (_BINS / 2)).long().clamp(max=_BINS - 1)
            self.histogram += bins.bincount(minlength=_BINS)

    @property
    def mean(self) -> float:
        return self.total / self.count

    def quantile(self, share: float) -> float:
        """The least bin bound that at least this share of the cosines does not exceed; at most 2^-13 too
        large."""
        enough = math.ceil(share * self.count)
        bin = int(torch.searchsorted(self.histogram.cumsum(0), enough))
        return min((bin + 1) * (2 / _BINS) - 1, self.largest)

    def ranges(self) -> Ranges | None:
        """None without a pair of keys."""
        if not self.count:
            return None
        values = {"mean": self.mean, "99 %": self.quantile(0.99), "max": self.largest}
        return Ranges("key_cosine", "cosine of two keys of a chunk", values)


def chunks_of(bounds: Sequence[int], chunk: int) -> Iterator[slice]:
    """The tokens of every chunk of sequences [bounds[n], bounds[n + 1])."""
    for start, stop in itertools.pairwise(bounds):
        for first in range(start, stop, chunk):
            yield slice(first, min(first + chunk, stop))


def chunk_sums(g: Tensor, bounds: Sequence[int], chunk: int = CHUNK) -> Ranges | None:
    """The minimum over chunks and heads of the sum of log-space gates `g` [T, Hv]; None without tokens."""
    sums = [g[tokens].double().sum(0).min() for tokens in chunks_of(bounds, chunk)]
    if not sums:
        return None
    return Ranges("g_chunk", "sum of g over a chunk", {"min": float(torch.stack(sums).min())})
