# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of indexer_logits: ReLU, weights, scales, pages and columns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.power.indexer_logits_kernel import Logits
from tests.power.library import Shelf
from tests.power.number_formats import keep_bits, normal

shelf = Shelf("indexer_logits", right=False)


# ReLU, weights and scales


class Relu(Logits):
    """Another function than ReLU."""

    def __init__(self, relu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.other = relu

    def relu(self, scores: Tensor) -> Tensor:
        return self.other(scores)


class Total(Logits):
    """The sum over heads is another: `total(weights, scores, scales)`."""

    def __init__(self, total: Callable[[Tensor, Tensor, Tensor], Tensor], *, relu: bool = True) -> None:
        super().__init__()
        self.other, self.has_relu = total, relu

    def relu(self, scores: Tensor) -> Tensor:
        return scores.relu() if self.has_relu else scores

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        return self.other(weights, scores, scales)


shelf.add("relu", "missing", Relu(lambda x: x))
shelf.add("relu", "the absolute value", Relu(torch.abs))
shelf.add("relu", "a slope of 0.01 below 0", Relu(lambda x: torch.nn.functional.leaky_relu(x, 0.01)))
shelf.add("relu", "of the weighted sum", Total(lambda w, s, f: (w @ s).relu() * f, relu=False))
shelf.add(
    "relu", "of weighted scores", Total(lambda w, s, f: (w.unsqueeze(1) * s).relu().sum(0) * f, relu=False)
)
shelf.add("weights", "missing", Logits(weights=torch.ones_like))
shelf.add("weights", "of the next head", Logits(weights=lambda x: x.roll(-1, 0)))
shelf.add("weights", "their absolute values", Logits(weights=torch.abs))
shelf.add("weights", "the mean over heads", Total(lambda w, s, f: (w @ s) * f / len(w)))
shelf.add("weights", "the first head is lost", Total(lambda w, s, f: (w[1:] @ s[1:]) * f))
shelf.add("scales", "missing", Logits(scale=torch.ones_like))
shelf.add("scales", "of the next key", Logits(scale=lambda x: x.roll(-1, 0)))
shelf.add("scales", "squared", Logits(scale=torch.square))
shelf.add("scales", "their powers of two", Logits(scale=lambda x: torch.exp2(torch.floor(torch.log2(x)))))


# Pages


class Table(Logits):
    """Another page of the table: `pages(table, place)`."""

    def __init__(self, pages: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.other = pages

    def pages(self, table: Tensor, place: Tensor) -> Tensor:
        return self.other(table, place)


class RowsWithScales(Logits):
    """Pages are taken for rows of codes with the scale behind each."""

    def parts(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        return cache[..., :-4], cache[..., -4:]


class TightPages(Logits):
    """Pages are taken to follow each other without a gap."""

    def parts(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        _, size, row = cache.shape
        return super().parts(cache.as_strided(cache.shape, (size * row, row, 1), cache.storage_offset()))


class FirstScale(Logits):
    """All keys of a page have the scale of its first."""

    def scale_offset(self, offset: Tensor, size: int) -> Tensor:
        return torch.zeros_like(offset)


class Request(Logits):
    """Another request's table: `request(t, rows, requests)`."""

    def __init__(self, request: Callable[[int, int, int], int]) -> None:
        super().__init__()
        self.other = request

    def request(self, t: int, rows: int, requests: int) -> int:
        return self.other(t, rows, requests)


shelf.add("pages", "the first for all", Table(lambda table, place: table[torch.zeros_like(place)]))
shelf.add("pages", "the number for the page", Table(lambda table, place: place))
shelf.add("pages", "rows with their scales", RowsWithScales())
shelf.add("pages", "no gap between them", TightPages())
shelf.add("pages", "the first scale of a page", FirstScale())
shelf.add("pages", "request t % B", Request(lambda t, rows, requests: t % requests))
shelf.add("pages", "request 0 for all", Request(lambda t, rows, requests: 0))


# Lengths and columns


class Length(Logits):
    """Another number of keys: `length(given, columns)`."""

    def __init__(self, length: Callable[[int, int], int]) -> None:
        super().__init__()
        self.other = length

    def length(self, given: int, columns: int) -> int:
        return min(self.other(given, columns), columns)


class StartOfRows(Logits):
    """Packed keys start elsewhere: `start(given)`."""

    def __init__(self, start: Callable[[int], int]) -> None:
        super().__init__()
        self.other = start

    def start(self, given: int) -> int:
        return self.other(given)


class Column(Logits):
    """The other form of columns: from the first key, or the row of k."""

    def first_column(self, start: int, compressed: bool) -> int:
        return start if compressed else 0


class NotClean(Logits):
    """Columns of no key are 0, not -inf."""

    def clean(self, logits: Tensor) -> None:
        logits.fill_(0.0)


shelf.add("columns", "the last key is lost", Length(lambda n, _: n - 1))
shelf.add("columns", "lengths in whole tiles of 64", Length(lambda n, _: n if n < 64 else n // 64 * 64))
shelf.add("columns", "one key more in clean logits", Length(lambda n, _: n + 1 if n else n))
shelf.add("columns", "0 in clean logits", NotClean())
shelf.add("columns", "row_starts one too large", StartOfRows(lambda start: start + 1))
shelf.add("columns", "row_starts ignored", StartOfRows(lambda _: 0))
shelf.add("columns", "of the other form", Column())


# Sizes and repetition


def without_last(features: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x * (torch.arange(x.shape[-1]) < x.shape[-1] - features)


class DependsOnCalls(Logits):
    """A counter is not reset: every second call is off by 2^-6."""

    def total(self, weights: Tensor, scores: Tensor, scales: Tensor) -> Tensor:
        return super().total(weights, scores, scales) * (1 + 2.0**-6 if self.calls % 2 else 1)

    def finish(self, found: dict[str, Tensor], _: object) -> dict[str, Tensor]:
        self.calls += 1
        return found


shelf.add("features", "the last 16 are lost", Logits(q=without_last(16)))
shelf.add("features", "query of the next head", Logits(q=lambda x: x.roll(-1, 0)))
shelf.add("sizes", "logits 1% too large", Logits(logits=lambda x: x * 1.01))
shelf.add("sizes", "noise of 1%", Logits(logits=lambda x: x * (1 + 0.01 * normal(x))))
shelf.add("sizes", "scores with 7 bits", Logits(s=lambda x: keep_bits(x, 6)))
shelf.add("sizes", "scores clamped at 1", Logits(s=lambda x: x.clamp(max=1)))
shelf.add("sizes", "logits with 7 bits", Logits(logits=lambda x: keep_bits(x, 6)))
shelf.add("nan", "the last logit is NaN", Logits(logits=lambda x: torch.cat([x[:-1], x[-1:] * torch.nan])))
shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
FAULTS = shelf.done()
