# SPDX-License-Identifier: Apache-2.0
"""Adapter for SGLang: the top-k of DeepSeek-V4's indexer, recorded as indexer_topk.

    topk_transform_paged, topk_transform_paged_v2              SGLang's kernels
    topk_transform_pytorch_vectorized                          PyTorch
    topk_transform_flashinfer_fused, ..._unfused               FlashInfer
    topk_transform_paged_bf16                                  DeepSelect, of bfloat16 logits

They write slots of the compressed pool, and positions if the caller passes an output for them. Otherwise
capture makes the positions of the record from the slots and the page table, which is exact
(`dispatch.made_by_capture`). The layer is the running `MQALayer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.deep_gemm import SGLANG
from gdnbench.capture.adapters.indexer_calls import (
    first_given,
    positions_of_slots,
    row_lengths,
    topk_observation,
)
from gdnbench.capture.adapters.sglang import parallel
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name

PAGED, PAGED_V2, BFLOAT16 = "topk_transform_paged", "topk_transform_paged_v2", "topk_transform_paged_bf16"
TORCH = "topk_transform_pytorch_vectorized"
FLASHINFER = ("topk_transform_flashinfer_fused", "topk_transform_flashinfer_unfused")
OPS = "sglang.kernels.ops.attention.dsv4"
MODULES = {
    SGLANG: (PAGED, PAGED_V2, TORCH, *FLASHINFER, BFLOAT16),
    OPS: (PAGED, PAGED_V2),
    f"{OPS}.topk": (PAGED, PAGED_V2),
}
_PLAIN = Signature(
    "scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices=None",
    needs="scores seq_lens page_tables out_page_indices page_size out_raw_indices",
)

SIGNATURES = Signatures(
    distribution="sglang",
    versions=("0.5.23", "0.5.23"),
    read="2026-11-27",
    functions={
        **dict.fromkeys((PAGED, TORCH, *FLASHINFER), _PLAIN),
        PAGED_V2: Signature(
            "scores, seq_lens, page_tables, out_page_indices, page_size, metadata, out_raw_indices=None",
            needs=_PLAIN.needs,
        ),
        BFLOAT16: Signature(
            "logits, seq_lens, page_table, out_page_indices, page_size",
            needs="logits seq_lens page_table out_page_indices page_size",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class SglangIndexerAdapter:
    framework: str = "sglang"
    targets: tuple[Target, ...] = tuple(
        Target(module, name) for module, names in MODULES.items() for name in names
    )
    scopes: tuple[Target, ...] = (Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"),)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(target.function, arguments)
        logits = first_given(arguments, "scores", "logits")
        lens, lengths_made = row_lengths(arguments["seq_lens"], len(logits), 1)
        made = [
            *(["lens"] if lengths_made else []),
            *([] if _positions(arguments) is not None else ["indices"]),
        ]
        entries = arguments["out_page_indices"].shape[1]
        return topk_observation(logits, lens, entries, made=made, dispatch={"backend": target.function})

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        slots, found = arguments["out_page_indices"], _positions(arguments)
        if found is None:
            table = first_given(arguments, "page_tables", "page_table")
            size = int(arguments["page_size"])
            found = positions_of_slots(slots.detach(), table.detach(), size, arguments["seq_lens"].detach())
            return {"indices": Seen(found, None, slots)}
        return {"indices": Seen(found.detach())}

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("indexer_topk",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ in self.signatures.functions:
            self.signatures.compare_function(function.__name__, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _positions(arguments: Mapping[str, Any]) -> Any:
    """Where the call writes positions; None if it writes slots alone."""
    raw = arguments.get("out_raw_indices")
    if raw is None and first_given(arguments, "page_tables", "page_table") is None:
        return arguments["out_page_indices"]
    return raw
