"""`--kernel flashinfer --on sim`: what replay converts for a peer's kernel on the simulator."""

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
def test_a_captured_prefill_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model passed raw q and k."""
    if not os.environ.get(FOLDER):
        pytest.skip(f"flashinfer-python is not installed: {FOLDER} names no folder")
    monkeypatch.syspath_prepend(os.environ[FOLDER])
    with Store.open(CAPTURES / "resumed.zarr.zip") as store:
        assert store.records[1].info.conventions["qk"] == "raw"
        (result,) = replay(store, kernel="flashinfer", on="sim", records=[1]).records
    assert result.outcome is Outcome.PASS, result.reason
    assert any(note.startswith("qk raw -> normalised") for note in result.notes)
