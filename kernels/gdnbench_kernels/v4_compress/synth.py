# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for v4_compress."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Scalar
from gdnbench_kernels.v4_compress.windows import NOT_KEPT

DTYPES = ("bfloat16", "float32", "float16")


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 9, 0, 4),
    starts: tuple[int, ...] = (7, 0, 3, 6),
    ratio: int = 4,
    overlap: bool = True,
    features: int = 512,
    block_size: int = 4,
    norm: bool = True,
    rope_dim: int = 64,
    freed: bool = True,
    spare_pages: int = 2,
    score_spread: float = 1.0,
    magnitude: float = 1.0,
    dtype: str = "bfloat16",
    entries_dtype: str = "bfloat16",
    poison: bool = True,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `seqlens`, `starts`: tokens of each sequence in this call and before it. `ratio`, `overlap`: 4 and true
    for CSA, 128 and false for HCA. `features`: D. `norm`, `rope_dim`: whether entries are normalised, and how
    many features are rotated, 0 for none. `freed`: pages that no later window needs are not in the table.
    `score_spread`: deviation of the scores; `magnitude`: that of kv. `poison`: states that the call does not
    read are NaN.
    """
    _check(seqlens, starts, ratio, features, block_size, rope_dim, dtype, entries_dtype)
    generator = torch.Generator().manual_seed(seed)
    columns, slots = features * (2 if overlap else 1), ratio * (2 if overlap else 1)
    tokens = sum(seqlens)
    kv = torch.randn(tokens, columns, generator=generator) * magnitude
    score = torch.randn(tokens, columns, generator=generator) * score_spread
    ends = [start + length for start, length in zip(starts, seqlens, strict=True)]
    width = max([*(-(-end // block_size) for end in ends), 1])
    table = torch.full((len(seqlens), width), NOT_KEPT, dtype=torch.int32)
    first_kept = [max(0, (start // ratio + 1) * ratio - slots) if freed else 0 for start in starts]
    wanted = [
        range(first // block_size, -(-end // block_size)) for first, end in zip(first_kept, ends, strict=True)
    ]
    blocks = sum(map(len, wanted)) + spare_pages
    order = torch.randperm(blocks, generator=generator).to(torch.int32)
    taken = 0
    for n, pages in enumerate(wanted):
        table[n, pages.start : pages.stop] = order[taken : taken + len(pages)]
        taken += len(pages)
    state = torch.randn(blocks, block_size, 2 * columns, generator=generator)
    state[..., columns:] *= score_spread
    state[..., :columns] *= magnitude
    if poison:
        live = torch.zeros(blocks, block_size, dtype=torch.bool)
        for n, (first, start) in enumerate(zip(first_kept, starts, strict=True)):
            for position in range(first, start):
                live[int(table[n, position // block_size]), position % block_size] = True
        state[~live] = torch.nan
    lengths = torch.tensor([0, *seqlens], dtype=torch.int32)
    tensors: dict[str, Tensor] = {
        "kv": kv.to(getattr(torch, dtype)),
        "score": score.to(getattr(torch, dtype)),
        "ape": torch.randn(ratio, columns, generator=generator),
        "cu_seqlens": lengths.cumsum(0).to(torch.int32),
        "starts": torch.tensor(starts, dtype=torch.int32),
        "state": state,
        "block_table": table,
    }
    if norm:
        tensors["norm_weight"] = 1 + 0.1 * torch.randn(features, generator=generator)
    if rope_dim:
        positions = torch.arange(max([*ends, 1]))
        frequency = 160000.0 ** (-torch.arange(0, rope_dim, 2) / rope_dim)
        angle = positions.unsqueeze(1) * frequency
        tensors["rope"] = torch.cat([angle.cos(), angle.sin()], dim=1)
    scalars: dict[str, Scalar] = {"ratio": ratio, "overlap": overlap, "entries_dtype": entries_dtype}
    return Call(tensors, scalars, {})


def _check(
    seqlens: tuple[int, ...],
    starts: tuple[int, ...],
    ratio: int,
    features: int,
    block_size: int,
    rope_dim: int,
    dtype: str,
    entries_dtype: str,
) -> None:
    if len(seqlens) != len(starts):
        raise ContractError(
            f"seqlens has {len(seqlens)} sequences and starts has {len(starts)}; give one each"
        )
    if min([*seqlens, *starts], default=0) < 0:
        raise ContractError("seqlens and starts are numbers of tokens, 0 or more")
    for name, value in (("ratio", ratio), ("features", features), ("block_size", block_size)):
        if value < 1:
            raise ContractError(f"{name} is {value}; it must be at least 1")
    if not 0 <= rope_dim <= features or rope_dim % 2:
        raise ContractError(f"rope_dim is {rope_dim}; it must be even, and at most {features}, the features")
    for name, given in (("dtype", dtype), ("entries_dtype", entries_dtype)):
        if given not in DTYPES:
            raise ContractError(f"{name} is {given!r}; it is one of {', '.join(DTYPES)}")
