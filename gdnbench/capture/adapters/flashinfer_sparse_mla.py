"""Adapter for FlashInfer's sparse attention of DeepSeek-V4: window-only calls, recorded as swa_decode.

vLLM's and SGLang's backends for SM100 and SM120 call `trtllm_batch_decode_sparse_mla_dsv4`, for decoding and
for prefills: each query token is a row. The pool of the window is one of

    bfloat16 [blocks, block_size, 512]    layout bfloat16
    e4m3 [blocks, block_size, 512]        layout per_token_scale, scales of 1 as the servers'; q is e4m3 too
    bytes [blocks, block_size, 584]       layout fp8_ds_mla (SM120)

with an axis of size 1 for the head, before or behind `block_size`. What capture computes for the record is
exact, and `dispatch.made_by_capture` names it:

    q             e4m3 values as bfloat16
    inv_scale     ones
    swa_indices   slots, where the caller gives storage rows of pages that lie apart
    swa_lens      on SM100, min(seq_lens[b] - q_lens[b] + i + 1, 128) of query i of sequence b, and at least 0

Not recorded: calls that attend to compressed keys, and other page formats. A call that rotates its outputs
back and quantises them is recorded without o.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Finish, NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.flashinfer_signatures import SPARSE_MLA, SPARSE_MLA_SIGNATURES
from gdnbench.capture.adapters.parallel import parallel_ranks
from gdnbench.capture.adapters.serving_decode import (
    BESIDE,
    NO_TOKENS,
    finish_with_metadata,
    metadata_tensors,
)
from gdnbench.capture.adapters.serving_flash_mla import ROW_BYTES, WIDE
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.slots import PADDING
from gdnbench.capture.adapters.vllm_steps import part_of_window, window_step
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gdnbench.capture.adapters.paged import Paged

MODULES = ("flashinfer.mla._core", "flashinfer.mla", "flashinfer.decode")
NAMES = (SPARSE_MLA, "batch_decode_sparse_mla_dsv4")
LAYERS = tuple(
    Target(f"vllm.models.{model}.nvidia.flashinfer_sparse", f"{layer}.forward_mqa")
    for model in ("deepseek_v4", "deepseek_v41")
    for layer in ("DeepseekV4FlashInferMLAAttention", "DeepseekV4FlashInferSM120Attention")
)
WINDOW = 128
"""Columns of the window in a table of SM100; those of compressed keys follow."""
NOT_RECORDED = "o, which the kernel rotates back and quantises"
LENGTHS = "sparse_topk_lens"
COMPRESSED = "layers of DeepSeek-V4 that attend to compressed keys too; swa_decode has none"


@dataclass(frozen=True, slots=True)
class FlashinferSparseMlaAdapter:
    framework: str = "flashinfer"
    callers: tuple[str, ...] = ("vllm", "sglang")
    targets: tuple[Target, ...] = tuple(Target(module, name) for module in MODULES for name in NAMES)
    scopes: tuple[Target, ...] = (*LAYERS, Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"))
    signatures: Signatures = field(
        default_factory=SPARSE_MLA_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(SPARSE_MLA, arguments)
        packed = _refuse(arguments)
        layout, made = ("fp8_ds_mla", {}) if packed else _made(arguments)
        indices = _by_row(arguments["sparse_indices"])
        inputs = {
            "q": _by_row(arguments["query"], 2)[: len(indices)],  # rows beyond are not computed
            "cache": arguments["swa_kv_cache"],
            "swa_indices": indices if packed else indices[:, :WINDOW],
            "swa_lens": arguments.get("swa_topk_lens"),
            "attn_sink": arguments["sinks"],
            "scale": float(arguments["bmm1_scale"]),
            **made,
        }
        seen = _table(layout).before(target, inputs, layer)
        callers = {"q": arguments["query"], "swa_indices": arguments["sparse_indices"]}
        return replace(
            seen,
            tensors={
                **seen.tensors,
                **{name: seen.tensors[name]._replace(caller=given) for name, given in callers.items()},
                **metadata_tensors(_metadata(arguments)),
            },
            dispatch={
                **seen.dispatch,
                "path": "decode",
                "backend": f"flashinfer {arguments.get('backend', 'auto')}",
                **({"made_by_capture": list(made)} if made else {}),
                **({"not_recorded": NOT_RECORDED} if _rotates(arguments) else {}),
            },
            finish=_refuse_wide,
            part=_part(arguments, len(indices), layer),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if _rotates(arguments):
            return {}
        rows = len(_by_row(arguments["sparse_indices"]))
        return _table("bfloat16").after(seen, {}, _by_row(result, 2)[:rows])  # o is of every layout

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("swa_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ == SPARSE_MLA:
            self.signatures.compare_function(SPARSE_MLA, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        ranks = parallel_ranks("vllm.distributed.parallel_state", ("tp", "pp", "dp"))
        return ranks or parallel_ranks("sglang.srt.distributed.parallel_state", ("tp", "pp"))


def _part(arguments: Mapping[str, Any], rows: int, layer: object | None) -> Part | None:
    """The rows' tokens in the step of the engine whose layer calls."""
    if type(layer).__module__.startswith("sglang."):
        return Part(range(rows), tokens=True)
    step = window_step(layer)
    if step is not None and _rotates(arguments):
        return Part(range(rows), tokens=True)  # it has all rows, and sequences say which are computed
    given, offsets = arguments["sparse_indices"], arguments.get("cum_seq_lens_q")
    return part_of_window(rows, step, indices=given, offsets=offsets)


