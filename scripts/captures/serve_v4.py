# SPDX-License-Identifier: Apache-2.0
"""Records what a server calls of DeepSeek-V4: its compressors, its indexer and its decode attention.

    python scripts/captures/serve_v4.py MODEL_DIR STORE.zarr SCENARIO

As in serve.py, each request runs through plain transformers, and the inputs of a layer's kernels are taken
from there and laid out as a server does: rows, compressed entries and the keys of the indexer in FP8 pages.
The scenarios fit together: v4_indexer_topk has the logits of v4_indexer_logits, and v4_decode attends to the
entries that v4_indexer_topk selects. Outputs are those of transformers' functions in fp32, on the values that
the call has.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from corpus import corpus
from serve import paged, watched, windows
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek

from gdnbench.capture import CaptureOptions, capturing, record
from gdnbench_kernels.indexer_logits.keys import pack_pages, read_pages
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla, read_rows

WINDOW_LAYER, CSA_LAYER, HCA_LAYER = 0, 1, 2
CSA, HCA = 4, 128
"""Tokens of a compressed entry."""
TOP_K = 32
DRAFT = 2
"""Queries of a request in a step of CSA: its last token, and a draft after it."""
PAGE = 64
"""Rows of a page, of any of the pools but that of HCA's entries, of which a page has those of 256 tokens."""
HCA_PAGE = 2
ALL = 1 << 30
E4M3_MAX = 448.0
REQUESTS = (slice(8000, 8320), slice(20000, 20700), slice(30000, 30021))
"""Bytes of the text. A batch has one more row: a request that has ended."""
LONG = slice(40000, 41408)


# What the model computes.


class Layer:
    """What one request gives the kernels of a layer: of all its tokens, on axis 0.

    q [n, H, 512], rows [n, 512] and entries [C, 512] of attention. Of a layer with an indexer: index_q
    [n, heads, 128], index_weights [n, heads] and index_keys [C, 128].
    """

    def __init__(self, attention: nn.Module, call: tuple[Any, ...], seen: dict[nn.Module, Any]) -> None:
        (_, query, key, *_), named = call
        self.compressor, self.seen = attention.compressor, seen
        self.q = query[0].transpose(0, 1)
        count = len(self.q)
        self.rows, self.entries = key[0, 0, :count], key[0, 0, count:]
        self.sinks, self.scale = attention.sinks.float(), named["scaling"]
        indexer = getattr(self.compressor, "indexer", None)
        if indexer is None:
            return
        scorer = indexer.scorer
        (q, keys, _), _ = seen[scorer]
        self.index_q, self.index_keys = q[0], keys[0]
        weights = seen[scorer.weights_proj][1][0].float()
        self.index_weights = weights * scorer.weights_scaling * scorer.softmax_scale

    def __len__(self) -> int:
        return len(self.q)

    def compression(self, of_indexer: bool) -> Compression:
        """What its compressor computes, or that of its indexer."""
        module = self.compressor.indexer if of_indexer else self.compressor
        kv, score = (self.seen[one][1][0] for one in (module.kv_proj, module.gate_proj))
        exact = copy.deepcopy(self.compressor).float()
        found: dict[str, Tensor] = {}
        for name, one in exact.named_modules():
            if name.endswith(("kv_proj", "gate_proj")):
                given = self.seen[self.compressor.get_submodule(name)][1]
                one.register_forward_hook(lambda _, __, ___, given=given: given.float())
            elif name == "indexer.scorer":
                one.register_forward_pre_hook(lambda _, given: found.update(keys=given[1][0]))
        hidden, latents, *rest = self.seen[self.compressor][0]
        entries = exact(hidden.float(), latents.float(), *rest)[0][0, 0]
        return Compression(module, kv, score, found["keys"] if of_indexer else entries)


