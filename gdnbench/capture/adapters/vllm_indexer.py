# SPDX-License-Identifier: Apache-2.0
"""Adapter for vLLM: the top-k kernels of sparse attention's indexer, recorded as indexer_topk.

    SparseIndexerTopk.forward     decoding, whichever kernel it chooses
    top_k_per_row_decode          the same, called by itself
    top_k_per_row_prefill         prefills: rows of one request each, whose candidates may begin later

The layer is the running `SparseAttnIndexer`. Its logits are those of DeepGEMM (see deep_gemm.py), perhaps
widened to fp32, and with DeepSeek-V4.1's candidate blocks -inf elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.deep_gemm import INDEXER
from gdnbench.capture.adapters.indexer_calls import row_lengths, topk_observation
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name
from gdnbench.capture.adapters.vllm import parallel

FORWARD, DECODE, PREFILL = "SparseIndexerTopk.forward", "top_k_per_row_decode", "top_k_per_row_prefill"
MODULES = {"vllm.model_executor.layers.indexer_topk": (FORWARD,), "vllm._custom_ops": (DECODE, PREFILL)}
_STRIDES = "raw_topk_indices, num_rows, stride0, stride1, topk_tokens"

SIGNATURES = Signatures(
    distribution="vllm",
    versions=("0.33.0", "0.33.0"),
    read="2026-11-27",
    functions={
        FORWARD: Signature(
            "self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len",
            needs="logits seq_lens next_n topk_indices topk_tokens max_seq_len",
        ),
        DECODE: Signature(
            f"logits, next_n, seq_lens, {_STRIDES}",
            needs="logits next_n seq_lens raw_topk_indices num_rows topk_tokens",
        ),
        PREFILL: Signature(
            f"logits, cu_seqlen_ks, cu_seqlen_ke, {_STRIDES}",
            needs="logits cu_seqlen_ks cu_seqlen_ke raw_topk_indices num_rows topk_tokens",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class VllmIndexerAdapter:
    framework: str = "vllm"
    targets: tuple[Target, ...] = tuple(
        Target(module, name) for module, names in MODULES.items() for name in names
    )
    scopes: tuple[Target, ...] = (INDEXER,)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(target.function, arguments)
        rows = arguments["logits"].shape[0]
        if target.function == PREFILL:
            starts, ends = arguments["cu_seqlen_ks"], arguments["cu_seqlen_ke"]
            lens = Seen((ends.detach().long() - starts.detach()).clamp(min=0)[:rows].int(), None, ends)
            starts, made = starts[:rows], ["lens"]
        else:
            queries = int(arguments["next_n"])
            lens, lengths_made = row_lengths(arguments["seq_lens"], rows // queries, queries)
            starts, made = None, ["lens"] if lengths_made else []
        return topk_observation(
            arguments["logits"],
            lens,
            int(arguments["topk_tokens"]),
            starts=starts,
            reach=arguments.get("max_seq_len"),
            made=made,
            dispatch={"path": "prefill" if target.function == PREFILL else "decode"},
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        indices = arguments["topk_indices" if "topk_indices" in arguments else "raw_topk_indices"]
        rows, entries = arguments["logits"].shape[0], int(arguments["topk_tokens"])
        return {"indices": Seen(indices.detach()[:rows, :entries], None, indices)}

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("indexer_topk",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        self.signatures.compare_function(function.__qualname__, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()
