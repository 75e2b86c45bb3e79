# SPDX-License-Identifier: Apache-2.0
"""Adapter for vLLM: the compressors of DeepSeek-V4, of the attention and of its indexer, recorded as
v4_compress.

`DeepseekCompressor.forward` saves kv and score + ape of each token in its state cache [blocks, block_size,
2E], then makes entries of the windows that close, normalises and rotates them, and writes them quantised to
the cache of compressed keys, all in one kernel. The record has the states after the call; it has neither
entries, norm_weight nor rope, so that a replay makes entries before these (`dispatch.not_recorded`).

A step's tokens are laid out request after request, padding behind them. `cu_seqlens` and `starts` are made by
capture from the requests and positions of tokens. The layer is the running compressor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, OnlyPadding, Seen, Target
from gdnbench.capture.adapters.contract_forms import check_forms
from gdnbench.capture.adapters.serving_decode import BESIDE
from gdnbench.capture.adapters.signatures import Signature, Signatures, qualified_name
from gdnbench.capture.adapters.vllm import parallel, step_of
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

FORWARD = "DeepseekCompressor.forward"
TARGET = Target("vllm.models.deepseek_v4.compressor", FORWARD)
NOT_RECORDED = "entries, which the kernel normalises, rotates and quantises; norm_weight and rope with them"
OUT_OF_ORDER = "tokens of a compressor that do not lie request after request, at positions in order"
ELSEWHERE = "states of a compressor elsewhere than its pages say"
SIGNATURES = Signatures(
    distribution="vllm",
    versions=("0.33.0", "0.33.0"),
    read="2026-11-27",
    functions={FORWARD: Signature("self, kv_score, positions, rotary_emb", needs="self kv_score positions")},
)


@dataclass(frozen=True, slots=True)
class VllmCompressorAdapter:
    framework: str = "vllm"
    targets: tuple[Target, ...] = (TARGET,)
    scopes: tuple[Target, ...] = (TARGET,)
    signatures: Signatures = field(default_factory=SIGNATURES.copy_unchecked, compare=False, repr=False)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        self.signatures.check(FORWARD, arguments)
        compressor = arguments["self"]
        step = step_of(compressor, compressor.state_cache.prefix)
        tokens, requests = len(step.slot_mapping), len(step.block_table)
        kv, score = arguments["kv_score"].detach()[:tokens].chunk(2, dim=1)
        owners, positions = step.token_to_req_indices[:tokens], arguments["positions"][:tokens]
        offsets, starts = _offsets(owners, positions, step.slot_mapping, requests)
        tensors = {
            "kv": Seen(kv, None, arguments["kv_score"]),
            "score": Seen(score, None, arguments["kv_score"]),
            "ape": Seen(compressor.ape.detach()),
            "cu_seqlens": Seen(offsets),
            "starts": Seen(starts, None, positions),
            "state": Seen(compressor.state_cache.kv_cache.detach()),
            "block_table": Seen(step.block_table.detach()),
        }
        zeros = ("cu_seqlens", "starts", "block_table")
        scalars = {"ratio": int(compressor.compress_ratio), "overlap": bool(compressor.overlap)}
        _check(tensors, zeros, scalars)
        beside = {"owners": owners, "positions": positions, "slots": step.slot_mapping}
        return Observation(
            op="v4_compress",
            tensors={**tensors, **{f"{BESIDE}{name}": Seen(one) for name, one in beside.items()}},
            scalars=scalars,
            conventions={},
            dispatch={
                "made_by_capture": ["cu_seqlens", "starts"],
                "not_recorded": NOT_RECORDED,
                "entries_in": getattr(compressor, "k_cache_prefix", None),
            },
            finish=partial(_without_padding, block_size=int(step.block_size)),
            part=Part(range(requests)),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        return {"state": Seen(arguments["self"].state_cache.kv_cache.detach())}

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("v4_compress",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        self.signatures.compare_function(FORWARD, function)
        return qualified_name(function)

    def parallel(self) -> Mapping[str, tuple[int, int]]:
        return parallel()


def _check(tensors: Mapping[str, Seen], zeros: tuple[str, ...], scalars: Mapping[str, Any]) -> None:
    """ContractError for shapes or dtypes that violate the contract: of a call without tokens."""
    empty = {name: Seen(one.tensor[:0]) if name in ("kv", "score") else one for name, one in tensors.items()}
    check_forms("v4_compress", empty, {}, zeros, tuple(scalars.items()))


def _offsets(owners: Tensor, positions: Tensor, slots: Tensor, requests: int) -> tuple[Tensor, Tensor]:
    """cu_seqlens int32 [N+1] of the tokens that have a slot, and starts int32 [N]. Waits for no device."""
    import torch

    kept = (slots >= 0).int()
    counts = torch.zeros(requests, dtype=torch.int32, device=slots.device)
    counts.index_add_(0, owners.long().clamp(0, max(requests - 1, 0)), kept)
    offsets = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    first = offsets[:-1].long().clamp(max=max(len(positions) - 1, 0))
    starts = positions.int()[first] if len(positions) else torch.zeros_like(counts)
    return offsets, starts.masked_fill(counts == 0, 0)


def _without_padding(
    tensors: dict[str, Tensor], *, block_size: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inputs without the tokens of padding. NotCaptured where tokens or states lie otherwise than the
    operation takes them."""
    import torch

    owners, positions, slots = (
        tensors.pop(f"{BESIDE}{name}").long() for name in ("owners", "positions", "slots")
    )
    offsets, table = tensors["cu_seqlens"].long(), tensors["block_table"].long()
    count = int(offsets[-1])
    if not count:
        raise OnlyPadding("every token of a compressor's step is padding: a dummy run of the engine")
    owners, positions, written = owners[:count], positions[:count], slots[:count]
    expected = torch.repeat_interleave(torch.arange(len(table)), offsets.diff())
    along = torch.arange(count) - offsets[:-1][expected] + tensors["starts"].long()[expected]
    if (
        bool((slots[count:] >= 0).any())
        or not torch.equal(owners, expected)
        or not torch.equal(positions, along)
    ):
        raise NotCaptured(OUT_OF_ORDER)
    pages = table[owners, (positions // block_size).clamp(max=table.shape[1] - 1)]
    if not torch.equal(pages * block_size + positions % block_size, written):
        raise NotCaptured(ELSEWHERE)
    tensors["kv"], tensors["score"] = tensors["kv"][:count], tensors["score"][:count]
    return tensors, {}
