"""The minimal cost of a call of swa_decode: memory traffic and FLOP.

Bytes: every slot that a request attends to is read once, with its scales, however many requests share it; the
rest of its page is not. Queries are read for requests that attend to something, swa_indices up to each
request's length, swa_lens and attn_sink completely. o and lse are written for every request.

FLOP: scores and weighted sum, 2 H 512 each for every entry attended to; 2 H 128 1024 for a full window.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Shaped, Work
from gdnbench_kernels.swa_decode.kernel_cost import row_bytes
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.window import attended


def work_of(call: Call, indices: Tensor, layout: CacheLayout, outputs: Mapping[str, Shaped]) -> Work:
    """The cost of a valid call with `indices` [T, W] and outputs of these shapes and dtypes."""
    q, lens = call.tensors["q"], call.tensors["swa_lens"].cpu()
    indices = indices.cpu()
    counts = attended(indices, lens)
    inv_scale, sink = call.tensors.get("inv_scale"), call.tensors.get("attn_sink")
    slots = len(torch.unique(indices[counts]))
    rows = slots * row_bytes(layout, 0 if inv_scale is None else inv_scale.element_size())
    queries = int(counts.any(1).sum()) * q.shape[1] * q.shape[2] * q.element_size()
    tables = int(lens.clamp(0, indices.shape[1]).sum()) * indices.element_size() + _size(lens)
    read = rows + queries + tables + (0 if sink is None else _size(sink))
    written = sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs.values())
    return Work(read, written, flop=2 * 2 * q.shape[1] * q.shape[2] * int(counts.sum()))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
