# SPDX-License-Identifier: Apache-2.0
"""Kernels of swa_decode that each make one mistake that attention kernels have made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.swa_decode.contract import SERVED
from gdnbench_kernels.swa_decode.torch_paged import torch_paged


def correct(*, o: Tensor, lse: Tensor | None = None, **call: Any) -> dict[str, Tensor]:
    return torch_paged(**call)


def counts_the_sink_in_lse(**call: Any) -> dict[str, Tensor]:
    found = correct(**call)
    found["lse"] = torch.logaddexp(found["lse"], call["attn_sink"])
    return found


def ignores_the_sink(*, attn_sink: Tensor | None = None, **call: Any) -> dict[str, Tensor]:
    return correct(**call)


def follows_stale_entries(*, swa_lens: Tensor, swa_indices: Tensor, **call: Any) -> dict[str, Tensor]:
    slots = call["cache"].shape[0] * call["cache"].shape[1]
    wrapped = swa_indices.remainder(slots)
    return correct(swa_lens=torch.full_like(swa_lens, wrapped.shape[-1]), swa_indices=wrapped, **call)


def leaves_empty_rows(*, swa_lens: Tensor, o: Tensor, **call: Any) -> dict[str, Tensor]:
    found = correct(swa_lens=swa_lens, o=o, **call)
    found["o"][swa_lens == 0] = o[swa_lens == 0]
    return found


def rounds_lse(**call: Any) -> dict[str, Tensor]:
    found = correct(**call)
    found["lse"] = found["lse"].bfloat16().float()
    return found


def multiplies_masked_rows_by_zero(*, swa_indices: Tensor, **call: Any) -> dict[str, Tensor]:
    """As a kernel does that gathers slot 0 for padding and gives it no weight: 0 * NaN."""
    found = correct(swa_indices=swa_indices, **call)
    padded = (swa_indices == -1).any(-1).flatten()
    first = call["cache"].view(torch.uint8)[0, 0, 0]
    spoilt = torch.where((first & 0x7F) == 0x7F, torch.nan, 0.0)
    found["o"] = torch.where(padded[:, None, None], found["o"] + spoilt, found["o"]).to(torch.bfloat16)
    return found


def reads_a_page_too_many(*, swa_indices: Tensor, swa_lens: Tensor, **call: Any) -> dict[str, Tensor]:
    """Has every row of a length attend to the first page that no row names, too."""
    attended = (swa_indices // call["cache"].shape[1]).flatten().tolist()
    page = next(page for page in range(len(call["cache"])) if page not in attended)
    moved = swa_indices.clone()
    moved[swa_lens > 0, 0] = page * call["cache"].shape[1]
    return correct(swa_indices=moved, swa_lens=swa_lens, **call)


def writes_to_the_cache(**call: Any) -> dict[str, Tensor]:
    call["cache"].view(torch.uint8)[0, 0, 0] ^= 1
    return correct(**call)


def shows_what_it_got(*, swa_indices: Tensor, **call: Any) -> dict[str, Tensor]:
    """Correct only for indices [T, 1, W], as it says it takes."""
    if swa_indices.shape[1] != 1 or swa_indices.ndim != 3:
        raise ValueError(f"swa_indices came as {list(swa_indices.shape)}")
    return correct(swa_indices=swa_indices, **{**call, "index_shape": "T1W"})


for _function in (
    correct,
    counts_the_sink_in_lse,
    ignores_the_sink,
    follows_stale_entries,
    leaves_empty_rows,
    rounds_lse,
    multiplies_masked_rows_by_zero,
    reads_a_page_too_many,
    writes_to_the_cache,
):
    _function.conventions = SERVED  # type: ignore[attr-defined]
shows_what_it_got.conventions = {**SERVED, "index_shape": "T1W"}  # type: ignore[attr-defined]
