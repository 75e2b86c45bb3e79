# SPDX-License-Identifier: Apache-2.0
"""Calls made smaller are valid calls, and compute what the parts that are left computed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gdnbench.ops import operation
from gdnbench.synth import synthesise
from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Axis, Call, Shrinking
from gdnbench_kernels.run import run_kernel

SMALL = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

prefills = st.fixed_dictionaries(
    {
        "seqlens": st.lists(st.integers(0, 90), min_size=1, max_size=4).map(tuple),
        "heads": st.sampled_from([(1, 1), (1, 3), (2, 4)]),
        "head_dim": st.just((4, 4)),
        "initial_state": st.booleans(),
        "state_layout": st.sampled_from(["VK", "KV"]),
        "gate": st.sampled_from(["log", "linear"]),
        "qk": st.sampled_from(["normalised", "raw"]),
        "offsets_dtype": st.sampled_from(["int32", "int64"]),
    }
)
channels = st.fixed_dictionaries(
    {
        "seqlens": st.lists(st.integers(0, 40), min_size=1, max_size=4).map(tuple),
        "heads": st.sampled_from([(1, 1), (1, 3), (2, 4)]),
        "head_dim": st.just((4, 4)),
        "initial_state": st.booleans(),
        "state_layout": st.sampled_from(["VK", "KV"]),
        "gate": st.sampled_from(["log", "raw", "bounded"]),
        "beta_form": st.sampled_from(["value", "logit"]),
        "qk": st.sampled_from(["normalised", "raw"]),
    }
)
decodes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 5),
        "steps": st.integers(1, 4),
        "heads": st.sampled_from([(1, 1), (1, 3), (2, 4)]),
        "head_dim": st.just((4, 4)),
        "padding": st.sampled_from([0.0, 0.5]),
        "holes": st.sampled_from([0.0, 0.3]),
        "gate": st.sampled_from(["log", "linear", "raw"]),
        "slot_gap": st.sampled_from([0, 5]),
    }
)
reads = st.one_of(
    st.sampled_from(["none", "own", "first", "last", "shared"]).map(lambda reads: {"read_indices": reads}),
    st.just({"speculative": True}),
)
swas = st.fixed_dictionaries(
    {
        "lens": st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
        "window": st.sampled_from([9, 16]),
        "heads": st.integers(1, 3),
        "block_size": st.just(16),
        "cache_layout": st.sampled_from(["per_token_scale", "fp8_ds_mla", "bfloat16"]),
        "index_shape": st.sampled_from(["TW", "T1W", "1TW"]),
        "shared_page": st.booleans(),
        "holes": st.sampled_from([0.0, 0.5]),
        "spare_pages": st.integers(0, 2),
    }
)

v4s = st.fixed_dictionaries(
    {
        "requests": st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), min_size=1, max_size=3),
        "queries": st.integers(1, 3),
        "window": st.just(9),
        "topk": st.just(8),
        "heads": st.integers(1, 2),
        "block_size": st.just(16),
        "extra_block_size": st.sampled_from([1, 2]),
        "cache_layout": st.sampled_from(["per_token_scale", "fp8_ds_mla", "bfloat16"]),
        "extra_layout": st.sampled_from(["per_token_scale", "fp8_ds_mla", "bfloat16"]),
        "extra_index_form": st.sampled_from(["indices", "block_table"]),
        "index_shape": st.sampled_from(["BSW", "TW", "T1W"]),
        "lens_shape": st.sampled_from(["BS", "T", "B"]),
        "holes": st.sampled_from([0.0, 0.5]),
        "packed": st.booleans(),
        "spare_pages": st.integers(0, 2),
    }
)


def shrinking_of(op: str) -> Shrinking:
    found = operation(op).shrinking
    assert found is not None
    return found


def axes(op: str, call: Call) -> dict[str, Axis]:
    return {axis.name: axis for axis in shrinking_of(op).axes(operation(op), call)}


def with_chunk_tables(call: Call, chunk_size: int = 64) -> Call:
    bounds = call.tensors["cu_seqlens"]
    plan = plan_chunks(bounds, chunk_size)
    indices = torch.full((plan.bound + 1, 2), 77, dtype=bounds.dtype)
    indices[: plan.total] = torch.stack([plan.sequence, plan.index], 1)
    tables = {"chunk_indices": indices, "chunk_offsets": plan.offsets.to(bounds.dtype)}
    return Call({**call.tensors, **tables}, call.scalars, call.conventions)


def reduce_at_random(op: str, call: Call, data: st.DataObject) -> None:
    """Three reductions one after another, on axes that are drawn: every call on the way is valid."""
    operation(op).validate(call)
    for _ in range(3):
        found = axes(op, call)
        able = sorted(name for name, axis in found.items() if axis.units > axis.least)
        if not able:
            return
        axis = found[data.draw(st.sampled_from(able), label="axis")]
        kept = data.draw(
            st.sets(st.integers(0, axis.units - 1), min_size=axis.least, max_size=axis.units - 1),
            label="kept",
        )
        before = sum(tensor.numel() for tensor in call.tensors.values())
        smaller = axis.keep(sorted(kept))
        operation(op).validate(smaller)
        assert axes(op, smaller)[axis.name].units <= axis.units
        if axis.name != "chunks, states carried":  # which may bring a state where there was none
            assert sum(tensor.numel() for tensor in smaller.tensors.values()) <= before
        call = smaller


@SMALL
@given(prefills, st.booleans(), st.data())
def test_prefills_stay_valid(options: dict[str, Any], tables: bool, data: st.DataObject) -> None:
    call = synthesise("gdn_prefill", **options)
    reduce_at_random("gdn_prefill", with_chunk_tables(call) if tables else call, data)


@SMALL
@given(channels, st.booleans(), st.data())
def test_prefills_with_gates_by_channel_stay_valid(
    options: dict[str, Any], tables: bool, data: st.DataObject
) -> None:
    call = synthesise("kda_prefill", **options)
    reduce_at_random("kda_prefill", with_chunk_tables(call, 16) if tables else call, data)


@SMALL
@given(st.sampled_from(["gdn_decode", "kda_decode"]), decodes, reads, st.data())
def test_decodes_stay_valid(
    op: str, options: dict[str, Any], read: dict[str, Any], data: st.DataObject
) -> None:
    if read.get("read_indices") in ("first", "last"):
        options = {**options, "holes": 0.0}  # or the slot to read may be none
    if op == "kda_decode" and options.get("gate") == "linear":
        options = {**options, "gate": "bounded"}
    reduce_at_random(op, synthesise(op, **options, **read), data)


@SMALL
@given(v4s, st.booleans(), st.data())
def test_decode_attention_of_two_segments_stays_valid(
    options: dict[str, Any], alone: bool, data: st.DataObject
) -> None:
    requests = options.pop("requests")
    lens, extra_lens = (tuple(lengths) for lengths in zip(*requests, strict=True))
    if alone:
        options |= {"extra_lens": (), "packed": False}
    else:
        options["extra_lens"] = extra_lens
    reduce_at_random("v4_decode", synthesise("v4_decode", lens=lens, **options), data)


@SMALL
@given(swas, st.data())
def test_windows_stay_valid(options: dict[str, Any], data: st.DataObject) -> None:
    reduce_at_random("swa_decode", synthesise("swa_decode", **options), data)


def exact(op: str, call: Call) -> dict[str, Tensor]:
    return run_kernel(operation(op), "reference", call)


def equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.fixture
def prefill() -> Call:
    call = synthesise(
        "gdn_prefill", seqlens=(70, 0, 130), heads=(2, 4), head_dim=(8, 8), initial_state=True, seed=3
    )
    return with_chunk_tables(call)


def test_what_is_left_of_a_prefill_computes_the_same(prefill: Call) -> None:
    before, found = exact("gdn_prefill", prefill), axes("gdn_prefill", prefill)
    smaller = exact("gdn_prefill", found["sequences"].keep([1, 2]))
    equal(smaller["o"], before["o"][70:])
    equal(smaller["final_state"], before["final_state"][1:])
    equal(exact("gdn_prefill", found["key heads"].keep([1]))["o"], before["o"][:, 2:])
    equal(exact("gdn_prefill", found["value heads a key head"].keep([1]))["o"], before["o"][:, 1::2])
    # The first chunks of a sequence do not see the last.
    equal(exact("gdn_prefill", found["chunks"].keep([0, 2, 3]))["o"][64:], before["o"][70:198])
    equal(exact("gdn_prefill", found["tokens"].keep(range(40)))["o"], before["o"][:40])


@pytest.mark.parametrize("layout", ["VK", "KV"])
def test_a_state_that_is_carried_stands_for_the_chunks_before(layout: str) -> None:
    call = synthesise(
        "gdn_prefill", seqlens=(70, 200), heads=(1, 2), head_dim=(8, 4), state_layout=layout, dtype="float32"
    )
    before = exact("gdn_prefill", call)
    carried = axes("gdn_prefill", call)["chunks, states carried"].keep([4, 5])
    assert carried.tensors["cu_seqlens"].tolist() == [0, 0, 72]
    # The state is kept in fp32: 2^-24 of it, and of what follows from it.
    found = exact("gdn_prefill", carried)
    torch.testing.assert_close(found["o"], before["o"][198:], rtol=0, atol=1e-6)
    torch.testing.assert_close(found["final_state"][1], before["final_state"][1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("gate", ["log", "raw", "bounded"])
def test_what_is_left_of_a_prefill_with_gates_by_channel_computes_the_same(gate: str) -> None:
    call = synthesise(
        "kda_prefill",
        seqlens=(20, 0, 35),
        heads=(2, 4),
        head_dim=(8, 4),
        initial_state=True,
        gate=gate,
        beta_form="logit",
        dtype="float32",
    )
    before, found = exact("kda_prefill", call), axes("kda_prefill", call)
    smaller = exact("kda_prefill", found["sequences"].keep([1, 2]))
    equal(smaller["o"], before["o"][20:])
    equal(smaller["final_state"], before["final_state"][1:])
    equal(exact("kda_prefill", found["key heads"].keep([1]))["o"], before["o"][:, 2:])
    equal(exact("kda_prefill", found["value heads a key head"].keep([1]))["o"], before["o"][:, 1::2])
    # Chunks of 16: two of the first sequence and three of the last.
    equal(
        exact("kda_prefill", found["chunks"].keep([0, 2, 3]))["o"], before["o"][[*range(16), *range(20, 52)]]
    )
    carried = found["chunks, states carried"].keep([3, 4])
    assert carried.tensors["cu_seqlens"].tolist() == [0, 0, 0, 19]
    # The state is kept in fp32: 2^-24 of it, and of what follows from it.
    torch.testing.assert_close(exact("kda_prefill", carried)["o"], before["o"][36:], rtol=0, atol=1e-6)
    parts = {"log": 2, "raw": 3, "bounded": 4}[gate]  # initial and final state; dt_bias; A_log
    assert found["optional parts"].units == parts
    operation("kda_prefill").validate(found["optional parts"].keep([]))


def test_chunk_tables_follow(prefill: Call) -> None:
    smaller = axes("gdn_prefill", prefill)["sequences"].keep([2])
    assert smaller.tensors["chunk_offsets"].tolist() == [0, 3]
    assert smaller.tensors["chunk_indices"][:3].tolist() == [[0, 0], [0, 1], [0, 2]]


@pytest.mark.parametrize("op", ["gdn_decode", "kda_decode"])
def test_what_is_left_of_a_decode_computes_the_same(op: str) -> None:
    sizes: dict[str, Any] = {"batch": 5, "steps": 3, "heads": (2, 4), "head_dim": (8, 8), "slots": 30}
    call = synthesise(op, **sizes, padding=0.2, gate="raw")
    before, found = exact(op, call), axes(op, call)
    equal(exact(op, found["sequences"].keep([1, 4]))["o"], before["o"][[1, 4]])
    equal(exact(op, found["key heads"].keep([0]))["o"], before["o"][:, :, :2])
    equal(exact(op, found["tokens a sequence"].keep([0, 1]))["o"], before["o"][:, :2])
    few = found["slots not touched"].keep([])
    assert len(few.tensors["state"]) == 12  # four sequences of three tokens
    after = exact(op, few)
    equal(after["o"], before["o"])
    touched = operation(op).touched(call)["state"]
    equal(after["state"], before["state"][touched])


def test_the_slot_that_is_read_stays_with_its_token() -> None:
    call = synthesise("gdn_decode", batch=3, steps=4, heads=(1, 1), head_dim=(4, 4), speculative=True)
    tensors = {**call.tensors, "num_accepted": torch.tensor([1, 3, 4], dtype=torch.int32)}
    smaller = axes("gdn_decode", Call(tensors, call.scalars, call.conventions))["tokens a sequence"].keep(
        [0, 2]
    )
    assert smaller.tensors["num_accepted"].tolist() == [1, 2, 2]  # the last one's token went


@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
def test_what_is_left_of_a_window_computes_the_same(layout: str) -> None:
    call = synthesise("swa_decode", lens=(9, 0, 5), heads=3, window=12, block_size=16, cache_layout=layout)
    before, found = exact("swa_decode", call), axes("swa_decode", call)
    one = exact("swa_decode", found["requests"].keep([2]))
    equal(one["o"], before["o"][2:])
    equal(exact("swa_decode", found["heads"].keep([0, 2]))["lse"], before["lse"][:, [0, 2]])
    assert found["pages not attended to"].units == 2
    equal(exact("swa_decode", found["pages not attended to"].keep([]))["o"], before["o"])
    assert found["columns of the window"].keep([0, 5, 11]).tensors["swa_lens"].tolist() == [2, 0, 1]
    entries = found["entries"].keep([0, 3, 9])  # of nine of the first request and five of the last
    assert entries.tensors["swa_lens"].tolist() == [2, 0, 1]
    rows: Mapping[str, Tensor] = call.tensors
    assert entries.tensors["swa_indices"][0, :2].tolist() == rows["swa_indices"][0, [0, 3]].tolist()


@pytest.mark.parametrize("form", ["indices", "block_table"])
def test_two_segments_shrink_to_a_part(form: str) -> None:
    call = synthesise(
        "v4_decode",
        lens=(7, 0, 4),
        extra_lens=(5, 3, 0),
        queries=2,
        heads=3,
        window=12,
        topk=8,
        block_size=16,
        extra_block_size=2,
        extra_index_form=form,
    )
    before, found = exact("v4_decode", call), axes("v4_decode", call)
    equal(exact("v4_decode", found["requests"].keep([2]))["o"], before["o"][[2]])
    equal(exact("v4_decode", found["queries"].keep([1]))["lse"], before["lse"][:, [1]])
    equal(exact("v4_decode", found["heads"].keep([0, 2]))["o"], before["o"][:, :, [0, 2]])
    for cache in ("cache", "extra_cache"):
        equal(exact("v4_decode", found[f"pages of {cache} not attended to"].keep([]))["o"], before["o"])
    columns = found["columns of the extra segment"].keep([0, 2])
    # Slots 0 and 2 of 5 and 4, of 3 and 2, of none; or positions 0, 1 and 4 of 5, and 0 and 1 of 4.
    wanted = [[2, 2], [2, 1], [0, 0]] if form == "indices" else [[3, 2], [2, 2], [0, 0]]
    assert columns.tensors["extra_lens"].tolist() == wanted
    alone = found["extra segments"].keep([])
    extent = shrinking_of("v4_decode").extent
    assert extent(call).keys() == extent(alone).keys()
    assert extent(call)["compressed row"] == 5 + 4 + 3 + 2
    assert not any(name.startswith("extra") for name in alone.tensors)
    assert bool(found["entries of the extra segment"].units) == (form == "indices")
    entries = found["entries of the window"].keep([0, 3, 8])
    assert entries.tensors["swa_lens"].tolist() == [[2, 1], [0, 0], [0, 0]]
    rows = call.tensors["swa_indices"]
    assert entries.tensors["swa_indices"][0, 0, :2].tolist() == rows[0, 0, [0, 3]].tolist()
    assert entries.tensors["swa_indices"][0, 1, 0] == rows[0, 1, 1]
