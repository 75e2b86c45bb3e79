# SPDX-License-Identifier: Apache-2.0
"""`--kernel flashinfer --on sim`: FlashInfer's own host functions and kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store

FOLDER = "GDNBENCH_THIRD_PARTY"
CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # FlashInfer was written against an older CuTe DSL
@pytest.mark.parametrize(
    ("kernel", "launches"), [("flashinfer", 5), ("flashinfer_cp", 5), ("flashinfer_plain", 2)]
)
def test_a_captured_prefill_passes(kernel: str, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model passed raw q and k, which a kernel of FlashInfer's own normalises before the others: one, or
    four with context parallelism, which FlashInfer chooses for one sequence of few heads. Its workspaces stay
    from the first record to the second."""
    if not os.environ.get(FOLDER):
        pytest.skip(f"flashinfer-python is not installed: {FOLDER} names no folder")
    monkeypatch.syspath_prepend(os.environ[FOLDER])
    with Store.open(CAPTURES / "resumed.zarr.zip") as store:
        assert store.records[1].info.conventions["qk"] == "raw"
        report = replay(store, kernel=kernel, on="sim", records=[0, 1])
    for result in report.records:
        assert result.outcome is Outcome.PASS, result.reason
        assert any(note.startswith(f"simulated: {launches} launches") for note in result.notes)
