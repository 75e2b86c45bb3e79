# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of swa_decode: windows, pages, scales, sinks and lse."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.library import Shelf
from tests.power.swa_decode_kernel import DATA, GROUP, NOPE, Swa, Window

shelf = Shelf("swa_decode", right=False)


# Windows


class LensOff(Swa):
    """A request attends to more entries, or fewer, than its length."""

    def __init__(self, off: int) -> None:
        super().__init__()
        self.off = off

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        return super().attended(indices, torch.where(lens > 0, (lens + self.off).clamp(min=1), lens))


class FirstDropped(Swa):
    """The first entry is not attended to."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        counts = super().attended(indices, lens)
        counts[:, 0] &= lens == 1
        return counts


class AllEntries(Swa):
    """Stale entries past the length are attended to."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        return indices != -1


class PaddingIsSlotZero(Swa):
    """-1 is attended to as slot 0."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        return torch.arange(indices.shape[1]) < lens.unsqueeze(1)

    def slots(self, window: Window) -> Tensor:
        return super().slots(window).clamp(min=0)


class PaddingIsZeroRow(Swa):
    """-1 has a score of 0 and a row of zeros: it is in the denominator."""

    def scores(self, q: Tensor, rows: Tensor, window: Window) -> Tensor:
        inside = torch.arange(rows.shape[1]) < window.lens.unsqueeze(1)
        scores = super().scores(q, rows, window)
        return torch.where((inside & ~window.counts).unsqueeze(1), torch.zeros_like(scores), scores)


class StopsAtPadding(Swa):
    """A request's entries end at the first -1."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        counts = super().attended(indices, lens)
        return counts & ((indices == -1).cumsum(1) == 0)


class PackedLens(Swa):
    """-1 does not count towards the length: entries are taken until there are enough."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        there = indices != -1
        return there & (there.cumsum(1) <= lens.unsqueeze(1))


class WholeTiles(Swa):
    """Lengths are rounded down to whole tiles, but for shorter ones."""

    def __init__(self, tile: int) -> None:
        super().__init__()
        self.tile = tile

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        whole = torch.where(lens > self.tile, lens // self.tile * self.tile, lens)
        return super().attended(indices, whole)


class LensOfNeighbour(Swa):
    """Each request has the length of the next one."""

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        return super().attended(indices, lens.roll(-1, 0))


class EmptyUnwritten(Swa):
    """A request without entries returns early: its o is not written."""

    def __call__(self, *, o: Tensor, **given: Any) -> dict[str, Tensor]:
        before = o.clone()
        found = super().__call__(o=o, **given)
        o[self.nothing] = before[self.nothing]
        return found

    def empty_requests(self, window: Window) -> Tensor:
        self.nothing = super().empty_requests(window)
        return self.nothing


class EmptyNan(Swa):
    """A request without entries is 0 / 0."""

    def finish(self, found: dict[str, Tensor], window: Window) -> dict[str, Tensor]:
        found["o"][~window.counts.any(1)] = torch.nan
        return found


class ClampedSlots(Swa):
    """Rows of stale entries are loaded, from slots clamped into the pool, and enter with weight 0: 0 times a
    NaN that lies there is NaN."""

    def slots(self, window: Window) -> Tensor:
        return window.indices.long().clamp(0, self.last)

    def gather(self, cache: Tensor, inv_scale: Tensor | None, window: Window) -> Tensor:
        self.last = max(0, len(cache) * cache.shape[1] - 1)
        every = Window(
            window.indices,
            window.lens,
            torch.ones_like(window.counts),
            window.layout,
            window.scale,
            window.io,
        )
        return super().gather(cache, inv_scale, every)


shelf.add("windows", "one entry too many", LensOff(1))
shelf.add("windows", "one entry too few", LensOff(-1))
shelf.add("windows", "the first entry is dropped", FirstDropped())
shelf.add("windows", "stale entries are attended to", AllEntries())
shelf.add("windows", "-1 is slot 0", PaddingIsSlotZero())
shelf.add("windows", "-1 is a row of zeros", PaddingIsZeroRow())
shelf.add("windows", "entries end at the first -1", StopsAtPadding())
shelf.add("windows", "-1 does not count towards the length", PackedLens())
shelf.add("windows", "lengths in whole tiles of 16", WholeTiles(16))
shelf.add("windows", "lengths in whole tiles of 64", WholeTiles(64))
shelf.add("windows", "length of the next request", LensOfNeighbour())
shelf.add("windows", "o of a request without entries is not written", EmptyUnwritten())
shelf.add("windows", "o of a request without entries is NaN", EmptyNan())
shelf.add("windows", "rows of stale entries enter with weight 0", ClampedSlots())


# Pages


class WrongSlots(Swa):
    """Other slots are read: `slot(slots, block_size)`."""

    def __init__(self, slot: Any) -> None:
        super().__init__()
        self.slot = slot

    def gather(self, cache: Tensor, inv_scale: Tensor | None, window: Window) -> Tensor:
        self.size = cache.shape[1]
        return super().gather(cache, inv_scale, window)

    def slots(self, window: Window) -> Tensor:
        found: Tensor = self.slot(super().slots(window), self.size)
        return found


class PagesOf64(Swa):
    """The page size is taken for 64 whatever it is."""

    def values(self, cache: Tensor, slots: Tensor) -> Tensor:
        size = cache.shape[1]
        return cache[(slots // 64) % len(cache), slots % 64 % size]

    def parts(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        data, scales = super().parts(
            cache, slots // 64 % len(cache) * cache.shape[1] + slots % 64 % cache.shape[1]
        )
        return data, scales


class RowsOf584(Swa):
    """Pages of fp8_ds_mla are taken for rows of 584 bytes, scales after values."""

    def parts(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        size = cache.shape[1]
        row = cache[slots // size, slots % size]
        return row[..., :DATA], row[..., DATA:]


class PagesWithoutPadding(Swa):
    """Pages of fp8_ds_mla are taken to follow each other without padding."""

    def parts(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        _, size, row = cache.shape
        tight = cache.as_strided(cache.shape, (size * row, row, 1), cache.storage_offset())
        return super().parts(tight, slots)


class ExchangedValues(Swa):
    """The second product's entries are exchanged in pairs: a fragment's layout is taken for another's."""

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        count = rows.shape[1] // 2 * 2
        order = torch.arange(rows.shape[1])
        order[:count] = order[:count].view(-1, 2).flip(1).flatten()
        _, logs = super().attend(q, rows, sink, window)
        scores = self.scores(q, rows, window)
        most = self.maximum(scores)
        p = self.exp(scores - most.unsqueeze(-1))
        below = self.with_sink(p.sum(-1), most, sink, window)
        return self.product(self.store("p", p, window), rows[:, order]) / below.unsqueeze(-1), logs


