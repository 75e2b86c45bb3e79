# SPDX-License-Identifier: Apache-2.0
"""A small serving engine: paged caches of latent rows and its own attention over them, for the table adapter.

The attention is written here from the facts of the layouts, row by row, and shares no code with the project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 128


def row_of(cache: Tensor, slot: int, layout: str, inv_scale: Tensor | None) -> Tensor:
    """A latent row [512] in fp64 from pages [blocks, block_size, row]."""
    block, offset = divmod(slot, cache.shape[1])
    page = cache[block]
    if layout == "bfloat16":
        return page[offset].double()
    if layout == "per_token_scale":
        assert inv_scale is not None
        return page[offset].view(torch.float8_e4m3fn).double() * inv_scale.flatten()[slot].double()
    # 448 codes and 64 bfloat16 a token, 576 bytes, for all tokens of a page; then 8 bytes of scales a token.
    raw = page.reshape(-1)
    data = raw[offset * 576 : (offset + 1) * 576]
    scales = raw[cache.shape[1] * 576 + offset * 8 :][:7]
    nope = data[:448].clone().view(torch.float8_e4m3fn).double()
    factor = torch.tensor([2.0 ** (int(scale) - 127) for scale in scales], dtype=torch.float64)
    return torch.cat([nope * factor.repeat_interleave(64), data[448:].clone().view(torch.bfloat16).double()])


@dataclass
class Metadata:
    indices: Tensor  # int32, [T, W] or a shape of it
    lengths: Tensor  # int32 [T]


@dataclass
class Answer:
    out: Tensor
    lse: Tensor


def attention(
    q: Tensor,
    cache: Tensor,
    metadata: Metadata,
    layout: str,
    inv_scale: Tensor | None,
    sinks: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """o [T, H, 512] and lse [T, H] in fp64 of q [T, H, 512]."""
    return attention_over(
        q, [Pages(cache, metadata.indices, metadata.lengths, layout, inv_scale)], sinks, scale
    )


@dataclass
class Pages:
    """A paged cache, and which of its slots each query attends to: indices of any shape [..., entries]."""

    cache: Tensor
    indices: Tensor
    lengths: Tensor
    layout: str = "fp8_ds_mla"
    inv_scale: Tensor | None = None

    def rows(self, query: int) -> list[Tensor]:
        """The rows that a query attends to, fp64."""
        table = self.indices.reshape(-1, self.indices.shape[-1])[query].tolist()
        slots = table[: int(self.lengths.flatten()[query])]
        return [row_of(self.cache, slot, self.layout, self.inv_scale) for slot in slots if slot != -1]


def attention_over(
    q: Tensor, segments: list[Pages], sinks: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One softmax over the rows of all segments: o [T, H, 512] and lse [T, H] in fp64 of q [T, H, 512]."""
    outs, sums = [], []
    for number, query in enumerate(q.double()):
        found = [row for segment in segments for row in segment.rows(number)]
        if not found:
            outs.append(torch.zeros_like(query))
            sums.append(torch.full(query.shape[:1], -math.inf, dtype=torch.float64))
            continue
        rows = torch.stack(found)
        weights = (scale * query @ rows.T).exp()
        total = weights.sum(1)
        sums.append(total.log())
        if sinks is not None:
            total = total + sinks.double().exp()
        outs.append(weights @ rows / total[:, None])
    return torch.stack(outs), torch.stack(sums)


def flash_mla(
    q: Tensor,
    k_cache: Tensor,
    indices: Tensor,
    topk_length: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    extra_k_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What FlashMLA gives of pages of rows of 584 bytes: o [B, S, H, 512] and lse [B, H, S]. Lengths are of a
    request, for all its queries."""
    segments = []
    for cache, table, lengths in (
        (k_cache, indices, topk_length),
        (extra_k_cache, extra_indices, extra_topk_length),
    ):
        if cache is None or table is None:
            continue
        if lengths is None:
            lengths = torch.full((len(q),), table.shape[-1])
        segments.append(Pages(cache.squeeze(2), table, lengths.repeat_interleave(q.shape[1])))
    o, lse = attention_over(q.flatten(0, 1), segments, attn_sink, softmax_scale)
    lse = torch.where(lse.isinf(), -lse, lse).float().view(q.shape[:3]).transpose(1, 2)
    return o.view(q.shape).to(q.dtype), lse.contiguous()


def decode(
    q: Tensor,
    kv_cache: Tensor,
    metadata: Metadata,
    *,
    layout: str,
    descale: Tensor | None = None,
    sinks: Tensor | None = None,
    softmax_scale: float = 512**-0.5,
) -> tuple[Tensor, Tensor]:
    """Returns (o, lse)."""
    o, lse = attention(q, kv_cache, metadata, layout, descale, sinks, softmax_scale)
    return o.to(q.dtype), lse.float()


def decode_into(q: Tensor, caches: list[Tensor], metadata: Metadata, out: Tensor, descale: Tensor) -> None:
    """q and out [B, S, H, 512]; caches [0] is [slots, 512]; fills `out`."""
    pages = caches[0].view(-1, 64, 512)
    o, _ = attention(q.flatten(0, 1), pages, metadata, "per_token_scale", descale, None, 512**-0.5)
    out.copy_(o.view(out.shape))


class Attention(torch.nn.Module):
    """A layer that keeps its own cache, [blocks, 64, 1, 584]."""

    def __init__(self, layer_idx: int, kv_cache: Tensor, sinks: Tensor) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.kv_cache = kv_cache
        self.sinks = sinks

    def forward(self, q: Tensor, metadata: Metadata) -> Tensor:
        return self.run(q, metadata).out

    def run(self, q: Tensor, metadata: Metadata) -> Answer:
        o, lse = attention(q, self.kv_cache.squeeze(2), metadata, "fp8_ds_mla", None, self.sinks, 512**-0.5)
        return Answer(o.to(q.dtype), lse.float().unsqueeze(-1))
