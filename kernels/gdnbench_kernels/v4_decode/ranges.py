"""Ranges of a call of v4_decode: lengths of both segments, scores, sinks, and the scales of the rows attended
to."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.ranges import extremes, present_ranges
from gdnbench_kernels.swa_decode.layouts import CacheLayout, read_rows
from gdnbench_kernels.swa_decode.ranges import scales_of_slots
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.segments import EXTRA, Segment


def ranges(call: Call, segments: tuple[Segment, ...]) -> tuple[Ranges, ...]:
    """The ranges of a valid call with these segments, on the CPU."""
    sink = call.tensors.get("attn_sink")
    found: list[Ranges | None] = []
    for one in segments:
        name, text = (
            ("extra", "compressed rows") if one.names is EXTRA else ("windows", "entries of a window")
        )
        found.append(extremes(name, f"{text} that a query attends to", one.counts.sum(1)))
    found += _scores(call, segments)
    found.append(None if sink is None else extremes("sinks", "attention sinks", sink))
    for one in segments:
        scales = scales_of_slots(one.cache, one.inv_scale, one.slots[one.counts])
        if scales is not None:
            unit = "2^" if one.layout is CacheLayout.FP8_DS_MLA else ""
            name, text = ("extra_scales", "compressed rows") if one.names is EXTRA else ("scales", "rows")
            found.append(extremes(name, f"scales of the {text} attended to", scales, unit))
    return present_ranges(tuple(found))


def _scores(call: Call, segments: tuple[Segment, ...]) -> list[Ranges]:
    """scale q k of every head and entry attended to, and the largest span of scores of one query and head."""
    given = call.scalars.get("scale")
    scale = HEAD_DIM**-0.5 if given is None else float(given)
    ends, widest = [], 0.0
    places = [(one, one.slots, one.counts) for one in segments]
    for row, query in enumerate(call.tensors["q"].flatten(0, 1)):
        keys = torch.cat(
            [
                read_rows(one.cache, one.inv_scale, slots[row][counts[row]], one.layout, torch.float64)
                for one, slots, counts in places
                if len(one.cache)
            ]
            or [torch.empty(0, HEAD_DIM, dtype=torch.float64)]
        )
        if not len(keys):
            continue
        of_heads = query.double() @ keys.mT * scale
        least, most = of_heads.amin(1), of_heads.amax(1)
        ends += [least.min(), most.max()]
        widest = max(widest, float((most - least).max()))
    if not ends:
        return []
    found = extremes("scores", "scores, scale q k", torch.stack(ends))
    assert found is not None
    return [found, Ranges("score_span", "scores of a query and head, from least to most", {"max": widest})]
