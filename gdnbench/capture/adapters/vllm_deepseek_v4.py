"""vLLM: decoding of the pure sliding-window layers of DeepSeek-V4 over their fp8_ds_mla pages, as swa_decode.

The layer calls FlashMLA's `flash_mla_with_kvcache` with q [T, 1, H, 512], pages [blocks, block_size, 1, 584]
that may lie further apart than they are long, indices [T, 1, W] and their lengths [T]. H is what the kernel
wants, 64 or 128: heads that the model does not have are zeros. Layers that attend to compressed keys as well
are left alone, as are prefills, which gather their pages first. FlashMLA's lse is no output of the record:
for a row that attends to nothing it is +inf, and the operation's is -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.serving_decode import beside, telling
from gdnbench.capture.adapters.signatures import Signatures
from gdnbench.capture.adapters.vllm import VllmAdapter, known_of, step_of
from gdnbench.capture.adapters.vllm_signatures import FLASH_MLA, SIGNATURES

if TYPE_CHECKING:
    from gdnbench.capture.adapters.paged import Paged

LAYERS = "vllm.models.deepseek_v4.nvidia.flashmla"
MODULES = (LAYERS, "vllm.v1.attention.ops.flashmla", "vllm.third_party.flashmla.flash_mla_interface")
ROW_BYTES = 584
COUNTS = ("num_prefills", "num_prefill_tokens", "num_decodes", "num_decode_tokens", "block_size")


@cache
def _table() -> Paged:
    """Not at the start of every process."""
    from gdnbench.capture.adapters.paged import Paged

    return Paged(
        function=f"{LAYERS}:{FLASH_MLA}",
        q="q",
        cache="k_cache",
        swa_indices="indices",
        swa_lens="topk_length",
        attn_sink="attn_sink",
        scale="softmax_scale",
        o="return[0]",
        cache_layout="fp8_ds_mla",
        framework="vllm",
    )


@dataclass(frozen=True, slots=True)
class VllmDeepseekV4Adapter:
    framework: str = "vllm"
    targets: tuple[Target, ...] = tuple(Target(module, FLASH_MLA) for module in MODULES)
    scopes: tuple[Target, ...] = (Target(LAYERS, "DeepseekV4FlashMLAAttention.forward_mqa"),)
    signatures: Signatures = field(default_factory=SIGNATURES.anew, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(FLASH_MLA, arguments)
        _refuse(arguments)
        step = step_of(layer, getattr(getattr(layer, "swa_cache_layer", None), "prefix", None))
        seen = _table().before(target, arguments, layer)
        metadata = {name: getattr(step, name, None) for name in ("seq_lens", "query_start_loc")}
        return replace(
            seen,
            tensors={**seen.tensors, **beside(metadata)},
            dispatch={**seen.dispatch, "path": "decode", "backend": "flashmla"},
            finish=telling(known_of(step, COUNTS)),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return _table().after(seen, arguments, result)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ == FLASH_MLA:  # another stands there where FlashMLA is not built
            self.signatures.look_at(FLASH_MLA, function)
        return f"{function.__module__}.{function.__qualname__}"

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return VllmAdapter().parallel()


def _refuse(arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that swa_decode does not describe."""
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW

    if arguments.get("extra_k_cache") is not None:
        raise NotCaptured("layers of DeepSeek-V4 that attend to compressed keys too; swa_decode has none")
    indices, cache = arguments["indices"], arguments["k_cache"]
    if indices is None or arguments["topk_length"] is None or not arguments["is_fp8_kvcache"]:
        raise NotCaptured("FlashMLA is called without indices and lengths, or without FP8 pages")
    if cache.shape[-1] != ROW_BYTES or arguments["q"].shape[-1] != HEAD_DIM:
        raise NotCaptured("rows of another format than the 584 bytes of DeepSeek-V4")
    if indices.shape[-1] > MAX_WINDOW:
        raise NotCaptured("windows wider than 128, of a draft whose tokens see one another")