@dataclass(frozen=True, slots=True)
class Compression:
    """kv and score [n, E] of all tokens of a request, in bfloat16, and the entries [C, D] that transformers'
    module makes of these in fp32, all at once."""

    module: Any
    kv: Tensor
    score: Tensor
    entries: Tensor

    @property
    def ape(self) -> Tensor:
        return self.module.position_bias.detach().float()

    @property
    def ratio(self) -> int:
        return int(self.module.compress_rate)

    @property
    def overlap(self) -> bool:
        return self.ratio == CSA

    @property
    def states(self) -> Tensor:
        """[n, 2 E] fp32"""
        places = torch.arange(len(self.kv)) % self.ratio
        return torch.cat([self.kv.float(), self.score.float() + self.ape[places]], dim=1)

    def rope(self, positions: int) -> Tensor:
        """Cosines and sines [positions, 64]."""
        cos, sin = self.module.rotary_emb(
            self.entries, torch.arange(positions)[None], layer_type=self.module.rope_layer_type
        )
        return torch.cat([cos[0], sin[0]], dim=1)


def run(model: PreTrainedModel, tokens: bytes, layer: int) -> Layer:
    """What the request gives this layer."""
    seen: dict[nn.Module, Any] = {}
    attention = model.model.layers[layer].self_attn
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: seen.update({module: (inputs, output)}))
        for module in attention.modules()
    ]
    calls: list[tuple[Any, ...]] = []
    with watched(deepseek, "eager_attention_forward", calls):
        model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return Layer(attention, calls[layer], seen)


# What is recorded, with the parameters of the contracts.


def attend(
    q: Tensor,
    cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    scale: float,
    output_lse: bool,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_lens: Tensor | None = None,
    of_pages: bool = False,
) -> dict[str, Tensor]:
    """transformers' attention in fp32, query by query, on the rows of their pages. lse is without the sink.
    `of_pages`: extra_indices has pages, not slots."""
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    layer = SimpleNamespace(num_key_value_groups=q.shape[2], sinks=attn_sink, training=False)
    for b, s in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        slots = swa_indices[b, s, : int(swa_lens[b, s])].long()
        rows = read_rows(cache, None, slots, "fp8_ds_mla", torch.float32)
        if extra_cache is not None and extra_indices is not None and extra_lens is not None:
            slots = extra_indices[b, s].long()
            if of_pages:
                size = extra_cache.shape[1]
                slots = (slots.unsqueeze(1) * size + torch.arange(size)).flatten()
            slots = slots[: int(extra_lens[b, s])]
            entries = read_rows(extra_cache, None, slots, "fp8_ds_mla", torch.float32)
            rows = torch.cat([rows, entries])
        query, key = q[b, s].float().view(1, -1, 1, 512), rows.view(1, 1, -1, 512)
        o[b, s] = deepseek.eager_attention_forward(layer, query, key, key, None, scale)[0][0, 0]
        lse[b, s] = (query[0, :, 0] @ rows.T * scale).logsumexp(1)
    return {"o": o, "lse": lse}


