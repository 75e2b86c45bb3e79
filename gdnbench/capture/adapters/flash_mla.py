# SPDX-License-Identifier: Apache-2.0
"""Adapter for FlashMLA called directly: `flash_mla_with_kvcache` over the pages of DeepSeek-V4, recorded as
v4_decode with an extra cache and as swa_decode without one (see serving_flash_mla.py).

A request may have several queries, and lengths may be left out: all entries count then, and capture makes
lengths of that (`dispatch.made_by_capture`). The function names no layer, and no engine says whose the
requests are. vLLM has a copy in a module of its own (vllm_deepseek_v4.py). SGLang calls this package below
its own function, whose record it then is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.serving_flash_mla import (
    OPERATIONS,
    flash_mla_observation,
    flash_mla_outputs,
)
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name

FUNCTION = "flash_mla_with_kvcache"
LENGTHS = {"topk_length": "indices", "extra_topk_length": "extra_indices_in_kvcache"}

SIGNATURES = Signatures(
    distribution="sgl-flash-mla",
    versions=("1.0.0", "1.0.0"),
    read="2026-11-27",
    functions={
        FUNCTION: Signature(
            "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,"
            " softmax_scale=None, causal=False, is_fp8_kvcache=None, indices=None, attn_sink=None,"
            " extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None,"
            " enable_batch_invariant=False, use_legacy=False, kv_format=None, descale_q=None, descale_k=None",
            needs="q k_cache indices topk_length softmax_scale attn_sink extra_k_cache"
            " extra_indices_in_kvcache extra_topk_length",
            others="out",
        )
    },
)
"""FlashMLA itself is on no package index; its function lacks the last four parameters and may have `out`."""


@dataclass(frozen=True, slots=True)
class FlashMlaAdapter:
    framework: str = "flash_mla"
    targets: tuple[Target, ...] = tuple(
        Target(module, FUNCTION) for module in ("flash_mla.flash_mla_interface", "flash_mla")
    )
    scopes: tuple[Target, ...] = ()
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(FUNCTION, arguments)
        given, made = _with_lengths(arguments)
        seen = flash_mla_observation(target, self.framework, given, layer, lse=True)
        dispatch = {**seen.dispatch, "backend": "flashmla", **({"made_by_capture": made} if made else {})}
        return replace(seen, dispatch=dispatch)

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return flash_mla_outputs(seen, self.targets[0], self.framework, arguments, result)

    def operations(self, target: Target) -> tuple[str, ...]:
        return OPERATIONS

    def implementation(self, function: Callable[..., Any]) -> str | None:
        self.signatures.compare_function(FUNCTION, function)
        return qualified_name(function)


def _with_lengths(arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The call with lengths, and the names in the record of those that capture made."""
    import torch

    q, cache = arguments["q"], arguments["k_cache"]
    given = {**arguments, "is_fp8_kvcache": cache.element_size() == 1}
    made = []
    for name, table in LENGTHS.items():
        indices = arguments[table]
        if indices is not None and arguments[name] is None:
            given[name] = torch.full((len(q),), indices.shape[-1], dtype=torch.int32, device=q.device)
            made.append("extra_lens" if name.startswith("extra") else "swa_lens")
    return given, made
