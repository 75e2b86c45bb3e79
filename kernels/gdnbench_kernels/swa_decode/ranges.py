"""Ranges of a call of swa_decode: lengths of windows, scores, sinks, and the scales of the rows attended
to."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.ranges import extremes, present_ranges
from gdnbench_kernels.swa_decode.layouts import SCALE_BIAS, CacheLayout, ds_mla_parts, read_rows
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM
from gdnbench_kernels.swa_decode.window import attended


def ranges(call: Call, indices: Tensor, layout: CacheLayout) -> tuple[Ranges, ...]:
    """The ranges of a valid call with `indices` [T, W], on the CPU."""
    lens = call.tensors["swa_lens"]
    counts = attended(indices, lens)
    scales = window_scales(call, indices[counts].long())
    sink = call.tensors.get("attn_sink")
    return present_ranges(
        (
            extremes("windows", "entries that a request attends to", counts.sum(1)),
            *_scores(call, indices, counts, layout),
            None if sink is None else extremes("sinks", "attention sinks", sink),
            None if scales is None else _of_scales(scales, layout),
        )
    )


def _scores(call: Call, indices: Tensor, counts: Tensor, layout: CacheLayout) -> list[Ranges]:
    """scale q k of every head and entry attended to, and the largest span of scores of one request and
    head."""
    cache, inv_scale = call.tensors["cache"], call.tensors.get("inv_scale")
    given = call.scalars.get("scale")
    scale = HEAD_DIM**-0.5 if given is None else float(given)
    ends, widest = [], 0.0
    for query, row, chosen in zip(call.tensors["q"], indices, counts, strict=True):
        if not bool(chosen.any()):
            continue
        keys = read_rows(cache, inv_scale, row[chosen], layout, torch.float64)
        of_heads = query.double() @ keys.mT * scale
        least, most = of_heads.amin(1), of_heads.amax(1)
        ends += [least.min(), most.max()]
        widest = max(widest, float((most - least).max()))
    if not ends:
        return []
    found = extremes("scores", "scores, scale q k", torch.stack(ends))
    assert found is not None
    return [found, Ranges("score_span", "scores of a request and head, from least to most", {"max": widest})]


def window_scales(call: Call, slots: Tensor) -> Tensor | None:
    """The scales of the window's rows at `slots`, see `scales_of_slots`."""
    return scales_of_slots(call.tensors["cache"], call.tensors.get("inv_scale"), slots)


def scales_of_slots(cache: Tensor, inv_scale: Tensor | None, slots: Tensor) -> Tensor | None:
    """The scales of the rows at `slots`: inv_scale, or the exponents of fp8_ds_mla; None for bfloat16."""
    if inv_scale is not None:
        return inv_scale.float()[slots]
    if cache.dtype != torch.uint8:
        return None
    _, scales = ds_mla_parts(cache)
    return scales[slots // cache.shape[1], slots % cache.shape[1], :GROUPS].float() - SCALE_BIAS


def _of_scales(scales: Tensor, layout: CacheLayout) -> Ranges | None:
    unit = "2^" if layout is CacheLayout.FP8_DS_MLA else ""
    return extremes("scales", "scales of the rows attended to", scales, unit)
