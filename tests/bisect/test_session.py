# SPDX-License-Identifier: Apache-2.0
"""Bisections on disk: asked once, gone on with, and no change to the repository that they are made in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gdnbench.bisect import endpoints
from gdnbench.bisect.flakiness import RUNS
from gdnbench.bisect.session import STATE, NotKeptError, Session, load_unfinished, lock_session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, StoreError
from tests.messages import wording

GOOD = Verdict(State.GOOD, "pass", seconds=1.5)
BAD = Verdict(State.BAD, "crash", seconds=1.5)
ARGUMENTS = {"store": "run.zarr", "k": None}


def begin(state: Path, told: list[str], fresh: bool = False) -> Session:
    return Session.begin(state, "stage", ARGUMENTS, told.append, fresh)


def test_what_is_known_is_not_asked_again_unless_fresh(tmp_path: Path) -> None:
    told: list[str] = []
    asked: list[int] = []

    def probe() -> Verdict:
        asked.append(1)
        return GOOD

    assert begin(tmp_path, told).find_or_probe("one", {"a": 1}, probe) == GOOD
    assert begin(tmp_path, told).find_or_probe("one", {"a": 1}, probe) == GOOD
    assert told == ["one: ...", "one: good, 1.5 s", "one: good (known)"]
    begin(tmp_path, told, fresh=True).find_or_probe("one", {"a": 1}, probe)
    assert len(asked) == 2


def test_a_probe_that_is_interrupted_is_the_only_thing_lost(tmp_path: Path) -> None:
    def interrupted() -> Verdict:
        raise KeyboardInterrupt

    session = begin(tmp_path, [])
    session.find_or_probe("one", {"a": 1}, lambda: GOOD)
    with pytest.raises(KeyboardInterrupt):
        session.find_or_probe("two", {"a": 2}, interrupted)
    assert load_unfinished(tmp_path) == ("stage", ARGUMENTS)
    again = begin(tmp_path, [])
    assert again.verdicts.find({"a": 1}) == GOOD
    assert again.verdicts.find({"a": 2}) is None
    again.finish({"stage": "Ai"})
    with pytest.raises(BadInputError, match=wording("bisect.nothing-to-resume")):
        load_unfinished(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "[]",
        "null",
        "7",
        "\xff",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": 1, "axis": 3, "arguments": {}}',
        '{"version": 1, "axis": "stage", "arguments": [["store", "x"]]}',
        '{"version": 2, "axis": "stage", "arguments": {}}',
        '{"axis": "stage", "arguments": {}}',
    ],
)
def test_a_damaged_state_is_one_line(tmp_path: Path, text: str) -> None:
    session = begin(tmp_path, [])
    (session.folder / "arguments.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match=r"holds no arguments|of another version") as caught:
        load_unfinished(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_failed_is_told_and_what_was_interrupted_goes_on(tmp_path: Path) -> None:
    interrupted = begin(tmp_path, [])
    failed = Session.begin(tmp_path, "record", {"store": "x"}, lambda line: None)
    failed.fail(BadInputError("the good endpoint is bad too"))
    assert load_unfinished(tmp_path) == ("stage", ARGUMENTS)
    interrupted.finish({})
    with pytest.raises(
        BadInputError, match=wording("bisect.resume-would-fail", error="the good endpoint is bad too")
    ):
        load_unfinished(tmp_path)
    again = Session.begin(tmp_path, "record", {"store": "x"}, lambda line: None)
    assert load_unfinished(tmp_path) == ("record", {"store": "x"})
    again.finish({})
    with pytest.raises(BadInputError, match=wording("bisect.nothing-to-resume")):
        load_unfinished(tmp_path)


def test_it_does_not_show_in_a_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    begin(tmp_path / STATE, []).find_or_probe("one", {"a": 1}, lambda: GOOD)
    shown = subprocess.run(
        ["git", "-C", str(tmp_path), "status", "--porcelain"], check=True, capture_output=True, text=True
    )
    assert shown.stdout == ""


def test_a_folder_that_was_there_is_not_hidden_from_git(tmp_path: Path) -> None:
    """As by `--state .` in a repository."""
    (tmp_path / "kernel.py").write_text("")
    begin(tmp_path, []).find_or_probe("one", {"a": 1}, lambda: GOOD)
    begin(tmp_path, [])
    assert not (tmp_path / ".gitignore").exists()


def test_a_bisection_runs_once_at_a_time(tmp_path: Path) -> None:
    with (
        lock_session(tmp_path),
        pytest.raises(BadInputError, match=wording("bisect.already-running")),
        lock_session(tmp_path),
    ):
        pass
    with lock_session(tmp_path):
        pass


def test_an_end_that_is_interrupted_goes_on_with_the_next_process(tmp_path: Path) -> None:
    asked: list[int] = []

    class Counting:
        def run_trial(self, trial: Trial) -> Verdict:
            if len(asked) == stop:
                raise KeyboardInterrupt
            asked.append(1)
            return GOOD

        def close(self) -> None:
            pass

    trial, question = Trial("s.zarr", "torch"), {"kernel": "torch"}
    stop = RUNS + 1  # in the third process
    with pytest.raises(KeyboardInterrupt):
        endpoints.replay_endpoint(begin(tmp_path, []), "one", question, trial, Counting)
    assert len(asked) == stop
    stop = -1
    endpoints.replay_endpoint(begin(tmp_path, []), "one", question, trial, Counting)
    assert len(asked) == RUNS + 2
    endpoints.replay_endpoint(begin(tmp_path, [], fresh=True), "one", question, trial, Counting)
    assert len(asked) == 2 * (RUNS + 2)
    # Interrupted in the first process: its runs belong together, and all of them are made again.
    asked.clear()
    stop = 2
    with pytest.raises(KeyboardInterrupt):
        endpoints.replay_endpoint(begin(tmp_path, []), "other", {"kernel": "other"}, trial, Counting)
    stop = -1
    endpoints.replay_endpoint(begin(tmp_path, []), "other", {"kernel": "other"}, trial, Counting)
    assert len(asked) == 2 + RUNS + 2


def test_a_fresh_one_that_is_interrupted_goes_on_as_one(tmp_path: Path) -> None:
    """What it asked is known, what was known before is not, until it has ended."""
    begin(tmp_path, []).find_or_probe("one", {"a": 1}, lambda: GOOD)
    begin(tmp_path, []).find_or_probe("other", {"a": 2}, lambda: GOOD)
    begin(tmp_path, []).finish({})
    fresh = begin(tmp_path, [], fresh=True)
    assert fresh.find_or_probe("one", {"a": 1}, lambda: BAD) == BAD
    assert fresh.find_or_probe("one", {"a": 1}, pytest.fail) == BAD  # nor is it asked twice within it
    for _ in range(2):  # interrupted once more
        resumed = begin(tmp_path, [])
        assert resumed.find_or_probe("one", {"a": 1}, pytest.fail) == BAD
    assert resumed.find_or_probe("other", {"a": 2}, lambda: BAD) == BAD
    resumed.finish({})
    assert begin(tmp_path, []).find_or_probe("other", {"a": 2}, pytest.fail) == BAD
    begin(tmp_path, []).finish({})
    again = begin(tmp_path, [], fresh=True)
    assert again.find_or_probe("one", {"a": 1}, lambda: GOOD) == GOOD


def test_a_fresh_end_takes_the_place_of_what_was_known(tmp_path: Path) -> None:
    class Saying:
        def __init__(self, verdict: Verdict) -> None:
            self.verdict = verdict

        def run_trial(self, trial: Trial) -> Verdict:
            return self.verdict

        def close(self) -> None:
            pass

    trial, question = Trial("s.zarr", "torch"), {"kernel": "torch"}
    for verdict in (GOOD, BAD):
        session = begin(tmp_path, [], fresh=True)
        endpoints.replay_endpoint(session, "one", question, trial, lambda verdict=verdict: Saying(verdict))  # type: ignore[misc]
        session.finish({})
    assert begin(tmp_path, []).find_or_probe("one", question, pytest.fail).state is State.BAD


def test_what_may_be_gone_the_next_time_is_not_kept(tmp_path: Path) -> None:
    skip = Verdict(State.SKIP, "does not start", "the disk is full")

    def full() -> Verdict:
        raise NotKeptError(skip)

    told: list[str] = []
    session = begin(tmp_path, told)
    assert session.find_or_probe("one", {"a": 1}, full) == skip
    assert session.find_or_probe("one", {"a": 1}, pytest.fail) == skip
    assert told[1] == "one: skip (does not start, the disk is full)"
    assert begin(tmp_path, []).find_or_probe("one", {"a": 1}, lambda: GOOD) == GOOD


def test_paths_are_those_of_the_folder_that_it_was_begun_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / name for name in ("here", "there")]
    folders = []
    for place in places:
        place.mkdir()
        monkeypatch.chdir(place)
        folders.append(begin(tmp_path / "state", []).folder)
    assert folders[0] != folders[1]  # run.zarr is another store
    assert load_unfinished(tmp_path / "state") == ("stage", ARGUMENTS)
    monkeypatch.chdir(places[0])
    with pytest.raises(BadInputError, match=wording("bisect.begun-elsewhere", folder=places[1])):
        load_unfinished(tmp_path / "state")
