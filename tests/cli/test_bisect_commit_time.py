# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect commit --time` on repositories of a kernel, which is simulated and its time predicted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.moving_kernel import KERNEL, WRONG, launched_twice, rounds
from tests.messages import wording
from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

ON = ("--kernel", "kernel.py:kernel", "--on", "sim", "--machine", "h200", "--time")


@pytest.mark.slow
def test_the_commit_that_made_a_kernel_slower_is_named(
    gdnbench: Invoke, history: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty times as many rounds take most of the time; a second launch is the rest, and is found between
    the endpoints that the note gives. A commit between them is wrong, and one adds a comment."""
    toolkit(monkeypatch)
    store = tmp_path / "made.zarr"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", store, *options).code == 0
    good = history.commit("Begin", {"kernel.py": KERNEL})
    history.commit("Say more", {"README": "a kernel\n"})
    history.commit("Comment", {"kernel.py": f"# fast\n{KERNEL}"})
    guilty = history.commit("Twenty times the rounds", {"kernel.py": rounds(2000)})
    history.commit("Half an edit", {"kernel.py": WRONG})
    history.commit("The other half", {"kernel.py": f"{rounds(2000)}\n"})
    second = history.commit("Launch twice", {"kernel.py": launched_twice(rounds(2000))})
    command = ("bisect", "commit", store, "--repo", history.path, "--bad", "main", *ON)
    state = ("--state", tmp_path / "state")
    result = gdnbench(*command, *state, "--good", good)
    assert result.code == 1, result.err
    lines = result.out.splitlines()
    first = wording("bisect.first-slow-commit", commit=guilty[:10], subject="Twenty times the rounds")
    assert re.fullmatch(first, lines[-1])
    assert re.fullmatch(rf"note: later .* bisect again with --good {guilty[:10]}", lines[-2])
    assert any(line.startswith(f"{good[:10]}  fast  predicted ") for line in lines)
    assert "predicted" in result.err

    again = gdnbench(*command, *state, "--good", guilty, "--json")
    assert again.code == 1, again.err
    found = json.loads(again.out)
    assert found["commit"]["hash"] == second
    assert found["after"]["seconds"] > found["threshold"] > found["before"]["seconds"]
    assert {step["state"] for step in found["steps"]} >= {"fast", "slow"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--on", "sim"), wording("cli.no-time-model", machines="h200, b200, b300")),
        (("--on", "sim", "--machine", "h100"), wording("cli.no-time-model", machines="h200, b200, b300")),
        ((), wording("bisect.time-needs-sim", on="cpu")),
        (("--on", "sim", "--machine", "h200", "--symptom", "race"), wording("bisect.time-of-failures")),
    ],
)
def test_what_is_refused(gdnbench: Invoke, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """Before the store, which is not there, is looked at."""
    ends = ("--good", "a", "--bad", "b", "--kernel", "kernel.py:kernel", "--time")
    result = gdnbench("bisect", "commit", tmp_path / "no.zarr", *ends, *options)
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(f"gdnbench: {message}\n", result.err)
