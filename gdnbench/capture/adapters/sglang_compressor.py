# SPDX-License-Identifier: Apache-2.0
"""Adapter for SGLang: the compressors of DeepSeek-V4 in decoding, of the attention and of its indexer,
recorded as v4_compress.

`compress_forward` keeps kv and score of each token in a pool of pages of `ratio` tokens, and returns entries
before these are normalised and rotated. A plan of 16 bytes for each request says where: the request's length,
the place of its token, and the pages of its window and of the one before.

The pool has scores without ape, and v4_compress has them with it. So capture makes the states of the record:
those pages of each request, with ape added, and a table of them. Positions count from the first of these
pages, which changes no entry. `ape` of CSA lies as [8, D] in the call and as [4, 2 D] in the record. Not
recorded: prefills, and states that are sums (`is_online`). The layer is the running `MQALayer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.contract_forms import check_forms
from gdnbench.capture.adapters.serving_decode import BESIDE, NO_TOKENS
from gdnbench.capture.adapters.sglang import parallel
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench_kernels.contract import Scalar

FUNCTION = "compress_forward"
OPS = "sglang.kernels.ops.attention.dsv4"
MODULES = ("sglang.srt.layers.attention.dsv4.compressor_v2", OPS, f"{OPS}.compress")
PREFILL = "a prefill of a compressor, whose plan has places of single tokens"
ONLINE = "a compressor that keeps sums of a window in place of its tokens"
SHARED = "requests of a compressor that share the place of a token: padding of the engine"
ELSEWHERE = "a token of a compressor whose place is not in the page of its window"
MADE = ("ape", "cu_seqlens", "starts", "state", "block_table")
PLAN = ("seq_len", "write_loc", "read_page_0", "read_page_1")
"""int32 of a request's plan."""
SIGNATURES = Signatures(
    distribution="sglang",
    versions=("0.5.23", "0.5.23"),
    read="2026-11-27",
    functions={
        FUNCTION: Signature(
            "kv_score_buffer, kv_score_input, ape, plan, *, head_dim, compress_ratio, out=None,"
            " is_online=False",
            needs="kv_score_buffer kv_score_input ape plan head_dim compress_ratio is_online",
        )
    },
)


@dataclass(frozen=True, slots=True)
class SglangCompressorAdapter:
    framework: str = "sglang"
    targets: tuple[Target, ...] = tuple(Target(module, FUNCTION) for module in MODULES)
    scopes: tuple[Target, ...] = (Target("sglang.srt.models.deepseek_v4", "MQALayer.forward"),)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        import torch

        from gdnbench_kernels.validate import dtype_name

        self.signatures.check(FUNCTION, arguments)
        if arguments["is_online"]:
            raise NotCaptured(ONLINE)
        if not arguments["plan"].is_decode:
            raise NotCaptured(PREFILL)
        given, ratio = arguments["kv_score_input"].detach(), int(arguments["compress_ratio"])
        requests = len(given)
        if not requests:
            raise NotCaptured(NO_TOKENS)
        plan = _plan(arguments)
        offsets = torch.arange(requests + 1, dtype=torch.int32, device=given.device)
        kv, score = given.chunk(2, dim=1)
        tensors = {
            "kv": Seen(kv, None, given),
            "score": Seen(score, None, given),
            "ape": Seen(_ape(arguments), None, arguments["ape"]),
            "cu_seqlens": Seen(offsets),
            "starts": Seen(_starts(plan, ratio), None, arguments["plan"][1]),
            "state": Seen(_states(arguments, plan), None, arguments["kv_score_buffer"]),
            "block_table": Seen(_table(plan, ratio), None, arguments["plan"][1]),
        }
        out = arguments.get("out")
        dtype = given.dtype if out is None else out.dtype
        scalars: dict[str, Scalar] = {
            "ratio": ratio,
            "overlap": _overlaps(ratio),
            "entries_dtype": dtype_name(dtype),
        }
        empty = {**tensors, "kv": Seen(kv[:0]), "score": Seen(score[:0])}
        zeros = ("cu_seqlens", "starts", "block_table")
        check_forms("v4_compress", empty, {}, zeros, tuple(scalars.items()))
        return Observation(
            op="v4_compress",
            tensors={**tensors, f"{BESIDE}plan": Seen(plan)},
            scalars=scalars,
            conventions={},
            dispatch={"path": "decode", "made_by_capture": list(MADE)},
            whole_pools=frozenset({"state"}),
            finish=partial(_refuse_other_plans, ratio=ratio),
            part=Part(range(requests)),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        states = _states(arguments, _plan(arguments))
        return {"entries": Seen(result.detach()), "state": Seen(states, None, arguments["kv_score_buffer"])}

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("v4_compress",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        self.signatures.compare_function(FUNCTION, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _overlaps(ratio: int) -> bool:
    from gdnbench_kernels.v4_compress.params import CSA_RATIO

    return ratio == CSA_RATIO


def _plan(arguments: Mapping[str, Any]) -> Tensor:
    """int32 [B, 4], columns of `PLAN`."""
    import torch

    plan: Tensor = arguments["plan"][1].detach().view(torch.int32)
    return plan


def _ape(arguments: Mapping[str, Any]) -> Tensor:
    """float32 [ratio, E], as the kernel rounds it to its input's dtype."""
    import torch

    ape: Tensor = arguments["ape"].detach().to(arguments["kv_score_input"].dtype).float()
    return torch.cat(ape.chunk(2), dim=1) if _overlaps(int(arguments["compress_ratio"])) else ape


def _starts(plan: Tensor, ratio: int) -> Tensor:
    """int32 [B]: positions of the tokens, from the first of the pages that the record has."""
    length = plan[:, 0]
    within = (length - 1) % ratio
    return (within + ratio * (length > ratio)).int() if _overlaps(ratio) else within.int()


def _table(plan: Tensor, ratio: int) -> Tensor:
    """int32 [B, pages]: the pages of the record, of the window before and of the window with overlap."""
    import torch

    request = torch.arange(len(plan), dtype=torch.int32, device=plan.device)
    if not _overlaps(ratio):
        return request.unsqueeze(1)
    before, own = 2 * request, 2 * request + 1
    first = plan[:, 0] <= ratio
    return torch.stack([before.where(~first, own), own.masked_fill(first, -1)], dim=1)


def _states(arguments: Mapping[str, Any], plan: Tensor) -> Tensor:
    """float32 [pages, ratio, 2 E]: the pages of `_table`, with ape added to scores."""
    ratio, ape = int(arguments["compress_ratio"]), _ape(arguments)
    buffer = arguments["kv_score_buffer"].detach()
    buffer = buffer.view(-1, ratio, buffer.shape[-1])
    pages = plan[:, 2:] if _overlaps(ratio) else plan[:, 3:]
    found = buffer.index_select(0, pages.flatten().long().clamp(0, len(buffer) - 1)).float()
    found[..., ape.shape[1] :] += ape
    states: Tensor = found
    return states


def _refuse_other_plans(
    tensors: dict[str, Tensor], *, ratio: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """NotCaptured where tokens lie elsewhere than in the pages of the record, or two at one place."""
    length, place, _, own = tensors.pop(f"{BESIDE}plan").long().unbind(1)
    if bool((place.sort().values.diff() == 0).any()):
        raise NotCaptured(SHARED)
    if bool((place != own * ratio + (length - 1) % ratio).any()):
        raise NotCaptured(ELSEWHERE)
    return tensors, {}
