# SPDX-License-Identifier: Apache-2.0
"""The axis `env` over wheels whose faults are known, in real environments, where an import is the replay."""

from __future__ import annotations

import fcntl
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import gdnbench
from gdnbench.bisect import trial as trials
from gdnbench.bisect.env import axis
from gdnbench.bisect.env.axis import Answer, EnvBisection, bisect_packages
from gdnbench.bisect.env.environments import WHOLE, DoesNotInstall, Environments, Package
from gdnbench.bisect.env.narrow import smallest_bad_set
from gdnbench.bisect.env.requirements import pins, versions_between
from gdnbench.bisect.interpreter import interpreter
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import Place
from gdnbench.errors import CannotRunError, Exit
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording
from tests.seeds import drawn, fresh

SEEDS = [1, 2, 3, fresh(drawn("bisect env"))]


@dataclass
class Replays:
    """Stands in for processes that replay: an environment is bad where gain.factor() is not 1."""

    asked: list[str] = field(default_factory=list)
    known: dict[str, Verdict] = field(default_factory=dict)

    def __call__(self, place: Place, timeout: float) -> Replays:
        self.python = place.python
        return self

    def run_trial(self, trial: Trial) -> Verdict:
        self.asked.append(self.python)
        if self.python not in self.known:
            self.known[self.python] = self.found()
        return self.known[self.python]

    def found(self) -> Verdict:
        command = [self.python, "-c", "import gain; print(gain.factor())"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return Verdict(State.BAD, "crash", done.stderr.splitlines()[-1])
        factor = done.stdout.strip()
        return (
            Verdict(State.GOOD, "pass") if factor == "1" else Verdict(State.BAD, "numeric mismatch", factor)
        )

    def close(self) -> None:
        pass


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replays:
    made = Replays()
    monkeypatch.setattr(axis, "TrialWorker", made)
    monkeypatch.setattr(trials, "toolchain", lambda on: {})  # else it may be edited between two questions
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return made


Bisecting = Callable[[str, str], Answer]


@pytest.fixture
def bisecting(replays: Replays, wheels: Any, tmp_path: Path) -> Bisecting:
    store = tmp_path / "decode.zarr"
    with StoreWriter(store, kind="synth", durable=False) as writer:
        call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=1)
        writer.write("0", [draft("gdn_decode", call, index=0)])

    def of(good: str, bad: str) -> Answer:
        options = ("--no-index", "--find-links", str(wheels.path))
        trial = Trial(str(store), "gain:factor")
        asked = EnvBisection(
            trial, pins(good, "--good"), pins(bad, "--bad"), sys.executable, 5.0, (), options
        )
        arguments = {"good": good, "bad": bad}
        return bisect_packages(asked, Session.begin(tmp_path / "state", "env", arguments, lambda line: None))

    return of


def gain(factor: object) -> str:
    return f"def factor():\n    return {factor}\n"


@pytest.mark.slow  # several environments are made
def test_the_package_then_its_version(bisecting: Bisecting, wheels: Any, replays: Replays) -> None:
    for minor in range(7):
        needs = ["nosuchpackage"] if minor == 3 else [f"below_gain=={1 + (minor >= 4)}"]
        wheels("gain", f"1.{minor}", gain(2 if minor >= 4 else 1), needs)
    wheels("gain", "1.5rc1", "raise RuntimeError('a pre-release')\n")
    for version in ("1", "2"):
        for name in ("below_gain", "other"):
            wheels(name, version, "")
    answer = bisecting("gain==1.0 other==1", "Gain==1.6 other==2")
    assert answer.exit_code is Exit.MISMATCH
    assert answer.found["packages"] == [
        {
            "name": "gain",
            "good": "1.2",
            "bad": "1.4",
            "skipped": ["1.3"],
            "also": ["below-gain 1 -> 2"],
            "unsure": False,
        }
    ]
    gain_is = wording("bisect.package-candidates", package="gain", versions="1.3, 1.4", good="1.2")
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together="",
            packages=re.compile(gain_is),
            kind="numeric mismatch",
            reason="2",
        ),
        answer.lines[-1],
    )
    assert any("gain==1.3" in one and "does not install" in one for one in answer.lines)
    assert "with gain 1.2 -> 1.4 also: below-gain 1 -> 2" in answer.lines
    asked = len(replays.asked)
    again = bisecting("gain==1.0 other==1", "Gain==1.6 other==2")
    assert again.found == answer.found
    assert len(replays.asked) == asked


