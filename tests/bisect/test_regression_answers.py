# SPDX-License-Identifier: Apache-2.0
"""What the questions about the regressions take an answer for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bisect.regressions import finding


@pytest.mark.parametrize(
    ("status", "found", "answer", "wrong"),
    [
        (1, {"shrunk": True, "reason": None}, "small", ""),
        (1, {"shrunk": False, "reason": "it is flaky"}, "it is flaky", "it is flaky"),
        (0, {"shrunk": False, "reason": "it passes"}, "it passes", "exit status 0"),
        (3, {"reason": None}, "", "exit status 3"),
    ],
)
def test_an_answer_is_told_of_what_is_there(
    monkeypatch: pytest.MonkeyPatch, status: int, found: Mapping[str, Any], answer: str, wrong: str
) -> None:
    """What was not shrunk has no sizes: a wrong answer, and not the end of the run."""

    def check(found: Mapping[str, Any]) -> str:
        return "" if found["shrunk"] else str(found["reason"])

    def sizes(found: Mapping[str, Any]) -> str:
        if not found["shrunk"]:
            raise FileNotFoundError("small.zarr")
        return "small"

    done = subprocess.CompletedProcess([], status, json.dumps(found))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    asked = finding.Asked("tail", "input", (), Path(), 1, check, sizes)
    answered = finding.answered(asked)
    assert (answered.answer, answered.wrong) == (answer, wrong)
