# SPDX-License-Identifier: Apache-2.0
"""swa_decode in torch, every step of which a variant or a fault replaces.

    row[j]  = the slot's codes times its scale, rounded to bf16
    s[h, j] = scale q[h] . row[j]           j < the request's length, slot not -1
    m[h]    = max_j s[h, j]
    p[h, j] = exp(s[h, j] - m[h])           rounded to bf16 for the second product
    l[h]    = sum_j p[h, j]
    lse[h]  = m[h] + log l[h]
    o[h]    = sum_j p[h, j] row[j] / (l[h] + exp(sink[h] - m[h]))

Written from these equations and the layouts' description alone. `Swa(p=function)` passes that intermediate
through `function(p, window)`.

Shapes: T requests, W entries; rows [T, W, 512], scores [T, h, W], o [T, h, 512], l, m, lse [T, h].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.power.number_formats import Exp, in_format
from tests.power.products import Product, plain

NOPE, ROPE, GROUP = 448, 64, 64
DATA, SCALES = NOPE + 2 * ROPE, 8
"""Bytes of a token's values and scales in a page of fp8_ds_mla."""

SERVED = {"rows": "bfloat16", "p": "bfloat16"}


@dataclass(frozen=True)
class Window:
    """What a step must know of the call."""

    indices: Tensor  # [T, W]
    lens: Tensor  # [T]
    counts: Tensor  # [T, W] whether an entry is attended to
    layout: str
    scale: float
    io: torch.dtype


Edit = Callable[[Tensor, Window], Tensor]