def score_keys(
    q: Tensor,
    weights: Tensor,
    lens: Tensor,
    cache: Tensor | None = None,
    block_table: Tensor | None = None,
    k: Tensor | None = None,
    clean_logits: bool = True,
    logits_dtype: str = "float32",
) -> Tensor:
    """transformers' scorer in fp32, query by query; -inf in columns of no key."""
    scorer = SimpleNamespace(softmax_scale=1.0, weights_scaling=1.0, weights_proj=nn.Identity())
    if k is None:
        assert cache is not None
        assert block_table is not None
        columns, group = block_table.shape[1] * cache.shape[1], len(q) // len(block_table)
    else:
        columns, group = len(k), 1
    logits = torch.full((len(q), columns), -torch.inf)
    for t, length in enumerate(lens.tolist()):
        if not length:
            continue
        keys = k[:length].float() if k is not None else keys_in_pages(cache, block_table[t // group], length)
        found = deepseek.DeepseekV4IndexerScorer.forward(
            scorer, q[t].float()[None, None], keys[None], weights[t][None, None]
        )
        logits[t, :length] = found[0, 0]
    return logits.to(getattr(torch, logits_dtype))


def keys_in_pages(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The keys [length, D] of a request, in fp32."""
    codes, scales = read_pages(cache, table[: -(-length // cache.shape[1])])
    return (codes.float() * scales.unsqueeze(-1)).flatten(0, 1)[:length]


def select(logits: Tensor, lens: Tensor, top_k: int) -> Tensor:
    """torch.topk of each row's candidates; -1 past them."""
    indices = torch.full((len(logits), top_k), -1, dtype=torch.int32)
    for row, length in enumerate(lens.tolist()):
        chosen = logits[row, :length].topk(min(length, top_k)).indices
        indices[row, : len(chosen)] = chosen.int()
    return indices


def compressing(entries: Sequence[Tensor]) -> Callable[..., Tensor]:
    """A function of the contract that gives `entries`, [C, D] of each sequence from its first token on, which
    transformers computed of all its tokens at once. It keeps the states of the call's tokens."""

    def compress(
        kv: Tensor,
        score: Tensor,
        ape: Tensor,
        cu_seqlens: Tensor,
        starts: Tensor,
        state: Tensor,
        block_table: Tensor,
        norm_weight: Tensor,
        rope: Tensor,
        ratio: int,
        overlap: bool,
    ) -> Tensor:
        found = torch.zeros(len(kv), norm_weight.shape[0], dtype=torch.bfloat16)
        bounds, size = cu_seqlens.tolist(), state.shape[1]
        for n, (first, last) in enumerate(pairwise(bounds)):
            for row in range(first, last):
                position = int(starts[n]) + row - first
                if (position + 1) % ratio == 0:
                    found[row] = entries[n][position // ratio]
                page = int(block_table[n, position // size])
                if page >= 0:
                    z = score[row].float() + ape[position % ratio]
                    state[page, position % size] = torch.cat([kv[row].float(), z])
        return found

    return compress


PAGES_OF_MLA = {"cache_layout": "fp8_ds_mla", "extra_layout": "fp8_ds_mla"}
recorded_attend = record("v4_decode", conventions=PAGES_OF_MLA)(attend)
recorded_hca = record("v4_decode", conventions={**PAGES_OF_MLA, "extra_index_form": "block_table"})(attend)
recorded_scores = record("indexer_logits")(score_keys)
recorded_selection = record("indexer_topk")(select)


# How a server lays them out.


def in_pages(layers: Sequence[Layer], queries: int) -> dict[str, Tensor]:
    """cache, swa_indices and swa_lens [B + 1, queries, ...] of the last tokens of each request; the last row
    of a batch has ended. Its q is that of an earlier step."""
    pages, tables, nobodys = paged([one.rows for one in layers], 0, PAGE, 128 + queries - 1)
    columns = [
        windows(tables, [len(one) - back for one in layers], PAGE, len(pages), nobodys)
        for back in range(queries - 1, -1, -1)
    ]
    indices, lens = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    q = torch.stack([one.q[-queries:] for one in (*layers, layers[0])])
    return {"q": q, "cache": pack_ds_mla(pages), "swa_indices": indices, "swa_lens": lens}


def counts(layers: Sequence[Layer], queries: int, ratio: int) -> Tensor:
    """int32 [B + 1, queries]: the entries that each query may attend to, those of closed windows."""
    lengths = torch.tensor([[len(one) - back for back in range(queries - 1, -1, -1)] for one in layers])
    return torch.cat([lengths // ratio, torch.zeros(1, queries, dtype=torch.long)]).int()


def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes of rows [..., D], and a scale for each, its largest magnitude over 448."""
    scales = rows.float().abs().amax(-1).clamp(min=1e-4) / E4M3_MAX
    return (rows.float() / scales.unsqueeze(-1)).to(torch.float8_e4m3fn), scales


def table_of(tables: Sequence[Sequence[int]], stale: int) -> Tensor:
    """int32 [B + 1, P], one page more than the longest request needs; `stale` and more where there is no
    page."""
    width = max(map(len, tables)) + 1
    rows = [[*table, *range(stale, stale + width - len(table))] for table in (*tables, ())]
    return torch.tensor(rows, dtype=torch.int32)


def step_of_csa(model: PreTrainedModel, text: bytes) -> list[Layer]:
    return [run(model, text[part], CSA_LAYER) for part in REQUESTS]


def paged_scores(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """What indexer_logits has of a step: the keys of all requests in FP8 pages."""
    pages, tables, _ = paged([one.index_keys for one in layers], 0, PAGE, ALL)
    cache = pack_pages(*quantised(pages))
    last = (*layers, layers[0])
    q, scales = quantised(torch.cat([one.index_q[-DRAFT:] for one in last]))
    weights = torch.cat([one.index_weights[-DRAFT:] for one in last]) * scales
    lens = counts(layers, DRAFT, CSA).flatten()
    return {
        "q": q,
        "weights": weights,
        "lens": lens,
        "cache": cache,
        "block_table": table_of(tables, 1 << 20),
    }


def packed_scores(layer: Layer) -> dict[str, Any]:
    """What indexer_logits has of the last 24 tokens of a prompt, in bfloat16: some rows then have ties."""
    lens = ((torch.arange(len(layer)) + 1) // CSA)[-24:].int()
    return {
        "q": layer.index_q[-24:],
        "weights": layer.index_weights[-24:],
        "lens": lens,
        "k": layer.index_keys,
        "logits_dtype": "bfloat16",
    }


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens start .. stop - 1 of a request."""

    of: Compression
    start: int
    stop: int

    def __post_init__(self) -> None:
        assert self.start < self.stop <= len(self.of.kv)

    def pages(self, size: int) -> list[bool]:
        """Which pages of its positions hold a state that the piece needs, or that the next one will."""
        ratio = self.of.ratio
        before, after = (
            max(0, place // ratio - self.of.overlap) * ratio for place in (self.start, self.stop)
        )
        needed = {*range(before, self.start), *range(max(self.start, after), self.stop)}
        kept = {position // size for position in needed}
        return [page in kept for page in range((self.stop - 1) // size + 1)]


def compress(pieces: Sequence[Piece], size: int) -> None:
    """Record a call of the compressor on these pieces, with states in pages of `size` tokens: those of
    earlier tokens, and stale ones of the first request."""
    first = pieces[0].of
    every = [piece.pages(size) for piece in pieces]
    blocks = sum(map(sum, every)) + 1
    free = list(range(blocks))  # the last pages first; page 0 is of nobody
    table = torch.full((len(pieces), max(map(len, every))), -1, dtype=torch.int32)
    state = first.states[torch.arange(blocks * size) % len(first.kv)].view(blocks, size, -1)
    for n, (piece, kept) in enumerate(zip(pieces, every, strict=True)):
        for place in (place for place, keep in enumerate(kept) if keep):
            table[n, place] = page = free.pop()
            there = piece.of.states[place * size : min((place + 1) * size, piece.start)]
            state[page, : len(there)] = there
    record("v4_compress")(compressing([piece.of.entries for piece in pieces]))(
        torch.cat([piece.of.kv[piece.start : piece.stop] for piece in pieces]),
        torch.cat([piece.of.score[piece.start : piece.stop] for piece in pieces]),
        first.ape,
        torch.tensor([0, *(piece.stop - piece.start for piece in pieces)]).cumsum(0).int(),
        torch.tensor([piece.start for piece in pieces], dtype=torch.int32),
        state,
        table,
        first.module.kv_norm.weight.detach().float(),
        first.rope(HCA + 1),
        first.ratio,
        first.overlap,
    )


# Scenarios.


def v4_compress(model: PreTrainedModel, text: bytes) -> None:
    """The compressor of an indexer, in a prefill of three sequences: one of 10 tokens, 7 more of one of which
    21 are done, and one token that closes no window. CSA's, in a decode step of two requests, of which the
    first closes a window. HCA's: 124 more tokens of a prompt of which 136 are done."""
    first, second, _ = (one.compression(True) for one in step_of_csa(model, text))
    compress([Piece(first, 0, 10), Piece(second, 21, 28), Piece(first, 42, 43)], 4)
    first, second, _ = (one.compression(False) for one in step_of_csa(model, text))
    compress([Piece(first, 43, 44), Piece(second, 12, 13)], 4)
    compress([Piece(run(model, text[LONG], HCA_LAYER).compression(False), 136, 260)], 8)


def v4_indexer_logits(model: PreTrainedModel, text: bytes) -> None:
    """A decode step with drafts of two tokens, over keys in FP8 pages; and the last 24 tokens of a prompt,
    over keys in bfloat16."""
    layers = step_of_csa(model, text)
    recorded_scores(**paged_scores(layers))
    recorded_scores(**packed_scores(layers[0]))


def v4_indexer_topk(model: PreTrainedModel, text: bytes) -> None:
    """Of the logits of v4_indexer_logits."""
    layers = step_of_csa(model, text)
    for call in (paged_scores(layers), packed_scores(layers[0])):
        recorded_selection(score_keys(**call), call["lens"], TOP_K)


def v4_decode(model: PreTrainedModel, text: bytes) -> None:
    """A step of each kind of layer. Window alone: a request of 320 tokens and one of 21. CSA: these and one
    of 700 tokens, with two queries each. HCA: requests of 1,408 and 21 tokens. In each a request has
    ended."""
    layers = [run(model, text[part], WINDOW_LAYER) for part in (REQUESTS[0], REQUESTS[2])]
    call = in_pages(layers, 1)
    recorded_attend(**call, attn_sink=layers[0].sinks, scale=layers[0].scale, output_lse=True)

    layers = step_of_csa(model, text)
    scores = paged_scores(layers)
    chosen = select(score_keys(**scores), scores["lens"], TOP_K).view(-1, DRAFT, TOP_K).long()
    pages, tables, _ = paged([one.entries for one in layers], 0, PAGE, ALL)
    places = torch.stack(
        [table[part // PAGE] for table, part in zip(table_of(tables, 0).long(), chosen, strict=True)]
    )
    slots = (places * PAGE + chosen % PAGE).where(chosen >= 0, -1)
    recorded_attend(
        **in_pages(layers, DRAFT),
        attn_sink=layers[0].sinks,
        scale=layers[0].scale,
        output_lse=True,
        extra_cache=pack_ds_mla(pages),
        extra_indices=slots.int(),
        extra_lens=counts(layers, DRAFT, CSA).clamp(max=TOP_K),
    )

    layers = [run(model, text[part], HCA_LAYER) for part in (LONG, REQUESTS[2])]
    pages, tables, _ = paged([one.entries for one in layers], 0, HCA_PAGE, ALL)
    recorded_hca(
        **in_pages(layers, 1),
        attn_sink=layers[0].sinks,
        scale=layers[0].scale,
        output_lse=True,
        extra_cache=pack_ds_mla(pages),
        extra_indices=table_of(tables, 1 << 20).unsqueeze(1),
        extra_lens=counts(layers, 1, HCA),
        of_pages=True,
    )


SCENARIOS: dict[str, Callable[[PreTrainedModel, bytes], None]] = {
    function.__name__: function for function in (v4_compress, v4_indexer_logits, v4_indexer_topk, v4_decode)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("scenario", choices=SCENARIOS)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model_dir, dtype=torch.bfloat16).eval()
    for module in model.modules():
        if hasattr(module, "position_bias"):  # ape, which is then stored in half of the bytes
            module.position_bias.data = module.position_bias.bfloat16().float()
    text = corpus()[-65536:]
    # By name: not the calls of the model's own layers.
    capture = CaptureOptions(
        layer=("attend", "score_keys", "select", "compressing*"),
        full_pools=options.scenario != "v4_compress",  # so that stale entries stay as they are
        zstd=9,
    )
    with torch.no_grad(), capturing(options.store, capture):
        SCENARIOS[options.scenario](model, text)


if __name__ == "__main__":
    main()
