# SPDX-License-Identifier: Apache-2.0
"""The convolution before a Gated DeltaNet layer: transformers' own, and functions with the signatures of
flash-linear-attention, vLLM and SGLang that compute the definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gdnbench.bisect.record.links import links_of
from gdnbench.capture import CaptureOptions, capturing, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.vllm import VllmAdapter
from gdnbench.capture.recorder import Counts
from gdnbench.digests import row_digests
from gdnbench.errors import Exit
from gdnbench.lineage.check import check_stores
from gdnbench.lineage.finding import Unknown
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.access_pieces import piece_of
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.capture.frameworks import framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_transformers import tiny_model
from tests.subset import quick

D, W, SLOTS = 6, 4, 9
CONV = "fla.modules.causal_conv1d.ops"
QWEN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
BACKEND = "sglang.srt.layers.attention.linear.gdn_backend"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).bfloat16()


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool(columns: int = W - 1, *, tokens_first: bool = False) -> Tensor:
    """[slots, D, columns], as vLLM has it: from [slots, columns, D], states between slots."""
    if not tokens_first:
        return random(SLOTS, D, columns)
    return random(SLOTS, columns * D + 16)[:, : columns * D].unflatten(1, (columns, D)).transpose(1, 2)


def captured(path: Path, module: str, call: Callable[[Any], Any]) -> tuple[Any, Counts, list[StoredRecord]]:
    with framework(), capturing(path) as counts:
        result = call(importlib.import_module(module))
    assert (counts.failures, counts.first_failure) == (0, None)
    return result, counts, list(Store.open(path).records) if counts.records else []


def only(path: Path, module: str, call: Callable[[Any], Any]) -> tuple[Any, StoredRecord]:
    result, counts, records = captured(path, module, call)
    assert counts.passed_over == {}
    (record,) = records
    assert_valid(record)
    assert_replays(path)
    return result, record


def assert_valid(record: StoredRecord) -> None:
    before = {one: handle.read() for one, handle in record.before.items()}
    for name, held in record.info.pools.items():
        before[name] = torch.zeros(held.slots, *before[name].shape[1:], dtype=before[name].dtype)
    operation(record.info.op).validate(Call(before, record.info.scalars, record.info.conventions))


def assert_replays(path: Path, *kernels: str) -> None:
    for kernel in kernels or ("reference",):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def read(record: StoredRecord, *names: str) -> list[Any]:
    return [record.before[name].read().tolist() for name in names]


def test_transformers(tmp_path: Path) -> None:
    """A prefill leaves its last inputs in the cache, steps go on from there, and lineage follows them."""
    model = tiny_model("qwen3_5").bfloat16()
    ids = torch.arange(2 * 9).reshape(2, 9) % 60 + 1
    options = CaptureOptions(op=("conv_prefill", "conv_decode"), layer=("0",))
    with capturing(tmp_path / "run.zarr", options) as counts:
        model.generate(ids, max_new_tokens=3, do_sample=False)
    assert (counts.failures, counts.first_failure) == (0, None)
    store = Store.open(tmp_path / "run.zarr")
    records = list(store.records)
    expected = [("conv_prefill", 0), ("conv_decode", 1), ("conv_decode", 2)]
    assert [(r.info.op, r.info.step) for r in records] == expected
    assert {r.info.layer for r in records} == {"model.layers.0.linear_attn"}
    first, second, _ = records
    weight = model.model.layers[0].linear_attn.conv1d.weight.squeeze(1)
    assert torch.equal(first.before["weight"].read(), weight)
    assert torch.equal(second.before["conv_state"].read()[0], first.before["x"].read()[6:9].T)
    for one, other in pairwise(records):
        assert one.after["conv_state"].digest == other.before["conv_state"].digest
    report = check_stores([store])
    assert (report.total("reads"), report.total("right"), report.breaks) == (4, 4, 0)
    for record in records:
        assert_valid(record)
    assert_replays(tmp_path / "run.zarr", "hf")


@pytest.mark.slow
@pytest.mark.parametrize("digests", [False, True])
def test_lineage_of_transformers_prompts(tmp_path: Path, digests: bool) -> None:
    """A prompt shorter than the window comes with zeros, and a later chunk of one with the state before it:
    what these leave is not recorded, so their next reads are unknown."""
    from transformers import DynamicCache

    model = tiny_model("qwen3_5").bfloat16()
    found = []
    with capturing(tmp_path / "run.zarr", CaptureOptions(digests=digests, layer=("0-1",))) as counts:
        plain = model.generate(torch.ones(1, 2, dtype=torch.int64), max_new_tokens=4, do_sample=False)
        cache = DynamicCache(config=model.config)
        for ids in ([1, 2, 3, 4, 5, 6], [7, 8, 9], [10], [11]):
            model(torch.tensor([ids]), cache=cache, use_cache=True)
    assert plain.shape == (1, 6)
    assert (counts.failures, counts.first_failure) == (0, None)
    report = check_stores([Store.open(tmp_path / "run.zarr")])
    for chain in report.processes[0].chains:
        if chain.name == "conv_state":
            found.append((chain.reads, chain.right, dict(chain.unknown)))
    assert found == [(5, 3, {Unknown.FIRST_SEEN: 2})] * 2
    assert report.breaks == 0


def test_its_calls_are_counted_apart(tmp_path: Path) -> None:
    """`--every 2` keeps every second step of both, not every convolution alone; `--first` counts each."""
    model = tiny_model("qwen3_5")
    with capturing(tmp_path / "run.zarr", CaptureOptions(every=2, first=2, layer=("1",))):
        model.generate(torch.ones(1, 5, dtype=torch.int64), max_new_tokens=6, do_sample=False)
    kept = [(r.info.op, r.info.step) for r in Store.open(tmp_path / "run.zarr").records]
    assert kept == [("conv_prefill", 0), ("gdn_prefill", 0), ("conv_decode", 2), ("gdn_decode", 2)]


@pytest.mark.slow
def test_slots_of_both_pools_are_apart(tmp_path: Path) -> None:
    """`bisect record` follows slot 0 of the windows and slot 0 of the states."""
    model = tiny_model("qwen3_5")
    with capturing(tmp_path / "run.zarr", CaptureOptions(layer=("1",))):
        model.generate(torch.ones(1, 5, dtype=torch.int64), max_new_tokens=4, do_sample=False)
    records = list(Store.open(tmp_path / "run.zarr").records)
    ops = {record.number: record.info.op for record in records}
    found = {(ops[at[0]], ops[earlier[0]]) for at, earlier in links_of(records).before.items()}
    assert found == {
        ("conv_decode", "conv_decode"),
        ("conv_decode", "conv_prefill"),
        ("gdn_decode", "gdn_decode"),
        ("gdn_decode", "gdn_prefill"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_fla_prefill(given: bool, packed: bool, tmp_path: Path) -> None:
    x = random(1, 10, D) if packed else random(3, 4, D)
    states = random(3, D, W, seed=1)
    offsets = ints(0, 3, 3, 10) if packed else None
    weight = random(D, W)

    def call(module: Any) -> Any:
        return module.causal_conv1d(
            x, weight, None, None, states if given else None, True, "swish", cu_seqlens=offsets
        )

    (y, final), record = only(tmp_path / "run.zarr", CONV, call)
    assert (record.info.op, record.info.scalars) == ("conv_prefill", {"activation": "silu"})
    assert torch.equal(record.after["y"].read(), y.flatten(0, 1))
    kept = [0, 2] if packed else [0, 1, 2]
    assert record.info.pools["conv_state"].rows == kept or len(record.after["conv_state"].read()) == 3
    assert read(record, "has_initial_state") == [[given] * 3]
    left = record.after["conv_state"].read()
    rows = left if len(left) == len(kept) else left[kept]
    assert torch.equal(rows, final[kept][:, :, 1:])


@pytest.mark.slow
def test_fla_without_states(tmp_path: Path) -> None:
    x, weight, bias = random(2, 5, D), random(D, W), random(D)
    _, record = only(tmp_path / "run.zarr", CONV, lambda module: module.causal_conv1d(x, weight, bias))
    assert set(record.before) == {"x", "weight", "bias", "cu_seqlens"}
    assert record.info.scalars == {"activation": "none"}


@pytest.mark.slow
def test_fla_decode_of_a_layer_with_three_convolutions(tmp_path: Path) -> None:
    """Each convolution is a layer of its own: their states have the same numbers."""
    caches = [random(2, D, W, seed=n) for n in range(2)]
    before = [cache.clone() for cache in caches]

    def call(module: Any) -> Any:
        convolutions = nn.ModuleDict(
            {n: module.ShortConvolution(random(D, W)) for n in ("q_conv1d", "k_conv1d")}
        )
        return [one(random(2, 1, D), cache) for one, cache in zip(convolutions.values(), caches, strict=True)]

    _, counts, records = captured(tmp_path / "run.zarr", CONV, call)
    assert counts.passed_over == {}
    assert [r.info.layer for r in records] == ["q_conv1d", "k_conv1d"]
    for record, cache, old in zip(records, caches, before, strict=True):
        assert record.info.op == "conv_decode"
        assert torch.equal(record.before["conv_state"].read(), old[:, :, 1:])
        assert torch.equal(record.after["conv_state"].read(), cache[:, :, 1:])
        assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.slow
def test_fla_with_a_residual_is_not_recorded(tmp_path: Path) -> None:
    x, weight = random(1, 3, D), random(D, W)
    _, counts, records = captured(
        tmp_path / "run.zarr", CONV, lambda module: module.causal_conv1d(x, weight, None, x)
    )
    assert records == []
    (reason,) = counts.passed_over
    assert reason == (
        "the convolution is called with a residual that is added (residual); the operations have none"
    )


@pytest.mark.slow
@pytest.mark.parametrize("tokens_first", [False, True])
def test_vllm_prefill(tokens_first: bool, tmp_path: Path) -> None:
    """A null slot, a sequence that has a state, a short one that has one, and a pool with room for drafts."""
    states = pool(W + 2, tokens_first=tokens_first)
    before = states.clone()
    x, weight = random(14, D).T, random(D, W)

    def call(module: Any) -> Any:
        return module.causal_conv1d_fn(
            x,
            weight,
            None,
            conv_states=states,
            query_start_loc=ints(0, 2, 7, 11, 12),
            cache_indices=ints(4, 1, 0, 7),
            has_initial_state=torch.tensor([True, False, False, True]),
        )

    y, record = only(tmp_path / "run.zarr", QWEN, call)
    assert record.info.op == "conv_prefill"
    assert read(record, "state_indices") == [[4, 1, -1, 7]]
    assert record.info.pools["conv_state"].rows == (0, 1, 4, 7)
    assert torch.equal(record.before["conv_state"].read(), before[[0, 1, 4, 7], :, : W - 1])
    assert torch.equal(record.after["conv_state"].read(), states[[0, 1, 4, 7], :, : W - 1])
    assert torch.equal(record.after["y"].read()[:7], y.T[:7])
    assert torch.equal(record.before["x"].read(), x.T)


@pytest.mark.slow
def test_vllm_decode_overwrites_its_inputs(tmp_path: Path) -> None:
    x, weight, bias, states = random(4, D), random(D, W), random(D), pool()
    given = x.clone()
    y, record = only(
        tmp_path / "run.zarr",
        QWEN,
        lambda module: module.causal_conv1d_update(
            x, states, weight, bias, "silu", conv_state_indices=ints(3, 0, 8, 2)
        ),
    )
    assert record.info.op == "conv_decode"
    assert read(record, "state_indices") == [[[3], [-1], [8], [2]]]
    assert torch.equal(record.before["x"].read(), given)
    assert torch.equal(record.after["y"].read()[[0, 2, 3]], y[[0, 2, 3]])


def test_vllm_verification_keeps_the_windows_of_all_drafts(tmp_path: Path) -> None:
    """Sequences of 3, 1 and 2 tokens, and one without; accepted tokens are those of the step before."""
    x, weight, states = random(6, D), random(D, W), pool(W - 1 + 2, tokens_first=True)
    _, record = only(
        tmp_path / "run.zarr",
        QWEN,
        lambda module: module.causal_conv1d_update(
            x,
            states,
            weight,
            None,
            "silu",
            conv_state_indices=ints(3, 5, 8, 0),
            num_accepted_tokens=ints(2, 3, 1, 1),
            query_start_loc=ints(0, 3, 4, 6, 6),
            max_query_len=3,
        ),
    )
    assert record.info.op == "conv_decode"
    assert read(record, "num_accepted", "cu_seqlens") == [[2, 3, 1, 1], [0, 3, 4, 6, 6]]
    assert record.before["conv_state"].meta.shape == (3, D, W + 1)
    assert torch.equal(record.after["conv_state"].read(), states[[3, 5, 8]])


@pytest.mark.slow
def test_vllm_blocks_of_states_are_not_recorded(tmp_path: Path) -> None:
    given = {"x": random(2, D), "conv_state": pool(), "weight": random(D, W), "activation": "silu"}

    def call(module: Any) -> Any:
        return module.causal_conv1d_update(
            **given, conv_state_indices=ints(1, 2), query_start_loc=ints(0, 1, 2), max_query_len=2
        )

    _, counts, records = captured(tmp_path / "run.zarr", QWEN, call)
    assert records == []
    assert list(counts.passed_over) == ["packed sequences of several tokens come without accepted tokens"]


@pytest.mark.slow
def test_a_dummy_run_is_not_recorded(tmp_path: Path) -> None:
    given = {
        "x": random(2, D),
        "conv_state": pool(),
        "weight": random(D, W),
        "conv_state_indices": ints(0, 0),
    }
    _, counts, records = captured(
        tmp_path / "run.zarr", QWEN, lambda module: module.causal_conv1d_update(**given)
    )
    assert records == []
    assert list(counts.passed_over) == [
        "every sequence of a convolution is padding: a dummy run of the engine"
    ]


@pytest.mark.slow
def test_sglang(tmp_path: Path) -> None:
    states, weight = pool(), random(D, W)
    prefill = {
        "x": random(9, D).T,
        "conv_states": states,
        "query_start_loc": ints(0, 4, 9),
        "seq_lens_cpu": [4, 5],
        "cache_indices": ints(0, 7),
        "has_initial_state": torch.tensor([False, True]),
    }
    verify = {
        "x": random(3, D, 2),
        "conv_state": states,
        "conv_state_indices": ints(0, 7, -1),
        "intermediate_conv_window": torch.zeros(3, 2, D, W - 1),
        "intermediate_state_indices": ints(0, 1, 2),
    }

    def call(module: Any) -> None:
        module.causal_conv1d_fn(weight=weight, bias=None, **prefill)
        module.causal_conv1d_update(weight=weight, bias=None, activation="silu", **verify)

    _, counts, (first, second) = captured(tmp_path / "run.zarr", BACKEND, call)
    assert counts.passed_over == {}
    assert read(first, "state_indices", "has_initial_state") == [[0, 7], [False, True]]
    assert read(second, "state_indices", "cu_seqlens") == [[[0], [7], [-1]], [0, 2, 4, 6]]
    assert second.info.dispatch["not_recorded"] == "the window after each draft, and its commit"
    assert second.before["conv_state"].digest == first.after["conv_state"].digest
    for record in (first, second):
        assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.slow
def test_an_activation_that_the_operations_lack(tmp_path: Path) -> None:
    given = {
        "x": random(2, D),
        "conv_state": pool(),
        "weight": random(D, W),
        "conv_state_indices": ints(1, 2),
    }
    _, counts, records = captured(
        tmp_path / "run.zarr", QWEN, lambda module: module.causal_conv1d_update(**given, activation="gelu")
    )
    assert records == []
    (reason,) = counts.passed_over
    assert reason == "the convolution has another activation than SiLU; the operations do not"


@pytest.mark.slow
def test_vllm_in_a_graph(tmp_path: Path) -> None:
    """One graph, replayed on other slots and counts, for drafts and without; nothing waits for a device."""
    states, other, weight, x = pool(W + 1), pool(), random(D, W), random(3, D)
    slots, accepted, y = ints(4, 0, 7), ints(1, 2, 1), random(4, D)
    drafts: dict[str, Any] = {"conv_state_indices": slots, "num_accepted_tokens": accepted}
    drafts |= {"max_query_len": 3, "query_start_loc": ints(0, 3, 3, 4)}
    graph = StandInGraph()
    with framework(), capturing_stand_in(tmp_path / "run.zarr", StandInStreams()) as counts:
        module, session = importlib.import_module(QWEN), runtime.running[-1]._session
        assert session is not None
        target = Target(QWEN, "causal_conv1d_update")
        update = session.wrap_target(VllmAdapter(), target, module.causal_conv1d_update)
        with graph_of(graph):
            update(x, other, weight, None, "silu", conv_state_indices=slots)
            update(y, states, weight, None, "silu", **drafts)
        slots.copy_(ints(1, 3, 0))
        accepted.copy_(ints(3, 1, 1))
        graph.replay()
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    plain, drafted = Store.open(tmp_path / "run.zarr").records
    assert read(plain, "state_indices") == [[[1], [3], [-1]]]
    assert read(drafted, "state_indices", "num_accepted") == [[[1], [3], [-1]], [3, 1, 1]]
    for record in (plain, drafted):
        assert_valid(record)


@pytest.mark.parametrize("layers", quick([1, 2], 1))
def test_digests_of_windows_in_a_graph(tmp_path: Path, layers: int) -> None:
    """Each replay reads the windows that its own counts name; all of a slot's windows are digested."""
    pools = [random(SLOTS, D, W + 1, seed=n) for n in range(layers)]
    weight, x = random(D, W), random(4, D)
    slots, accepted = ints(4, 0, 7), ints(1, 2, 1)
    drafts: dict[str, Any] = {"conv_state_indices": slots, "num_accepted_tokens": accepted}
    drafts |= {"max_query_len": 3, "query_start_loc": ints(0, 3, 3, 4)}
    graph, before = StandInGraph(), []
    options = CaptureOptions(digests=True)
    with framework(), capturing_stand_in(tmp_path / "run.zarr", StandInStreams(), options) as counts:
        module, session = importlib.import_module(QWEN), runtime.running[-1]._session
        assert session is not None
        target = Target(QWEN, "causal_conv1d_update")
        update = session.wrap_target(VllmAdapter(), target, module.causal_conv1d_update)
        with graph_of(graph):
            for states in pools:
                update(x.clone(), states, weight, None, "silu", **drafts)
        for new_slots, new_counts in (((4, 0, 7), (1, 2, 2)), ((1, 0, 3), (3, 1, 1))):
            slots.copy_(ints(*new_slots))
            accepted.copy_(ints(*new_counts))
            before.append([states.clone() for states in pools])
            graph.replay()
            before.append([states.clone() for states in pools])
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 2 * layers)

    def content(states: Tensor, slot: int, column: int) -> tuple[int, ...]:
        (found,) = row_digests(states[slot : slot + 1, :, column : column + W - 1]).tolist()
        return tuple(found)

    expected = [
        (kind, slot, content(before[moment][layer], slot, column))
        for replay, reads in enumerate((((4, 0), (7, 1)), ((1, 2), (3, 0))))
        for layer in range(layers)
        for kind, moment, windows in (
            ("READ", 2 * replay, reads),
            ("WRITE", 2 * replay + 1, [(reads[0][0], n) for n in range(3)] + [(reads[1][0], 0)]),
        )
        for slot, column in windows
    ]
    found = [
        (AccessKind(row["kind"]).name, int(row["slot"]), tuple(row["digest"].view(np.int64).tolist()))
        for record in Store.open(tmp_path / "run.zarr").records
        for row in piece_of(record).rows
        if not row["flags"] & AccessFlag.DIGEST_UNKNOWN
    ]
    assert found == expected
