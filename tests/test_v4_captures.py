# SPDX-License-Identifier: Apache-2.0
"""The shipped captures of DeepSeek-V4's compressor, indexer and decode attention: that they are one step of a
trained model, that their indices are those of the requests, and that faults change their exact result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.indexer_logits.keys import read_pages
from gdnbench_kernels.indexer_logits.reference import reference as exact_logits
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.v4_compress.reference import reference as exact_entries
from gdnbench_kernels.v4_decode.reference import reference as exact_attention

FOLDER = Path(__file__).resolve().parents[1] / "captures"
NAMES = ("v4_compress", "v4_indexer_logits", "v4_indexer_topk", "v4_decode")

# As captures/README.md has them.
TOKENS = (320, 700, 21)
"""Of the requests of CSA's step, the second of its two queries included."""
LONG = 1408
CSA, HCA, WINDOW, TOP_K, PAGE = 4, 128, 128, 32, 64


def opened(name: str) -> Store:
    return Store.open(FOLDER / f"{name}.zarr.zip")


@pytest.fixture(params=NAMES)
def shipped(request: pytest.FixtureRequest) -> Iterator[Store]:
    with opened(request.param) as store:
        yield store


def calls(name: str) -> list[Call]:
    with opened(name) as store:
        return [
            compact_call(record, operation(record.info.op), torch.device("cpu")) for record in store.records
        ]


def recorded(name: str, output: str) -> list[Tensor]:
    with opened(name) as store:
        return [record.after[output].read() for record in store.records]


def changed(call: Call, **tensors: Tensor | None) -> Call:
    """The call with other tensors, and without those that are None."""
    found = {**call.tensors, **tensors}
    return Call({name: one for name, one in found.items() if one is not None}, call.scalars, call.conventions)


def arguments(call: Call) -> dict[str, Any]:
    return {**call.tensors, **call.scalars, **call.conventions}


def attention(call: Call) -> Tensor:
    """o [B, S, H, 512], exact; the last request has ended and is left out."""
    found: Tensor = exact_attention(**arguments(call))["o"]
    return found[:-1]