@pytest.mark.slow
def test_two_packages_that_are_wrong_together(bisecting: Bisecting, wheels: Any) -> None:
    for version in ("1", "2", "3"):
        wheels("gain", version, "import other\n" + gain(f"2 if {version} >= 2 and other.late else 1"))
        wheels("other", version, f"late = {version == '3'}\n")
    answer = bisecting("gain==1 other==1", "gain==3 other==3")
    found = [(one["name"], one["good"], one["bad"], one["unsure"]) for one in answer.found["packages"]]
    assert found == [("gain", "1", "2", False), ("other", "2", "3", False)]
    gain_is = wording("bisect.package-after", package="gain", bad="2", good="1")
    other_is = wording("bisect.package-after", package="other", bad="3", good="2")
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together=" only together",
            packages=re.compile(f"{gain_is}; {other_is}"),
            kind="numeric mismatch",
            reason="2",
        ),
        answer.lines[-1],
    )


@pytest.mark.slow
def test_packages_that_only_install_together(bisecting: Bisecting, wheels: Any) -> None:
    for version in ("1", "2"):
        wheels("gain", version, gain(version), [f"other=={version}"])
        wheels("other", version, "", [f"gain=={version}"])
    answer = bisecting("gain==1 other==1", "gain==2 other==2")
    assert [one["unsure"] for one in answer.found["packages"]] == [True, True]
    assert answer.found["result"] == "candidates"
    assert "only together" not in answer.lines[-1]
    nothing = wording("bisect.nothing-told", package="gain", version="1")
    assert any(re.fullmatch(nothing, line) for line in answer.lines)
    unsure = [wording("bisect.package-unsure", package=name, good="1", bad="2") for name in ("gain", "other")]
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together="",
            packages=re.compile("; ".join(unsure)),
            kind="numeric mismatch",
        ),
        answer.lines[-1],
    )


@pytest.mark.slow
def test_another_failure_is_told_apart_and_versions_may_go_down(bisecting: Bisecting, wheels: Any) -> None:
    for version, text in (("1", gain(2)), ("2", gain(2)), ("3", "nosuch\n"), ("4", gain(1)), ("5", gain(1))):
        wheels("gain", version, text)
    answer = bisecting("gain==5", "gain==1")
    (package,) = answer.found["packages"]
    assert (package["good"], package["skipped"], package["bad"]) == ("4", ["3"], "2")
    assert any(one.startswith("gain==3: another failure, crash, NameError") for one in answer.lines)


class NoStart(Replays):
    """No process starts where gain cannot be imported."""

    def found(self) -> Verdict:
        verdict = super().found()
        if verdict.kind == "crash":
            raise CannotRunError("a process to probe in did not start")
        return verdict


@pytest.mark.slow
def test_versions_in_which_nothing_starts_are_passed_over(
    bisecting: Bisecting, wheels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, text in (("1", gain(1)), ("2", "nosuch\n"), ("3", gain(2))):
        wheels("gain", version, text)
    monkeypatch.setattr(axis, "TrialWorker", NoStart())
    answer = bisecting("gain==1", "gain==3")
    gain_is = wording("bisect.package-candidates", package="gain", versions="2, 3", good="1")
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together="",
            packages=re.compile(gain_is),
            kind="numeric mismatch",
            reason="2",
        ),
        answer.lines[-1],
    )
    assert "gain==2: does not start, a process to probe in did not start" in answer.lines
    # As an end it is none, and is named.
    with pytest.raises(
        CannotRunError,
        match=r"^gain==2: a process to probe in did not start",
    ):
        bisecting("gain==1", "gain==2")
    # What did not start is asked again: it may have been the machine.
    monkeypatch.setattr(axis, "TrialWorker", Replays())
    assert "gain==2: another failure, crash" in "\n".join(bisecting("gain==1", "gain==3").lines)


