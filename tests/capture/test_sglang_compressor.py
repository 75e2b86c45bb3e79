# SPDX-License-Identifier: Apache-2.0
"""The adapter of SGLang's compressors in decoding, on a function that follows a plan by definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.capture.adapters.sglang_compressor import FUNCTION, OPS, SIGNATURES
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store
from tests.capture.frameworks import FOLDER, framework
from tests.capture.source_signatures import parameters
from tests.messages import wording

FEATURES, PAGES = 8, 9


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def plan_of(*requests: tuple[int, int, int], ratio: int) -> Tensor:
    """uint8 [B, 16] of (length, page of the window before, page of the window)."""
    rows = [(length, own * ratio + (length - 1) % ratio, before, own) for length, before, own in requests]
    return torch.tensor(rows, dtype=torch.int32).view(torch.uint8)


def called(path: Path, ratio: int, plan: Tensor, *, prefill: bool = False, **more: Any) -> tuple[Any, Counts]:
    width = FEATURES * (2 if ratio == 4 else 1)
    module = import_module(f"{OPS}.compress")
    kinds = module.CompressorDecodePlan, module.CompressorPrefillPlan
    buffer = random(PAGES, ratio, 2 * width)
    arguments = {
        "kv_score_buffer": buffer,
        "kv_score_input": random(len(plan), 2 * width),
        "ape": random(8 if ratio == 4 else ratio, FEATURES),
        "plan": kinds[1](ratio, plan, plan) if prefill else kinds[0](ratio, plan),
        "head_dim": FEATURES,
        "compress_ratio": ratio,
        **more,
    }
    with capturing(path) as counts:
        result = getattr(import_module(OPS), FUNCTION)(**arguments)
    assert (counts.failures, counts.first_failure) == (0, None)
    return (result, arguments), counts


CASES = {
    # The last token of a window with one before it, of a first window, in the middle, and of no window yet.
    4: [(12, 3, 5), (4, 0, 7), (10, 1, 2), (1, 0, 8)],
    128: [(256, 0, 5), (128, 0, 7), (130, 0, 2)],
}


@pytest.mark.parametrize("ratio", CASES, ids=["CSA", "HCA"])
def test_decoding(ratio: int, tmp_path: Path) -> None:
    plan = plan_of(*CASES[ratio], ratio=ratio)
    (entries, arguments), counts = called(tmp_path / "run.zarr", ratio, plan)
    assert (counts.records, counts.passed_over) == (1, {})
    store = Store.open(tmp_path / "run.zarr")
    (record,) = store.records
    info = record.info
    assert info.op == "v4_compress"
    assert info.scalars == {"ratio": ratio, "overlap": ratio == 4, "entries_dtype": "float32"}
    starts = {4: [7, 3, 5, 0], 128: [127, 127, 1]}
    assert record.before["starts"].read().tolist() == starts[ratio]
    assert torch.equal(record.after["entries"].read(), entries)
    # The states after the call are those of the pages in the engine's pool, with ape.
    width = arguments["kv_score_input"].shape[1] // 2
    after = record.after["state"].read()
    own = after.view(len(plan), -1, ratio, 2 * width)[:, -1]
    for row, (length, _, page) in enumerate(CASES[ratio]):
        at = (length - 1) % ratio
        assert torch.equal(own[row, :, :width], arguments["kv_score_buffer"][page, :, :width])
        ape = arguments["ape"]
        ape = torch.cat([ape[at], ape[4 + at]]) if ratio == 4 else ape[at]
        assert torch.equal(own[row, at, width:], arguments["kv_score_input"][row, width:] + ape)
    for kernel in ("reference", "torch"):
        report = replay(store, kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


@pytest.mark.parametrize(
    ("requests", "how", "reason"),
    [
        ([(5, 0, 1)], {"prefill": True}, wording("capture.compressor-prefill")),
        ([(5, 0, 1)], {"is_online": True}, wording("capture.compressor-online")),
        ([(5, 0, 1), (5, 0, 1)], {}, wording("capture.compressor-shared")),
    ],
)
def test_steps_that_the_operation_does_not_describe(
    requests: list[tuple[int, int, int]], how: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    _, counts = called(tmp_path / "run.zarr", 4, plan_of(*requests, ratio=4), **how)
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(reason, found)


def test_a_token_elsewhere(tmp_path: Path) -> None:
    plan = plan_of((5, 0, 1), ratio=4)
    plan.view(torch.int32)[0, 1] = 30
    _, counts = called(tmp_path / "run.zarr", 4, plan)
    ((found, _),) = counts.passed_over.items()
    assert re.fullmatch(wording("capture.compressor-elsewhere"), found)


def test_the_stand_in_has_the_signature() -> None:
    known = SIGNATURES.functions[FUNCTION]
    file = FOLDER / "sglang/kernels/ops/attention/dsv4/compress.py"
    assert parameters(file, FUNCTION) == known.parameters
    assert set(known.needs.split()) <= known.names
