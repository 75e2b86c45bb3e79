# SPDX-License-Identifier: Apache-2.0
"""A store that is replaced while it is bisected: no verdict on the new one is kept as one on the old."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import endpoints
from gdnbench.bisect import trial as trials
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import Verdict
from gdnbench.bisect.workers import TrialWorker
from gdnbench.errors import StoreError
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

CHANGED = wording("bisect.records-changed")


def write(path: Path, seed: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=seed)
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    write(tmp_path / "s.zarr", 1)
    return Trial(str(tmp_path / "s.zarr"), "torch")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.begin(tmp_path / "state", "record", {}, lambda line: None)


def test_between_question_and_probe(trial: Trial, session: Session, beside: Any) -> None:
    question = trials.trial_question(trial)
    write(Path(trial.store), 2)
    here = beside("here").Here
    with pytest.raises(StoreError, match=CHANGED):
        session.find_or_probe("one", question, lambda: here().run_trial(trial))
    with pytest.raises(StoreError, match=CHANGED):
        endpoints.replay_endpoint(session, "one", question, trial, here)
    assert len(session.verdicts) == 0
    assert trials.trial_question(trial) != question


def test_between_two_looks_at_an_end(trial: Trial, session: Session, beside: Any) -> None:
    """The first run is of the records that are meant, the last is not."""
    question, runs = trials.trial_question(trial), []

    class Changing(beside("here").Here):  # type: ignore[misc]
        def run_trial(self, trial: Trial) -> Verdict:
            found: Verdict = super().run_trial(trial)
            runs.append(found)
            if len(runs) == 3:
                write(Path(trial.store), 2)
            return found

    with pytest.raises(StoreError, match=CHANGED):
        endpoints.replay_endpoint(session, "one", question, trial, Changing)
    assert session.verdicts.find(question) is None
    assert session.verdicts.find({**question, "steady": 3}) is None


KERNEL = """
import shutil
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def kernel(**call):
    shutil.rmtree(STORE)
    GONE or shutil.copytree(STORE + ".other", STORE)
    for name in ("state_layout", "offsets", "o"):
        call.pop(name, None)
    return torch_recurrent(**call)
"""


@pytest.mark.parametrize("gone", [False, True])
def test_while_a_process_replays_it(trial: Trial, tmp_path: Path, gone: bool) -> None:
    write(tmp_path / "s.zarr.other", 2)
    (tmp_path / "mine.py").write_text(KERNEL.replace("STORE", repr(trial.store)).replace("GONE", str(gone)))
    replaced = Trial(trial.store, f"{tmp_path / 'mine.py'}:kernel")
    with (
        closing(TrialWorker()) as prober,
        pytest.raises(StoreError, match=wording("store.missing") if gone else CHANGED) as caught,
    ):
        prober.run_trial(replaced)
    assert "\n" not in str(caught.value)
