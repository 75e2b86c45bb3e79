# SPDX-License-Identifier: Apache-2.0
"""A compressor's step by a plan: the token of each request is kept, and its window made an entry."""

from typing import NamedTuple

import torch


class CompressorDecodePlan(NamedTuple):
    compress_ratio: int
    plan_d: torch.Tensor

    @property
    def is_decode(self):
        return True


class CompressorPrefillPlan(NamedTuple):
    compress_ratio: int
    plan_c: torch.Tensor
    plan_w: torch.Tensor

    @property
    def is_decode(self):
        return False


def compress_forward(
    kv_score_buffer, kv_score_input, ape, plan, *, head_dim, compress_ratio, out=None, is_online=False
):
    if out is None:
        out = torch.full((len(plan[1]), head_dim), 5.0, dtype=kv_score_input.dtype)
    if not plan.is_decode or is_online:
        return out
    tokens = kv_score_buffer.view(-1, kv_score_buffer.shape[-1])
    width = tokens.shape[1] // 2
    for row, (length, place, before, own) in enumerate(plan[1].view(torch.int32).tolist()):
        tokens[place] = kv_score_input[row]
        if length % compress_ratio:
            continue
        window = tokens[own * compress_ratio : (own + 1) * compress_ratio].double()
        last = width - head_dim  # columns of the window itself
        x, z = window[:, last:width], window[:, width + last :] + ape[-compress_ratio:].double()
        if compress_ratio == 4 and length > 4:
            old = tokens[before * 4 : before * 4 + 4].double()
            x = torch.cat([old[:, :head_dim], x])
            z = torch.cat([old[:, width : width + head_dim] + ape[:4].double(), z])
        weights = z.softmax(0)
        out[row] = (weights * x).sum(0)
    return out
