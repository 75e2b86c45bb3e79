"""Adapter for SGLang: pure sliding-window layers of DeepSeek-V4 over fp8_ds_mla pages, recorded as
swa_decode.

The attention backend calls FlashMLA's `flash_mla_with_kvcache` (see serving_flash_mla.py) for decoding, for
verification of drafts, and for prefills whose pages it does not gather: each query token is a row. Before
0.5.23 the function is sgl_kernel's, which other models call as well.

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
from gdnbench.capture.adapters.serving_flash_mla import flash_mla_table, refuse_unsupported_call
from gdnbench.capture.adapters.sglang import parallel
from gdnbench.capture.adapters.sglang_signatures import FLASH_MLA, KERNEL_SIGNATURES, SIGNATURES
from gdnbench.capture.adapters.signatures import Signatures, qualified_name

INTERFACE = "sglang.kernels.ops.attention.flash_mla_interface"
KERNEL = "sgl_kernel.flash_mla"  # before 0.5.23
CONTEXT = "sglang.srt.model_executor.forward_context"
METADATA = {"seq_lens": "seq_lens_casual", "positions": "positions_casual"}
"""Per-row tensors of `DSV4AttnMetadata`, [T] each."""


@dataclass(frozen=True, slots=True)
class SglangDeepseekV4Adapter:
    framework: str = "sglang"
    targets: tuple[Target, ...] = (Target(INTERFACE, FLASH_MLA), Target(KERNEL, FLASH_MLA))
    scopes: tuple[Target, ...] = (Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"),)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)
    kernel_signatures: Signatures = field(
        default_factory=KERNEL_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self._signatures_of(target.module).check(FLASH_MLA, arguments)
        refuse_unsupported_call(arguments)
        if not arguments.get("use_legacy", True) or arguments.get("kv_format") is not None:
            raise NotCaptured("pages whose scales lie among the rows; fp8_ds_mla has them behind")
        if arguments.get("descale_q") is not None or arguments.get("descale_k") is not None:
            raise NotCaptured("queries or keys with a scale of a tensor, which swa_decode does not have")
        seen = flash_mla_table(target.name, self.framework).before(target, arguments, layer)
        step = _step()
        metadata = {name: getattr(step, held, None) for name, held in METADATA.items()}
        return replace(
            seen,
            tensors={**seen.tensors, **metadata_tensors(metadata)},
            dispatch={**seen.dispatch, "path": "decode", "backend": "flashmla"},
            finish=finish_with_metadata({}),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return flash_mla_table(f"{INTERFACE}:{FLASH_MLA}", self.framework).after(seen, arguments, result)

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("swa_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        self._signatures_of(function.__module__).compare_function(FLASH_MLA, function)
        return qualified_name(function)

    def _signatures_of(self, module: str) -> Signatures:
        return self.kernel_signatures if module == KERNEL else self.signatures

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _step() -> Any:
    """The metadata of the running step; None if the function is called directly."""
    context = sys.modules.get(CONTEXT)
    if context is None or not context.has_forward_context():
        return None
    metadata = getattr(context.get_attn_backend(), "forward_metadata", None)
    return getattr(metadata, "core_attn_metadata", None)
