# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of v4_decode: the extra segment, its lengths, scales and pages, splits, sinks and lse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.library import Shelf
from tests.power.number_formats import keep_bits
from tests.power.repetition import OffEverySecondCall
from tests.power.swa_decode_faults import EmptyNan, WholeTiles
from tests.power.swa_decode_kernel import NOPE, Window
from tests.power.swa_decode_numeric_faults import StaleOutput, of_request
from tests.power.v4_decode_kernel import V4, Part, Splits

shelf = Shelf("v4_decode", right=False)


# Segments


class Without(V4):
    """Attention to one segment alone, where there are two."""

    def __init__(self, *, extra: bool) -> None:
        super().__init__()
        self.extra = extra

    def counted(self, part: Part, slots: Tensor, lens: Tensor) -> Tensor:
        counts = super().counted(part, slots, lens)
        return counts & (part.extra != self.extra)


class TwoSoftmaxes(Splits):
    """The mean of the segments' outputs, each with its own softmax and sink."""

    def __init__(self) -> None:
        super().__init__(by_segment=True)

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        _, both = super().merge(outs, logs, sink)
        if sink is not None:
            outs = outs * torch.sigmoid(logs - sink).unsqueeze(-1)
        there = (~logs.isneginf()).to(outs.dtype).unsqueeze(-1)
        return (outs * there).sum(0) / there.sum(0).clamp(min=1), both


class SinkTwice(Splits):
    """Each split has the sink in its sum."""

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        out, both = super().merge(outs, logs, None)
        if sink is None:
            return out, both
        return out * (1 / (1 + len(outs) * torch.exp(sink - both))).unsqueeze(-1), both


class SinkOfTheWindow(V4):
    """The sink counts where the window has entries, else not."""

    def with_sink(self, total: Tensor, most: Tensor, sink: Tensor | None, window: Window) -> Tensor:
        found = super().with_sink(total, most, sink, window)
        return torch.where((window.lens > 0).unsqueeze(1), found, total)


shelf.add("segments", "no attention to the extra one", Without(extra=True))
shelf.add("segments", "no attention to the window", Without(extra=False))
shelf.add("segments", "two softmaxes", TwoSoftmaxes())


# Lengths and entries of the extra segment


class Lens(V4):
    """Other lengths of the extra segment: `edit(lens, part)`."""

    def __init__(self, edit: Callable[[Tensor, Part], Tensor]) -> None:
        super().__init__()
        self.edit_lens = edit

    def lens_of(self, part: Part) -> Tensor:
        if not part.extra:
            return part.lens
        room = part.table.shape[1] * (part.cache.shape[1] if part.of_pages else 1)
        return self.edit_lens(part.lens, part).clamp(max=room)


def off_by(count: int) -> Lens:
    return Lens(lambda lens, _: torch.where(lens > 0, (lens + count).clamp(min=1), lens))


def of_query(lens: Tensor, part: Part) -> Tensor:
    """The length of a request's last query, for all of its queries."""
    return lens.view(-1, part.queries)[:, -1:].expand(-1, part.queries).flatten()


class WindowLens(V4):
    """The window's lengths serve for both segments."""

    def segments(self, queries: int, call: Mapping[str, Any]) -> list[Part]:
        first, *others = super().segments(queries, call)
        room = [one.table.shape[1] * (one.cache.shape[1] if one.of_pages else 1) for one in others]
        return [
            first,
            *(replace(one, lens=first.lens.clamp(max=n)) for one, n in zip(others, room, strict=True)),
        ]


class Counted(V4):
    """Other entries of the extra segment count: `edit(counts, part)`."""

    def __init__(self, edit: Callable[[Tensor, Part], Tensor]) -> None:
        super().__init__()
        self.edit_counts = edit

    def counted(self, part: Part, slots: Tensor, lens: Tensor) -> Tensor:
        counts = super().counted(part, slots, lens)
        return self.edit_counts(counts, part) if part.extra and not part.of_pages else counts

    def slots(self, window: Window) -> Tensor:
        return super().slots(window).clamp(min=0)


def once(counts: Tensor, part: Part) -> Tensor:
    """A slot that occurs again does not count again."""
    table = part.table.masked_fill(~counts, -1)
    earlier = (table.unsqueeze(2) == table.unsqueeze(1)).tril(-1).any(2)
    return counts & ~earlier


def inside(part: Part) -> Tensor:
    return torch.arange(part.table.shape[1]) < part.lens.unsqueeze(1)


