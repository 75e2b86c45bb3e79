# SPDX-License-Identifier: Apache-2.0
"""Records what a server calls: batches of several requests over one pool of states or pages.

    python scripts/captures/serve.py MODEL_DIR STORE.zarr SCENARIO

There is no server here, but a loop that prepares the calls of one layer as a server does. Each request runs
through plain transformers. The inputs of the layer's kernel are taken from there and laid out as a batch:
packed by cu_seqlens, or as rows whose states lie in slots of a pool. The batch then goes through one of the
recorded functions below. Their outputs are not fed back to the model, which computes its own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from corpus import corpus
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from gdnbench.capture import CaptureOptions, capturing, record
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla, pack_per_token_scale
from gdnbench_kernels.swa_decode.torch_paged import torch_paged

GDN_LAYER = 3
"""Of qwen3_next_memory: the one whose heads remember longest."""
SWA_LAYER = 1
WINDOW = 128
RULER = b"\n" + b"=" * 72 + b"\n"
"""A line such as those under headings: its bytes have almost the same key."""


# What is recorded, with the parameters of the contracts.


def prefill(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:
    """transformers' chunked rule, sequence by sequence; states are [N, Hv, V, K]."""
    o, final = torch.empty_like(v), torch.empty_like(initial_state)
    bounds = cu_seqlens.tolist()
    for n, tokens in enumerate(map(slice, bounds, bounds[1:])):
        out, state = qwen.torch_chunk_gated_delta_rule(
            *(x[None, tokens] for x in (q, k, v)),
            g=g[None, tokens],
            beta=beta[None, tokens],
            initial_state=initial_state[n : n + 1].mT,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        o[tokens], final[n] = out[0], state[0].mT
    return o, final


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
) -> Tensor:
    """transformers' recurrent rule, token by token; `state` [slots, Hv, V, K] is updated in place."""
    o = torch.zeros_like(v)
    for i, slots in enumerate(state_indices.tolist()):
        read = slots[0 if num_accepted is None else int(num_accepted[i]) - 1]
        if read < 0:
            continue
        current = state[read : read + 1].mT.clone()
        for t, slot in enumerate(slots):
            one = (slice(i, i + 1), slice(t, t + 1))
            out, current = qwen.torch_recurrent_gated_delta_rule(
                q[one],
                k[one],
                v[one],
                g=g[one],
                beta=beta[one],
                initial_state=current,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )
            o[i, t] = out[0, 0]
            if slot >= 0:
                state[slot] = current[0].mT
    return o


def attend_per_token_scale(
    q: Tensor,
    cache: Tensor,
    inv_scale: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    scale: float,
    output_lse: bool,
) -> dict[str, Tensor]:
    call = dict(locals())
    return torch_paged(**call, cache_layout="per_token_scale", index_shape="TW")


def attend_ds_mla(
    q: Tensor,
    cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    scale: float,
    output_lse: bool,
) -> dict[str, Tensor]:
    call = dict(locals())
    return torch_paged(**call, inv_scale=None, cache_layout="fp8_ds_mla", index_shape="TW")


# The same, recorded. The functions above prepare states and earlier steps, which are not.
recorded_prefill = record("gdn_prefill", conventions={"qk": "raw"})(prefill)
recorded_decode = record("gdn_decode", conventions={"qk": "raw"})(decode)
recorded_per_token_scale = record("swa_decode", conventions={"cache_layout": "per_token_scale"})(
    attend_per_token_scale
)
recorded_ds_mla = record("swa_decode", conventions={"cache_layout": "fp8_ds_mla"})(attend_ds_mla)


# What the model computes.


