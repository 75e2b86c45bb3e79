"""Shared by adapters of serving engines that decode DeepSeek-V4 by FlashMLA's `flash_mla_with_kvcache`.

q [T, 1, H, 512], pages [blocks, block_size, 1, 584] with any page stride, indices [T, 1, W] and their lengths
[T]. The record has no lse: for a row that attends to nothing FlashMLA's is +inf, and the operation's is -inf.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured

if TYPE_CHECKING:
    from gdnbench.capture.adapters.paged import Paged

ROW_BYTES = 584
COMPRESSED = "layers of DeepSeek-V4 that attend to compressed keys too; swa_decode has none"
WIDE = "windows wider than 128, of a draft whose tokens see one another"


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


def refuse_unsupported_call(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that swa_decode does not describe."""
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW

    if arguments.get("extra_k_cache") is not None:
        raise NotCaptured(COMPRESSED)
    indices, cache = arguments["indices"], arguments["k_cache"]
    if indices is None or arguments["topk_length"] is None or not arguments["is_fp8_kvcache"]:
        raise NotCaptured("FlashMLA is called without indices and lengths, or without FP8 pages")
    if cache.shape[-1] != ROW_BYTES or arguments["q"].shape[-1] != HEAD_DIM:
        raise NotCaptured("rows of another format than the 584 bytes of DeepSeek-V4")
    if indices.shape[-1] > MAX_WINDOW:
        raise NotCaptured(WIDE)