def difference(found: Tensor, wanted: Tensor) -> Tensor:
    """Of each last axis: the norm of the difference, as a share of the norm of what is wanted."""
    wanted = wanted.double()
    share: Tensor = (found.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    return share


def rows_of(call: Call, which: str, slots: Tensor) -> Tensor:
    return read_rows(call.tensors[which], None, slots, "fp8_ds_mla", torch.float64)


@pytest.mark.every(2)
@pytest.mark.parametrize("against", ["reference", "recorded"])
@pytest.mark.parametrize("kernel", ["torch", "reference"])
def test_replays(shipped: Store, kernel: str, against: str) -> None:
    report = replay(shipped, kernel=kernel, against=against)
    assert [(r.number, r.reason) for r in report.records if r.outcome is not Outcome.PASS] == []


COMPILED = sorted(operation("v4_decode").kernels.keys() - {"reference", "torch"})
QUICK = ("portable", 2)


@pytest.mark.parametrize(
    ("kernel", "number"),
    [
        pytest.param(kernel, number, marks=() if (kernel, number) == QUICK else pytest.mark.slow)
        for kernel in COMPILED
        for number in range(3)
    ],
)
def test_compiled_kernels_replay_each_kind_of_layer(kernel: str, number: int) -> None:
    with opened("v4_decode") as store:
        (found,) = replay(store, records=[number], kernel=kernel, on="sim", against="recorded").records
    assert found.outcome is Outcome.PASS, found.reason


# Lengths and shapes.


def test_decode_has_the_three_kinds_of_layers() -> None:
    window, csa, hca = calls("v4_decode")
    for call in (window, csa, hca):
        assert call.tensors["q"].shape[2:] == (8, 512)
        assert call.conventions["cache_layout"] == call.conventions["extra_layout"] == "fp8_ds_mla"
        assert call.scalars["output_lse"]
    assert window.tensors["swa_lens"].tolist() == [[WINDOW], [21], [0]]
    assert "extra_cache" not in window.tensors

    rows = [[min(WINDOW, tokens - back) for back in (1, 0)] for tokens in TOKENS]
    entries = [[min(TOP_K, (tokens - back) // CSA) for back in (1, 0)] for tokens in TOKENS]
    assert csa.tensors["swa_lens"].tolist() == [*rows, [0, 0]]
    assert csa.tensors["extra_lens"].tolist() == [*entries, [0, 0]]
    assert csa.tensors["extra_indices"].shape == (4, 2, TOP_K)

    assert hca.conventions["extra_index_form"] == "block_table"
    assert hca.tensors["swa_lens"].tolist() == [[WINDOW], [21], [0]]
    assert hca.tensors["extra_lens"].tolist() == [[LONG // HCA], [0], [0]]
    assert hca.tensors["extra_cache"].shape[1] == 2  # a page of 256 tokens


def test_indexer_scores_the_entries_of_closed_windows() -> None:
    paged, packed = calls("v4_indexer_logits")
    lens = [(tokens - back) // CSA for tokens in TOKENS for back in (1, 0)]
    assert paged.tensors["lens"].tolist() == [*lens, 0, 0]
    assert paged.tensors["q"].shape == (8, 8, 128)
    assert paged.tensors["q"].dtype == torch.float8_e4m3fn
    assert packed.tensors["lens"].tolist() == [tokens // CSA for tokens in range(297, 321)]
    assert packed.tensors["k"].dtype == torch.bfloat16
    assert [call.tensors["logits"].dtype for call in calls("v4_indexer_topk")] == [
        torch.float32,
        torch.bfloat16,
    ]


def test_compressor_closes_windows() -> None:
    """The rows of entries that are not zero are those of tokens whose position + 1 is a multiple of the
    ratio."""
    for call, entries in zip(calls("v4_compress"), recorded("v4_compress", "entries"), strict=True):
        offsets, starts = call.tensors["cu_seqlens"].tolist(), call.tensors["starts"].tolist()
        ratio = call.scalars.get("ratio", CSA)
        positions = [
            start + row
            for start, (first, last) in zip(starts, pairwise(offsets), strict=True)
            for row in range(last - first)
        ]
        assert entries.any(1).tolist() == [(position + 1) % ratio == 0 for position in positions]
        assert call.tensors["ape"].shape[0] == ratio
    assert [call.tensors["starts"].tolist() for call in calls("v4_compress")] == [
        [0, 21, 42],
        [43, 12],
        [136],
    ]
    assert [call.tensors["kv"].shape for call in calls("v4_compress")] == [(18, 256), (2, 1024), (124, 512)]


# Indices.


def test_windows_are_the_last_tokens() -> None:
    """Entries of a window are the next tokens of their page, or the first of another. The second query of a
    request sees one token more, and the oldest no more."""
    for call in calls("v4_decode"):
        for table, lens in zip(call.tensors["swa_indices"], call.tensors["swa_lens"], strict=True):
            for row, length in zip(table.tolist(), lens.tolist(), strict=True):
                for slot, following in pairwise(row[:length]):
                    assert following == slot + 1 if (slot + 1) % PAGE else following % PAGE == 0
            if len(lens) == 2 and int(lens[0]):
                grown = int(lens[1] - lens[0])
                first, second = (row[: int(n)].tolist() for row, n in zip(table, lens, strict=True))
                assert first[1 - grown :] == second[:-1]
    hca = calls("v4_decode")[2]
    slots = hca.tensors["swa_indices"][0, 0].tolist()
    assert [slot % PAGE for slot in slots] == [token % PAGE for token in range(LONG - WINDOW, LONG)]


def test_stale_entries() -> None:
    """Past the lengths of windows and of tables of pages there are numbers that are no slots and no pages,
    and slots of a page whose rows are NaN."""
    window, csa, hca = calls("v4_decode")
    for call in (window, csa, hca):
        cache, table = call.tensors["cache"], call.tensors["swa_indices"]
        stale = table[torch.arange(WINDOW) >= call.tensors["swa_lens"].unsqueeze(-1)]
        slots = len(cache) * PAGE
        assert bool((stale >= slots).any())
        assert bool((stale < -1).any())
        held = stale[(stale >= 0) & (stale < slots)].long()
        assert bool(rows_of(call, "cache", held).isnan().all(1).any())
    indexer = calls("v4_indexer_logits")[0].tensors
    for tables, pool in (
        (hca.tensors["extra_indices"], hca.tensors["extra_cache"]),
        (indexer["block_table"], indexer["cache"]),
    ):
        assert bool((tables >= len(pool)).any(-1).all())


def test_selected_indices_are_the_largest() -> None:
    """As numpy sorts: all candidates above the row's boundary and as many of those equal to it as there is
    room for. In bfloat16 some rows must choose among equals."""
    split = []
    for call, found in zip(calls("v4_indexer_topk"), recorded("v4_indexer_topk", "indices"), strict=True):
        count = 0
        for logits, length, row in zip(call.tensors["logits"], call.tensors["lens"], found, strict=True):
            candidates = logits[: int(length)].float().numpy()
            k = min(TOP_K, len(candidates))
            chosen, padding = row[:k].numpy(), row[k:]
            assert (padding == -1).all()
            assert len(np.unique(chosen)) == k
            if not k:
                continue
            boundary = np.sort(candidates)[-k]
            above = np.flatnonzero(candidates > boundary)
            equal = np.flatnonzero(candidates == boundary)
            assert set(above) <= set(chosen) <= {*above, *equal}
            count += len(above) + len(equal) > k
        split.append(count)
    assert split == [0, 3]


def test_scenarios_are_one_step() -> None:
    """The logits that are selected from are those of the indexer. The slots that CSA attends to are the
    selected entries, each page of 64 entries at one place."""
    for call, logits in zip(calls("v4_indexer_topk"), recorded("v4_indexer_logits", "logits"), strict=True):
        keys = torch.arange(logits.shape[1]) < call.tensors["lens"].unsqueeze(1)
        assert torch.equal(call.tensors["logits"][keys], logits[keys])
    assert len({page for request in range(3) for page in entry_pages(request).values()}) == 6


def entry_pages(request: int) -> dict[int, int]:
    """The page in v4_decode's extra cache of each 64 entries of a request, by what the indexer selected."""
    selected = recorded("v4_indexer_topk", "indices")[0].view(4, 2, TOP_K)[request]
    slots = calls("v4_decode")[1].tensors["extra_indices"][request]
    assert torch.equal(slots < 0, selected < 0)
    pages: dict[int, int] = {}
    for slot, entry in zip(slots[slots >= 0].tolist(), selected[selected >= 0].tolist(), strict=True):
        assert slot % PAGE == entry % PAGE
        assert pages.setdefault(entry // PAGE, slot // PAGE) == slot // PAGE
    return pages


def entry_rows(request: int) -> Tensor:
    """All compressed entries of a request of CSA's step, [C, 512]."""
    pages = entry_pages(request)
    entries = torch.arange(TOKENS[request] // CSA)
    slots = torch.tensor([pages[int(entry) // PAGE] * PAGE + int(entry) % PAGE for entry in entries])
    return rows_of(calls("v4_decode")[1], "extra_cache", slots)


def nearest(entry: Tensor, pool: Tensor) -> int:
    return int((pool.double() - entry.double()).norm(dim=1).argmin())


def test_compressed_entries_are_those_of_the_caches() -> None:
    """Of all entries of a request, the one in the cache is nearest that the compressor made of the window. It
    is not equal: the cache is in e4m3, and the model computed in bfloat16."""
    of_indexer, csa, hca = recorded("v4_compress", "entries")
    paged = calls("v4_indexer_logits")[0]
    for request, row, entry in ((0, 3, 0), (0, 7, 1), (1, 12, 5), (1, 16, 6)):
        table = paged.tensors["block_table"][request, : -(-TOKENS[request] // CSA // PAGE)]
        codes, scales = read_pages(paged.tensors["cache"], table)
        keys = (codes.double() * scales.unsqueeze(-1)).flatten(0, 1)[: TOKENS[request] // CSA]
        assert nearest(of_indexer[row], keys) == entry
    assert nearest(csa[0], entry_rows(0)) == 10
    call = calls("v4_decode")[2]
    slots = call.tensors["extra_indices"][0, 0, :6].repeat_interleave(2) * 2 + torch.arange(2).repeat(6)
    assert nearest(hca[119], rows_of(call, "extra_cache", slots[: LONG // HCA])) == 1


# That the model is trained.


def shares(call: Call, request: int, query: int, entries: Tensor) -> tuple[Tensor, Tensor]:
    """The weights [H, C] of these entries in a softmax over them, the window and the sink, and the sink's."""
    row, length = (call.tensors[name][request, query] for name in ("swa_indices", "swa_lens"))
    rows = torch.cat([entries, rows_of(call, "cache", row[: int(length)].long())])
    scores = call.tensors["q"][request, query].double() @ rows.T * float(call.scalars["scale"])
    scores = torch.cat([scores, call.tensors["attn_sink"].double().unsqueeze(1)], dim=1)
    weights = scores.softmax(1)
    return weights[:, : len(entries)], weights[:, -1]


def test_indexer_selects_what_attention_wants() -> None:
    """In attention to all entries, the 32 selected ones have nearly the weight of the 32 heaviest, and more
    than the latest 32."""
    call, selected = calls("v4_decode")[1], recorded("v4_indexer_topk", "indices")[0].view(4, 2, TOP_K)
    for request in (0, 1):
        for query in (0, 1):
            seen = (TOKENS[request] - 1 + query) // CSA
            weights = shares(call, request, query, entry_rows(request)[:seen])[0].sum(0)
            chosen = float(weights[selected[request, query].long()].sum())
            assert chosen > 0.85 * float(weights.topk(TOP_K).values.sum())
            assert chosen > 1.2 * float(weights[-TOP_K:].sum())


def test_heads_attend_to_entries_and_sinks() -> None:
    csa, hca = calls("v4_decode")[1:]
    slots = csa.tensors["extra_indices"][0, 1].long()
    entries, sinks = shares(csa, 0, 1, rows_of(csa, "extra_cache", slots))
    assert float(entries.sum(1).max()) > 0.5
    assert float(entries.sum(1).min()) < 0.1
    pages = hca.tensors["extra_indices"][0, 0, :6]
    slots = (pages.repeat_interleave(2) * 2 + torch.arange(2).repeat(6))[: LONG // HCA]
    entries, more_sinks = shares(hca, 0, 0, rows_of(hca, "extra_cache", slots))
    assert float(entries.sum(1).max()) > 0.1
    assert float(sinks.max()) > 0.05
    assert float(more_sinks.max()) > 0.05
    for call in (csa, hca):  # training moved each from where it started
        assert bool((call.tensors["attn_sink"] != torch.linspace(-4, 4, 8)).all())


# That they can tell.


def test_each_part_of_attention_matters() -> None:
    for call in calls("v4_decode")[1:]:
        wanted = attention(call)
        without = difference(attention(changed(call, extra_lens=call.tensors["extra_lens"] * 0)), wanted)[0]
        assert float(without.max()) > 0.5
        no_sink = difference(attention(changed(call, attn_sink=None)), wanted)
        assert float(no_sink.max()) > 0.5
        window = difference(attention(changed(call, swa_lens=call.tensors["swa_lens"] * 0)), wanted)
        assert float(window.max()) > 0.5
    window = calls("v4_decode")[0]
    lens = window.tensors["swa_lens"]
    newest_left_out = attention(changed(window, swa_lens=(lens - 1).clamp(min=0)))
    assert float(difference(newest_left_out, attention(window)).max()) > 0.1


def test_entries_of_another_request_or_query_matter() -> None:
    csa, hca = calls("v4_decode")[1:]
    wanted, slots = attention(csa), csa.tensors["extra_indices"]
    swapped = attention(changed(csa, extra_indices=slots[[1, 0, 2, 3]]))
    assert float(difference(swapped, wanted)[:2].mean()) > 0.3
    both = attention(changed(csa, extra_indices=slots[:, [1, 0]]))
    assert float(difference(both, wanted)[:2].max()) > 0.05
    lens = hca.tensors["extra_lens"]
    fewer = attention(changed(hca, extra_lens=(lens - 1).clamp(min=0)))
    assert float(difference(fewer, attention(hca))[0].max()) > 0.01


def test_parts_of_the_compressor_matter() -> None:
    """States, ape, the places of tokens in their window, and the rotation by the window's first position: the
    last entry of each call is another without them."""
    for call, entries in zip(calls("v4_compress"), recorded("v4_compress", "entries"), strict=True):
        row = int(entries.any(1).nonzero()[-1])
        wanted = exact_entries(**arguments(call))["entries"][row]
        tensors = call.tensors
        for least, wrong in (
            (0.04, {"state": torch.zeros_like(tensors["state"])}),
            (0.04, {"ape": torch.zeros_like(tensors["ape"])}),
            (0.04, {"ape": tensors["ape"].flip(0)}),
            (0.01, {"rope": tensors["rope"].roll(1, 0)}),
        ):
            found = exact_entries(**arguments(changed(call, **wrong)))["entries"][row]
            assert float(difference(found, wanted)) > least, wrong.keys()


def test_parts_of_the_indexer_matter() -> None:
    """Weights of either sign, the ReLU, and a scale for each key."""
    paged, packed = calls("v4_indexer_logits")
    assert bool((paged.tensors["weights"] < 0).any())
    wanted = exact_logits(**arguments(packed))["logits"]
    there = wanted.isfinite()
    q, k = packed.tensors["q"].double(), packed.tensors["k"].double()
    scores, weights = torch.einsum("thd,nd->thn", q, k), packed.tensors["weights"].double()

    def apart(scores: Tensor, weights: Tensor) -> float:
        found = torch.einsum("thn,th->tn", scores, weights)[there]
        return float((found - wanted[there]).norm() / wanted[there].norm())

    assert apart(scores.relu(), weights) < 1e-12
    assert apart(scores, weights) > 0.1
    assert apart(scores.relu(), weights.abs()) > 0.1
    short = changed(paged, lens=paged.tensors["lens"].clamp(max=TOP_K))
    swapped = changed(short, block_table=paged.tensors["block_table"][[1, 0, 2, 3]])
    here, there = (exact_logits(**arguments(call))["logits"][:4, :TOP_K] for call in (short, swapped))
    assert float(difference(there, here).min()) > 0.3