@pytest.mark.slow
def test_a_package_that_one_end_lacks(bisecting: Bisecting, wheels: Any) -> None:
    text = "from importlib.util import find_spec\n" + gain("2 if find_spec('addition') else 1")
    wheels("gain", "1", text)
    wheels("addition", "3", "")
    answer = bisecting("gain==1", "gain==1 addition==3")
    addition_is = wording("bisect.package-absent", package="addition", bad="3", good="absent")
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together="",
            packages=re.compile(addition_is),
            kind="numeric mismatch",
            reason="2",
        ),
        answer.lines[-1],
    )


def test_environments_see_what_is_below_and_nobody_elses(wheels: Any, replays: Replays) -> None:
    wheels("gain", "1", gain(1))
    wheels("execnet", "1.0", "layered = True\n")  # of pytest-xdist, so that it is below, too
    there = Environments(interpreter(sys.executable), ["--no-index", "--find-links", str(wheels.path)])
    packages = there.resolve(["gain==1", "execnet==1.0"])
    assert [(one.name, one.version) for one in packages] == [("execnet", "1.0"), ("gain", "1")]
    python = Path(there.python(packages))
    code = "import blake3, execnet, gain, gdnbench; print(gain.__file__, execnet.layered, gdnbench.__file__)"
    out = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert Path(out[0]).is_relative_to(python.parents[1])
    assert out[1:] == ["True", str(gdnbench.__file__)]  # neither blake3 nor gdnbench was installed again
    with pytest.raises(DoesNotInstall, match="gain==2"):
        there.resolve(["gain==2"])


