# SPDX-License-Identifier: Apache-2.0
"""v4_decode in torch, every step of which a variant or a fault replaces.

    rows[r]  = the rows of the window's entries that count, then those of the extra segment's
    o, lse   = those of swa_decode over rows[r], see `swa_decode_kernel`
    lse      in the form that is asked for: base, with or without the sink, over nothing

Written from these equations and the layouts' description alone. The steps after the rows are those of `Swa`,
so that its edits and subclasses serve here: `class V4Online(V4, Online)`.

Shapes: R = B S query rows of h heads, n entries of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.power.swa_decode_kernel import Swa, Window

LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")


@dataclass(frozen=True)
class Part:
    """A segment. `table` [R, entries] has slots, or pages in order of position."""

    extra: bool
    cache: Tensor
    inv_scale: Tensor | None
    table: Tensor
    lens: Tensor  # [R]
    layout: str
    of_pages: bool
    queries: int  # of a request


class V4(Swa):
    """A kernel of v4_decode."""

    conventions: Mapping[str, Any] = {
        "cache_layout": LAYOUTS,
        "extra_layout": LAYOUTS,
        "extra_index_form": ("indices", "block_table"),
        "index_shape": ("TW",),
        "lens_shape": ("T",),
        "masked_indices": ("any",),
        "lse_base": ("e", "2"),
        "lse_sink": ("without", "with"),
        "lse_empty": ("minus_inf", "plus_inf"),
    }

    def __call__(
        self,
        *,
        q: Tensor,
        o: Tensor,
        lse: Tensor | None = None,
        attn_sink: Tensor | None = None,
        scale: float | None = None,
        lse_base: str = "e",
        lse_sink: str = "without",
        lse_empty: str = "minus_inf",
        **call: Any,
    ) -> dict[str, Tensor]:
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        wide = q.flatten(0, 1)
        parts = self.segments(q.shape[1], call)
        windows = [self.window(part, factor, q.dtype) for part in parts]
        rows = [self.segment_rows(part, one) for part, one in zip(parts, windows, strict=True)]
        both = self.joined(windows)
        held = self.store("rows", self.edit("rows", torch.cat(rows, 1), both), both)
        sink = None if attn_sink is None else self.edit("sink", attn_sink.to(self.compute), both)
        out, logs = self.attend(self.edit("q", wide.to(self.compute), both), held, sink, both)
        nothing = self.empty_requests(both)
        out = torch.where(nothing[:, None, None], torch.zeros_like(out), out)
        o.copy_(self.round_output(self.edit("o", out, both), o.dtype).view(o.shape))
        found = {"o": o}
        if lse is not None:
            logs = torch.where(nothing[:, None], torch.full_like(logs, -torch.inf), logs)
            logs = self.in_form(self.edit("lse", logs, both), sink, lse_base, lse_sink, lse_empty)
            found["lse"] = lse.copy_(logs.view(lse.shape))
        return self.finish(found, both)

    def segments(self, queries: int, call: Mapping[str, Any]) -> list[Part]:
        """The window, and the extra segment if there is one."""
        found = []
        for extra, prefix, table, lens in (
            (False, "", "swa_indices", "swa_lens"),
            (True, "extra_", "extra_indices", "extra_lens"),
        ):
            cache = call.get(prefix + "cache")
            if cache is not None:
                of_pages = extra and call.get("extra_index_form") == "block_table"
                layout = call["extra_layout" if extra else "cache_layout"]
                found.append(
                    Part(
                        extra,
                        cache,
                        call.get(prefix + "inv_scale"),
                        call[table],
                        call[lens],
                        layout,
                        of_pages,
                        queries,
                    )
                )
        return found

    def window(self, part: Part, factor: float, io: torch.dtype) -> Window:
        slots = self.slots_of(part)
        lens = self.lens_of(part)
        return Window(slots, lens, self.counted(part, slots, lens), part.layout, factor, io)

    def slots_of(self, part: Part) -> Tensor:
        """[R, n]: the slot of each entry, or of each position of the pages."""
        if not part.of_pages:
            return part.table.long()
        position = torch.arange(part.table.shape[1] * part.cache.shape[1])
        return self.slots_of_pages(part, position)

    def slots_of_pages(self, part: Part, position: Tensor) -> Tensor:
        size = part.cache.shape[1]
        return part.table.long()[:, position // size] * size + position % size

    def lens_of(self, part: Part) -> Tensor:
        return part.lens

    def counted(self, part: Part, slots: Tensor, lens: Tensor) -> Tensor:
        """[R, n], bool."""
        inside = torch.arange(slots.shape[1]) < lens.unsqueeze(1)
        return inside if part.of_pages else inside & (part.table != -1)

    def segment_rows(self, part: Part, window: Window) -> Tensor:
        """[R, n, 512]."""
        return self.edit(
            "extra rows" if part.extra else "window rows",
            self.gather(part.cache, part.inv_scale, window),
            window,
        )

    def joined(self, windows: list[Window]) -> Window:
        """Both segments as one; its lengths are those of the window."""
        first = windows[0]
        indices = torch.cat([one.indices for one in windows], 1)
        counts = torch.cat([one.counts for one in windows], 1)
        return Window(indices, first.lens, counts, first.layout, first.scale, first.io)

    def in_form(self, logs: Tensor, sink: Tensor | None, base: str, with_sink: str, empty: str) -> Tensor:
        """A natural lse without the sink, in the form that is asked for."""
        if with_sink == "with" and sink is not None:
            logs = torch.logaddexp(logs, sink.to(logs.dtype).expand(logs.shape))
        if base == "2":
            logs = logs / math.log(2)
        return logs.masked_fill(logs.isneginf(), torch.inf) if empty == "plus_inf" else logs


class Splits(V4):
    """Entries divided among `count` CTAs, whose outputs a merge weighs by their lse. With `by_segment` the
    window is one, the extra segment the other."""

    def __init__(self, count: int = 2, *, by_segment: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.count, self.by_segment = count, by_segment

    def window(self, part: Part, factor: float, io: torch.dtype) -> Window:
        found = super().window(part, factor, io)
        if not part.extra:
            self.first = found.indices.shape[1]
        return found

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        entries = rows.shape[1]
        cuts = [entries * i // self.count for i in range(self.count + 1)]
        if self.by_segment:
            cuts = [0, self.first, entries]
        outs, logs = [], []
        for start, end in pairwise(cuts):
            if start == end:
                continue
            at = slice(start, end)
            part = Window(
                window.indices[:, at],
                window.lens,
                window.counts[:, at],
                window.layout,
                window.scale,
                window.io,
            )
            out, log = super().attend(q, rows[:, at], None, part)
            none = ~part.counts.any(1)
            outs.append(torch.where(none[:, None, None], torch.zeros_like(out), out))
            logs.append(torch.where(none[:, None], torch.full_like(log, -torch.inf), log))
        return self.merge(torch.stack(outs), torch.stack(logs), sink)

    def merge(self, outs: Tensor, logs: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """outs [n, R, h, 512] and logs [n, R, h], natural, without the sink."""
        most = logs.amax(0)
        most = most.masked_fill(most.isneginf(), 0.0)
        weights = torch.exp(logs - most)
        total = weights.sum(0)
        below = total if sink is None else total + torch.exp(sink - most)
        return (weights.unsqueeze(-1) * outs).sum(0) / below.unsqueeze(-1), most + total.log()