@cache
def _table(layout: str) -> Paged:
    """Maps the tensors that `before` names to the operation, and checks their shapes. Built on first use."""
    from gdnbench.capture.adapters.paged import Paged

    return Paged(
        function=f"{MODULES[0]}:{SPARSE_MLA}",
        q="q",
        cache="cache",
        swa_indices="swa_indices",
        swa_lens="swa_lens",
        inv_scale="inv_scale" if layout == "per_token_scale" else None,
        attn_sink="attn_sink",
        scale="scale",
        o="return",
        cache_layout=layout,
        framework="flashinfer",
    )


def _refuse(arguments: Mapping[str, Any]) -> bool:
    """NotCaptured for a call that swa_decode does not describe; else whether the pool is of packed bytes
    (SM120)."""
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM

    query, cache, indices = (arguments[name] for name in ("query", "swa_kv_cache", "sparse_indices"))
    scales = [arguments[name] for name in ("bmm1_scale", "bmm2_scale")]
    if indices is None or arguments.get("extra_sparse_indices") is not None:
        raise NotCaptured(COMPRESSED)
    if arguments.get("kv_cache_format", "fp8") != "fp8":
        raise NotCaptured(
            "pages of NVFP4 or of DeepSeek-V4.1 (kv_cache_format), which swa_decode does not have"
        )
    if not all(isinstance(scale, float | int) for scale in scales):
        raise NotCaptured(
            "scales that are tensors (bmm1_scale, bmm2_scale), where the operation has a number"
        )
    if scales[1] != 1:
        raise NotCaptured("values with a scale of their own (bmm2_scale), which swa_decode does not have")
    if arguments.get("sparse_topk_lens_offset", 0):
        raise NotCaptured("lengths with an offset (sparse_topk_lens_offset), which capture does not apply")
    packed = cache.shape[-1] == ROW_BYTES
    if packed:
        if indices.shape[-1] > WINDOW:
            raise NotCaptured(WIDE)
        return True
    if cache.shape[-1] != HEAD_DIM or cache.dtype != query.dtype:
        raise NotCaptured(
            "rows of another format than the 584 bytes of DeepSeek-V4 or 512 values of q's dtype"
        )
    if indices.shape[-1] > WINDOW and not _same_pool(cache, arguments.get("compressed_kv_cache")):
        raise NotCaptured(COMPRESSED)
    return False


def _same_pool(cache: Tensor, other: Tensor | None) -> bool:
    """Whether the call has no other pool: a window-only layer gives the pool of its window twice."""
    return other is None or other.data_ptr() == cache.data_ptr()


