# SPDX-License-Identifier: Apache-2.0
"""What `gdnbench bisect` refuses: one line on stderr, exit status 2, nothing on stdout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.session import lock_session
from tests.messages import wording

Invoke = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("probes_here")

KERNEL = """
import inspect, time
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def kernel(**call):
    time.sleep(PAUSE)
    names = inspect.signature(torch_recurrent).parameters
    found = torch_recurrent(**{name: call[name] for name in names if name in call})
    found["o"] = found["o"] * FACTOR
    return found
"""


@pytest.fixture
def store(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", "s.zarr", *options).code == 0
    return Path("s.zarr")


def refused(result: Any, message: str) -> None:
    assert (result.code, result.out) == (2, "")
    assert message in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--symptom", "races"), wording("bisect.symptom-unknown", symptom="races")),
        (("--tensor", "o"), wording("bisect.tensor-without-numbers")),
        (("--symptom", "numbers", "--tensor", "A"), wording("bisect.tensor-nowhere", tensor="A")),
        (("--baseline", "known.toml"), wording("bisect.baseline-without-race")),
        (("--symptom", "race"), wording("bisect.simulator-only", option="--symptom race", on="cpu")),
        (("--schedule", "late"), wording("bisect.simulator-only", option="--schedule", on="cpu")),
        (("--on", "sim", "--schedule", "later"), wording("sim.schedule-unknown", schedule="later")),
        (
            ("--on", "sim", "--symptom", "crash", "--check"),
            wording("bisect.check-beside-symptom", symptom="crash"),
        ),
        (
            ("--on", "sim", "--symptom", "race", "--baseline", "nosuch.toml"),
            wording("sim.checker.accept-unreadable", option="--baseline", path="nosuch.toml"),
        ),
    ],
)
def test_symptoms(gdnbench: Invoke, store: Path, options: tuple[str, ...], message: str) -> None:
    revisions = ("--good", "v1", "--bad", "v2")
    result = gdnbench("bisect", "commit", store, "--kernel", "k.py:kernel", *revisions, *options)
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err.splitlines()[-1])
    assert not Path(".gdnbench").exists()


@pytest.mark.parametrize(
    ("axis", "options", "message"),
    [
        ("input", ("--symptom", "race"), wording("bisect.simulator-only", option="--symptom race", on="cpu")),
        ("record", ("--symptom", "crash", "--carry"), wording("bisect.carry-of-numbers", symptom="crash")),
        ("record", ("--tensor", "o"), wording("bisect.tensor-without-numbers")),
        ("stage", ("--symptom", "race"), wording("bisect.stage-of-numbers", symptom="race")),
        ("stage", ("--schedule", "late"), wording("bisect.simulator-only", option="--schedule", on="cpu")),
    ],
)
def test_symptoms_of_an_axis_with_one_end(
    gdnbench: Invoke, store: Path, axis: str, options: tuple[str, ...], message: str
) -> None:
    result = gdnbench("bisect", axis, store, "0", "--kernel", "torch", *options)
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err.splitlines()[-1])


@pytest.mark.parametrize(
    ("axis", "options", "message"),
    [
        ("record", ("--k", "inf"), "k inf is not finite"),
        ("record", ("--tol", "1e-3,inf"), "--tol 1e-3,inf is not finite"),
        ("input", ("--timeout", "nan"), "--timeout nan is not finite"),
        ("input", ("--timeout", "-5"), "--timeout -5 is no time"),
        ("input", ("--budget", "nan"), "--budget nan is not finite"),
        ("input", ("--budget", "0"), "--budget 0 is no time"),
    ],
)
def test_numbers(gdnbench: Invoke, store: Path, axis: str, options: tuple[str, ...], message: str) -> None:
    refused(gdnbench("bisect", axis, store, "0", "--kernel", "torch", *options), message)
    assert not Path(".gdnbench").exists()


def test_arguments_of_another_version(gdnbench: Invoke, store: Path) -> None:
    assert gdnbench("bisect", "record", store, "--kernel", "torch", "--state", "s").code == 0
    folder = next(Path("s").glob("record-*"))
    kept = json.loads((folder / "arguments.json").read_text())
    (folder / "found.json").unlink()
    (folder / "arguments.json").write_text(json.dumps({"axis": "record", "arguments": {"nosuch": 1}}))
    refused(gdnbench("bisect", "--resume", "--state", "s"), "give the command again")
    (folder / "arguments.json").write_text(json.dumps(kept))
    assert gdnbench("bisect", "--resume", "--state", "s").code == 0


def test_one_shrinking_at_a_time(gdnbench: Invoke, store: Path) -> None:
    """Two would write their candidates to one place, and judge each other's."""
    Path("mine.py").write_text(KERNEL.replace("PAUSE", "0").replace("FACTOR", "1.5"))
    given = ("bisect", "input", store, "0", "--kernel", "mine.py:kernel", "--state", "s")
    assert gdnbench(*given, "--budget", "1e-3").code == 3
    with lock_session(next(Path("s").glob("input-*"))):
        refused(gdnbench(*given, "--budget", "1e-3"), "runs already")


@pytest.mark.slow  # processes that import torch
def test_a_hang_within_a_short_time_is_none_in_a_longer_one(gdnbench: Invoke, store: Path) -> None:
    Path("mine.py").write_text(KERNEL.replace("PAUSE", "0.2").replace("FACTOR", "1"))
    given = ("bisect", "input", store, "0", "--kernel", "mine.py:kernel", "--state", "s")
    assert "no answer within" in gdnbench(*given, "--timeout", "0.1").out
    assert re.fullmatch(
        wording("bisect.not-shrunk", record=0, reason="it passes"), gdnbench(*given).out.splitlines()[-1]
    )


def test_a_path_is_one_of_the_repository(gdnbench: Invoke, store: Path, history: Any) -> None:
    made = [history.commit(name, {"src/k.py": KERNEL + f"# {name}\n"}) for name in ("first", "second")]
    given = ("bisect", "commit", store, "--repo", history.path, "--kernel", "k.py:kernel")
    given += ("--good", made[0], "--bad", made[1])
    refused(gdnbench(*given, "--path", "/src"), "--path /src is no path in the repository")


def test_a_shallow_clone_says_how_to_complete_it(gdnbench: Invoke, store: Path, history: Any) -> None:
    history.commit("Begin", {"k.py": KERNEL})
    last = history.commit("Go on", {"README": "more\n"})
    history.git("clone", "--quiet", "--depth", "1", f"file://{history.path}", "shallow")
    given = ("bisect", "commit", store, "--repo", history.path / "shallow", "--kernel", "k.py:kernel")
    refused(gdnbench(*given, "--good", f"{last}~1", "--bad", last), "git fetch --unshallow")
