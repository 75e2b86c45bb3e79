# SPDX-License-Identifier: Apache-2.0
"""The adapter of vLLM's DeepSeek-V4 decoding, on a layer that attends by the definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla
from tests.capture.frameworks import framework
from tests.messages import wording

BLOCKS, HEADS = 6, 4
MODULE = "vllm.models.deepseek_v4.nvidia.flashmla"


@pytest.fixture(autouse=True)
def vllm() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def pages() -> Tensor:
    """[blocks, 64, 584], 37440 bytes apart."""
    cache = pack_ds_mla(random(BLOCKS, 64, 512))
    assert cache.stride() == (37440, 584, 1)
    return cache


def windows(width: int = 128) -> tuple[Tensor, Tensor]:
    """Four requests: whole, short, with a hole, and padding with stale indices."""
    indices = torch.full((4, 1, width), -1, dtype=torch.int32)
    indices[0, 0, :128] = torch.arange(70, 198)
    indices[1, 0, :5] = torch.arange(320, 325)
    indices[2, 0, 3:9] = torch.arange(6)
    indices[3] = 1 << 20
    return indices, torch.tensor([128, 5, 9, 0], dtype=torch.int32)


def extra(size: int, entries: int = 8) -> dict[str, Tensor]:
    """What a layer with compressed keys gives: 64 rows a page with ratio 4, 2 with ratio 128."""
    blocks = 400 // size
    table = torch.full((4, 1, entries), -1, dtype=torch.int32)
    table[0, 0, :7] = torch.arange(300, 307)
    table[1, 0, :3] = torch.tensor([5, 0, 5])
    table[3] = 1 << 20
    return {
        "extra_k_cache": pack_ds_mla(random(blocks, size, 512)).unsqueeze(2),
        "extra_indices_in_kvcache": table,
        "extra_topk_length": torch.tensor([6, 3, 0, 0], dtype=torch.int32),
    }


def run(path: Path, *, extra: dict[str, Tensor] | None = None, width: int = 128, bare: bool = False) -> Any:
    indices, lengths = windows(width)
    q = random(4, HEADS, 512)
    with capturing(path) as counts:
        kind = import_module(MODULE).DeepseekV4FlashMLAAttention
        layer = kind(2, pages(), torch.linspace(-1, 1, HEADS), extra)
        step = SimpleNamespace(
            decode_swa_indices=indices,
            decode_swa_lens=lengths,
            num_decodes=4,
            num_decode_tokens=4,
            num_prefills=0,
            seq_lens=torch.tensor([198, 9, 9, 0], dtype=torch.int32),
            query_start_loc=torch.arange(5, dtype=torch.int32),
        )
        out = torch.empty_like(q)
        context = import_module("vllm.forward_context")
        with context.set_forward_context(None if bare else {layer.swa_cache_layer.prefix: step}):
            layer.forward_mqa(q, None, None, out)
    return counts, q, out


def test_a_step(tmp_path: Path) -> None:
    counts, q, out = run(tmp_path / "run.zarr")
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
    store = Store.open(tmp_path / "run.zarr")
    (record,) = store.records
    info = record.info
    assert (info.op, info.layer_index) == ("swa_decode", 2)
    assert info.conventions == {"cache_layout": "fp8_ds_mla", "index_shape": "T1W"}
    assert info.scalars == {"scale": 512**-0.5, "output_lse": False}
    assert (info.dispatch["path"], info.dispatch["backend"]) == ("decode", "flashmla")
    assert info.dispatch["metadata"] == {
        "num_prefills": 0,
        "num_decodes": 4,
        "num_decode_tokens": 4,
        "seq_lens": [198, 9, 9, 0],
        "query_start_loc": [0, 1, 2, 3, 4],
    }
    assert info.pools["cache"].rows == (0, 1, 2, 3, 5)
    kept = record.before["cache"].read()
    assert torch.equal(kept, pages()[list(info.pools["cache"].rows)])
    assert torch.equal(record.before["q"].read(), q)
    assert torch.equal(record.before["swa_indices"].read(), windows()[0])
    assert torch.equal(record.after["o"].read(), out)
    assert set(record.after) == {"o"}
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


@pytest.mark.parametrize("size", [64, 2])
def test_a_layer_with_compressed_keys(size: int, tmp_path: Path) -> None:
    given = extra(size)
    counts, q, out = run(tmp_path / "run.zarr", extra=given)
    assert (counts.records, counts.failures, counts.passed_over) == (1, 0, {})
    store = Store.open(tmp_path / "run.zarr")
    (record,) = store.records
    info = record.info
    assert (info.op, info.layer_index, info.dispatch["backend"]) == ("v4_decode", 2, "flashmla")
    assert info.conventions["cache_layout"] == info.conventions["extra_layout"] == "fp8_ds_mla"
    assert info.conventions["extra_index_form"] == "indices"
    assert (info.conventions["lse_base"], info.conventions["lse_sink"], info.conventions["lse_empty"]) == (
        "e",
        "without",
        "plus_inf",
    )
    assert info.scalars == {"scale": 512**-0.5, "output_lse": True}
    assert info.dispatch["metadata"]["num_decodes"] == 4
    pages_read = {300 // size, 305 // size, 5 // size, 0}
    assert set(info.pools["extra_cache"].rows) >= pages_read
    kept = given["extra_k_cache"].squeeze(2)[list(info.pools["extra_cache"].rows)]
    assert torch.equal(record.before["extra_cache"].read(), kept)
    assert torch.equal(record.before["q"].read(), q.unsqueeze(1))
    assert torch.equal(record.before["extra_indices"].read(), given["extra_indices_in_kvcache"])
    assert record.before["extra_lens"].read().tolist() == [6, 3, 0, 0]
    assert torch.equal(record.after["o"].read(), out.unsqueeze(1))
    assert record.after["lse"].read().isposinf().tolist() == [[[False] * HEADS]] * 3 + [[[True] * HEADS]]
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def test_tables_with_room_for_the_longest_context(tmp_path: Path) -> None:
    """vLLM's table of ratio 128 has as many columns as the longest context has compressed positions."""
    given = extra(2, entries=2176)
    counts, *_ = run(tmp_path / "run.zarr", extra=given)
    assert (counts.records, counts.failures) == (1, 0)
    (record,) = Store.open(tmp_path / "run.zarr").records
    table = record.before["extra_indices"].read()
    assert torch.equal(table, given["extra_indices_in_kvcache"][..., :2048])
    given["extra_topk_length"][1] = 2049
    counts, *_ = run(tmp_path / "longer.zarr", extra=given)
    assert counts.records == 0
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.slots-many"), found)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (
            {"extra": {"extra_k_cache": torch.zeros(2, 64, 1, 288, dtype=torch.uint8)}},
            wording("capture.extra-without-lengths"),
        ),
        (
            {
                "extra": {
                    **extra(64),
                    "extra_k_cache": torch.zeros(2, 64, 1, 288, dtype=torch.uint8),
                    "extra_topk_length": torch.zeros(4, dtype=torch.int32),
                }
            },
            wording("capture.rows-of-v4"),
        ),
        ({"width": 256}, wording("capture.windows-wide")),
    ],
)
def test_calls_that_the_operation_does_not_describe(how: dict[str, Any], reason: str, tmp_path: Path) -> None:
    counts: Counts = run(tmp_path / "run.zarr", **how)[0]
    assert (counts.records, counts.failures, counts.first_failure) == (0, 0, None)
    ((found, calls),) = counts.passed_over.items()
    assert re.fullmatch(reason, found)
    assert calls == 1


def test_a_layer_that_runs_without_a_request(tmp_path: Path) -> None:
    """vLLM measures memory by it, and calls no kernel."""
    counts, _, out = run(tmp_path / "run.zarr", bare=True)
    assert (counts.records, counts.failures, counts.passed_over) == (0, 0, {})
    assert not out.any()