def _rotates(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("dsv4_inv_rope_cos_sin_cache") is not None


def _by_row(tensor: Tensor, last: int = 1) -> Tensor:
    """`tensor` with all axes but the last `last` as one: a row of each query token."""
    return tensor.detach().flatten(0, -last - 1)


def _made(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Tensor]]:
    """The layout of a call on SM100, and the inputs that capture makes."""
    import torch

    from gdnbench.capture.adapters.paged import paged_view

    cache, indices = arguments["swa_kv_cache"], _by_row(arguments["sparse_indices"])[:, :WINDOW]
    if cache.element_size() == 2:
        return "bfloat16", _window(arguments, paged_view(cache, "bfloat16", None), indices)
    pages = paged_view(cache, "per_token_scale", None)
    q = _by_row(arguments["query"], 2)[: len(indices)]
    return "per_token_scale", {
        **_window(arguments, pages, indices),
        "q": q.to(torch.bfloat16),
        "inv_scale": _ones(pages.shape[:2].numel(), cache.device),
    }


def _window(arguments: Mapping[str, Any], pages: Tensor, indices: Tensor) -> dict[str, Tensor]:
    """Of a call on SM100 over `pages` [blocks, block_size, 512]: swa_lens [T], and swa_indices [T, 128] if
    the slots are other numbers than the caller's `indices` [T, 128].

    Waits for no device. Numbers of sequences stay in range whatever the offsets are: on a GPU an index out of
    range would end the program.
    """
    import torch

    lengths, seq_lens, offsets = (arguments.get(name) for name in (LENGTHS, "seq_lens", "cum_seq_lens_q"))
    if lengths is None or seq_lens is None:
        raise NotCaptured("the call is given no lengths of its sequences (seq_lens, sparse_topk_lens)")
    sequences = len(seq_lens) if offsets is None else min(len(seq_lens), len(offsets) - 1)
    if sequences < 1:
        raise NotCaptured(NO_TOKENS)
    row = torch.arange(len(indices), device=seq_lens.device)
    if offsets is None:
        tokens = arguments["query"].shape[1] if arguments["query"].ndim == 4 else 1
        sequence = (row // tokens).clamp(max=sequences - 1)
        allowed = seq_lens.long()[sequence] - (tokens - 1 - row % tokens)
    else:
        bounds = offsets.long()
        sequence = torch.searchsorted(bounds[1:], row, right=True).clamp(max=sequences - 1)
        last = bounds[1:][sequence] - 1
        # A row outside all sequences is not computed.
        inside = (row >= bounds[0]) & (row <= last)
        allowed = (seq_lens.long()[sequence] - (last - row)).where(inside, 0)
    total = lengths[: len(indices)].long().clamp(min=0)
    found = {"swa_lens": allowed.clamp(0, WINDOW).minimum(total).int()}
    size, page, token = pages.shape[1], pages.stride(0), pages.stride(1)
    if page == size * token:
        return found
    given = arguments.get("sparse_indices_are_storage_offsets")
    if given is None or page % token:
        raise NotCaptured("pages that lie apart, and whether indices count the room between is not said")
    if given:
        slots = indices // (page // token) * size + indices % (page // token)
        found["swa_indices"] = slots.where(indices >= 0, PADDING).int()
    return found


@lru_cache(maxsize=16)  # a process has a few pools
def _ones(slots: int, device: torch.device) -> Tensor:
    """float32 [slots] of 1."""
    import torch

    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise NotCaptured("a call over e4m3 pages came first in a CUDA graph; warm it up before")
    return torch.ones(slots, device=device)


def _metadata(arguments: Mapping[str, Any]) -> dict[str, Tensor | None]:
    names = ["seq_lens", "cum_seq_lens_q"]
    if arguments["sparse_indices"].shape[-1] > WINDOW:
        names.append(LENGTHS)
    return {name: arguments.get(name) for name in names}


_FINISH: Finish = finish_with_metadata({})


def _refuse_wide(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """NotCaptured if columns behind the first 128 count: the window of a draft whose tokens see one
    another."""
    lengths = tensors.get(f"{BESIDE}{LENGTHS}")
    if lengths is not None and len(lengths) and int(lengths.amax()) > WINDOW:
        raise NotCaptured(WIDE)
    return _FINISH(tensors)
