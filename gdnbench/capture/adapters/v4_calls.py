# SPDX-License-Identifier: Apache-2.0
"""Shared by adapters of DeepSeek-V4's whole decode attention: calls recorded as v4_decode.

Tensors are the caller's own, or views of them. A table of slots may be wider than the operation's 2,048
entries, where an engine gives it room for the longest context: the record has the first 2,048, and a call
whose lengths reach beyond is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Finish, NotCaptured, Observation, Seen
from gdnbench.capture.adapters.contract_forms import check_forms

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LONG = "more than 2048 compressed positions as slots, which v4_decode does not have"
COUNTS = ("swa_lens", "swa_indices", "extra_lens", "extra_indices")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the caller has it: pages, a table of B S rows, and its lengths.

    `cache`: pages of `layout`, with axes of size 1. `indices`: slots or `of_pages`, [B, S, entries] or [B S,
    entries]. `lens`: [B] or [B S]. `inv_scale`: of per_token_scale.
    """

    cache: Tensor
    indices: Tensor
    lens: Tensor
    layout: str
    inv_scale: Tensor | None = None
    of_pages: bool = False


def v4_observation(
    *,
    q: Tensor,
    window: Segment,
    extra: Segment,
    attn_sink: Tensor | None,
    scale: float | None,
    lse_form: Mapping[str, str] | None = None,
    dispatch: Mapping[str, Any] | None = None,
    callers: Mapping[str, Tensor] | None = None,
    masked_indices: str = "any",
) -> Observation:
    """A call of v4_decode. q [B, S, H, 512] or [B, H, 512]. `lse_form`: conventions of the lse, None if the
    call returns none. `callers`: the tensors that the caller passed, where others hold their elements.

    ContractError for shapes, strides or dtypes that violate the contract.
    """
    shape = (q.shape[0], 1, *q.shape[1:]) if q.ndim == 3 else tuple(q.shape)
    rows = shape[0] * shape[1]
    tensors = {"q": Seen(q.detach(), shape)}
    tensors |= _segment(window, ("cache", "inv_scale", "swa_indices", "swa_lens"), shape)
    tensors |= _segment(extra, ("extra_cache", "extra_inv_scale", "extra_indices", "extra_lens"), shape)
    if attn_sink is not None:
        tensors["attn_sink"] = Seen(attn_sink.detach().float(), None, attn_sink)
    per_request = len(window.lens.flatten()) == shape[0] != rows
    conventions = {
        "cache_layout": window.layout,
        "extra_layout": extra.layout,
        "extra_index_form": "block_table" if extra.of_pages else "indices",
        "index_shape": "BSW",
        "lens_shape": "B" if per_request else "T",
        "masked_indices": masked_indices,
        **(lse_form or {}),
    }
    check_forms("v4_decode", tensors, conventions, COUNTS)
    for name, given in (callers or {}).items():
        tensors[name] = tensors[name]._replace(caller=given)
    return Observation(
        op="v4_decode",
        tensors=tensors,
        scalars={"scale": None if scale is None else float(scale), "output_lse": lse_form is not None},
        conventions=conventions,
        dispatch={
            "cache_as_called": list(window.cache.shape),
            "extra_cache_as_called": list(extra.cache.shape),
            **(dispatch or {}),
        },
        finish=None if extra.of_pages else _refuse_long_tables,
    )


def _segment(segment: Segment, names: tuple[str, str, str, str], q: tuple[int, ...]) -> dict[str, Seen]:
    from gdnbench.capture.adapters.paged import paged_view
    from gdnbench_kernels.v4_decode.sizes import MAX_TOPK

    cache, inv_scale, indices, lens = names
    table = segment.indices.detach()
    if not segment.of_pages and table.shape[-1] > MAX_TOPK:
        table = table[..., :MAX_TOPK]
    found = {
        cache: Seen(paged_view(segment.cache.detach(), segment.layout, None), None, segment.cache),
        indices: Seen(table, (*q[:2], table.shape[-1]), segment.indices),
        lens: Seen(segment.lens.detach(), (segment.lens.numel(),)),
    }
    if segment.inv_scale is not None:
        found[inv_scale] = Seen(segment.inv_scale.detach())
    return found


def unit_scales(pages: Tensor) -> Tensor:
    """float32 [slots] of 1: the scales of pages [blocks, block_size, ...] of e4m3 values that have none."""
    return _ones(pages.shape[:2].numel(), pages.device)


@lru_cache(maxsize=16)  # a process has a few pools
def _ones(slots: int, device: torch.device) -> Tensor:
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise NotCaptured("a call over e4m3 pages came first in a CUDA graph; warm it up before")
    return torch.ones(slots, device=device)


def v4_outputs(seen: Observation, o: Tensor, lse: Tensor | None = None) -> dict[str, Seen]:
    """o of any leading axes over B S, and lse [B, S, H]."""
    shape = seen.shape_of("q")
    found = {"o": Seen(o, shape)}
    if lse is not None:
        found["lse"] = Seen(lse, shape[:3])
    return found


def followed_by(first: Finish | None, then: Finish) -> Finish:
    """A `Finish` that does what both do."""
    if first is None:
        return then

    def both(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        found, dispatch = first(tensors)
        rest, more = then(found)
        return rest, {**dispatch, **more}

    return both


def _refuse_long_tables(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """NotCaptured for a call whose lengths reach beyond the columns that are recorded."""
    from gdnbench_kernels.v4_decode.sizes import MAX_TOPK

    lens = tensors["extra_lens"]
    if len(lens) and int(lens.amax()) > MAX_TOPK:
        raise NotCaptured(LONG)
    return tensors, {}
