# SPDX-License-Identifier: Apache-2.0
"""What the replay that a revision brings along came to, where the process ended and said nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.commit.revision_cli import RevisionReplay, verdict_of_output
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State
from gdnbench.bisect.workers import Place
from gdnbench.workers import python_code
from gdnbench.workers.python_code import FinishedProcess


def told(outcome: str, **more: object) -> FinishedProcess:
    record = {"key": "0", "outcome": outcome, "reason": "it ended", "tensors": [], **more}
    return FinishedProcess(1, json.dumps({"records": [record]}), "")


@pytest.mark.parametrize("first", [FinishedProcess(-11, "", ""), TimeoutError()])
@pytest.mark.parametrize(
    ("second", "state"),
    [
        (told("crash", imported=False), State.SKIP),
        (told("hang", imported=False), State.SKIP),
        (told("crash", imported=True), State.BAD),
        (told("crash"), State.BAD),  # of a time before that was said
        (told("pass", imported=True), State.BAD),  # by chance: what was seen was seen
        (FinishedProcess(2, "", "no such option: --isolate"), State.BAD),
        (FinishedProcess(1, "", "Traceback"), State.BAD),
        (TimeoutError(), State.BAD),
    ],
)
def test_a_process_that_ends_while_the_kernel_is_imported_says_nothing(
    decode: Path, monkeypatch: pytest.MonkeyPatch, first: Any, second: Any, state: State
) -> None:
    left = [first, second]

    def run(*arguments: object, **options: object) -> FinishedProcess:
        one: Any = left.pop(0)
        if isinstance(one, TimeoutError):
            raise one
        return one  # type: ignore[no-any-return]

    monkeypatch.setattr(python_code, "run_python_code", run)
    found = RevisionReplay(Place(sys.executable, "."), 5.0).run_trial(Trial(str(decode), "k.py:kernel"))
    assert (found.state, left) == (state, [])
    if state is State.BAD:
        assert found.kind == ("crash" if isinstance(first, FinishedProcess) else "hang")


def test_a_kernel_that_does_not_compile_is_skipped() -> None:
    """Although the command's exit status is that of a failure: another commit may compile."""
    for outcome, state in (("compile failure", State.SKIP), ("crash", State.BAD), ("refused", State.SKIP)):
        assert verdict_of_output(1, told(outcome, imported=True).out, "", 0.0).state is state


@pytest.mark.slow  # processes that import torch
def test_a_kernel_file_that_ends_the_process(decode: Path, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("import os\nos.abort()\n")
    found = RevisionReplay(Place(sys.executable, str(tmp_path)), 60.0).run_trial(
        Trial(str(decode), "k.py:kernel")
    )
    assert found.state is State.SKIP
    assert "SIGABRT" in found.reason


def test_the_names_that_an_older_revision_is_called_by(decode: Path, tmp_path: Path) -> None:
    """A revision from before any renaming has these names; the code that runs in it needs no others."""
    package = tmp_path / "gdnbench"
    (package / "sim").mkdir(parents=True)
    for folder in (package, package / "sim"):
        (folder / "__init__.py").write_text("")
    (package / "sim" / "simulate.py").write_text(
        "from contextlib import contextmanager\n"
        "chosen = []\n"
        "class Settings:\n"
        "    def __init__(self, schedule):\n"
        "        self.schedule = schedule\n"
        "@contextmanager\n"
        "def active(settings):\n"
        "    chosen.append(settings.schedule)\n"
        "    yield\n"
    )
    (package / "__main__.py").write_text(
        "import json, sys\n"
        "from gdnbench.sim.simulate import chosen\n"
        "assert sys.argv[1] == 'replay', sys.argv\n"
        "record = {'key': '0', 'outcome': 'pass', 'reason': chosen[0] if chosen else '', 'tensors': []}\n"
        "print(json.dumps({'records': [record]}))\n"
    )
    runner = RevisionReplay(Place(sys.executable, str(tmp_path)), 60.0)
    for on, schedule in (("cpu", ""), ("sim", "early")):
        trial = Trial(str(decode), "k.py:kernel", on, schedules=("early",))
        found = runner.run_trial(trial)
        assert (found.state, found.reason) == (State.GOOD, schedule)
