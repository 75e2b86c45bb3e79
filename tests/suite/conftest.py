# SPDX-License-Identifier: Apache-2.0
"""Suites of small made captures, results of records made by hand, and baselines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gdnbench.judge.metrics import Errors
from gdnbench.judge.result import Side, TensorResult
from gdnbench.record import When
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.writer import StoreWriter
from gdnbench.suite.plan import Entry, Known, Options
from gdnbench.synth import draft, synthesise

OPTIONS: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (1, 70), "heads": (1, 2), "head_dim": (16, 32)},
    "gdn_decode": {"batch": 2, "heads": (1, 2), "head_dim": (16, 32), "slots": 5},
}


def write_capture(path: Path, *ops: str) -> Path:
    """A store with one record of each of `ops`."""
    drafts = [draft(op, synthesise(op, **OPTIONS[op], seed=seed), index=seed) for seed, op in enumerate(ops)]
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", drafts)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with captures `both.zarr` (a prefill and a decode record) and `decode.zarr`."""
    write_capture(tmp_path / "both.zarr", "gdn_prefill", "gdn_decode")
    write_capture(tmp_path / "decode.zarr", "gdn_decode")
    return tmp_path


@pytest.fixture
def suite_file(folder: Path) -> Callable[[str], Path]:
    """`suite_file(text)` writes suite.toml beside the captures."""

    def write(text: str) -> Path:
        path = folder / "suite.toml"
        path.write_text(text)
        return path

    return write


def tensor(name: str, rms: float, max_abs: float, *reasons: str, **changed: Any) -> TensorResult:
    """Of dtype float32, in which exact values of size 1 round by 6e-8 at most."""
    errors = Errors(
        count=8,
        max_abs=max_abs,
        mean_abs=rms,
        rms=rms,
        rms_reference=1.0,
        rms_ratio=rms,
        cosine=0.0,
        max_ulp=1,
    )
    given = {"dtype": "float32", "shape": (8,), "errors": errors, "reasons": reasons} | changed
    return TensorResult(name, When.AFTER, given.pop("side", Side.KERNEL), **given)


def result(*tensors: TensorResult, outcome: Outcome = Outcome.PASS, **changed: Any) -> RecordResult:
    """Record 3 of a store, `segment/3`."""
    reasons = [reason for one in tensors for reason in one.reasons]
    outcome = Outcome.MISMATCH if reasons and outcome is Outcome.PASS else outcome
    given = {"reason": "; ".join(reasons), "tensors": tensors} | changed
    return RecordResult(3, "segment/3", "gdn_decode", "model.layers.1", 1, 7, outcome, **given)


def entry(**options: Any) -> Entry:
    return Entry(
        "both.torch.cpu",
        "suite.toml: [[replay]] 1",
        "both.zarr",
        Path("both.zarr"),
        "torch",
        "torch",
        "cpu",
        Options(**options),
    )


def known(**given: Any) -> Known:
    """Of all entries, until the end of 2026."""
    return Known(
        "suite.toml: [[known]] 1", **{"entry": "*", "reason": "a reason", "until": date(2026, 12, 31)} | given
    )


@pytest.fixture
def make() -> Any:
    """The functions that make things by hand, by name."""

    class Make:
        pass

    for function in (write_capture, tensor, result, entry, known):
        setattr(Make, function.__name__, staticmethod(function))
    return Make
