# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for indexer_topk."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError

STALE = ("nan", "inf", "live")


def synth(
    *,
    lens: tuple[int, ...] = (4096, 700, 512, 100, 1, 0),
    top_k: int = 512,
    columns: int = 0,
    zeros: float = 0.0,
    negative_zeros: float = 0.0,
    levels: int = 0,
    base: float = 0.0,
    spread: float = 1.0,
    starts: bool = False,
    dtype: str = "float32",
    stale: str = "nan",
    nan_at: tuple[int, ...] = (),
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `lens`: candidates of each row. `top_k`: K. `columns`: N, 0 for the most that a row needs. `zeros`: share
    of a row's candidates that are exactly 0.0 and that no other candidate is below, as sums of ReLUs are;
    `negative_zeros`: share of those that are -0.0. `levels`: how many values logits have, 0 for any; 1 makes
    all equal. `base`, `spread`: mean and deviation of the logits; a large base leaves them few bits to differ
    in. `starts`: rows start at columns of their own, as in prefill. `stale`: what the other columns hold:
    `nan`, `inf`, or `live`, logits above all candidates. `nan_at`: rows with a NaN among their candidates.
    """
    _check(zeros, negative_zeros, levels, stale, dtype, lens, top_k)
    generator = torch.Generator().manual_seed(seed)
    longest = max(lens, default=0)
    width = columns or max(1, longest + (8 * len(lens) if starts else 0))
    count = torch.tensor(lens, dtype=torch.int32)
    if longest > width:
        raise ContractError(f"columns is {columns}; a row has {longest} candidates")
    first = torch.zeros_like(count)
    if starts:
        free = torch.rand(len(lens), generator=generator) * (width - count + 1)
        first = free.to(torch.int32).clamp(max=width - count)
    logits = torch.empty(len(lens), width)
    for row, (start, length) in enumerate(zip(first.tolist(), lens, strict=True)):
        made = _candidates(length, levels, base, spread, generator)
        _zero(made, zeros, negative_zeros, generator)
        logits[row] = _stale(stale, made)
        logits[row, start : start + length] = made
    for row in nan_at:
        if not 0 <= row < len(lens) or not lens[row]:
            raise ContractError(f"nan_at names row {row}; there is none that has candidates")
        logits[row, int(first[row])] = torch.nan
    tensors: dict[str, Tensor] = {"logits": logits.to(getattr(torch, dtype)), "lens": count}
    if starts:
        tensors["row_starts"] = first
    return Call(tensors, {"top_k": top_k}, {})


def _candidates(length: int, levels: int, base: float, spread: float, generator: Generator) -> Tensor:
    if levels:
        drawn = torch.randint(levels, (length,), generator=generator).float()
    else:
        drawn = torch.randn(length, generator=generator)
    return base + spread * drawn


def _zero(candidates: Tensor, zeros: float, negative: float, generator: Generator) -> None:
    """Make a share of the candidates 0.0 or -0.0, and the others positive, in place."""
    if not zeros:
        return
    candidates.abs_()
    chosen = torch.randperm(len(candidates), generator=generator)[: int(zeros * len(candidates))]
    candidates[chosen] = 0.0
    candidates[chosen[: int(negative * len(chosen))]] = -0.0


def _stale(kind: str, candidates: Tensor) -> float:
    if kind == "live":
        return float(candidates.max()) + 1 if len(candidates) else 1.0
    return float(kind)


def _check(
    zeros: float,
    negative_zeros: float,
    levels: int,
    stale: str,
    dtype: str,
    lens: tuple[int, ...],
    top_k: int,
) -> None:
    for name, share in (("zeros", zeros), ("negative_zeros", negative_zeros)):
        if not 0 <= share <= 1:
            raise ContractError(f"{name} is {share:g}; it is a share, in [0, 1]")
    if levels < 0:
        raise ContractError(f"levels is {levels}; it is a number of values, 0 for any")
    if stale not in STALE:
        raise ContractError(f"stale is {stale!r}; it is one of {', '.join(STALE)}")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ContractError(f"dtype is {dtype!r}; it is float32, bfloat16 or float16")
    if min(lens, default=0) < 0:
        raise ContractError(f"lens are 0 or more; they are {', '.join(map(str, lens))}")
    if top_k < 1:
        raise ContractError(f"top_k is {top_k}; it must be at least 1")
