# SPDX-License-Identifier: Apache-2.0
"""Adapter for SGLang: layers of DeepSeek-V4 over fp8_ds_mla pages, those of the window alone recorded as
swa_decode, those with compressed keys as v4_decode.

The attention backend calls one of these functions for decoding, for verification of drafts, and for prefills
whose pages it does not gather: each query token is a row.

    flash_mla_with_kvcache         FlashMLA (see serving_flash_mla.py); before 0.5.23 sgl_kernel's, which
                                   other models call as well
    flash_mla_with_kvcache_sm120   the same on SM120, by FlashInfer or Triton
    swapab_attention               small batches of DeepSeek-V4.1 on SM100, by Triton; sink has padding

In a padded batch, rows beyond the step's own attend to one row of page 0. H is the kernel's head count: heads
that the model does not have are zeros. The layer is the running `MQALayer`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.serving_decode import finish_with_metadata, metadata_tensors
from gdnbench.capture.adapters.serving_flash_mla import (
    OPERATIONS,
    flash_mla_observation,
    flash_mla_outputs,
)
from gdnbench.capture.adapters.sglang import parallel
from gdnbench.capture.adapters.sglang_signatures import (
    FLASH_MLA,
    FLASH_MLA_SM120,
    KERNEL_SIGNATURES,
    SIGNATURES,
    SWAPAB,
)
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.v4_calls import followed_by
from gdnbench.capture.parts import Part

INTERFACE = "sglang.kernels.ops.attention.flash_mla_interface"
KERNEL = "sgl_kernel.flash_mla"  # before 0.5.23
SM120 = "sglang.kernels.ops.attention.flash_mla_sm120"
SM100 = "sglang.kernels.ops.attention.dsv4.decode_attention_sm100"
BACKENDS = {FLASH_MLA: "flashmla", FLASH_MLA_SM120: "flashmla sm120", SWAPAB: "swapab"}
CONTEXT = "sglang.srt.model_executor.forward_context"
METADATA = {"seq_lens": "seq_lens_casual", "positions": "positions_casual"}
"""Per-row tensors of `DSV4AttnMetadata`, [T] each."""


@dataclass(frozen=True, slots=True)
class SglangDeepseekV4Adapter:
    framework: str = "sglang"
    targets: tuple[Target, ...] = (
        Target(INTERFACE, FLASH_MLA),
        Target(KERNEL, FLASH_MLA),
        Target(SM120, FLASH_MLA_SM120),
        Target(SM100, SWAPAB),
    )
    scopes: tuple[Target, ...] = (Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"),)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)
    kernel_signatures: Signatures = field(
        default_factory=KERNEL_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self._signatures_of(target.module).check(target.function, arguments)
        given = _as_flash_mla(target.function, arguments)
        if not given.get("use_legacy", True) or given.get("kv_format") is not None:
            raise NotCaptured("pages whose scales lie among the rows; fp8_ds_mla has them behind")
        if given.get("descale_q") is not None or given.get("descale_k") is not None:
            raise NotCaptured("queries or keys with a scale of a tensor, which the operations do not have")
        lse = target.function == FLASH_MLA
        seen = flash_mla_observation(target, self.framework, given, layer, lse=lse)
        step = _step()
        metadata = {name: getattr(step, held, None) for name, held in METADATA.items()}
        return replace(
            seen,
            tensors={**seen.tensors, **metadata_tensors(metadata)},
            dispatch={**seen.dispatch, "path": "decode", "backend": BACKENDS[target.function]},
            finish=followed_by(seen.finish, finish_with_metadata({})),
            part=Part(range(len(given["q"])), tokens=True),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return flash_mla_outputs(seen, self.targets[0], self.framework, arguments, result)

    def operations(self, target: Target) -> tuple[str, ...]:
        return OPERATIONS

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ != FLASH_MLA_SM120:  # it takes whatever is given by name
            self._signatures_of(function.__module__).compare_function(function.__name__, function)
        return qualified_name(function)

    def _signatures_of(self, module: str) -> Signatures:
        return self.kernel_signatures if module == KERNEL else self.signatures

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _as_flash_mla(function: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call of `function` by FlashMLA's names."""
    if function == FLASH_MLA_SM120:
        return {**arguments, "is_fp8_kvcache": True}
    if function != SWAPAB:
        return arguments
    if arguments.get("inv_rope") is not None:
        raise NotCaptured("outputs that are rotated back (inv_rope), which the operations do not have")
    q = arguments["q"]
    return {
        "q": q,
        "k_cache": arguments["kv"],
        "indices": arguments["indices"],
        "topk_length": arguments["lengths"],
        "attn_sink": arguments["sink"][: q.shape[-2]],
        "softmax_scale": None,
        "is_fp8_kvcache": True,
        "extra_k_cache": arguments["extra_kv"],
        "extra_indices_in_kvcache": arguments["extra_indices"],
        "extra_topk_length": arguments["extra_lengths"],
    }


def _step() -> Any:
    """The metadata of the running step; None if the function is called directly."""
    context = sys.modules.get(CONTEXT)
    if context is None or not context.has_forward_context():
        return None
    metadata = getattr(context.get_attn_backend(), "forward_metadata", None)
    return getattr(metadata, "core_attn_metadata", None)
