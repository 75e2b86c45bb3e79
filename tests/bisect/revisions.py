# SPDX-License-Identifier: Apache-2.0
"""Bisections of histories whose guilty commit is known; what comes of a replay stands in a file."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gdnbench.bisect.commit.axis import bisect_commits
from gdnbench.bisect.commit.walk import Answer, CommitBisection
from gdnbench.bisect.predicted import TrialTime
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import PREDICTED, State, Verdict
from gdnbench.bisect.workers import Place
from gdnbench.errors import BadInputError

KINDS = {"right": "pass", "wrong": "numeric mismatch", "crashes": "crash", "hangs": "hang"}
STATES = {"right": State.GOOD, "lacks": State.SKIP}


@dataclass
class Replays:
    """Stands in for processes that replay: what comes of a revision stands in its pack/kernel.py."""

    asked: list[str] = field(default_factory=list)

    def __call__(self, place: Place, timeout: float) -> Replays:
        assert place.folder is not None
        self.folder = Path(place.folder)
        return self

    def run_trial(self, trial: Trial) -> Verdict:
        word = (self.folder / "pack" / "kernel.py").read_text().split()[1]
        self.asked.append(word)
        if word in ("unfenced", "unwaited"):
            shows = "early" if word == "unfenced" else "late"
            word = "wrong" if shows in trial.schedules else "right"
        if word.startswith("takes:"):
            return self._timed(word)
        if word == "nofunction":
            raise BadInputError("pack has no function 'kernel'")
        tensors = {"A": True, "Ai": word != "wrong", "o": word != "wrong"} if trial.stages else {"o": True}
        state = STATES.get(word, State.BAD)
        return Verdict(state, KINDS.get(word, "missing"), f"it {word}", word, {"tensors": tensors})

    def _timed(self, word: str) -> Verdict:
        """The verdict of a kernel that `takes:US` microseconds; of several, by commas, one after another."""
        turns = word.removeprefix("takes:").split(",")
        micros = float(turns[(self.asked.count(word) - 1) % len(turns)])
        time = TrialTime("h200", micros * 1e-6, micros / 2e6, micros * 2e-6, "HBM")
        return Verdict(State.GOOD, PREDICTED, str(time), word, {"predicted": asdict(time)})

    def close(self) -> None:
        pass


@dataclass
class Bisecting:
    """Bisects `history`, one session for the same arguments."""

    history: Any
    store: Path
    state: Path
    told: list[str] = field(default_factory=list)

    def __call__(self, good: str, bad: str, trial: Trial | None = None, **options: Any) -> Answer:
        trial = trial or Trial(str(self.store), "pack.kernel:kernel")
        repo = options.pop("repo", self.history.path)
        asked = CommitBisection(trial, repo, good, bad, sys.executable, 5.0, **options)
        self.told.clear()
        return bisect_commits(
            asked, Session.begin(self.state, "commit", {"good": good, "bad": bad}, self.told.append)
        )

    @staticmethod
    def commits(history: Any, *words: str) -> list[str]:
        """A commit a word, each with other files, on the branch that is checked out."""
        return [
            history.commit(
                f"{number} {word}", {"pack/__init__.py": "", "pack/kernel.py": f"# {word} {number}\n"}
            )
            for number, word in enumerate(words)
        ]
