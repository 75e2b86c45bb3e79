# SPDX-License-Identifier: Apache-2.0
"""Records of other packages' kernels on a GPU, judged by replay against what was recorded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gdnbench.capture.recorder import Counts
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store, StoredRecord

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore"),  # those of other packages are theirs
]
# Distances to the oracle in units of torch's error: of a right kernel 2, so of one that was recorded too, of
# torch's own 1. The oracle is then at most 2 from what was recorded, torch 3, another right kernel 4.
TORCH, REFERENCE, PEER = 3.0, 2.0, 4.0


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'gdnbench[peers]'")


def recorded(path: Path, counts: Counts, number: int) -> tuple[StoredRecord, ...]:
    """The records, when nothing else was counted."""
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert (counts.records, counts.dropped, counts.skipped_compiling) == (number, 0, 0)
    return tuple(Store.open(path).records)


def assert_replays(path: Path, kernel: str, state: float = 1.0, peer: bool = True) -> None:
    """torch, the oracle and `kernel` on the GPU get what was recorded; `state`: how many times the bound the
    states' is."""
    ways = [("torch", "cpu", TORCH), ("reference", "cpu", REFERENCE)]
    ways += [(kernel, "cuda", PEER)] if peer else []
    for name, on, k in ways:
        report = replay(
            Store.open(path),
            kernel=name,
            on=on,
            against="recorded",
            k=k,
            k_by_tensor={"state": k * state} if state != 1 else None,
        )
        found = [(name, record.outcome, record.reason) for record in report.records]
        assert all(outcome is Outcome.PASS for _, outcome, _ in found), found