class Tiles(V4, WholeTiles):
    """Lengths of the extra segment in whole tiles of 64."""

    def lens_of(self, part: Part) -> Tensor:
        lens = part.lens
        return torch.where(lens > self.tile, lens // self.tile * self.tile, lens) if part.extra else lens


shelf.add("lengths", "one entry too many", off_by(1))
shelf.add("lengths", "one entry too few", off_by(-1))
shelf.add("lengths", "those of the next query row", Lens(lambda lens, _: lens.roll(-1, 0)))
shelf.add("lengths", "that of the last draft for all", Lens(of_query))
shelf.add("lengths", "the window's for both segments", WindowLens())
shelf.add("lengths", "whole tiles of 64", Tiles(64))
shelf.add("entries", "a duplicate counts once", Counted(once))
shelf.add("entries", "stale ones count", Counted(lambda counts, part: part.table != -1))
shelf.add("entries", "-1 is slot 0", Counted(lambda counts, part: inside(part)))
shelf.add(
    "entries",
    "they end at the first -1",
    Counted(lambda counts, part: counts & ((part.table == -1).cumsum(1) == 0)),
)
shelf.add("entries", "the first is dropped", Counted(lambda counts, part: counts & (counts.cumsum(1) > 1)))


# Pages and scales of the extra segment


class Pages(V4):
    """A table of pages is read otherwise: `slots(part, positions)`."""

    def __init__(self, slots: Callable[[Part, Tensor], Tensor]) -> None:
        super().__init__()
        self.read = slots

    def slots_of_pages(self, part: Part, position: Tensor) -> Tensor:
        return self.read(part, position)


def by_size(size: int) -> Pages:
    """A page is taken to have `size` rows."""

    def slots(part: Part, position: Tensor) -> Tensor:
        table = part.table.long()
        return table[:, (position // size) % table.shape[1]] * size + position % size

    return Pages(slots)


class Scales(V4):
    """The scales of the extra rows are others: `edit(inv_scale, first)`, of per_token_scale, where `first`
    are the window's."""

    def __init__(self, edit: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        super().__init__()
        self.edit_scales = edit

    def segments(self, queries: int, call: Mapping[str, Any]) -> list[Part]:
        first, *others = super().segments(queries, call)
        return [
            first,
            *(
                one
                if one.inv_scale is None
                else replace(one, inv_scale=self.edit_scales(one.inv_scale, first.inv_scale))
                for one in others
            ),
        ]


class GroupScales(V4):
    """The powers of two of extra rows in fp8_ds_mla are those of the neighbouring group."""

    extra = False

    def segment_rows(self, part: Part, window: Window) -> Tensor:
        self.extra = part.extra
        return super().segment_rows(part, window)

    def powers(self, scales: Tensor) -> Tensor:
        found = super().powers(scales)
        return found.roll(1, -1) if self.extra else found


def of_the_window(scales: Tensor, first: Tensor | None) -> Tensor:
    if first is None or not len(first):
        return torch.ones_like(scales)
    return first[torch.arange(len(scales)) % len(first)].to(scales.dtype)


class TightPages(V4):
    """Extra pages are taken to follow each other without padding."""

    def segments(self, queries: int, call: Mapping[str, Any]) -> list[Part]:
        found = super().segments(queries, call)
        for number, one in enumerate(found):
            if one.extra:
                _, size, row = one.cache.shape
                tight = one.cache.as_strided(
                    one.cache.shape, (size * row, row, 1), one.cache.storage_offset()
                )
                found[number] = replace(one, cache=tight)
        return found


shelf.add("pages", "one row each", by_size(1))
shelf.add("pages", "64 rows each", by_size(64))
shelf.add(
    "pages",
    "those of the next query row",
    Pages(
        lambda part, position: (
            part.table.long().roll(-1, 0)[:, position // part.cache.shape[1]] * part.cache.shape[1]
            + position % part.cache.shape[1]
        )
    ),
)
shelf.add("pages", "no padding between them", TightPages())
shelf.add("scales", "of the window's slots", Scales(of_the_window))
shelf.add("scales", "of the next slot", Scales(lambda scales, _: scales.roll(-1, 0)))
shelf.add("scales", "none", Scales(lambda scales, _: torch.ones_like(scales)))
shelf.add("scales", "of the neighbouring group", GroupScales())
shelf.add(
    "rope",
    "that of the extra rows is lost",
    V4(**{"extra rows": lambda x, _: x * (torch.arange(512) < NOPE)}),
)


# Softmax, splits and the merge


class V4Stale(V4, StaleOutput):
    """Tiles of 64 whose output or sum is not rescaled."""


class Merge(Splits):
    """Splits that are merged wrongly: `weights(logs)`."""

    def __init__(self, weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__(3)
        self.weights = weights

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        _, both = super().merge(outs, logs, None)
        weights = self.weights(logs)
        out = (weights.unsqueeze(-1) * outs).sum(0) / weights.sum(0).clamp(min=1e-30).unsqueeze(-1)
        return out if sink is None else out * torch.sigmoid(both - sink).unsqueeze(-1), both


def relative(logs: Tensor, base: float) -> Tensor:
    most = logs.amax(0)
    return base ** (logs - most.masked_fill(most.isneginf(), 0.0))


class NanOfAnEmptySplit(Splits):
    """A split without entries leaves its output unwritten; weight 0 times NaN is NaN."""

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        outs = outs.masked_fill(logs.isneginf().unsqueeze(-1), torch.nan)
        return super().merge(outs, logs, sink)


class LastSplitLost(Splits):
    """The last of three splits is not merged."""

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().merge(outs[:-1], logs[:-1], sink)


shelf.add("softmax", "the output is not rescaled", V4Stale("output"))
shelf.add("softmax", "the sum is not rescaled", V4Stale("sum"))
shelf.add("softmax", "scores 1% too large", V4(s=lambda s, _: s * 1.01))
shelf.add("softmax", "p with 5 bits", V4(p=lambda x, _: keep_bits(x, 5)))
shelf.add("splits", "their mean", Merge(lambda logs: (~logs.isneginf()).to(logs.dtype)))
shelf.add("splits", "weights in base 2", Merge(lambda logs: relative(logs, 2.0)))
shelf.add("splits", "weights squared", Merge(lambda logs: relative(logs, math.e**2)))
shelf.add("splits", "NaN of an empty one", NanOfAnEmptySplit(5))
shelf.add("splits", "the last is lost", LastSplitLost(3))


# Sinks and lse


class Form(V4):
    """lse in another form than the one that is asked for."""

    def __init__(self, **changed: Mapping[str, str]) -> None:
        super().__init__()
        self.changed = changed

    def in_form(self, logs: Tensor, sink: Tensor | None, base: str, with_sink: str, empty: str) -> Tensor:
        base = self.changed.get("base", {}).get(base, base)
        with_sink = self.changed.get("sink", {}).get(with_sink, with_sink)
        empty = self.changed.get("empty", {}).get(empty, empty)
        return super().in_form(logs, sink, base, with_sink, empty)


class LseOfTheWindow(Splits):
    """lse is that of the first segment alone."""

    def __init__(self) -> None:
        super().__init__(by_segment=True)

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().merge(outs, logs, sink)[0], logs[0]


shelf.add("sinks", "missing", V4(sink=lambda x, _: torch.full_like(x, -torch.inf)))
shelf.add("sinks", "of the next head", V4(sink=lambda x, _: x.roll(-1, 0)))
shelf.add("sinks", "in base 2", V4(sink=lambda x, _: x * math.log(2)))
shelf.add("sinks", "once for each split", SinkTwice())
shelf.add("sinks", "not where the window is empty", SinkOfTheWindow())
shelf.add("lse", "base 2 for base e", Form(base={"e": "2"}))
shelf.add("lse", "base e for base 2", Form(base={"2": "e"}))
shelf.add("lse", "with the sink", Form(sink={"without": "with"}))
shelf.add("lse", "without the sink", Form(sink={"with": "without"}))
shelf.add("lse", "-inf for +inf", Form(empty={"plus_inf": "minus_inf"}))
shelf.add("lse", "of the window alone", LseOfTheWindow())
shelf.add("lse", "off by 0.002", V4(lse=lambda x, _: x + 0.002))


# Queries and sizes


class V4EmptyNan(V4, EmptyNan):
    """A query that attends to nothing is 0 / 0."""

    def finish(self, found: dict[str, Tensor], window: Window) -> dict[str, Tensor]:
        found["o"].flatten(0, 1)[~window.counts.any(1)] = torch.nan
        return found


class V4DependsOnCalls(OffEverySecondCall, V4):
    """Its results depend on how often it was called."""


shelf.add("queries", "that of the next row", V4(q=lambda x, _: x.roll(-1, 0)))
shelf.add("queries", "NaN where nothing is attended to", V4EmptyNan())
shelf.add("heads", "query of the next head", V4(q=spoil.neighbouring_head))
shelf.add("gain", "o 1% too large", V4(o=spoil.gain(0.01)))
shelf.add("gain", "o of one query 1% too large", V4(o=of_request(spoil.gain(0.01))))
shelf.add("gain", "extra rows 1% too large", V4(**{"extra rows": spoil.gain(0.01)}))
shelf.add("noise", "noise of 1% on o", V4(o=spoil.noise(0.01)))
shelf.add("repeat", "every second call is off", V4DependsOnCalls(), repeats=True)
FAULTS = shelf.done()
