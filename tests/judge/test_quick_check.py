# SPDX-License-Identifier: Apache-2.0
"""Judging briefly says what judging fully says, of kernels that pass and of wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.metrics import compare
from gdnbench.judge.quick_check import quick_errors
from gdnbench.judge.record import Judge
from gdnbench.judge.result import TensorResult
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bound
from gdnbench.ops import operation
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Partition, Region
from gdnbench_kernels.run import run_kernel
from tests.seeds import drawn

CPU = torch.device("cpu")
OP = operation("gdn_decode")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredRecord]:
    call = synthesise("gdn_decode", batch=5, steps=2, heads=(2, 4), head_dim=(32, 32), slots=20)
    path = tmp_path_factory.mktemp("brief") / "store.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    with Store.open(path) as opened:
        yield opened.records[0]


def outputs_of(record: StoredRecord) -> dict[str, Tensor]:
    from gdnbench.judge import calls

    return dict(run_kernel(OP, "torch", calls.compact_call(record, OP, CPU)))


def both(record: StoredRecord, outputs: dict[str, Tensor]) -> Iterator[tuple[TensorResult, TensorResult]]:
    found = [Judge(Bound(), CPU, brief=brief).tensors(record, OP, outputs, None) for brief in (False, True)]
    yield from zip(*found, strict=True)


@pytest.mark.parametrize("damage", ["none", "all", "one head", "one element", "nan", "infinite", "shape"])
def test_quick_and_full_check_agree(record: StoredRecord, damage: str) -> None:
    """On whether it passes, and on every word of why not."""
    outputs = outputs_of(record)
    state = outputs["state"] = outputs["state"].clone()
    if damage == "all":
        state *= 1.001
    elif damage == "one head":
        state[7, 2] *= 1.0001
    elif damage == "one element":
        state[3, 1, 4, 5] += 0.5
    elif damage == "nan":
        state[3, 1, 4, 5] = torch.nan
    elif damage == "infinite":
        outputs["o"] = outputs["o"].clone()
        outputs["o"][0, 0, 0, 0] = torch.inf
    elif damage == "shape":
        outputs["state"] = state[:-1]
    failed = []
    for full, brief in both(record, outputs):
        assert (brief.tensor, brief.passed, brief.reasons) == (full.tensor, full.passed, full.reasons)
        failed += [] if full.passed else [full.tensor]
    assert failed == {"none": [], "infinite": ["o"]}.get(damage, ["state"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("head_axis", [None, 1, 2])
@pytest.mark.parametrize("block", [1, 1000, 1 << 25])
def test_its_figures_are_those_of_a_full_comparison(
    dtype: torch.dtype, head_axis: int | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows of padding, and sequences out of order. The full comparison sums other blocks, and where it
    may in fp32: 3 10^3 elements of a group move its sums by some 10^-6 of them."""
    monkeypatch.setattr("gdnbench.judge.quick_check.BLOCK", block)
    generator = torch.Generator().manual_seed(drawn("quick_check", 30))
    y = torch.randn(11, 3, 4, 70, generator=generator, dtype=torch.float64)
    x = (y + 0.01 * torch.randn(y.shape, generator=generator, dtype=torch.float64)).to(dtype)
    partition = Partition((Region(6, 10, 0), Region(0, 5, 1)), head_axis)
    axes = ("row", "a", "b", "c")
    full = compare(Memory(x), Memory(y), partition, axes)
    brief = quick_errors(x, y, partition, axes)
    assert brief is not None
    assert brief.elements == full.elements
    assert brief.worst is not None
    assert full.worst is not None
    assert brief.worst.at == full.worst.at
    assert brief.total.count == full.total.count
    for name in ("max_abs", "mean_abs", "rms", "rms_reference", "cosine"):
        expected = getattr(full.total, name)
        assert getattr(brief.total, name) == pytest.approx(expected, rel=1e-5), name
    np.testing.assert_allclose(brief.groups.rms(), full.groups.rms(), rtol=1e-5)


def test_what_it_leaves_to_a_full_comparison() -> None:
    whole = Partition((Region(0, 4, 0),), 1)
    x, y = torch.ones(4, 2, 3), torch.ones(4, 2, 3, dtype=torch.float64)
    assert quick_errors(x, y, whole, ()) is not None
    assert quick_errors(x.where(torch.eye(4, 2).bool()[..., None], torch.nan), y, whole, ()) is None
    assert quick_errors(x.int(), y, whole, ()) is None
    assert quick_errors(x, y, Partition((Region(0, 4, 0, tokens=2),), 1), ()) is None


class TestOnAGpu:
    pytestmark = gpu

    def test_a_gpu_says_what_a_cpu_says(self, record: StoredRecord, tmp_path: Path) -> None:
        outputs = outputs_of(record)
        for scale in (1.0, 1.001):
            given = {**outputs, "state": outputs["state"] * scale}
            found = [
                Judge(Bound(), torch.device(device), brief=True).tensors(record, OP, given, None)
                for device in ("cpu", "cuda")
            ]
            assert [one.passed for one in found[0]] == [one.passed for one in found[1]]
            assert all(one.passed for one in found[1]) == (scale == 1.0)
