# SPDX-License-Identifier: Apache-2.0
"""Kernels of v4_decode that each make one mistake that attention kernels make, or take another form of
calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.v4_decode.torch_paged import torch_paged

EXTRA = ("extra_cache", "extra_inv_scale", "extra_indices", "extra_lens")


def correct(*, o: Tensor | None = None, lse: Tensor | None = None, **call: Any) -> dict[str, Tensor]:
    return torch_paged(**call)


def forgets_the_extra_segment(**call: Any) -> dict[str, Tensor]:
    return correct(**{name: value for name, value in call.items() if name not in EXTRA})


def adds_two_softmaxes(**call: Any) -> dict[str, Tensor]:
    """The mean of the two segments' outputs, as if each had half of the weight."""
    found = correct(**call)
    window = forgets_the_extra_segment(**call)["o"]
    alone = correct(**{**call, "swa_lens": torch.zeros_like(call["swa_lens"])})["o"]
    return {**found, "o": ((window.float() + alone.float()) / 2).bfloat16()}


def counts_a_slot_once(**call: Any) -> dict[str, Tensor]:
    table = call["extra_indices"].clone()
    for row in table.flatten(0, -2):
        seen: set[int] = set()
        for entry, slot in enumerate(row.tolist()):
            if slot in seen:
                row[entry] = -1
            seen.add(slot)
    return correct(**{**call, "extra_indices": table})


def takes_the_last_querys_lengths(**call: Any) -> dict[str, Tensor]:
    lens = call["extra_lens"]
    return correct(**{**call, "extra_lens": lens[:, -1:].expand_as(lens)})


def stops_at_the_first_padding(**call: Any) -> dict[str, Tensor]:
    table, lens = call["swa_indices"], call["swa_lens"]
    first = torch.where((table == -1).any(-1), (table == -1).int().argmax(-1), table.shape[-1])
    return correct(**{**call, "swa_lens": torch.minimum(lens, first.to(lens.dtype))})


def follows_stale_entries(**call: Any) -> dict[str, Tensor]:
    slots = call["extra_cache"].shape[0] * call["extra_cache"].shape[1]
    table = call["extra_indices"].remainder(slots)
    lens = torch.full_like(call["extra_lens"], table.shape[-1])
    return correct(**{**call, "extra_indices": table, "extra_lens": lens})


def counts_the_sink_in_lse(**call: Any) -> dict[str, Tensor]:
    found = correct(**call)
    return {**found, "lse": torch.logaddexp(found["lse"], call["attn_sink"])}


def gives_lse_of_base_2(**call: Any) -> dict[str, Tensor]:
    found = correct(**call)
    return {**found, "lse": found["lse"] * 1.4426950408889634}


def in_flash_mlas_form(
    *, q: Tensor, swa_lens: Tensor, extra_lens: Tensor | None = None, **call: Any
) -> dict[str, Tensor]:
    """Takes one length a request; lse over nothing is +inf."""
    assert swa_lens.shape == (len(q),)
    queries = q.shape[1]
    lens = {"swa_lens": swa_lens.repeat_interleave(queries).view(-1, queries)}
    if extra_lens is not None:
        lens["extra_lens"] = extra_lens.repeat_interleave(queries).view(-1, queries)
    call |= {"q": q, "lens_shape": "BS", "lse_empty": "minus_inf", **lens}
    found = correct(**call)
    return {**found, "lse": found["lse"].where(found["lse"] != -torch.inf, torch.inf)}


in_flash_mlas_form.conventions = {  # type: ignore[attr-defined]
    "lens_shape": "B",
    "lse_empty": "plus_inf",
    "cache_layout": "fp8_ds_mla",
    "extra_layout": "fp8_ds_mla",
}


def gathers_before_it_masks(*, swa_indices: Tensor, cache: Tensor, **call: Any) -> dict[str, Tensor]:
    """Reads every entry of the window; raises IndexError for one that is no slot. lse is in base 2."""
    cache.view(torch.uint8).flatten(0, 1)[swa_indices.long().flatten()]
    if bool((swa_indices < 0).any()):
        raise IndexError("an entry is no slot")
    found = correct(swa_indices=swa_indices, cache=cache, **{**call, "lse_base": "e"})
    return {**found, "lse": found["lse"] * 1.4426950408889634}


gathers_before_it_masks.conventions = {  # type: ignore[attr-defined]
    "masked_indices": "legal",
    "lse_base": "2",
}
