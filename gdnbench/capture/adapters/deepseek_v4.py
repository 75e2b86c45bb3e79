# SPDX-License-Identifier: Apache-2.0
"""Adapter for Hugging Face transformers: sliding-window layers of DeepSeek-V4, recorded as swa_decode.

The model has an eager implementation only: its layers look up `eager_attention_forward` in their module at
every call. The record has one row for each query token (b, s), in that order; a prefill gives B*S rows with
overlapping windows. A row attends to the keys that its mask allows among the W = 128 positions that end at
the last allowed one; the index is -1 where the mask excludes a position (left padding, a gap).

transformers has no pages. The L latent rows of sequence b are stored as pages b*n to (b+1)*n - 1, n = ceil(L
/ block_size); the rest of the last page is zero. In layout `bfloat16` the rows keep the model's bits, and its
output is recorded. Packing into an FP8 layout rounds, so the model's output does not belong to the recorded
inputs: such records have no outputs.

Nothing here waits for a GPU: rows whose mask cannot be expressed as indices are marked on the device, and the
call is refused once the copies are on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen, Target
from gdnbench.capture.adapters.signatures import qualified_name

if TYPE_CHECKING:
    from torch import Tensor

MODULE = "transformers.models.deepseek_v4.modeling_deepseek_v4"
SLIDING = "sliding_attention"
BIASED, SPREAD = -1, -2
"""Stored as a row's length: its mask has values other than 0 and the minimum; it spans more than W keys."""
REASONS = {
    BIASED: "the attention mask adds other values than 0 and the least of its dtype",
    SPREAD: "a query attends to keys further apart than the window of 128",
}


