# SPDX-License-Identifier: Apache-2.0
"""Paged callers by table: a small engine with every layout, captured, and replayed at its own slots."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.adapters import load_adapters
from gdnbench.capture.adapters.paged import at_place, paged_view
from gdnbench.ops import operation
from gdnbench.replay import bind
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import ContractError
from tests.messages import wording

LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")
BLOCKS, HEADS, REQUESTS = 40, 3, 4
STALE = 0x7F00_0000


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine as a module that can be imported by name, as a table has it."""
    folder = tmp_path / "engine"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "swa_engine.py", folder / "swa_engine.py")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("swa_engine")
    sys.modules.pop("swa_engine", None)


def table(path: Path, **keys: Any) -> str:
    """A TOML file with one table; JSON values are TOML values here."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    path.write_text("\n".join(["[[paged]]", *lines]) + "\n")
    return str(path)


DECODE = {
    "function": "swa_engine:decode",
    "q": "q",
    "cache": "kv_cache",
    "swa_indices": "metadata.indices",
    "swa_lens": "metadata.lengths",
    "attn_sink": "sinks",
    "scale": "softmax_scale",
    "o": "return[0]",
    "lse": "return[1]",
}


def made_cache(layout: str, block_size: int, make: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Pages of random bits that are no NaN, with gaps between them; and inv_scale."""

    def codes(*shape: int) -> Tensor:
        found = torch.randint(0, 256, shape, generator=make, dtype=torch.uint8)
        return found.masked_fill((found & 0x7F) == 0x7F, 1)

    def rows(width: int) -> Tensor:
        return torch.randn(BLOCKS, block_size, width, generator=make).bfloat16()

    if layout == "bfloat16":
        return rows(512), None
    if layout == "per_token_scale":
        held = torch.zeros(BLOCKS, block_size + 1, 512, dtype=torch.uint8)
        held[:, :block_size] = codes(BLOCKS, block_size, 512)
        scales = 0.002 * (1 + torch.rand(BLOCKS, block_size, generator=make))
        return held.view(torch.float8_e4m3fn)[:, :block_size], scales
    stride = -(-block_size * 584 // 576) * 576
    held = torch.full((BLOCKS, stride), 0xAB, dtype=torch.uint8)
    data = held[:, : block_size * 576].view(BLOCKS, block_size, 576)
    data[..., :448] = codes(BLOCKS, block_size, 448)
    data[..., 448:] = rows(64).view(torch.uint8)
    scales = held[:, block_size * 576 : block_size * 584].view(BLOCKS, block_size, 8)
    scales[..., :7] = torch.randint(117, 121, (BLOCKS, block_size, 7), generator=make, dtype=torch.uint8)
    scales[..., 7] = 0
    return held.as_strided((BLOCKS, block_size, 584), (stride, 584, 1)), None


def made_window(block_size: int, make: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows of 128, 17, 0 and 5 slots in few pages out of order, with holes; stale entries behind them."""
    lengths = torch.tensor([128, 17, 0, 5], dtype=torch.int32)
    indices = torch.empty(REQUESTS, 128, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        blocks = torch.randperm(BLOCKS, generator=make)[: 1 + length // block_size]
        slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        slots[3:5] = -1
        indices[row, :length] = slots.to(torch.int32)
        indices[row, length:] = STALE
    return indices, lengths


def touched_pages(indices: Tensor, lengths: Tensor, block_size: int) -> list[int]:
    flat = indices.reshape(-1, indices.shape[-1]).tolist()
    return sorted(
        {s // block_size for row, n in zip(flat, lengths.tolist(), strict=True) for s in row[:n] if s != -1}
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_rebuilt(record: StoredRecord, given: dict[str, Tensor]) -> None:
    """The call that a kernel gets has the caller's indices, and the caller's pages at their own numbers."""
    call = bind.exact(record, operation("swa_decode"), torch.device("cpu")).call
    for name in ("q", "swa_indices", "swa_lens", "attn_sink"):
        if name in given:
            assert torch.equal(call.tensors[name], given[name].reshape(call.tensors[name].shape)), name
    cache, held = call.tensors["cache"], given["cache"]
    assert (cache.shape, cache.stride()) == (held.shape, held.stride())
    stored = list(record.info.pools["cache"].rows)
    assert torch.equal(bits(cache)[stored], bits(held)[stored])
    if "inv_scale" in given:
        slots = list(record.info.pools["inv_scale"].rows)
        assert torch.equal(call.tensors["inv_scale"][slots], given["inv_scale"].flatten()[slots])


def assert_replays(store: Path) -> None:
    """The engine's outputs and torch's kernel both keep to the oracle's bound.

    The engine computes in fp64 and rounds once, torch's kernel rounds rows and weights: k = 2 covers both.
    """
    with Store.open(store) as opened:
        report = replay(opened, kernel="torch", against="recorded")
    assert [(one.outcome, one.reason) for one in report.records] == [(Outcome.PASS, "")] * len(report.records)


@pytest.mark.every(2)
@pytest.mark.parametrize("index_shape", ["TW", "T1W", "1TW"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_of_every_layout(engine: Any, layout: str, index_shape: str, tmp_path: Path) -> None:
    block_size = {"TW": 16, "T1W": 64, "1TW": 32}[index_shape]
    seed = LAYOUTS.index(layout)
    make = torch.Generator().manual_seed(seed)
    cache, inv_scale = made_cache(layout, block_size, make)
    indices, lengths = made_window(block_size, make)
    shaped = {"TW": indices, "T1W": indices[:, None], "1TW": indices[None]}[index_shape]
    q = torch.randn(REQUESTS, HEADS, 512, generator=make).bfloat16()
    sinks = torch.randn(HEADS, generator=make)
    keys = DECODE | {"cache_layout": layout} | ({"inv_scale": "descale"} if inv_scale is not None else {})
    options = CaptureOptions(table=(table(tmp_path / "t.toml", **keys),))

    def call() -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = engine.decode(
            q,
            cache,
            engine.Metadata(shaped, lengths),
            layout=layout,
            descale=inv_scale,
            sinks=sinks,
            softmax_scale=0.03,
        )
        return found

    plain = call()
    with capturing(tmp_path / "run.zarr", options) as counts:
        captured = call()
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
    assert all(torch.equal(a, b) for a, b in zip(plain, captured, strict=True))

    with Store.open(tmp_path / "run.zarr") as store:
        (record,) = store.records
        assert record.info.conventions == {"cache_layout": layout, "index_shape": index_shape}
        assert record.info.scalars == {"scale": 0.03, "output_lse": True}
        pool = record.info.pools["cache"]
        assert list(pool.rows) == touched_pages(indices, lengths, block_size)
        assert (pool.slots, pool.untouched_before, pool.untouched_after) == (BLOCKS, None, None)
        assert record.before["cache"].meta.shape[0] == len(pool.rows) < BLOCKS / 2
        assert torch.equal(record.after["o"].read(), plain[0])
        assert torch.equal(record.after["lse"].read(), plain[1])
        given = {"q": q, "cache": cache, "swa_indices": shaped, "swa_lens": lengths, "attn_sink": sinks}
        if inv_scale is not None:
            given["inv_scale"] = inv_scale
        assert_rebuilt(record, given)
    assert_replays(tmp_path / "run.zarr")


def test_a_buffer_to_fill_a_flat_cache_and_several_tokens_a_request(engine: Any, tmp_path: Path) -> None:
    make = torch.Generator().manual_seed(7)
    cache, scales = made_cache("per_token_scale", 64, make)
    assert scales is not None
    flat = cache.contiguous().view(-1, 512)
    indices, lengths = made_window(64, make)
    q = torch.randn(2, 2, HEADS, 512, generator=make).bfloat16()
    out = torch.full_like(q, math.nan)
    path = tmp_path / "tables.json"
    keys = {
        "function": "swa_engine:decode_into",
        "framework": "mine",
        "q": "q",
        "cache": "caches[0]",
        "inv_scale": "descale",
        "swa_indices": "metadata.indices",
        "swa_lens": "metadata.lengths",
        "o": "out",
        "cache_layout": "per_token_scale",
        "block_size": 64,
    }
    path.write_text(json.dumps({"paged": [keys]}))
    metadata = engine.Metadata(indices.view(2, 2, 128), lengths)
    with capturing(tmp_path / "run.zarr", CaptureOptions(table=(str(path),), target=("mine",))) as counts:
        engine.decode_into(q, [flat], metadata, out, scales)
    assert (counts.records, counts.first_failure) == (1, None)
    with Store.open(tmp_path / "run.zarr") as store:
        (record,) = store.records
        assert record.info.scalars == {"scale": None, "output_lse": False}
        assert torch.equal(record.after["o"].read(), out.view(4, HEADS, 512))
        given = {"q": q, "swa_indices": indices, "swa_lens": lengths, "inv_scale": scales}
        assert_rebuilt(record, given | {"cache": flat.view(-1, 64, 512)})
    assert_replays(tmp_path / "run.zarr")


PROGRAM = """
import torch, swa_engine
from torch import nn
held = torch.load("given.pt")
cache = held["memory"].as_strided((40, 64, 1, 584), (37440, 584, 584, 1))
layers = nn.ModuleList(swa_engine.Attention(index, cache, held["sinks"]) for index in range(2))
metadata = swa_engine.Metadata(held["indices"], held["lengths"])
for step in range(2):
    for layer in layers:
        print(float(layer(held["q"], metadata).double().sum()))
"""


@pytest.mark.slow  # a program of its own
def test_a_layer_with_its_own_cache_by_the_command(engine: Any, tmp_path: Path) -> None:
    """fp8_ds_mla as vLLM holds it, outputs among the attributes of a result, layers by name."""
    make = torch.Generator().manual_seed(11)
    cache, _ = made_cache("fp8_ds_mla", 64, make)
    assert cache.stride() == (37440, 584, 1)
    indices, lengths = made_window(64, make)
    given = {
        "memory": cache.as_strided((BLOCKS, 37440), (37440, 1)).clone(),
        "q": torch.randn(REQUESTS, HEADS, 512, generator=make).bfloat16(),
        "sinks": torch.randn(HEADS, generator=make).bfloat16(),
        "indices": indices,
        "lengths": lengths,
    }
    torch.save(given, tmp_path / "given.pt")
    folder = Path(engine.__file__).parent
    (folder / "program.py").write_text(PROGRAM)
    table(
        tmp_path / "tables.toml",
        function="swa_engine:Attention.run",
        layers=["swa_engine:Attention.forward"],
        q="q",
        cache="self.kv_cache",
        swa_indices="metadata.indices",
        swa_lens="metadata.lengths",
        attn_sink="self.sinks",
        o="return.out",
        lse="return.lse",
        cache_layout="fp8_ds_mla",
    )
    words = [
        "capture",
        "run.zarr",
        "--table",
        "tables.toml",
        "--",
        sys.executable,
        str(folder / "program.py"),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "gdnbench", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 4
    with Store.open(tmp_path / "run.zarr") as store:
        infos = [record.info for record in store.records]
        assert [(i.layer_index, i.step) for i in infos] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert {i.layer for i in infos} == {"0", "1"}
        assert infos[0].dispatch["cache_as_called"] == [BLOCKS, 64, 1, 584]
        for record in store.records:
            assert_rebuilt(record, {"q": given["q"], "cache": cache, "swa_indices": indices})
            assert torch.equal(record.before["attn_sink"].read(), given["sinks"].float())
            assert list(record.info.pools["cache"].rows) == touched_pages(indices, lengths, 64)
    assert_replays(tmp_path / "run.zarr")


def decode_call(engine: Any, layout: str = "bfloat16", **changed: Any) -> dict[str, Any]:
    make = torch.Generator().manual_seed(3)
    cache, _ = made_cache(layout, 64, make)
    indices, lengths = made_window(64, make)
    given = {
        "q": torch.randn(REQUESTS, HEADS, 512, generator=make).bfloat16(),
        "kv_cache": cache,
        "metadata": engine.Metadata(indices, lengths),
        "layout": layout,
    }
    return given | changed


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"swa_lens": "metadata.lens"}, "has no attribute 'lens'"),
        ({"cache": "cache"}, wording("capture.argument-missing", place="cache", argument="cache")),
        ({"q": "layout"}, wording("capture.not-tensor", name="q", place="layout", type="str")),
        ({"o": "return"}, wording("capture.not-tensor", name="o", place="return", type="tuple")),
        ({"o": "return[1]"}, wording("kernels.shape-refused", tensor="o", shape=[4, 3], wanted=[4, 3, 512])),
        (
            {"lse": "return[0]"},
            wording("kernels.shape-refused", tensor="lse", shape=[4, 3, 512], wanted=[4, 3]),
        ),
        ({"lse": "sinks"}, wording("capture.not-tensor", name="lse", place="sinks", type="NoneType")),
        ({"o": "return[2]"}, "IndexError"),
        ({"cache": "q"}, wording("kernels.cache-block-size", block_size=3, known=re.compile("16, .*"))),
        (
            {"cache_layout": "fp8_ds_mla"},
            wording("kernels.dtype-refused", tensor="cache", dtype="bfloat16")
            + "|"
            + wording("kernels.axis-size", tensor="cache", size=512, axis=2),
        ),
        (
            {"swa_indices": "metadata.lengths"},
            wording(
                "kernels.axis-differs",
                tensor="swa_indices",
                symbol="T",
                size=1,
                axis=0,
                source="q",
                source_symbol="T",
                source_size=4,
            ),
        ),
        ({"block_size": 32}, wording("capture.cache-shape", shape=[40, 64, 512], slots=32, row=512)),
    ],
)
def test_a_table_that_does_not_fit_the_call_is_counted_in_one_line(
    engine: Any, keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.toml", **(DECODE | {"cache_layout": "bfloat16"} | keys))
    given = decode_call(engine)
    plain = engine.decode(**given)
    with capturing(tmp_path / "run.zarr", CaptureOptions(table=(path,))) as counts:
        captured = engine.decode(**given)
    assert all(torch.equal(a, b) for a, b in zip(plain, captured, strict=True))
    assert (counts.records, counts.failures) == (0, 1)
    assert counts.first_failure is not None
    assert "\n" not in counts.first_failure
    assert re.search(said, counts.first_failure), counts.first_failure


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"q": torch.zeros(REQUESTS, HEADS, 512)},
            wording("kernels.dtype-refused", tensor="q", dtype="float32", wanted="bfloat16"),
        ),
        ({"q": torch.zeros(REQUESTS, HEADS, 512, dtype=torch.bfloat16)[:2]}, "swa_indices has T = 4"),
        (
            {"indices": torch.int64},
            wording("kernels.dtype-refused", tensor="swa_indices", dtype="int64", wanted="int32"),
        ),
        ({"slot": BLOCKS * 64}, wording("capture.rows-missing", first=17, last=40, tensor="cache", slots=40)),
        ({"slot": -70}, wording("capture.rows-missing", first=-2, tensor="cache", slots=40)),
    ],
)
def test_a_call_that_breaks_the_contract_is_counted_in_one_line(
    engine: Any, changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.toml", **(DECODE | {"cache_layout": "bfloat16"}))
    given = decode_call(engine, **{name: one for name, one in changed.items() if name == "q"})
    metadata = given["metadata"]
    metadata.indices = metadata.indices.to(changed.get("indices", torch.int32))
    if "slot" in changed:
        metadata.indices[0, 0] = changed["slot"]
    options = CaptureOptions(table=(path,))
    # The engine itself takes some of these, and stops at others.
    with capturing(tmp_path / "run.zarr", options) as counts, contextlib.suppress(Exception):
        engine.decode(**given)
    assert (counts.records, counts.unfinished, counts.failures) == (0, 0, 1)
    assert counts.first_failure is not None
    assert re.search(said, counts.first_failure), counts.first_failure


def test_an_entry_point_may_name_a_table(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(engine.__file__).parent
    (folder / "engine_tables.py").write_text(
        "from gdnbench.capture.adapters.paged import Paged\n"
        "KEYS = " + repr(DECODE) + "\n"
        "GOOD = Paged(**KEYS, cache_layout='bfloat16', framework='mine')\n"
        "def __getattr__(name):\n"
        "    return Paged(**KEYS, cache_layout='int4')\n"
    )
    metadata = folder / "engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[gdnbench.adapters]\nmine = engine_tables:GOOD\nbad = engine_tables:BAD\n"
    )
    found, problems = load_adapters()
    assert [one.targets[0].name for one in found if one.framework == "mine"] == ["swa_engine:decode"]
    (problem,) = problems
    assert re.search(
        wording(
            "capture.table-word",
            name="cache_layout",
            value="'int4'",
            words="per_token_scale, fp8_ds_mla, bfloat16",
        ),
        problem,
    )
    assert "\n" not in problem
    sys.modules.pop("engine_tables", None)


@pytest.mark.parametrize(
    "shape", [(5, 64, 1, 512), (1, 5, 64, 512), (5, 1, 64, 512), (1, 5, 1, 64, 512), (5, 64, 512)]
)
def test_a_cache_with_further_axes_is_a_view(shape: tuple[int, ...]) -> None:
    cache = torch.arange(5 * 64 * 512).view(shape).bfloat16()
    found = paged_view(cache, "bfloat16", None)
    assert (found.shape, found.data_ptr()) == ((5, 64, 512), cache.data_ptr())


@pytest.mark.parametrize("shape", [(1, 64, 1, 512), (1, 1, 64, 512), (1, 64, 512)])
def test_a_cache_of_one_page_keeps_its_axis(shape: tuple[int, ...]) -> None:
    assert paged_view(torch.zeros(shape), "bfloat16", None).shape == (1, 64, 512)


def test_pages_of_bytes_are_taken_apart_by_the_tables_block_size() -> None:
    memory = torch.arange(3 * 37440, dtype=torch.int32).to(torch.uint8).view(3, 37440)
    found = paged_view(memory, "fp8_ds_mla", 64)
    assert (found.shape, found.stride(), found.data_ptr()) == (
        (3, 64, 584),
        (37440, 584, 1),
        memory.data_ptr(),
    )
    with pytest.raises(ValueError, match=wording("capture.cache-axes")):
        paged_view(memory, "fp8_ds_mla", None)
    with pytest.raises(ValueError, match=wording("capture.page-bytes", block_size=128, bytes=74752)):
        paged_view(memory, "fp8_ds_mla", 128)
    with pytest.raises(ValueError, match=wording("capture.slots-not-blocks", slots=100, block_size=64)):
        paged_view(torch.zeros(100, 512), "bfloat16", 64)
    with pytest.raises(
        ValueError, match=wording("capture.cache-shape", shape="[2, 3, 64, 512]", slots="block_size")
    ):
        paged_view(torch.zeros(2, 3, 64, 512), "bfloat16", None)


def test_places_reach_through_attributes_keys_and_indices() -> None:
    class Thing:
        held = ({"deep": 5}, 6)

    assert at_place("a.held[0].deep", {"a": Thing()}) == 5
    assert at_place("a.held[-1]", {"a": Thing()}) == 6
    with pytest.raises(
        LookupError, match=wording("capture.argument-missing", place="b", argument="b", known="a")
    ):
        at_place("b", {"a": 1})


def test_a_refused_validation_names_the_operation() -> None:
    """ContractError is what replay would say of the same record."""
    from gdnbench.capture.adapters.contract_forms import check_forms

    with pytest.raises(ContractError, match="swa_decode: " + wording("kernels.tensor-missing", tensor="q")):
        check_forms("swa_decode", {}, {"cache_layout": "bfloat16"}, ())
