# SPDX-License-Identifier: Apache-2.0
"""Adapter for FlashInfer's sparse attention of DeepSeek-V4: calls that attend to the window alone are
recorded as swa_decode, those that attend to compressed keys too as v4_decode.

vLLM's and SGLang's backends for SM100 and SM120 call `trtllm_batch_decode_sparse_mla_dsv4`, for decoding and
for prefills: each query token is a row. Either pool is one of

    bfloat16 [blocks, block_size, 512]    layout bfloat16
    e4m3 [blocks, block_size, 512]        layout per_token_scale, scales of 1 as the servers'; q is e4m3 too
    bytes [blocks, block_size, 584]       layout fp8_ds_mla (SM120)

with an axis of size 1 for the head, before or behind `block_size`. On SM100 the compressed entries follow the
128 of the window in one table, or have a table of their own (backend "cake"); on SM120 they have one. What
capture computes for the record is exact, and `dispatch.made_by_capture` names it:

    q                          e4m3 values as bfloat16
    inv_scale, extra_...       ones
    swa_indices, extra_...     slots, where the caller gives storage rows of pages that lie apart
    swa_lens                   on SM100, min(seq_lens[b] - q_lens[b] + i + 1, 128) of query i of sequence b,
                               and at least 0
    extra_lens                 on SM100, what sparse_topk_lens counts beyond 128

`flashinfer_hca` has calls of the HCA kernel. Not recorded: other page formats. A call that rotates its
outputs back and quantises them is recorded without o.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import Finish, NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.flashinfer_hca import OWN_SCALE, ROWS, hca_observation
from gdnbench.capture.adapters.flashinfer_signatures import HCA, SPARSE_MLA, SPARSE_MLA_SIGNATURES
from gdnbench.capture.adapters.parallel import parallel_ranks
from gdnbench.capture.adapters.serving_decode import (
    BESIDE,
    NO_TOKENS,
    finish_with_metadata,
    metadata_tensors,
)
from gdnbench.capture.adapters.serving_flash_mla import OPERATIONS, ROW_BYTES, WIDE
from gdnbench.capture.adapters.signatures import Signatures, qualified_name
from gdnbench.capture.adapters.slots import PADDING
from gdnbench.capture.adapters.v4_calls import (
    Segment,
    followed_by,
    unit_scales,
    v4_observation,
    v4_outputs,
)
from gdnbench.capture.adapters.vllm_steps import part_of_window, window_step
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.capture.adapters.paged import Paged

MODULES = ("flashinfer.mla._core", "flashinfer.mla", "flashinfer.decode")
NAMES = (SPARSE_MLA, "batch_decode_sparse_mla_dsv4")
HCA_PACKAGE = "flashinfer.cute_dsl.attention"
HCA_MODULES = (f"{HCA_PACKAGE}.wrappers.batch_hca", f"{HCA_PACKAGE}.wrappers", HCA_PACKAGE)
LAYERS = tuple(
    Target(f"vllm.models.{model}.nvidia.flashinfer_sparse", f"{layer}.forward_mqa")
    for model in ("deepseek_v4", "deepseek_v41")
    for layer in ("DeepseekV4FlashInferMLAAttention", "DeepseekV4FlashInferSM120Attention")
)
WINDOW = 128
"""Columns of the window in a table of SM100; those of compressed keys follow."""
NOT_RECORDED = "o, which the kernel rotates back and quantises"
LENGTHS = "sparse_topk_lens"
NO_LENGTHS = "the call is given no lengths of its sequences (seq_lens, sparse_topk_lens)"


@dataclass(frozen=True, slots=True)
class FlashinferSparseMlaAdapter:
    framework: str = "flashinfer"
    callers: tuple[str, ...] = ("vllm", "sglang")
    targets: tuple[Target, ...] = (
        *(Target(module, name) for module in MODULES for name in NAMES),
        *(Target(module, HCA) for module in HCA_MODULES),
    )
    scopes: tuple[Target, ...] = (*LAYERS, Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"))
    signatures: Signatures = field(
        default_factory=SPARSE_MLA_SIGNATURES.copy_unchecked, compare=False, repr=False
    )

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        direct = target.function == HCA
        self.signatures.check(HCA if direct else SPARSE_MLA, arguments)
        if direct or arguments.get("hca_swa_indices") is not None:
            return hca_observation(arguments, direct=direct)
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
        extra, made_extra = _extra(arguments, layout)
        if extra is None:
            seen = _table(layout).before(target, inputs, layer)
        else:
            seen = _whole(inputs, layout, extra)
        names = [*made, *made_extra]
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
                **({"made_by_capture": names} if names else {}),
                **({"not_recorded": NOT_RECORDED} if _rotates(arguments) else {}),
            },
            finish=_refuse_wide if extra is None else followed_by(seen.finish, _FINISH),
            part=_part(arguments, len(indices), layer),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if _rotates(arguments):
            return {}
        shape = seen.shape_of("q")
        if seen.op == "v4_decode":
            return v4_outputs(seen, _by_row(result, 2)[: shape[0] * shape[1]])
        return _table("bfloat16").after(seen, {}, _by_row(result, 2)[: shape[0]])  # o is of every layout

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("v4_decode",) if target.function == HCA else OPERATIONS

    def implementation(self, function: Callable[..., Any]) -> str | None:
        if function.__name__ in (SPARSE_MLA, HCA):
            self.signatures.compare_function(function.__name__, function)
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
    """NotCaptured for a call that neither operation describes; else whether the pools are of packed bytes
    (SM120)."""
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM

    query, cache, indices = (arguments[name] for name in ("query", "swa_kv_cache", "sparse_indices"))
    scales = [arguments[name] for name in ("bmm1_scale", "bmm2_scale")]
    if indices is None:
        raise NotCaptured("a call without indices of its window, which no backend takes")
    if arguments.get("kv_cache_format", "fp8") != "fp8":
        raise NotCaptured(
            "pages of NVFP4 or of DeepSeek-V4.1 (kv_cache_format), which the operations do not have"
        )
    if not all(isinstance(scale, float | int) for scale in scales):
        raise NotCaptured(
            "scales that are tensors (bmm1_scale, bmm2_scale), where the operation has a number"
        )
    if scales[1] != 1:
        raise NotCaptured(OWN_SCALE)
    other = _compressed_pool(arguments)
    pools = [cache] if other is None else [cache, other]
    packed = cache.shape[-1] == ROW_BYTES
    if packed and indices.shape[-1] > WINDOW:
        raise NotCaptured(WIDE)
    for pool in pools:
        plain = pool.shape[-1] == HEAD_DIM and pool.dtype == query.dtype
        if not (pool.shape[-1] == ROW_BYTES if packed else plain):
            raise NotCaptured(ROWS)
    return bool(packed)


def _compressed_pool(arguments: Mapping[str, Any]) -> Tensor | None:
    """The pool of compressed keys that the call attends to."""
    cache, other = arguments["swa_kv_cache"], arguments.get("compressed_kv_cache")
    if arguments.get("extra_sparse_indices") is not None:
        pool: Tensor | None = other
        return pool
    wide = cache.shape[-1] != ROW_BYTES and arguments["sparse_indices"].shape[-1] > WINDOW
    return other if wide and not _same_pool(cache, other) else None


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
        "inv_scale": unit_scales(pages),
    }


def _total(arguments: Mapping[str, Any]) -> Tensor:
    """int64 [T] of a call on SM100: how many entries of both segments count, the 128 of the window
    included."""
    lengths, offset = arguments.get(LENGTHS), arguments.get("sparse_topk_lens_offset", 0)
    if lengths is None:
        lengths, offset = arguments.get("extra_sparse_topk_lens"), offset + WINDOW
    if lengths is None:
        raise NotCaptured(NO_LENGTHS)
    total: Tensor = (lengths.long() + offset).clamp(min=0)
    return total


def _extra(arguments: Mapping[str, Any], layout: str) -> tuple[Segment | None, list[str]]:
    """The segment of compressed keys, and what capture made of it; None for a call that attends to the window
    alone."""
    from gdnbench.capture.adapters.paged import paged_view

    pool, apart = _compressed_pool(arguments), arguments.get("extra_sparse_indices")
    if pool is None:
        return None, []
    table = _by_row(arguments["sparse_indices"])[:, WINDOW:] if apart is None else _by_row(apart)
    if layout == "fp8_ds_mla":
        lens = arguments.get("extra_sparse_topk_lens")
        if lens is None:
            raise NotCaptured("compressed entries without lengths (extra_sparse_topk_lens)")
        return Segment(pool, table, lens, layout), []
    lens = (_total(arguments)[: len(table)] - WINDOW).clamp(0, table.shape[-1]).int()
    made, pages = ["extra_lens"], paged_view(pool, layout, None)
    slots, scales = _slots(arguments, pages, table), None
    if slots is not None:
        table = slots
        made.append("extra_indices")
    if layout == "per_token_scale":
        scales = unit_scales(pages)
        made.append("extra_inv_scale")
    return Segment(pages, table, lens, layout, scales), made


def _whole(inputs: Mapping[str, Any], layout: str, extra: Segment) -> Observation:
    """A call of v4_decode: each row is a request of its own."""
    window = Segment(
        inputs["cache"], inputs["swa_indices"], inputs["swa_lens"], layout, inputs.get("inv_scale")
    )
    return v4_observation(
        q=inputs["q"], window=window, extra=extra, attn_sink=inputs["attn_sink"], scale=inputs["scale"]
    )


def _window(arguments: Mapping[str, Any], pages: Tensor, indices: Tensor) -> dict[str, Tensor]:
    """Of a call on SM100 over `pages` [blocks, block_size, 512]: swa_lens [T], and swa_indices [T, 128] if
    the slots are other numbers than the caller's `indices` [T, 128].

    Waits for no device. Numbers of sequences stay in range whatever the offsets are: on a GPU an index out of
    range would end the program.
    """
    import torch

    seq_lens, offsets = (arguments.get(name) for name in ("seq_lens", "cum_seq_lens_q"))
    if seq_lens is None:
        raise NotCaptured(NO_LENGTHS)
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
    found = {"swa_lens": allowed.clamp(0, WINDOW).minimum(_total(arguments)[: len(indices)]).int()}
    slots = _slots(arguments, pages, indices)
    return found if slots is None else {**found, "swa_indices": slots}


def _slots(arguments: Mapping[str, Any], pages: Tensor, indices: Tensor) -> Tensor | None:
    """The slots of `pages` [blocks, block_size, 512] that `indices` name; None if they are slots."""
    size, page, token = pages.shape[1], pages.stride(0), pages.stride(1)
    if page == size * token:
        return None
    given = arguments.get("sparse_indices_are_storage_offsets")
    if given is None or page % token:
        raise NotCaptured("pages that lie apart, and whether indices count the room between is not said")
    if not given:
        return None
    slots = indices // (page // token) * size + indices % (page // token)
    return slots.where(indices >= 0, PADDING).int()


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