shelf.add("pages", "the next slot", WrongSlots(lambda slots, size: slots + 1))
shelf.add("pages", "the first row of each page", WrongSlots(lambda slots, size: slots // size * size))
shelf.add("pages", "the next page", WrongSlots(lambda slots, size: slots + size))
shelf.add(
    "pages", "offset and page exchanged", WrongSlots(lambda slots, size: slots % size * size + slots // size)
)
shelf.add(
    "pages",
    "pages of half the size",
    WrongSlots(lambda slots, size: slots // (size // 2) * size + slots % (size // 2)),
)
shelf.add("pages", "pages of 64 whatever their size", PagesOf64())
shelf.add("pages", "fp8_ds_mla: rows of 584 bytes", RowsOf584())
shelf.add("pages", "fp8_ds_mla: no padding between pages", PagesWithoutPadding())
shelf.add("pages", "values of entries exchanged in pairs", ExchangedValues())


# Scales


class WrongScaleBytes(Swa):
    """The scales of fp8_ds_mla pass through `change(scales [T, W, 8])`."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def parts(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        data, scales = super().parts(cache, slots)
        return data, self.change(scales)


class GroupsOf128(Swa):
    """A scale of fp8_ds_mla holds for 128 values, not for 64."""

    def dequantise(self, data: Tensor, scales: Tensor, window: Window) -> Tensor:
        wrong = scales.clone()
        for group in range(NOPE // GROUP):
            wrong[..., group] = scales[..., group // 2]
        return super().dequantise(data, wrong, window)


class ScaleOfOtherSlot(Swa):
    """per_token_scale: the scale of another slot."""

    def __init__(self, slot: Any) -> None:
        super().__init__()
        self.slot = slot

    def scale_slots(self, slots: Tensor, inv_scale: Tensor) -> Tensor:
        found: Tensor = self.slot(slots) % max(1, len(inv_scale))
        return found


class RopeScaled(Swa):
    """The rope part has the last group's scale too."""

    def dequantise(self, data: Tensor, scales: Tensor, window: Window) -> Tensor:
        rows = super().dequantise(data, scales, window)
        last = self.powers(scales[..., NOPE // GROUP - 1])
        return torch.cat([rows[..., :NOPE], rows[..., NOPE:] * last.unsqueeze(-1)], -1)


class ScaleOfEntry(Swa):
    """The scale is looked up by the entry's position in the window, not by its slot."""

    def scale_slots(self, slots: Tensor, inv_scale: Tensor) -> Tensor:
        return (torch.arange(slots.shape[1]) % max(1, len(inv_scale))).expand(slots.shape)


class ScoresUnscaled(Swa):
    """Scores from codes without their row's scale; values have it."""

    def scores(self, q: Tensor, rows: Tensor, window: Window) -> Tensor:
        if window.layout == "bfloat16":
            return super().scores(q, rows, window)
        largest = rows.abs().amax(-1, keepdim=True)
        return super().scores(q, rows / largest.where(largest > 0, 1.0) * largest.mean(), window)


def one(scale: Tensor, _: Window) -> Tensor:
    return torch.ones_like(scale)


shelf.add("scales", "missing", Swa(scale=one))
shelf.add("scales", "inverted", Swa(scale=lambda x, _: 1 / x))
shelf.add("scales", "twice", Swa(scale=lambda x, _: x * x))
shelf.add(
    "scales",
    "rounded to bf16",
    Swa(scale=lambda x, _: x.bfloat16().float()),
    excuse="rows are rounded to bf16 themselves: the error is that of torch's rounding, once more",
)
shelf.add("scales", "rounded to a power of two", Swa(scale=lambda x, _: torch.exp2(torch.log2(x).ceil())))
shelf.add(
    "scales", "rounded to e4m3", Swa(scale=lambda x, _: (x * 2**10).to(torch.float8_e4m3fn).float() / 2**10)
)
shelf.add("scales", "ue8m0 one too large", Swa(scale=lambda x, w: x * 2 if w.layout == "fp8_ds_mla" else x))
shelf.add(
    "scales",
    "ue8m0 one too large in the last group",
    Swa(scale=lambda x, w: torch.cat([x[..., :-1], 2 * x[..., -1:]], -1) if w.layout == "fp8_ds_mla" else x),
)
shelf.add("scales", "of the neighbouring group of 64", WrongScaleBytes(lambda s: s.roll(1, -1)))
shelf.add("scales", "of the first group for all", WrongScaleBytes(lambda s: s[..., :1].expand(s.shape)))
shelf.add("scales", "groups of 128", GroupsOf128())
shelf.add("scales", "of the next entry's row", WrongScaleBytes(lambda s: s.roll(-1, 1)))
shelf.add("scales", "of the next slot", ScaleOfOtherSlot(lambda slots: slots + 1))
shelf.add("scales", "of the page's first slot", ScaleOfOtherSlot(lambda slots: slots // 64 * 64))
shelf.add("scales", "of the entry's position", ScaleOfEntry())
shelf.add("scales", "on the rope part too", RopeScaled())
shelf.add("scales", "not in the scores", ScoresUnscaled())
shelf.add("scales", "the rope part is missing", Swa(rope=lambda x, _: torch.zeros_like(x)))
shelf.add("scales", "the rope part is e4m3", Swa(rope=lambda x, _: x.to(torch.float8_e4m3fn).float()))


# Sinks


class WrongSink(Swa):
    """The sink enters by another rule."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def with_sink(self, total: Tensor, most: Tensor, sink: Tensor | None, window: Window) -> Tensor:
        if sink is None:
            return total
        if self.what == "twice":
            return total + 2 * torch.exp(sink - most)
        if self.what == "base two":
            return total + torch.exp2(sink - most)
        if self.what == "not relative":
            return total + torch.exp(sink)
        if self.what == "scaled":
            return total + torch.exp(sink * window.scale - most)
        if self.what == "an entry of 0":
            return total + torch.exp(-most)
        return super().with_sink(total, most, sink, window)


class SinkInLse(Swa):
    """lse has the sink."""

    def __call__(self, *, attn_sink: Tensor | None = None, **given: Any) -> dict[str, Tensor]:
        found = super().__call__(attn_sink=attn_sink, **given)
        if attn_sink is not None and "lse" in found:
            logs = found["lse"]
            there = ~logs.isneginf()
            logs[:] = torch.where(there, torch.logaddexp(logs, attn_sink.expand(logs.shape)), logs)
        return found


class SinkPerTile(Swa):
    """The sink is added once per half of the window."""

    def with_sink(self, total: Tensor, most: Tensor, sink: Tensor | None, window: Window) -> Tensor:
        if sink is None:
            return total
        halves = 1 + (window.lens > 64).to(total.dtype).unsqueeze(1)
        return total + halves * torch.exp(sink - most)


class SinkWithoutEntries(Swa):
    """Requests without entries have lse = sink."""

    def __call__(self, *, attn_sink: Tensor | None = None, **given: Any) -> dict[str, Tensor]:
        found = super().__call__(attn_sink=attn_sink, **given)
        if attn_sink is not None and "lse" in found:
            logs = found["lse"]
            logs[:] = torch.where(logs.isneginf(), attn_sink.expand(logs.shape), logs)
        return found


shelf.add("sinks", "missing", Swa(sink=lambda x, _: torch.full_like(x, -torch.inf)))
shelf.add("sinks", "of the next head", Swa(sink=lambda x, _: x.roll(-1, 0)))
shelf.add("sinks", "of head 0 for all", Swa(sink=lambda x, _: x[:1].expand(x.shape)))
shelf.add("sinks", "rounded to bf16", Swa(sink=lambda x, _: x.bfloat16().float()))
shelf.add("sinks", "0 where it is absent or not", WrongSink("an entry of 0"))
shelf.add("sinks", "twice", WrongSink("twice"))
shelf.add("sinks", "once per half", SinkPerTile())
shelf.add("sinks", "in base 2", WrongSink("base two"))
shelf.add("sinks", "not relative to the maximum", WrongSink("not relative"))
shelf.add("sinks", "times the scale", WrongSink("scaled"))
shelf.add("sinks", "in lse", SinkInLse())
shelf.add("sinks", "in lse of requests without entries", SinkWithoutEntries())


# lse


class LseWithoutMaximum(Swa):
    """lse is the log of the sum of exp(s - m)."""

    def maximum(self, scores: Tensor) -> Tensor:
        self.most = super().maximum(scores)
        return self.most

    def edit(self, name: str, x: Tensor, window: Window) -> Tensor:
        return x - self.most if name == "lse" else super().edit(name, x, window)


shelf.add("lse", "base 2", Swa(lse=lambda x, _: x / math.log(2)))
shelf.add("lse", "without the maximum", LseWithoutMaximum())
shelf.add(
    "lse",
    "less the log of the count",
    Swa(lse=lambda x, w: x - w.counts.sum(1).clamp(min=1).log().unsqueeze(1)),
)
shelf.add("lse", "off by 0.01", Swa(lse=lambda x, _: x + 0.01))
shelf.add("lse", "off by 0.002", Swa(lse=lambda x, _: x + 0.002))
shelf.add("lse", "off by 0.1 %", Swa(lse=lambda x, _: x * 1.001))
shelf.add("lse", "rounded to bf16", Swa(lse=lambda x, _: x.bfloat16().float()))
shelf.add("lse", "of the next head", Swa(lse=lambda x, _: x.roll(-1, 1)))
shelf.add("lse", "0 where there are no entries", Swa(lse=lambda x, _: x.where(~x.isneginf(), 0.0)))
shelf.add("lse", "-1e30 where there are no entries", Swa(lse=lambda x, _: x.clamp(min=-1e30)))
shelf.add("lse", "of scores without the scale", Swa(lse=lambda x, w: x / w.scale))


# Heads

shelf.add("heads", "outputs of heads 0 and 1 exchanged", Swa(o=spoil.swapped_heads))
shelf.add("heads", "query of the next head", Swa(q=spoil.neighbouring_head))
shelf.add(
    "heads",
    "o of heads above 8 is that of 8 before",
    Swa(o=lambda x, _: torch.cat([x[:, :8], x[:, : x.shape[1] - 8]], 1)[:, : x.shape[1]]),
)
shelf.add("heads", "query of the next request", Swa(q=lambda x, _: x.roll(-1, 0)))
shelf.add(
    "heads",
    "the last 64 features are not in the scores",
    Swa(q=lambda x, _: torch.cat([x[..., :NOPE], 0 * x[..., NOPE:]], -1)),
)
shelf.add(
    "heads",
    "the last 64 features are not in o",
    Swa(o=lambda x, _: torch.cat([x[..., :NOPE], 0 * x[..., NOPE:]], -1)),
)
shelf.add("heads", "halves of o exchanged", Swa(o=lambda x, _: x.roll(256, -1)))
FAULTS = shelf.done()
