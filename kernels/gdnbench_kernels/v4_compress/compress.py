"""The computation of v4_compress, in the dtype of the caller: fp64 for the oracle, fp32 for torch's kernel.

    slots of an entry: the ratio tokens of its window; with overlap first those of the window before
    x[s], z[s]         = kv, score + ape[position % ratio], of slot s: columns 0 .. D-1 for the window before,
                         the last D for the window itself; z = -inf before the sequence
    c                  = sum_s softmax_s(z)[s] x[s]                            for each feature
    entry              = c / sqrt(mean c^2 + eps) norm_weight                  with norm_weight
    entry[-R:]         = pairs rotated by the angle of the window's first position  with rope

A token's x and z without the selection of columns are its state.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.v4_compress.params import CompressParams
from gdnbench_kernels.v4_compress.windows import Windows, pages_of, windows_of


def compress(params: CompressParams, dtype: torch.dtype) -> dict[str, Tensor]:
    """entries [T, D] in `dtype`, zero for tokens that close no window; and the state after the call, in
    `dtype`."""
    device = params.kv.device
    windows = windows_of(params.cu_seqlens.cpu(), params.starts.cpu(), params.ratio, params.overlap)
    place = (windows.at % params.ratio).to(device)
    z = params.score.to(dtype) + params.ape.to(dtype)[place]
    tokens = torch.cat([params.kv.to(dtype), z], dim=1)
    entries = torch.zeros(len(tokens), params.features, dtype=dtype, device=device)
    if len(windows.row):
        rows = _pooled(params, _slots(params, windows, tokens))
        entries[windows.row.to(device)] = _rotated(params, _normalised(params, rows), windows)
    return {"entries": entries, "state": _stored(params, windows, tokens)}


def _slots(params: CompressParams, windows: Windows, tokens: Tensor) -> Tensor:
    """[C, S, 2 E]: what each slot holds; zero where it has no token."""
    device = tokens.device
    held = torch.zeros(*windows.source.shape, tokens.shape[1], dtype=tokens.dtype, device=device)
    here = (windows.token >= 0).to(device)
    held[here] = tokens[windows.token.to(device)[here]]
    earlier = windows.earlier
    if bool(earlier.any()):
        size = params.state.shape[1]
        position = windows.source[earlier]
        sequence = windows.sequence.unsqueeze(1).expand_as(earlier)[earlier]
        pages = pages_of(params.block_table, sequence, position, size)
        read = params.state[pages.to(device), (position % size).to(device)]
        held[earlier.to(device)] = read.to(tokens.dtype)
    scores = held[..., params.kv.shape[1] :]
    scores.masked_fill_(~windows.there.to(device).unsqueeze(-1), -torch.inf)
    return held


def _pooled(params: CompressParams, slots: Tensor) -> Tensor:
    """c [C, D]."""
    columns = params.kv.shape[1]
    x, z = slots[..., :columns], slots[..., columns:]
    if params.overlap:
        features, ratio = params.features, params.ratio
        x, z = (torch.cat([part[:, :ratio, :features], part[:, ratio:, features:]], dim=1) for part in (x, z))
    weights = z.softmax(dim=1)
    pooled: Tensor = (weights * x).sum(1)
    return pooled


def _normalised(params: CompressParams, c: Tensor) -> Tensor:
    if params.norm_weight is None:
        return c
    mean = c.square().mean(1, keepdim=True)
    return c * (mean + params.eps).rsqrt() * params.norm_weight.to(c.dtype)


def _rotated(params: CompressParams, rows: Tensor, windows: Windows) -> Tensor:
    if params.rope is None or not params.rope.shape[1]:
        return rows
    angles = params.rope[windows.position.to(rows.device)].to(rows.dtype)
    cos, sin = angles.chunk(2, dim=1)
    width = angles.shape[1]
    even, odd = rows[:, -width::2], rows[:, -width + 1 :: 2]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(1)
    return torch.cat([rows[:, :-width], turned], dim=1)


def _stored(params: CompressParams, windows: Windows, tokens: Tensor) -> Tensor:
    """The state with the call's tokens in the pages that keep them."""
    size, device = params.state.shape[1], tokens.device
    state = params.state.to(tokens.dtype, copy=True)
    pages = pages_of(params.block_table, windows.of_token, windows.at, size)
    kept = pages >= 0
    state[pages[kept].to(device), (windows.at[kept] % size).to(device)] = tokens[kept.to(device)]
    return state
