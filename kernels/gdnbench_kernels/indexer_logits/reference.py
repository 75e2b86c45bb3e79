"""The fp64 oracle of indexer_logits.

    logits[t, j] = scale[s] * sum_h weights[t, h] * relu(q[t, h] . k[s])

s is the key of column j: the j-th of the query's pages, or row j of k. Scales are not negative, so that they
may be applied before or after the ReLU.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.indexer_logits.keys import first_columns, read_pages, request_of, width_of
from gdnbench_kernels.indexer_logits.params import LogitsParams
from gdnbench_kernels.params import takes_params

STEP = 32
"""Products that an FP8 tensor core of Hopper adds in one instruction."""
CUT = 2.0**-13
"""It aligns them to the largest and keeps 13 bits of fraction (DeepSeek-V3, arXiv 2412.19437, 3.3.2)."""

HALF_ULP = 2.0**-24
"""By which fp32 rounds, relative to the result."""

DEVIATIONS = 6
"""Of a normal error; beyond them is one logit in 500 million."""


@takes_params(LogitsParams)
def reference(params: LogitsParams) -> dict[str, Tensor]:
    """logits [T, columns] in fp64, on q's device; -inf in columns of no key."""
    rows = len(params.lens)
    logits = torch.full((rows, width_of(params)), -torch.inf, dtype=torch.float64, device=params.q.device)
    firsts = first_columns(params).tolist()
    for row, (first, length) in enumerate(zip(firsts, params.lens.tolist(), strict=True)):
        if length:
            keys, scales = keys_of_row(params, row, length)
            scores = (params.q[row].double() @ keys.double().T).relu()
            logits[row, first : first + length] = params.weights[row].double() @ scores * scales.double()
    return {"logits": logits}


def keys_of_row(params: LogitsParams, row: int, length: int) -> tuple[Tensor, Tensor]:
    """The keys [length, D] that a query scores, and their scales [length]."""
    if params.k is not None:
        start = 0 if params.row_starts is None else int(params.row_starts[row])
        keys = params.k[start : start + length]
        if params.k_scale is None:
            return keys, torch.ones(length, device=keys.device)
        return keys, params.k_scale[start : start + length]
    assert params.cache is not None
    assert params.block_table is not None
    request = row // request_of(len(params.lens), len(params.block_table))
    needed = -(-length // params.cache.shape[1])
    codes, scales = read_pages(params.cache, params.block_table[request, :needed])
    return codes.flatten(0, 1)[:length], scales.flatten()[:length]


def leeway(call: Call, output: str) -> Tensor | None:
    """How far a right kernel's logits [T, columns] may lie from the exact ones, whatever torch's error is:
    what FP8 tensor cores lose of e4m3 operands, or what sums in fp32 lose in any order. Six standard
    deviations of independent errors, whose squares add up, with 1/3 of the largest squared for each. A ReLU
    adds no error; weights and scales multiply it.
    """
    given: dict[str, Any] = {**call.tensors, **call.scalars, **call.conventions}
    params = LogitsParams(**given)
    found = torch.zeros(len(params.lens), width_of(params), dtype=torch.float64, device=params.q.device)
    variance_of = _variance_of_tensor_cores if params.q.dtype == torch.float8_e4m3fn else _variance_of_sums
    firsts = first_columns(params).tolist()
    for row, (first, length) in enumerate(zip(firsts, params.lens.tolist(), strict=True)):
        if not length:
            continue
        keys, scales = keys_of_row(params, row, length)
        variance = variance_of(params.q[row], keys, params.weights[row].double())
        found[row, first : first + length] = (DEVIATIONS * variance.sqrt() * scales.double()).nan_to_num(
            0, 0, 0
        )
    return found


def _variance_of_tensor_cores(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """[keys]. In each step the 32 products and the sum so far lose up to 2^-13 of the largest product."""
    q, wide = q.float().abs(), keys.float().abs()
    lost = torch.zeros(len(q), len(keys), device=q.device)
    for step in range(0, q.shape[1], STEP):
        one, other = q[:, step : step + STEP], wide[:, step : step + STEP]
        largest = torch.stack([(head * other).amax(1) for head in one])
        lost += (STEP + 1) / 3 * (CUT * largest).square()
    return weights.square() @ lost.double()


def _variance_of_sums(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """[keys]. Each product and each sum is rounded by up to 2^-24 of itself. No partial sum over features is
    above the sum of the products' magnitudes, none over heads above that of the weighted scores' magnitudes,
    in any order."""
    exact, wide = q.double(), keys.double()
    most = exact.abs() @ wide.abs().T
    features = 2 * q.shape[1] / 3 * (HALF_ULP * most).square()
    scores = weights.abs() @ (exact @ wide.T).relu()
    heads = 2 * len(q) / 3 * (HALF_ULP * scores).square()
    return weights.square() @ features + heads
