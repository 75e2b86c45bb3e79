# SPDX-License-Identifier: Apache-2.0
"""The adapter of SGLang's DeepSeek-V4 decoding, on a backend that attends by the definition."""

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
from gdnbench.capture.adapters.sglang_deepseek_v4 import INTERFACE, KERNEL
from gdnbench.capture.adapters.uncaptured import QUERIES_BEFORE_ROPE
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store
from gdnbench_kernels.swa_decode.layouts import pack_ds_mla
from tests.capture.frameworks import framework
from tests.messages import wording

BLOCKS, HEADS, PAGE = 3, 4, 256


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def pages() -> Tensor:
    """[blocks, 256, 584], 149760 bytes apart: the next multiple of 576."""
    cache = pack_ds_mla(random(BLOCKS, PAGE, 512))
    assert cache.stride() == (149760, 584, 1)
    return cache


def step(width: int) -> SimpleNamespace:
    """Three rows: a whole window, a short one, and one of no request, as SGLang fills a batch up."""
    indices = torch.full((3, width), -1, dtype=torch.int32)
    indices[0, :128] = torch.arange(200, 328)
    indices[1, :5] = torch.arange(512, 517)
    indices[2] = 0
    return SimpleNamespace(
        swa_page_indices=indices,
        swa_topk_lengths=torch.tensor([128, 5, 1], dtype=torch.int32),
        seq_lens_casual=torch.tensor([328, 5, 1], dtype=torch.int32),
        positions_casual=torch.tensor([327, 4, 0]),
    )


def run(path: Path, width: int = 128, **more: Any) -> Any:
    q, core = random(3, HEADS, 512), step(width)
    with capturing(path) as counts:
        models = import_module("sglang.srt.models.deepseek_v4")
        context = import_module("sglang.srt.model_executor.forward_context")
        metadata = SimpleNamespace(core_attn_metadata=core)
        backend = models.Backend(pages(), torch.linspace(-1, 1, HEADS), metadata, **more)
        with context.forward_context(backend):
            out = models.MQALayer(2)(q)
    assert (counts.failures, counts.first_failure) == (0, None)
    return counts, q, core, out


@pytest.mark.parametrize("older", [False, True], ids=["0.5.23", "0.5.20"])
def test_a_step(older: bool, tmp_path: Path) -> None:
    counts, q, core, out = run(tmp_path / "run.zarr", older=older)
    assert (counts.records, counts.passed_over) == (1, {})
    store = Store.open(tmp_path / "run.zarr")
    (record,) = store.records
    info = record.info
    assert (info.op, info.layer_index) == ("swa_decode", 2)
    assert info.target.split(":")[0] == (KERNEL if older else INTERFACE)
    assert info.conventions == {"cache_layout": "fp8_ds_mla", "index_shape": "T1W"}
    assert info.scalars == {"scale": 512**-0.5, "output_lse": False}
    assert (info.dispatch["path"], info.dispatch["backend"]) == ("decode", "flashmla")
    assert info.dispatch["metadata"] == {"seq_lens": [328, 5, 1], "positions": [327, 4, 0]}
    assert info.pools["cache"].rows == (0, 1, 2)
    assert torch.equal(record.before["cache"].read(), pages())
    assert torch.equal(record.before["q"].read(), q)
    assert torch.equal(record.before["swa_indices"].read()[:, 0], core.swa_page_indices)
    assert torch.equal(record.after["o"].read(), out)
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


@pytest.mark.parametrize(("sm", "backend"), [(120, "flashmla sm120"), (100, "swapab")])
def test_the_functions_of_other_devices(sm: int, backend: str, tmp_path: Path) -> None:
    counts, q, core, out = run(tmp_path / "run.zarr", sm=sm)
    assert (counts.records, counts.passed_over) == (1, {})
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert record.info.layer_index == 2
    assert record.info.dispatch["backend"] == backend
    assert torch.equal(record.before["q"].read(), q)
    assert torch.equal(record.before["swa_indices"].read()[:, 0], core.swa_page_indices)
    assert torch.equal(record.before["attn_sink"].read(), torch.linspace(-1, 1, HEADS))
    assert torch.equal(record.after["o"].read(), out)
    for kernel in ("reference", "torch"):
        store = Store.open(tmp_path / "run.zarr")
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def extra(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pages of `size` compressed rows, indices and lengths; the row of no request has one entry, -1."""
    indices = torch.full((3, 64), -1, dtype=torch.int32)
    indices[0, :40] = torch.arange(60, 100)
    indices[1, :2] = torch.tensor([130, 7])
    return pack_ds_mla(random(256 // size, size, 512)), indices, torch.tensor([40, 2, 1], dtype=torch.int32)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("how", "size", "lse"),
    [({}, 64, True), ({"older": True}, 2, True), ({"sm": 120}, 2, False), ({"sm": 100}, 64, False)],
    ids=["0.5.23", "0.5.20", "sm120", "swapab"],
)
def test_layers_with_compressed_keys(how: dict[str, Any], size: int, lse: bool, tmp_path: Path) -> None:
    given = extra(size)
    counts, q, core, out = run(tmp_path / "run.zarr", extra=given, **how)
    assert (counts.records, counts.passed_over) == (1, {})
    store = Store.open(tmp_path / "run.zarr")
    (record,) = store.records
    assert (record.info.op, record.info.layer_index) == ("v4_decode", 2)
    assert record.info.scalars["output_lse"] is lse
    assert torch.equal(record.before["q"].read()[:, 0], q)
    assert torch.equal(record.before["swa_indices"].read()[:, 0], core.swa_page_indices)
    assert torch.equal(record.before["extra_indices"].read()[:, 0], given[1])
    kept = list(record.info.pools["extra_cache"].rows)
    assert torch.equal(record.before["extra_cache"].read(), given[0][kept])
    assert torch.equal(record.after["o"].read()[:, 0], out)
    assert ("lse" in record.after) is lse
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def test_mega_attention_is_counted(tmp_path: Path) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        interface = import_module(INTERFACE)
        interface.flash_mla_mega_decode(torch.ones(1), None, None, None, None, 1.0)
    ((function, found),) = counts.uncaptured.items()
    assert function == f"{INTERFACE}.flash_mla_mega_decode"
    assert (found["calls"], found["reason"]) == (1, QUERIES_BEFORE_ROPE)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"width": 192}, wording("capture.windows-wide")),
        ({"use_legacy": False}, wording("capture.scales-among-rows")),
    ],
)
def test_calls_that_the_operation_does_not_describe(how: dict[str, Any], reason: str, tmp_path: Path) -> None:
    counts = run(tmp_path / "run.zarr", **how)[0]
    assert counts.records == 0
    ((found, calls),) = counts.passed_over.items()
    assert re.search(reason, found)
    assert calls == 1