class Swa:
    """A kernel of swa_decode. `stored`: the formats that differ from `SERVED`."""

    conventions: Mapping[str, Any] = {
        "cache_layout": ("per_token_scale", "fp8_ds_mla", "bfloat16"),
        "index_shape": ("TW",),
    }

    def __init__(
        self,
        *,
        compute: torch.dtype = torch.float32,
        stored: Mapping[str, str] | None = None,
        product: Product = plain,
        exp: Exp = torch.exp,
        **edits: Edit,
    ) -> None:
        self.compute, self.product, self.exp = compute, product, exp
        self.stored = {**SERVED, **(stored or {})}
        self.edits = edits

    def __call__(
        self,
        *,
        q: Tensor,
        cache: Tensor,
        swa_indices: Tensor,
        swa_lens: Tensor,
        o: Tensor,
        lse: Tensor | None = None,
        inv_scale: Tensor | None = None,
        attn_sink: Tensor | None = None,
        scale: float | None = None,
        cache_layout: str = "per_token_scale",
        **_: Any,
    ) -> dict[str, Tensor]:
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        counts = self.attended(swa_indices, swa_lens)
        window = Window(swa_indices, swa_lens, counts, cache_layout, factor, q.dtype)
        rows = self.gather(cache, inv_scale, window)
        rows = self.store("rows", self.edit("rows", rows, window), window)
        wide = self.edit("q", q.to(self.compute), window)
        sink = None if attn_sink is None else self.edit("sink", attn_sink.to(self.compute), window)
        out, logs = self.attend(wide, rows, sink, window)
        nothing = self.empty_requests(window)
        out = torch.where(nothing[:, None, None], torch.zeros_like(out), out)
        o.copy_(self.round_output(self.edit("o", out, window), o.dtype))
        found = {"o": o}
        if lse is not None:
            logs = torch.where(nothing[:, None], torch.full_like(logs, -torch.inf), logs)
            found["lse"] = lse.copy_(self.edit("lse", logs, window))
        return self.finish(found, window)

    def edit(self, name: str, x: Tensor, window: Window) -> Tensor:
        return self.edits[name](x, window) if name in self.edits else x

    def store(self, name: str, x: Tensor, window: Window) -> Tensor:
        if self.compute == torch.float64:
            return x
        return in_format(x, self.stored.get(name, "float32"), window.io)

    def attended(self, indices: Tensor, lens: Tensor) -> Tensor:
        return (torch.arange(indices.shape[1]) < lens.unsqueeze(1)) & (indices != -1)

    def empty_requests(self, window: Window) -> Tensor:
        return ~window.counts.any(1)

    def slots(self, window: Window) -> Tensor:
        """[T, W]: the slot of each entry, 0 where there is none."""
        return window.indices.long().masked_fill(~window.counts, 0)

    def gather(self, cache: Tensor, inv_scale: Tensor | None, window: Window) -> Tensor:
        """The rows [T, W, 512]; zeros where an entry is not attended to."""
        if not len(cache):
            return torch.zeros(*window.indices.shape, NOPE + ROPE, dtype=self.compute)
        # A slot of no page is no error here: a GPU reads something. Only faults have such slots.
        slots = self.slots(window) % (len(cache) * cache.shape[1])
        if window.layout == "bfloat16":
            rows = self.values(cache, slots)
        elif window.layout == "per_token_scale":
            rows = self.codes(self.values(cache.view(torch.uint8), slots))
            assert inv_scale is not None
            scale = self.edit("scale", inv_scale[self.scale_slots(slots, inv_scale)].to(self.compute), window)
            rows = rows * scale.unsqueeze(-1)
        else:
            rows = self.dequantise(*self.parts(cache, slots), window)
        keep = window.counts.unsqueeze(-1)
        return torch.where(keep, rows.to(self.compute), torch.zeros((), dtype=self.compute))

    def values(self, cache: Tensor, slots: Tensor) -> Tensor:
        size = cache.shape[1]
        return cache[slots // size, slots % size]

    def scale_slots(self, slots: Tensor, inv_scale: Tensor) -> Tensor:
        return slots

    def codes(self, bytes_: Tensor) -> Tensor:
        return bytes_.contiguous().view(torch.float8_e4m3fn).to(self.compute)

    def parts(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of values [T, W, 576] and of scales [T, W, 8]."""
        pages, size, _ = cache.shape
        stride, offset = cache.stride(0), cache.storage_offset()
        data = cache.as_strided((pages, size, DATA), (stride, DATA, 1), offset)
        scales = cache.as_strided((pages, size, SCALES), (stride, SCALES, 1), offset + size * DATA)
        page, row = slots // size, slots % size
        return data[page, row], scales[page, row]

    def dequantise(self, data: Tensor, scales: Tensor, window: Window) -> Tensor:
        """Rows of fp8_ds_mla: seven groups of 64 codes with a power of two each, then 64 bf16."""
        nope = self.codes(data[..., :NOPE])
        nope = nope.unflatten(-1, (NOPE // GROUP, GROUP))
        power = self.edit("scale", self.powers(scales[..., : NOPE // GROUP]), window)
        rope = data[..., NOPE:].contiguous().view(torch.bfloat16).to(self.compute)
        return torch.cat([(nope * power.unsqueeze(-1)).flatten(-2), self.edit("rope", rope, window)], -1)

    def powers(self, scales: Tensor) -> Tensor:
        """2^(byte - 127), NaN for 255."""
        found = torch.exp2(scales.to(torch.float64) - 127).to(self.compute)
        return found.masked_fill(scales == 255, torch.nan)

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor | None, window: Window) -> tuple[Tensor, Tensor]:
        """o and lse, neither rounded."""
        scores = self.scores(q, rows, window)
        most = self.edit("m", self.maximum(scores), window)
        p = self.edit("p", self.exp(scores - most.unsqueeze(-1)), window)
        total = self.edit("l", p.sum(-1), window)
        logs = most + total.log()
        below = self.with_sink(total, most, sink, window)
        weighted = self.product(self.store("p", p, window), rows)
        return weighted / below.unsqueeze(-1), logs

    def scores(self, q: Tensor, rows: Tensor, window: Window) -> Tensor:
        """[T, h, W], -inf where an entry is not attended to."""
        scores = self.edit("s", self.product(q, rows.mT) * window.scale, window)
        return scores.masked_fill(~self.edit("mask", window.counts, window).unsqueeze(1), -torch.inf)

    def maximum(self, scores: Tensor) -> Tensor:
        """The largest score, 0 where there is none."""
        most = scores.amax(-1)
        return most.masked_fill(most.isneginf(), 0.0)

    def with_sink(self, total: Tensor, most: Tensor, sink: Tensor | None, window: Window) -> Tensor:
        """The denominator."""
        return total if sink is None else total + self.exp(sink - most)

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def finish(self, found: dict[str, Tensor], window: Window) -> dict[str, Tensor]:
        return found
