# SPDX-License-Identifier: Apache-2.0
"""Limits of stages that gdn_prefill and kda_prefill share: sums of gates, and subnormal numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.chunks import ChunkPlan, gather_chunks, scatter_chunks
from gdnbench_kernels.contract import Limit
from gdnbench_kernels.delta_prefill.chunked import chunk_cumsum

UNIT = 2.0**-24
"""Unit roundoff of float32."""
HALF_TINY = 2.0**-25
"""Half the smallest subnormal of fp16."""


def half_tiny(dtype: torch.dtype) -> float:
    """Half the smallest subnormal of a floating dtype."""
    form = torch.finfo(dtype)
    return form.smallest_normal * form.eps / 2


def gate_sum_limit(chunk_size: int) -> Limit:
    """The limit of g_cu. Each of the C - 1 additions of gates of one sign in float32 rounds a partial sum by
    at most 2^-24 of it, and no partial sum is larger than the last. So a sum in any order is right to
    (C - 1) 2^-24, where torch's may happen to be exact."""
    return Limit((chunk_size - 1) * UNIT, added=True)


def rounded_gates(gates: Tensor, plan: ChunkPlan) -> Tensor:
    """fp64 gates, of the shape of the log-space `gates` [T, Hv, ...], whose sums in each chunk are the exact
    sums rounded to float32.

    They are differences of neighbouring sums; in fp64 their error is at most 2^-53 of the larger sum.
    """
    rows = plan.part(0, plan.total)
    sums = chunk_cumsum(gather_chunks(gates, *rows))
    rounded = sums.clamp(min=torch.finfo(torch.float32).min).float().double()
    first = rounded.new_zeros(rounded[:, :, :1].shape)
    found = torch.empty_like(gates)
    scatter_chunks(found, rounded.diff(dim=2, prepend=first), *rows)
    return found