@dataclass(frozen=True, slots=True)
class DeepseekV4Adapter:
    """`cache_layout`, `block_size`: the page format that the model's latent rows are stored in."""

    cache_layout: str = "bfloat16"
    block_size: int = 64
    framework: str = "transformers"
    targets: tuple[Target, ...] = (Target(MODULE, "eager_attention_forward"),)
    scopes: tuple[Target, ...] = (Target(MODULE, "DeepseekV4Attention.forward"),)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        module, query, key = (arguments[name] for name in ("module", "query", "key"))
        _check(module, query, key, arguments)
        batch, heads, tokens, dim = query.shape
        rows = key[:, 0].detach()
        indices, lens = window_indices(
            arguments.get("attention_mask"), batch, tokens, rows.shape[1], self.block_size, query.device
        )
        sinks = module.sinks.detach()
        by_token = query.transpose(1, 2)
        return Observation(
            op="swa_decode",
            tensors={
                "q": Seen(by_token, (batch * tokens, heads, dim)),
                **{name: Seen(one) for name, one in self._pages(rows).items()},
                "swa_indices": Seen(indices),
                "swa_lens": Seen(lens),
                "attn_sink": Seen(sinks.float(), None, sinks),
            },
            scalars={"scale": float(arguments["scaling"]), "output_lse": False},
            conventions={"cache_layout": self.cache_layout, "index_shape": "TW"},
            dispatch={
                "path": "decode" if tokens == 1 else "prefill",
                "batch": batch,
                "keys_as_called": rows.shape[1],
                **({} if self._exact else {"outputs": "not recorded: the cache was rounded after the call"}),
            },
            whole_pools=frozenset({"cache", "inv_scale"}),
            finish=_refuse_marked_rows,
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        if not self._exact:
            return {}
        o = result[0]  # [B, S, H, 512]
        batch, tokens, heads, dim = o.shape
        return {"o": Seen(o, (batch * tokens, heads, dim))}

    def operations(self, target: Target) -> tuple[str, ...]:
        return ("swa_decode",)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        return qualified_name(function)

    @property
    def _exact(self) -> bool:
        return self.cache_layout == "bfloat16"

    def _pages(self, rows: Tensor) -> dict[str, Tensor]:
        """The cache tensors of `rows` [B, L, 512]."""
        from torch.nn.functional import pad

        from gdnbench_kernels.swa_decode.layouts import pack_ds_mla, pack_per_token_scale

        dim = rows.shape[2]
        pages = pad(rows, (0, 0, 0, -rows.shape[1] % self.block_size)).reshape(-1, self.block_size, dim)
        if self.cache_layout == "per_token_scale":
            cache, inv_scale = pack_per_token_scale(pages)
            return {"cache": cache, "inv_scale": inv_scale}
        if self.cache_layout == "fp8_ds_mla":
            return {"cache": pack_ds_mla(pages)}
        return {"cache": pages}


def window_indices(
    mask: Tensor | None, batch: int, tokens: int, keys: int, block_size: int, device: Any
) -> tuple[Tensor, Tensor]:
    """swa_indices int32 [B*S, 128] and swa_lens int32 [B*S] of an additive mask [B or 1, 1, S or 1, L].

    Mask None: every query attends to every key. A length may be one of `REASONS` instead.
    """
    import torch

    from gdnbench_kernels.swa_decode.sizes import MAX_WINDOW
    from gdnbench_kernels.swa_decode.window import PADDING

    biased = torch.zeros((), dtype=torch.bool, device=device)
    if mask is None:
        allowed = torch.ones(batch * tokens, keys, dtype=torch.bool, device=device)
    else:
        mask = mask.detach()[:, 0].expand(batch, tokens, keys).reshape(batch * tokens, keys)
        allowed = mask == 0
        biased = (~allowed & (mask > torch.finfo(mask.dtype).min)).any(1)
    position = torch.arange(keys, dtype=torch.int32, device=device)
    last = torch.where(allowed, position, -1).amax(1)
    first = torch.where(allowed, position, keys).amin(1)
    start = (last - MAX_WINDOW + 1).clamp(min=0)
    # Column j of a row is key start + j; the last column in use is key `last`.
    chosen = start.unsqueeze(1) + torch.arange(MAX_WINDOW, dtype=torch.int32, device=device)
    inside = chosen.clamp(max=keys - 1).long()
    counts = (chosen <= last.unsqueeze(1)) & allowed.gather(1, inside)
    pages = -(-keys // block_size)
    sequence = torch.arange(batch, dtype=torch.int32, device=device).repeat_interleave(tokens)
    slots = sequence.unsqueeze(1) * (pages * block_size) + chosen
    lens = last - start + 1
    lens = lens.masked_fill(first < start, SPREAD).masked_fill(biased, BIASED)
    return slots.where(counts, PADDING).to(torch.int32), lens.to(torch.int32)


def _check(module: Any, query: Tensor, key: Tensor, arguments: Mapping[str, Any]) -> None:
    """NotCaptured for a call that swa_decode does not describe."""
    import torch

    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_HEADS

    kind = getattr(module, "layer_type", None)
    if kind != SLIDING:
        raise NotCaptured(f"layers of type {kind} attend to compressed keys too; swa_decode has none")
    if query.shape[3] != HEAD_DIM:
        raise NotCaptured(f"the head dimension is {query.shape[3]}; swa_decode has {HEAD_DIM}")
    if query.dtype != torch.bfloat16:
        raise NotCaptured(f"q is {str(query.dtype).removeprefix('torch.')}; run the model in bfloat16")
    if query.shape[1] > MAX_HEADS:
        raise NotCaptured(f"there are {query.shape[1]} heads; swa_decode has up to {MAX_HEADS}")
    if key.shape[1] != 1 or arguments["value"] is not key:
        raise NotCaptured("keys and values are not the same rows of one head")
    if arguments.get("dropout") and module.training:
        raise NotCaptured("dropout was on; swa_decode has none")
    mask = arguments.get("attention_mask")
    if mask is not None and (not mask.is_floating_point() or mask.ndim != 4 or mask.shape[1] != 1):
        raise NotCaptured("the attention mask is not [batch, 1, queries, keys] of floats added to the scores")


def _refuse_marked_rows(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    least = int(tensors["swa_lens"].amin()) if len(tensors["swa_lens"]) else 0
    if least < 0:
        raise NotCaptured(REASONS[least])
    return tensors, {}