@pytest.mark.slow
def test_half_made_environments_are_made_again(wheels: Any, replays: Replays, tmp_path: Path) -> None:
    wheels("gain", "1", gain(1))
    there = Environments(interpreter(sys.executable), ["--no-index", "--find-links", str(wheels.path)])
    packages = there.resolve(["gain==1"])
    folder = Path(there.python(packages)).parents[1]
    assert (folder / WHOLE).exists()
    (folder / WHOLE).unlink()  # as if its maker had been killed
    for file in folder.glob("lib/*/site-packages/gain/*"):
        file.unlink(missing_ok=True) if file.is_file() else None
    made: list[str] = []
    threads = [Thread(target=lambda: made.append(there.python(packages))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert len(made) == 3
    assert subprocess.run([made[0], "-c", "import gain"]).returncode == 0
    next((tmp_path / "wheels").glob("gain-1-*")).unlink()
    (folder / WHOLE).unlink()
    with pytest.raises(DoesNotInstall):
        there.python(packages)
    assert not folder.exists()


def test_an_index_that_does_not_answer_is_no_verdict(replays: Replays) -> None:
    url = "http://127.0.0.1:9/simple"  # the port that discards, which nothing listens to
    there = Environments(
        interpreter(sys.executable), ["--index-url", url, "--retries", "1", "--timeout", "1"]
    )
    with pytest.raises(CannotRunError, match=wording("bisect.index-unreachable")):
        there.resolve(["gain==1"])


FULL = """#!/bin/sh
case "$*" in *--target*) ulimit -f 0 ;; esac
exec {python} "$@"
"""


def test_a_full_disk_is_no_verdict(replays: Replays, wheels: Any, tmp_path: Path) -> None:
    wheels("gain", "1", gain(1))
    full = tmp_path / "full"  # a Python whose pip may write no file
    full.write_text(FULL.format(python=sys.executable))
    full.chmod(0o755)
    base = replace(interpreter(sys.executable), python=str(full))
    there = Environments(base, ["--no-index", "--find-links", str(wheels.path)])
    with pytest.raises(CannotRunError, match=wording("bisect.pip-unusable", reason=re.compile(".*Errno"))):
        there.python([Package("gain", "1", "")])


SLOW = """#!{python}
import os, pathlib, sys, time
if sys.argv[1:4] == ["-P", "-m", "pip"]:
    pathlib.Path({begun!r}).touch()
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.01)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
MAKES = """
import sys
from dataclasses import replace
from gdnbench.bisect.env.environments import Environments, Package
from gdnbench.bisect.interpreter import interpreter
base = replace(interpreter(sys.executable), python=sys.argv[1])
Environments(base, ["--no-index", "--find-links", sys.argv[2]]).python([Package("gain", "1", "")])
"""


def test_what_a_killed_maker_left_running_keeps_its_lock(
    replays: Replays, wheels: Any, tmp_path: Path
) -> None:
    """Its pip goes on writing to the environment, which nobody else may begin anew meanwhile."""
    wheels("gain", "1", gain(1))
    slow, begun, go = tmp_path / "slow", tmp_path / "begun", tmp_path / "go"
    slow.write_text(SLOW.format(python=sys.executable, begun=str(begun), go=str(go)))
    slow.chmod(0o755)
    maker = subprocess.Popen([sys.executable, "-c", MAKES, str(slow), str(wheels.path)])
    while not begun.exists():
        assert maker.poll() is None
        time.sleep(0.01)
    maker.kill()
    maker.wait()
    (lock,) = (tmp_path / "cache" / "environments").glob("*.lock")
    with lock.open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        go.touch()
        fcntl.flock(file, fcntl.LOCK_EX)  # as soon as that pip has ended


@pytest.mark.parametrize("seed", SEEDS)
def test_as_few_changes_as_are_bad(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        names = [f"p{i}" for i in range(rng.randrange(1, 9))]
        guilty = frozenset(rng.sample(names, rng.randrange(1, min(len(names), 3) + 1)))
        mute = rng.random() * 0.5

        def ask(chosen: frozenset[str], guilty: frozenset[str] = guilty, mute: float = mute) -> State:
            if random.Random(f"{seed}{sorted(chosen)}").random() < mute:
                return State.SKIP
            return State.BAD if guilty <= chosen else State.GOOD

        found = smallest_bad_set(names, ask)
        assert guilty <= set(found.changes)
        assert set(found.changes) - guilty <= set(found.unsure)
        if mute == 0:
            assert set(found.changes) == guilty


def test_versions_between() -> None:
    known = ["2.0", "1.10", "1.9", "1.9rc1", "1.2", "0.9"]
    assert versions_between("1.2", "2.0", known) == ["1.2", "1.9", "1.10", "2.0"]
    assert versions_between("2.0", "1.2", known) == ["2.0", "1.10", "1.9", "1.2"]
    assert versions_between("1.3", "2.1rc1", known) == ["1.3", "1.9", "1.10", "2.0", "2.1rc1"]


def test_pins() -> None:
    found = pins("Torch==2.11.0  a_B.c[x,y]==1+cpu", "--good")
    assert [str(one) for one in found.values()] == ["torch==2.11.0", "a-b-c[x,y]==1+cpu"]
    assert list(found) == ["torch", "a-b-c"]


def test_nothing_of_the_current_folder_is_imported(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder may be a store that a stranger made."""
    wheels("gain", "1.0", gain(1))
    store, imported = tmp_path / "store", tmp_path / "imported"
    store.mkdir()
    for name in ("venv", "pip", "json", "logging", "subprocess", "shutil", "typing", "types", "optparse"):
        text = f"open({str(imported)!r}, 'a').write({name!r} + ' ')\nraise SystemExit(9)\n"
        (store / f"{name}.py").write_text(text)
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(store)
    options = ("--no-index", "--find-links", str(wheels.path))
    environments = Environments(interpreter(sys.executable), options)
    python = environments.python(environments.resolve(["gain==1.0"]))
    assert Path(python).exists()
    assert not imported.exists(), imported.read_text()
