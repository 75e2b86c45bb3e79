# SPDX-License-Identifier: Apache-2.0
"""Adapter for DeepGEMM's scores of an indexer (`*_mqa_logits`), recorded as indexer_logits; vLLM and SGLang
call them for DeepSeek-V3.2 and V4.

    fp8_paged_mqa_logits, fp8_fp4_paged_mqa_logits    keys in pages
    fp8_mqa_logits, fp8_fp4_mqa_logits                packed keys

The package is `deep_gemm`, or vLLM's copy of it; vLLM calls functions of its own above these, SGLang has some
in PyTorch and TileLang. Recorded are e4m3 queries whose scale is part of the weights, over keys
with an fp32 scale each: not MX formats (SM100 in vLLM) or FP4. Parameters have other names in each package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.indexer_calls import first_given, logits_of, packed_logits, paged_logits
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name
from gdnbench.capture.adapters.vllm_steps import step_of_cache

PAGED, PACKED = "fp8_paged_mqa_logits", "fp8_mqa_logits"
PAGED_FP4, PACKED_FP4 = "fp8_fp4_paged_mqa_logits", "fp8_fp4_mqa_logits"
TORCH, TORCH_SM120 = "fp8_paged_mqa_logits_torch", "fp8_paged_mqa_logits_torch_sm120"
PACKAGES = ("deep_gemm", "vllm.third_party.deep_gemm")
VLLM = ("vllm.utils.deep_gemm", "vllm.model_executor.layers.sparse_attn_indexer")
SGLANG = "sglang.srt.layers.attention.dsv4.indexer"
TILELANG, TILELANG_MODULE = (
    "tilelang_fp8_paged_mqa_logits",
    "sglang.kernels.ops.attention.dsa.tilelang_kernel",
)
BACKENDS = {SGLANG: "torch", TILELANG_MODULE: "tilelang"}
INDEXER = Target("vllm.model_executor.layers.sparse_attn_indexer", "SparseAttnIndexer.forward_cuda")

SIGNATURES = Signatures(
    distribution="sgl-deep-gemm",
    versions=("0.2.3.post2", "0.2.5"),
    read="2026-11-27",
    functions={
        PAGED: Signature(
            "q, kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len,"
            " clean_logits=False, indices=None",
            needs="q kv_cache weights context_lens block_table max_context_len",
        ),
        PACKED: Signature(
            "q, kv, weights, ks, ke, clean_logits=False, max_seqlen_k=0",
            needs="q kv weights",
            others="cu_seq_len_k_start cu_seq_len_k_end",
        ),
        PAGED_FP4: Signature(
            "q, kv_cache, weights, context_lens, block_table, schedule_meta, max_context_len, indices=None",
            needs="q kv_cache weights context_lens",
            others="clean_logits logits_dtype block_tables schedule_metadata max_model_len",
        ),
        PACKED_FP4: Signature(
            "q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, max_seqlen_k, schedule_meta=None",
            needs="q kv weights max_seqlen_k",
            others="clean_logits logits_dtype cu_seqlen_ks cu_seqlen_ke",
        ),
        **dict.fromkeys(
            (TORCH, TORCH_SM120, TILELANG),
            Signature(
                "q_fp8, kvcache_fp8, weight, seq_lens, page_table, deep_gemm_metadata, max_seq_len,"
                " clean_logits=True",
                needs="q_fp8 kvcache_fp8 weight seq_lens page_table max_seq_len clean_logits",
            ),
        ),
    },
)
"""The first two are of 0.2.3.post2, which SGLang 0.5.23 requires, and went with 0.2.5; the others of 0.2.5,
vLLM 0.33.0 and SGLang 0.5.23. `others` has the names of 0.2.3.post2 and of vLLM's own functions."""


@dataclass(frozen=True, slots=True)
class DeepGemmAdapter:
    framework: str = "deep_gemm"
    callers: tuple[str, ...] = ("vllm", "sglang")
    targets: tuple[Target, ...] = (
        *(Target(module, name) for module in PACKAGES for name in (PAGED, PACKED, PAGED_FP4, PACKED_FP4)),
        *(Target(module, name) for module in VLLM for name in (PAGED_FP4, PACKED_FP4)),
        *(Target(SGLANG, name) for name in (TORCH, TORCH_SM120)),
        Target(TILELANG_MODULE, TILELANG),
    )
    scopes: tuple[Target, ...] = (INDEXER, Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"))
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(target.function, arguments)
        dtype = arguments.get("logits_dtype")
        if dtype is not None and str(dtype) != "torch.float32":
            raise NotCaptured("logits of another dtype than fp32, of kernels for MX formats")
        q, weights = first_given(arguments, "q", "q_fp8"), first_given(arguments, "weights", "weight")
        clean = bool(arguments.get("clean_logits", False))
        dispatch = {"backend": BACKENDS.get(target.module, "deep_gemm")}
        if "kv" in arguments:
            return packed_logits(
                q=q,
                kv=arguments["kv"],
                weights=weights,
                starts=first_given(arguments, "ks", "cu_seq_len_k_start", "cu_seqlen_ks"),
                ends=first_given(arguments, "ke", "cu_seq_len_k_end", "cu_seqlen_ke"),
                columns=int(arguments["max_seqlen_k"]) or None,
                clean=clean,
                dispatch=dispatch,
            )
        step = step_of_cache(getattr(layer, "k_cache", None))
        return paged_logits(
            q=q,
            cache=first_given(arguments, "kv_cache", "kvcache_fp8"),
            weights=weights,
            lens=first_given(arguments, "context_lens", "seq_lens"),
            block_table=first_given(arguments, "block_table", "block_tables", "page_table"),
            columns=int(first_given(arguments, "max_context_len", "max_model_len", "max_seq_len")),
            clean=clean,
            indices=arguments.get("indices"),
            reach=getattr(step, "max_seq_len", None),
            dispatch=dispatch,
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return logits_of(seen, result)

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("indexer_logits",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ in self.signatures.functions:
            self.signatures.compare_function(function.__name__, function)
        return qualified_name(function)
