# SPDX-License-Identifier: Apache-2.0
"""Kernels that lack a barrier: whether it shows depends on when asynchronous copies land, and is said to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.flakiness import RUNS, Steadiness, replay_repeatedly
from gdnbench.bisect.trial import SCHEDULES, Trial, run_trial
from gdnbench.bisect.verdict import State
from gdnbench.report.outcome import Outcome
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schedules") / "prefill.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write(
            "0", [draft("gdn_prefill", synthesise("gdn_prefill", seqlens=(1,), heads=(1, 1), seed=1))]
        )
    return path


@pytest.mark.parametrize(
    ("kernel", "steadiness", "said"),
    [
        ("right", Steadiness.STEADY, ""),
        # A store that has read before all is written, unless it reads when it is waited for.
        ("stores_too_early", Steadiness.BY_SCHEDULE, "pass under late, numeric mismatch under early"),
        # One that has not read yet when its source is written again, unless it reads at once.
        ("writes_too_early", Steadiness.BY_SCHEDULE, "numeric mismatch under late, pass under early"),
    ],
)
def test_an_end_that_depends_on_the_schedule_is_told_from_one_that_is_flaky(
    store: Path,
    beside: Any,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    steadiness: Steadiness,
    said: str,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    found = replay_repeatedly(Trial(str(store), f"scheduled:{kernel}", "sim"), beside("here").Here)
    assert found.steadiness is steadiness, found.reason
    assert said in found.reason
    assert found.verdict.state is (State.GOOD if steadiness is Steadiness.STEADY else State.BAD)
    assert [run.schedule for run in found.runs[RUNS + 2 :]] == list(SCHEDULES[1:])


def test_a_fence_that_no_number_shows_is_seen_by_the_checker(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    trial = Trial(str(store), "scheduled:fences_nothing", "sim")
    assert run_trial(trial).state is State.GOOD
    checked = run_trial(replace(trial, check=True))
    assert (checked.state, checked.kind) == (State.BAD, str(Outcome.CHECK))
    assert re.search(wording("sim.checker.proxy-fence-missing"), checked.reason)
    assert run_trial(replace(trial, kernel="scheduled:right", check=True)).state is State.GOOD
