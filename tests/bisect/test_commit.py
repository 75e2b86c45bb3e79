"""The axis `commit` on histories whose guilty commit is known; what comes of a replay stands in a file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import trial as trials
from gdnbench.bisect.commit import probe
from gdnbench.bisect.commit.axis import Answer, Asked, bisect
from gdnbench.bisect.commit.relevant import Relevant
from gdnbench.bisect.commit.repository import Repository
from gdnbench.bisect.commit.search import narrow
from gdnbench.bisect.commit.worktree import worktree
from gdnbench.bisect.prober import Place
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

SEEDS = [1, 2, 3, pytest.param(random.SystemRandom().randrange(1 << 30), id="fresh")]
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

    def run(self, trial: Trial) -> Verdict:
        word = (self.folder / "pack" / "kernel.py").read_text().split()[1]
        self.asked.append(word)
        if word == "unfenced":
            word = "wrong" if "early" in trial.schedules else "right"
        if word == "nofunction":
            raise BadInputError("pack has no function 'kernel'")
        tensors = {"A": True, "Ai": word != "wrong", "o": word != "wrong"} if trial.stages else {"o": True}
        state = STATES.get(word, State.BAD)
        return Verdict(state, KINDS.get(word, "missing"), f"it {word}", word, {"tensors": tensors})

    def close(self) -> None:
        pass


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    made = Replays()
    monkeypatch.setattr(probe, "Prober", made)
    monkeypatch.setattr(trials, "toolchain", dict)  # else it may be edited between two questions
    return made


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "decode.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=1)
        writer.write("0", [draft("gdn_decode", call, index=0)])
    return path


@dataclass
class Bisecting:
    """Bisects `history`, one session for the same arguments."""

    history: Any
    store: Path
    state: Path
    told: list[str] = field(default_factory=list)

    def __call__(self, good: str, bad: str, trial: Trial | None = None, **options: Any) -> Answer:
        trial = trial or Trial(str(self.store), "pack.kernel:kernel")
        asked = Asked(trial, self.history.path, good, bad, sys.executable, 5.0, **options)
        self.told.clear()
        return bisect(
            asked, Session.begin(self.state, "commit", {"good": good, "bad": bad}, self.told.append)
        )


@pytest.fixture
def bisecting(history: Any, store: Path, tmp_path: Path, replays: Replays) -> Bisecting:
    return Bisecting(history, store, tmp_path / "state")


def line(history: Any, *words: str) -> list[str]:
    """A commit a word, each with other files, on the branch that is checked out."""
    return [
        history.commit(f"{number} {word}", {"pack/__init__.py": "", "pack/kernel.py": f"# {word} {number}\n"})
        for number, word in enumerate(words)
    ]


@pytest.mark.parametrize("guilty", range(1, 8))
def test_a_line_takes_as_many_replays_as_bits(
    bisecting: Bisecting, history: Any, replays: Replays, guilty: int
) -> None:
    made = line(history, *["right"] * guilty, *["wrong"] * (8 - guilty))
    answer = bisecting(made[0], made[-1])
    assert answer.exit_code is Exit.MISMATCH
    assert answer.found["commit"]["hash"] == made[guilty]
    assert answer.lines[-1].startswith(
        f"first bad commit: {made[guilty][:10]} '{guilty} wrong': numeric mismatch"
    )
    assert answer.found["stage"] == {"tensor": "Ai", "reason": "it wrong"}
    # Two ends of five replays each, three that halve the seven that it may be, and two with stages.
    assert len(replays.asked) <= 2 * 5 + 3 + 2
    asked = len(replays.asked)
    assert bisecting(made[0], made[-1]).found == answer.found
    assert len(replays.asked) == asked


def test_what_cannot_be_told_is_passed_over_and_all_that_is_left_is_said(
    bisecting: Bisecting, history: Any
) -> None:
    made = line(history, "right", "lacks", "nofunction", "wrong", "lacks", "wrong")
    history.commit("No kernel", {"pack/kernel.py": None, "pack/__init__.py": None})
    line(history, "wrong")
    answer = bisecting(made[0], "main")
    assert answer.found["result"] == "candidates"
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[1:4])
    assert answer.found["commit"] is None
    for identity in made[1:4]:
        assert identity[:10] in answer.lines[-1]


def test_a_failure_of_another_kind_is_told_apart(bisecting: Bisecting, history: Any) -> None:
    words = ["right", "right", "crashes", "crashes", "crashes", "crashes", "wrong", "wrong"]
    made = line(history, *words)
    answer = bisecting(made[0], made[-1])
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[2:7])
    (other,) = answer.found["other_kinds"]
    assert (other["kind"], other["commit"]["hash"]) == ("crash", made[2])
    assert f"another failure: crash from {made[2][:10]} '2 crashes' on" in answer.lines
    either = bisecting(made[0], made[-1], same_kind=False)
    assert either.found["commit"]["hash"] == made[2]
    assert either.found["kind"] == "crash"


def test_ends(bisecting: Bisecting, history: Any) -> None:
    made = line(history, "right", "wrong", "right", "wrong", "lacks", "nofunction")
    passes = bisecting(made[0], made[2])
    assert (passes.exit_code, passes.found["result"]) == (Exit.PASS, "passes")
    with pytest.raises(BadInputError, match=r"good end .* is bad too: numeric mismatch"):
        bisecting(made[1], made[3])
    with pytest.raises(BadInputError, match="is an ancestor of --good"):
        bisecting(made[2], made[1])
    with pytest.raises(CannotRunError, match=r"bad end .* cannot be told: missing"):
        bisecting(made[0], made[4])
    with pytest.raises(BadInputError, match="5 nofunction: pack has no function"):
        bisecting(made[0], made[5])
    with pytest.raises(BadInputError, match="--bad 'nosuch' names no commit"):
        bisecting(made[0], "nosuch")
    with pytest.raises(BadInputError, match="the same commit"):
        bisecting(made[0], made[0])
    with pytest.raises(BadInputError, match="no such package or file in this revision; see --path"):
        bisecting(made[0], made[1], Trial(str(bisecting.store), "elsewhere.kernel:kernel"))
    with pytest.raises(BadInputError, match="is of this installation"):
        bisecting(made[0], made[1], Trial(str(bisecting.store), "torch"))


def test_a_good_end_on_another_branch(bisecting: Bisecting, history: Any) -> None:
    base = line(history, "right", "right")[-1]
    history.git("checkout", "--quiet", "-b", "release")
    release = line(history, "right")[-1]
    history.git("checkout", "--quiet", "main")
    made = line(history, "right", "right", "wrong", "wrong")
    answer = bisecting("release", "main")
    assert answer.found["commit"]["hash"] == made[2]
    assert any(told.startswith(base[:10]) for told in bisecting.told)  # looked at first: it must be good
    history.git("checkout", "--quiet", "-b", "mended", made[2])
    mended = line(history, "right")[-1]
    older = bisecting(mended, "main")
    assert older.found == {
        "axis": "commit",
        "good": mended,
        "bad": made[3],
        "result": "older",
        "reason": older.lines[-1],
        "merge_base": made[2],
    }
    assert release != mended


def test_commits_that_change_nothing_of_the_kernel_are_not_replayed(
    bisecting: Bisecting, history: Any, replays: Replays
) -> None:
    begun = line(history, "right")[-1]
    for number in range(20):
        history.commit(f"note {number}", {"notes.txt": str(number)})
    guilty = line(history, "right", "wrong")[-1]
    for number in range(20):
        history.commit(f"more {number}", {"notes.txt": f"more {number}"})
    assert bisecting(begun, "main").found["commit"]["hash"] == guilty
    # Two ends of five replays each, whose states are all that the package had, and two with stages.
    assert len(replays.asked) == 2 * 5 + 2


def test_the_users_checkout_is_left_alone(bisecting: Bisecting, history: Any) -> None:
    made = line(history, "right", "right", "wrong", "wrong")
    hook = history.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {history.path}/hooked\n")
    hook.chmod(0o755)
    (history.path / "pack" / "kernel.py").write_text("# staged 1\n")
    history.git("add", "--all")
    (history.path / "pack" / "kernel.py").write_text("# changed 2\n")
    (history.path / "untracked").write_text("")

    def state() -> list[str]:
        words = (
            ("status", "--porcelain=v2", "--branch"),
            ("worktree", "list"),
            ("diff",),
            ("diff", "--cached"),
        )
        return [history.git(*arguments) for arguments in (*words, ("for-each-ref",), ("stash", "list"))]

    before = state()
    assert bisecting(made[0], made[-1]).found["commit"]["hash"] == made[2]
    assert state() == before
    assert not (history.path / "hooked").exists()
    assert not list(bisecting.state.glob("*/worktree"))


def test_a_build_that_fails_is_passed_over(bisecting: Bisecting, history: Any) -> None:
    made = line(history, "right", "right", "unbuilt", "wrong", "wrong")
    build = "! grep -q unbuilt pack/kernel.py || { echo no compiler >&2; exit 4; }; touch built"
    answer = bisecting(made[0], made[-1], build=build)
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[2:4])
    verdict = next(one["verdict"] for one in answer.found["candidates"] if one["hash"] == made[2])
    assert (verdict["kind"], verdict["reason"]) == (
        "build failure",
        "--build ended by exit status 4: no compiler",
    )


def test_submodules_are_there_when_asked_for(
    bisecting: Bisecting, history: Any, another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = another("inner")
    line(inner, "right")
    for name, value in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    history.git("submodule", "add", "--quiet", str(inner.path), "inner")
    good = history.commit("with a submodule", {})
    line(inner, "wrong")
    history.git("-C", "inner", "pull", "--quiet")
    bad = history.commit("move it", {})
    answer = bisecting(good, bad, path="inner", submodules=True)
    assert answer.found["commit"]["hash"] == bad
    assert history.git("status", "--porcelain") == ""


def test_a_fault_that_one_schedule_shows_is_said_to_be_and_found(bisecting: Bisecting, history: Any) -> None:
    made = line(history, "right", "right", "right", "unfenced", "unfenced")
    answer = bisecting(made[0], made[-1], Trial(str(bisecting.store), "pack.kernel:kernel", "sim"))
    assert answer.found["commit"]["hash"] == made[3]
    (note,) = answer.found["notes"]
    assert note.startswith(f"{made[4][:10]} 4 unfenced depends on the schedule: ")
    assert "numeric mismatch under early" in note


def test_one_that_is_interrupted_leaves_nothing_behind_and_goes_on(
    bisecting: Bisecting, history: Any, replays: Replays
) -> None:
    made = line(history, "right", "right", "right", "wrong", "wrong")
    run, stop = replays.run, 2 * 5 + 2  # after both ends and one between them

    def interrupted(trial: Trial) -> Verdict:
        if len(replays.asked) == stop - 1:
            raise KeyboardInterrupt
        return run(trial)

    replays.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bisecting(made[0], made[-1])
    assert history.git("worktree", "list").count("\n") == 0
    assert not list(bisecting.state.glob("*/worktree"))
    replays.run = run  # type: ignore[method-assign]
    assert bisecting(made[0], made[-1]).found["commit"]["hash"] == made[3]
    # One more of the commits between, and two with stages: what was known was not asked again.
    assert len(replays.asked) == 2 * 5 + 1 + 1 + 2


def test_a_flaky_end_is_not_bisected(bisecting: Bisecting, history: Any, replays: Replays) -> None:
    made = line(history, "right", "wrong")
    run = replays.run

    def by_turns(trial: Trial) -> Verdict:
        found = run(trial)
        return found if len(replays.asked) % 2 else Verdict(State.GOOD, "pass", digest="right")

    replays.run = by_turns  # type: ignore[method-assign]
    answer = bisecting(made[0], made[1])
    assert (answer.exit_code, answer.found["result"]) == (Exit.MISMATCH, "flaky")
    assert "is flaky: numeric mismatch 3 of 5, pass 2 of 5" in answer.lines[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(history: Any, seed: int) -> None:
    """A fault is in its commit and all that come after: bad are exactly its descendants, whatever merges
    there are. Some say nothing; then all that is left are those, and the commit is one of them."""
    rng = random.Random(seed)
    tree = history.git("hash-object", "-t", "tree", "-w", "/dev/null")
    for _ in range(4):
        parents: dict[str, list[str]] = {}
        for number in range(rng.randrange(6, 25)):
            chosen = rng.sample(list(parents)[-6:], min(len(parents), rng.choice((1, 1, 1, 2, 3))))
            options = [word for one in chosen for word in ("-p", one)]
            parents[history.git("commit-tree", tree, *options, "-m", str(number))] = chosen
        bad = list(parents)[-1]
        reach: dict[str, set[str]] = {}
        for one, before in parents.items():
            reach[one] = {one}.union(*(reach[parent] for parent in before))
        good = rng.choice([one for one in reach[bad] if one != bad])
        guilty = rng.choice(sorted(reach[bad] - reach[good]))
        mute = {one for one in parents if rng.random() < 0.3} - {bad, good}
        asked: list[str] = []

        def ask(one: str, asked: list[str] = asked, guilty: str = guilty, mute: set[str] = mute) -> State:
            asked.append(one)
            if one in mute:
                return State.SKIP
            return State.BAD if guilty in reach[one] else State.GOOD  # noqa: B023

        found = narrow(Repository(history.path), bad, [good], ask)
        assert len(asked) == len(set(asked))
        assert guilty in found.candidates
        assert found.bad not in mute
        assert set(found.candidates) - mute == {found.bad}
        assert found.found == (len(found.candidates) == 1)


def trees(history: Any, kernel: str, revision: str, path: str = "", also: tuple[str, ...] = ()) -> Any:
    return Relevant(Repository(history.path), kernel, path, also).trees(revision)


def test_what_a_kernel_imports_counts_and_nothing_else(history: Any) -> None:
    files: Mapping[str, str | None] = {
        "pack/__init__.py": "from pack import kernel\n",
        "pack/deep/kernel.py": "def f():\n    import helpers.more as m, single\n",
        "helpers/__init__.py": "",
        "helpers/more.py": "from torch import nn\nfrom third import x\n",
        "single.py": "import os\n",
        "third/x.py": "",
        "unused/__init__.py": "import pack\n",
        "tests/test.py": "import pack\n",
        "data/table.txt": "1",
        "notes.md": "import unused\n",
    }
    first = history.commit("first", files)
    found = trees(history, "pack.deep.kernel:f", first)
    assert set(found) == {"pack", "helpers", "single", "third"}
    assert set(trees(history, "pack:f", first, also=("data",))) == {*found, "data"}
    for name, counts in (
        ("third/x.py", True),
        ("single.py", True),
        ("unused/y.py", False),
        ("notes.md", False),
    ):
        later = history.commit(name, {name: "# other\n"})
        assert (trees(history, "pack.deep.kernel:f", later) != found) == counts, name
        found = trees(history, "pack.deep.kernel:f", later)
    assert trees(history, "nosuch:f", first) is None
    assert set(trees(history, "tests/test.py:f", first)) == {
        "tests/test.py",
        *set(trees(history, "pack:f", first)),
    }
    shadow = history.commit("a module that an import now finds", {"torch/__init__.py": ""})
    assert "torch" in trees(history, "pack:f", shadow)


def test_packages_that_lie_elsewhere_by_pyproject(history: Any, tmp_path: Path) -> None:
    table = '[tool.setuptools.package-dir]\n"" = "lib"\nrenamed = "odd"\n'
    files = {"pyproject.toml": table, "lib/pack/__init__.py": "import renamed\n", "odd/__init__.py": ""}
    first = history.commit("first", files)
    assert set(trees(history, "pack:f", first)) == {"pack", "renamed", "pyproject.toml"}
    assert set(trees(history, "renamed.deep:f", first)) == {"renamed", "pyproject.toml"}
    with worktree(Repository(history.path), tmp_path) as files_there:
        roots = Relevant(Repository(history.path), "pack:f", "").roots(first)
        files_there.at(first, roots)
        out = subprocess.run(
            [sys.executable, "-c", "import pack, renamed; print(pack.__file__, renamed.__file__)"],
            cwd=files_there.folder(""),
            env={**os.environ, **files_there.environment(roots)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    assert out == [
        str(tmp_path / "worktree/lib/pack/__init__.py"),
        str(tmp_path / "packages/renamed/__init__.py"),
    ]


def test_two_bisections_do_not_share_a_folder(history: Any, tmp_path: Path) -> None:
    history.commit("first", {"a": ""})
    repository = Repository(history.path)
    with (
        worktree(repository, tmp_path),
        pytest.raises(BadInputError, match="runs already"),
        worktree(repository, tmp_path),
    ):
        pass
