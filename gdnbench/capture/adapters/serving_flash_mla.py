# SPDX-License-Identifier: Apache-2.0
"""Shared by adapters of FlashMLA's `flash_mla_with_kvcache` over the pages of DeepSeek-V4.

A call whose layer attends to the window alone is recorded as swa_decode, one with `extra_k_cache` as
v4_decode. q [B, S, H, 512], pages [blocks, block_size, 1, 584] with any page stride, indices [B, S, W] and
their lengths [B]; serving engines call it with a request for each query token, S = 1. A record of v4_decode
has FlashMLA's lse, the natural logarithm without the sink, +inf over nothing; a record of swa_decode has
none, because the operation's is -inf there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.v4_calls import Segment, v4_observation, v4_outputs

if TYPE_CHECKING:
    from gdnbench.capture.adapters.paged import Paged

OPERATIONS = ("swa_decode", "v4_decode")
ROW_BYTES = 584
WIDE = "windows wider than 128, of a draft whose tokens see one another"
MANY_QUERIES = "more than 8 queries of a request, which v4_decode does not have"
ROW_FORMAT = "rows of another format than the 584 bytes of DeepSeek-V4"
LSE_FORM = {"lse_base": "e", "lse_sink": "without", "lse_empty": "plus_inf"}


@cache
def flash_mla_table(function: str, framework: str) -> Paged:
    """The `Paged` table of `function`, written `module:name`. Built on first use, not at the start of every
    process."""
    from gdnbench.capture.adapters.paged import Paged

    return Paged(
        function=function,
        q="q",
        cache="k_cache",
        swa_indices="indices",
        swa_lens="topk_length",
        attn_sink="attn_sink",
        scale="softmax_scale",
        o="return[0]",
        cache_layout="fp8_ds_mla",
        framework=framework,
    )


def flash_mla_observation(
    target: Target, framework: str, arguments: Mapping[str, Any], layer: object | None, *, lse: bool
) -> Observation:
    """A call by FlashMLA's names of its arguments. `lse`: whether it returns FlashMLA's. NotCaptured for a
    call that neither operation describes."""
    _refuse(arguments)
    if arguments.get("extra_k_cache") is None:
        q, lengths = arguments["q"], arguments["topk_length"]
        queries = q.shape[1] if q.ndim == 4 else 1
        if queries > 1:  # swa_decode has a length for each of them
            arguments = {**arguments, "topk_length": lengths.repeat_interleave(queries)}
        return flash_mla_table(target.name, framework).before(target, arguments, layer)
    window, extra = (
        Segment(arguments[cache], arguments[indices], arguments[lengths], "fp8_ds_mla")
        for cache, indices, lengths in (
            ("k_cache", "indices", "topk_length"),
            ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"),
        )
    )
    return v4_observation(
        q=arguments["q"],
        window=window,
        extra=extra,
        attn_sink=arguments["attn_sink"],
        scale=arguments["softmax_scale"],
        lse_form=LSE_FORM if lse else None,
    )


def flash_mla_outputs(
    seen: Observation, target: Target, framework: str, arguments: Mapping[str, Any], result: Any
) -> Mapping[str, Seen]:
    """The outputs of a call of `flash_mla_observation`, from (o, lse) or o alone."""
    outputs = result if isinstance(result, tuple) else (result,)
    if seen.op == "v4_decode":
        lse = outputs[1].transpose(1, 2) if seen.scalars["output_lse"] else None  # [B, H, S] of FlashMLA
        return v4_outputs(seen, outputs[0], lse)
    return flash_mla_table(target.name, framework).after(seen, arguments, outputs)


def _refuse(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that neither operation describes."""
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW
    from gdnbench_kernels.v4_decode.sizes import MAX_QUERIES

    indices, cache, extra = arguments["indices"], arguments["k_cache"], arguments.get("extra_k_cache")
    if indices is None or arguments["topk_length"] is None or not arguments["is_fp8_kvcache"]:
        raise NotCaptured("FlashMLA is called without indices and lengths, or without FP8 pages")
    if extra is not None and any(
        arguments.get(name) is None for name in ("extra_indices_in_kvcache", "extra_topk_length")
    ):
        raise NotCaptured("FlashMLA is called with an extra cache, and without its indices or lengths")
    rows = {one.shape[-1] for one in (cache, extra) if one is not None}
    if rows != {ROW_BYTES} or arguments["q"].shape[-1] != HEAD_DIM:
        raise NotCaptured(ROW_FORMAT)
    if indices.shape[-1] > MAX_WINDOW:
        raise NotCaptured(WIDE)
    if extra is not None and arguments["q"].ndim == 4 and arguments["q"].shape[1] > MAX_QUERIES:
        raise NotCaptured(MANY_QUERIES)