@dataclass(frozen=True, slots=True)
class Activations:
    """The inputs of one layer's Gated DeltaNet, with tokens on axis 0."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def __getitem__(self, tokens: slice) -> Activations:
        return Activations(*(x[tokens] for x in self.tensors()))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.g, self.beta

    def fresh_state(self) -> Tensor:
        """Zeros, [1, Hv, V, K]."""
        return torch.zeros(1, *self.v.shape[1:], self.k.shape[2])


@contextmanager
def watched(module: Any, function: str, calls: list[tuple[Any, ...]]) -> Iterator[None]:
    """Notes the arguments of every call of a function of `module`."""
    real = getattr(module, function)

    def noting(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return real(*args, **kwargs)

    setattr(module, function, noting)
    try:
        yield
    finally:
        setattr(module, function, real)


def run(model: PreTrainedModel, tokens: Sequence[int]) -> tuple[Activations, list[int]]:
    """(activations of every token in the recorded layer, the byte that the model expects after each)."""
    calls: list[tuple[Any, ...]] = []
    with watched(qwen, "torch_chunk_gated_delta_rule", calls):
        logits = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
    (q, k, v), named = calls[GDN_LAYER - 1]  # layer 0 has none
    found = Activations(q[0], k[0], v[0], named["g"][0], named["beta"][0])
    return found, logits[0].argmax(1).tolist()


@dataclass(slots=True)
class Request:
    """A text that is being continued, and the slots of the pool that hold its states."""

    tokens: list[int]
    slots: list[int] = field(default_factory=list)


def state_after(activations: Activations) -> Tensor:
    """[1, Hv, V, K] after all tokens, from zeros."""
    offsets = torch.tensor([0, len(activations.v)], dtype=torch.int32)
    return prefill(*activations.tensors(), offsets, activations.fresh_state())[1]


# Scenarios of Gated DeltaNet.


def packed_states(model: PreTrainedModel, text: bytes) -> None:
    """A fresh prompt, and two whose beginnings were prefilled before: one byte of one, 139 of another."""
    third = text[4000:4290] + RULER + text[4290:4346]
    pieces = ((text[1000:1065], 0), (text[2000:2201], 200), (third, 281))
    parts, states = [], []
    for piece, done in pieces:
        activations, _ = run(model, piece)
        parts.append(activations[done:])
        states.append(state_after(activations[:done]) if done else activations.fresh_state())
    lengths = [len(part.v) for part in parts]
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    batch = Activations(*map(torch.cat, zip(*(part.tensors() for part in parts), strict=True)))
    recorded_prefill(*batch.tensors(), offsets, torch.cat(states))


def chunked(model: PreTrainedModel, text: bytes) -> None:
    """A prompt prefilled in pieces, each from the state that the last one left."""
    activations, _ = run(model, text[8000:8210])
    state = activations.fresh_state()
    done = 0
    for length in (80, 64, 66):
        offsets = torch.tensor([0, length], dtype=torch.int32)
        _, state = recorded_prefill(*activations[done : done + length].tensors(), offsets, state)
        done += length


def batched_decode(model: PreTrainedModel, text: bytes) -> None:
    """Two steps of a batch of four rows: the first request leaves, and another joins."""
    requests = {
        "first": Request(list(text[10000:10300]), [4]),
        "second": Request(list(text[12000:12150]), [1]),
        "third": Request(list(text[14000:14220]), [2]),
    }
    steps = (("first", None, "second", None), ("second", "third", None, None))
    pool = run(model, text[:1])[0].fresh_state().repeat(6, 1, 1, 1)
    upcoming = {}
    for name, request in requests.items():
        activations, expected = run(model, request.tokens)
        pool[request.slots[0]] = state_after(activations)[0]
        upcoming[name] = expected[-1]
    for step in steps:
        rows: list[Activations | None] = []
        for row in step:
            if row is None:
                rows.append(None)
                continue
            request = requests[row]
            request.tokens.append(upcoming[row])
            activations, expected = run(model, request.tokens)
            upcoming[row] = expected[-1]
            rows.append(activations[-1:])
        batch = padded(rows)
        indices = torch.tensor(
            [[-1] if name is None else requests[name].slots for name in step], dtype=torch.int32
        )
        recorded_decode(*batch.tensors(), pool, indices)


def padded(rows: Sequence[Activations | None]) -> Activations:
    """[B, S, ...] of rows [S, ...]. A padding row has the values of a row beside it: its slots say that it is
    padding, not its values."""
    some = next(row for row in rows if row is not None)
    filled = []
    for row in rows:
        some = row if row is not None else some
        filled.append(some)
    return Activations(*map(torch.stack, zip(*(row.tensors() for row in filled), strict=True)))


DRAFT = 4


def drafts(model: PreTrainedModel, text: bytes) -> None:
    """A step of speculative decoding: a request whose last draft was rejected in part, padding, and a request
    that was just prefilled. The latter has a draft of one byte; its other two columns are padding.

    A draft is what followed the last earlier occurrence of a request's last two bytes. Its tokens are
    accepted up to the first that the model does not expect.
    """
    old = Request(list(text[16000:16260]), [6, 1, 9, 4])
    new = Request(list(text[18000:18190]), [8, 3, -1, -1])
    pool = run(model, text[:1])[0].fresh_state().repeat(12, 1, 1, 1)
    accepted = {}
    for name, request in (("old", old), ("new", new)):
        activations, expected = run(model, request.tokens)
        pool[request.slots[0]] = state_after(activations)[0]
        request.tokens.append(expected[-1])
        accepted[name] = 1
    for _ in range(64):
        activations, kept = verified(model, old)
        indices = torch.tensor([old.slots], dtype=torch.int32)
        decode(
            *padded([activations]).tensors(),
            pool,
            indices,
            torch.tensor([accepted["old"]], dtype=torch.int32),
        )
        accepted["old"] = kept
        if 1 < kept < DRAFT:
            break
    counts = [accepted["old"], 0, accepted["new"]]
    indices = torch.tensor([old.slots, [-1] * DRAFT, new.slots], dtype=torch.int32)
    batch = padded([verified(model, old)[0], None, verified(model, new)[0]])
    recorded_decode(*batch.tensors(), pool, indices, torch.tensor(counts, dtype=torch.int32))


def verified(model: PreTrainedModel, request: Request) -> tuple[Activations, int]:
    """Runs the request's last token and its draft. Keeps what the model expects, and the byte after it.

    Returns the activations of the four tokens and how many of them are accepted.
    """
    tokens = request.tokens
    draft = proposed(tokens)
    activations, expected = run(model, tokens + draft)
    last = len(tokens) - 1
    kept = 1
    while kept < DRAFT and draft[kept - 1] == expected[last + kept - 1]:
        kept += 1
    request.tokens = tokens + draft[: kept - 1] + [expected[last + kept - 1]]
    return activations[last : last + DRAFT], kept


def proposed(tokens: Sequence[int]) -> list[int]:
    """The three bytes after the last earlier occurrence of the last two; spaces where there is none."""
    data = bytes(tokens)
    found = data.rfind(data[-2:], 0, len(data) - 1 - DRAFT)
    if found < 0:
        return [32] * (DRAFT - 1)
    return list(data[found + 2 : found + 1 + DRAFT])


# The scenario of sliding-window attention.


def swa_lse(model: PreTrainedModel, text: bytes) -> None:
    """One decode step of four rows, in pages of three sizes: two requests that share a beginning, a short
    one, and a request that has ended. Entries past a row's length are stale."""
    shared = text[20000:20140]
    texts = (shared + text[22000:22010], shared + text[24000:24021], text[26000:26037])
    queries, latents, sinks, scale = [], [], None, 0.0
    for one in texts:
        calls: list[tuple[Any, ...]] = []
        with watched(deepseek, "eager_attention_forward", calls):
            model(input_ids=torch.tensor([list(one)]), use_cache=False)
        (module, query, key, *_), named = calls[SWA_LAYER]
        sinks, scale = module.sinks.float(), named["scaling"]
        queries.append(query[0, :, -1])
        latents.append(key[0, 0])
    assert sinks is not None
    q = torch.stack([*queries, queries[0]])  # the last row of the buffer is an earlier step's
    for layout, block_size in (("per_token_scale", 16), ("fp8_ds_mla", 64), ("fp8_ds_mla", 32)):
        pages, tables, nobodys = paged(latents, len(shared), block_size)
        indices, lens = windows(tables, list(map(len, texts)), block_size, len(pages), nobodys)
        if layout == "fp8_ds_mla":
            recorded_ds_mla(q, pack_ds_mla(pages), indices, lens, sinks, scale, output_lse=True)
        else:
            cache, inv_scale = pack_per_token_scale(pages)
            recorded_per_token_scale(q, cache, inv_scale, indices, lens, sinks, scale, output_lse=True)


