# SPDX-License-Identifier: Apache-2.0
"""Adapter for vLLM: decoding of DeepSeek-V4 over fp8_ds_mla pages, layers of the window alone as swa_decode
and layers with compressed keys as v4_decode.

The layer calls FlashMLA's `flash_mla_with_kvcache` (see serving_flash_mla.py) with q [T, 1, H, 512]: each
query token is a request of its own. H is the kernel's head count, 64 or 128: heads that the model does not
have are zeros. Not recorded: prefills, which gather their pages first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.serving_decode import finish_with_metadata, metadata_tensors
from gdnbench.capture.adapters.serving_flash_mla import (
    OPERATIONS,
    flash_mla_observation,
    flash_mla_outputs,
)
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.v4_calls import followed_by
from gdnbench.capture.adapters.vllm import known_of, parallel, step_of
from gdnbench.capture.adapters.vllm_signatures import FLASH_MLA, SIGNATURES
from gdnbench.capture.adapters.vllm_steps import part_of_window

LAYERS = tuple(f"vllm.models.{model}.nvidia.flashmla" for model in ("deepseek_v4", "deepseek_v41"))
MODULES = (*LAYERS, "vllm.v1.attention.ops.flashmla", "vllm.third_party.flashmla.flash_mla_interface")
COUNTS = ("num_prefills", "num_prefill_tokens", "num_decodes", "num_decode_tokens", "block_size")


@dataclass(frozen=True, slots=True)
class VllmDeepseekV4Adapter:
    framework: str = "vllm"
    targets: tuple[Target, ...] = tuple(Target(module, FLASH_MLA) for module in MODULES)
    scopes: tuple[Target, ...] = tuple(
        Target(module, "DeepseekV4FlashMLAAttention.forward_mqa") for module in LAYERS
    )
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(FLASH_MLA, arguments)
        seen = flash_mla_observation(target, self.framework, arguments, layer, lse=True)
        step = step_of(layer, getattr(getattr(layer, "swa_cache_layer", None), "prefix", None))
        metadata = {name: getattr(step, name, None) for name in ("seq_lens", "query_start_loc")}
        return replace(
            seen,
            tensors={**seen.tensors, **metadata_tensors(metadata)},
            dispatch={**seen.dispatch, "path": "decode", "backend": "flashmla"},
            finish=followed_by(seen.finish, finish_with_metadata(known_of(step, COUNTS))),
            part=part_of_window(len(arguments["q"]), step),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return flash_mla_outputs(seen, self.targets[0], self.framework, arguments, result)

    def operations(self, target: Target) -> tuple[str, ...]:
        return OPERATIONS

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ == FLASH_MLA:  # without FlashMLA in the build, another function has the name
            self.signatures.compare_function(FLASH_MLA, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()
