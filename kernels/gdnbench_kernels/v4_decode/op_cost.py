"""The minimal cost of a call of v4_decode: memory traffic and FLOP.

Bytes: every slot of either cache that a query attends to is read once, with its scales, however many queries
share it; the rest of its page is not. Queries are read for rows that attend to something, tables up to each
row's length, lengths and attn_sink completely. o and lse are written for every row.

FLOP: scores and weighted sum, 2 H 512 each for every entry attended to.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Shaped, Work
from gdnbench_kernels.swa_decode.kernel_cost import row_bytes
from gdnbench_kernels.v4_decode.segments import Segment


def work_of(call: Call, segments: tuple[Segment, ...], outputs: Mapping[str, Shaped]) -> Work:
    """The cost of a valid call with these segments and outputs of these shapes and dtypes."""
    q, sink = call.tensors["q"], call.tensors.get("attn_sink")
    attended, read = [], 0 if sink is None else _size(sink)
    for one in segments:
        counts = one.counts.cpu()
        attended.append(counts.sum(1))
        slots = len(torch.unique(one.slots.cpu()[counts]))
        read += slots * row_bytes(one.layout, 0 if one.inv_scale is None else one.inv_scale.element_size())
        read += _entries(one) * one.table.element_size() + _size(call.tensors[one.names.lens])
    entries = torch.stack(attended).sum(0)
    query = q.shape[2] * q.shape[3]
    read += int((entries > 0).sum()) * query * q.element_size()
    written = sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs.values())
    return Work(read, written, flop=2 * 2 * query * int(entries.sum()))


def _entries(segment: Segment) -> int:
    """Entries of the table up to each row's length."""
    size = segment.block_size if segment.of_pages else 1
    return int((-(-segment.lens.cpu().long() // size)).sum())


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