def paged(
    latents: Sequence[Tensor], shared: int, block_size: int, kept: int = WINDOW
) -> tuple[Tensor, list[list[int]], int]:
    """(pages [blocks, block_size, D] of rows [n, D], the page of each block of each request, a page of
    nobody).

    The first two requests share the whole blocks of their common beginning. Blocks without one of the last
    `kept` rows have no page: their table says -1. The order of the pages is not that of the blocks. The page
    that belongs to nobody is NaN.
    """
    held: list[Tensor] = []
    tables: list[list[int]] = []
    for request, rows in enumerate(latents):
        table = []
        for block in range(-(-len(rows) // block_size)):
            part = rows[block * block_size : (block + 1) * block_size]
            if (block + 1) * block_size <= len(rows) - kept:
                table.append(-1)
            elif request == 1 and (block + 1) * block_size <= shared and tables[0][block] >= 0:
                table.append(tables[0][block])
            else:
                table.append(len(held))
                held.append(torch.nn.functional.pad(part, (0, 0, 0, block_size - len(part))))
        tables.append(table)
    held.append(torch.full_like(held[0], torch.nan))
    # A stride without a common factor with the number of pages visits each once.
    count = len(held)
    stride = next(s for s in range(count // 2 + 1, 2 * count) if math.gcd(s, count) == 1)
    place = [page * stride % count for page in range(count)]
    pages = torch.stack([held[place.index(slot)] for slot in range(count)])
    tables = [[page if page < 0 else place[page] for page in table] for table in tables]
    return pages, tables, place[-1]


def windows(
    tables: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int, blocks: int, nobodys: int
) -> tuple[Tensor, Tensor]:
    """swa_indices int32 [T + 1, 128] and swa_lens int32 [T + 1]; the last row has ended, with length 0."""
    slots = blocks * block_size
    rows, lens = [], []
    for table, length in zip(tables, lengths, strict=True):
        window = range(max(0, length - WINDOW), length)
        rows.append([table[p // block_size] * block_size + p % block_size for p in window])
        lens.append(len(window))
    # What a buffer of indices may hold past a length: slots of the first request, of the page of nobody, and
    # numbers that are no slots.
    nowhere = [slots, slots + 5, 2**31 - 1, -7, -(2**31), 2**30, slots * 64, -1]
    free = range(nobodys * block_size, nobodys * block_size + 8)
    stale = [*rows[0][: WINDOW - 16], *free, *nowhere]
    rows = [row + stale[len(row) :] for row in [*rows, []]]
    return torch.tensor(rows, dtype=torch.int32), torch.tensor([*lens, 0], dtype=torch.int32)


SCENARIOS: dict[str, Callable[[PreTrainedModel, bytes], None]] = {
    function.__name__: function for function in (packed_states, chunked, batched_decode, drafts, swa_lse)
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
    text = corpus()[-65536:]
    # By name: not the calls of the model's own layers.
    capture = CaptureOptions(layer=("prefill", "decode", "attend_*"), full_pools=True, zstd=9)
    with torch.no_grad(), capturing(options.store, capture):
        SCENARIOS[options.scenario](model, text)


if __name__ == "__main__":
    main()
