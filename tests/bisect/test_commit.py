# SPDX-License-Identifier: Apache-2.0
"""The axis `commit` on histories whose guilty commit is known; what comes of a replay stands in a file."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.commit import worktree as worktrees
from gdnbench.bisect.commit.relevant import Relevant
from gdnbench.bisect.commit.repository import GitError, Repository
from gdnbench.bisect.commit.search import narrow_commits
from gdnbench.bisect.commit.worktree import open_worktree
from gdnbench.bisect.imports import read_imports
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, CannotRunError, Exit
from tests.messages import wording
from tests.seeds import drawn, fresh
from tests.subset import quick

SEEDS = [1, 2, 3, fresh(drawn("bisect commit"))]


@pytest.mark.parametrize("guilty", quick(range(1, 8), 3))
def test_a_line_takes_as_many_replays_as_bits(
    bisecting: Any, history: Any, replays: Any, guilty: int
) -> None:
    made = bisecting.commits(history, *["right"] * guilty, *["wrong"] * (8 - guilty))
    answer = bisecting(made[0], made[-1])
    assert answer.exit_code is Exit.MISMATCH
    assert answer.found["commit"]["hash"] == made[guilty]
    assert re.fullmatch(
        wording(
            "bisect.first-bad-commit",
            commit=made[guilty][:10],
            subject=f"{guilty} wrong",
            kind="numeric mismatch",
        ),
        answer.lines[-1],
    )
    assert answer.found["stage"] == {"tensor": "Ai", "reason": "it wrong"}
    # Two ends of five replays each, three that halve the seven that it may be, and two with stages.
    assert len(replays.asked) <= 2 * 5 + 3 + 2
    asked = len(replays.asked)
    assert bisecting(made[0], made[-1]).found == answer.found
    assert len(replays.asked) == asked


def test_what_cannot_be_told_is_passed_over_and_all_that_is_left_is_said(
    bisecting: Any, history: Any
) -> None:
    made = bisecting.commits(history, "right", "lacks", "nofunction", "wrong", "lacks", "wrong")
    history.commit("No kernel", {"pack/kernel.py": None, "pack/__init__.py": None})
    bisecting.commits(history, "wrong")
    answer = bisecting(made[0], "main")
    assert answer.found["result"] == "candidates"
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[1:4])
    assert answer.found["commit"] is None
    for identity in made[1:4]:
        assert identity[:10] in answer.lines[-1]


def test_a_failure_of_another_kind_is_told_apart(bisecting: Any, history: Any) -> None:
    words = ["right", "right", "crashes", "crashes", "crashes", "crashes", "wrong", "wrong"]
    made = bisecting.commits(history, *words)
    answer = bisecting(made[0], made[-1])
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[2:7])
    (other,) = answer.found["other_kinds"]
    assert (other["kind"], other["commit"]["hash"]) == ("crash", made[2])
    another = wording("bisect.another-failure", kind="crash", commit=made[2][:10], subject="2 crashes")
    assert any(re.fullmatch(another, line) for line in answer.lines)
    either = bisecting(made[0], made[-1], same_kind=False)
    assert either.found["commit"]["hash"] == made[2]
    assert either.found["kind"] == "crash"


def test_ends(bisecting: Any, history: Any) -> None:
    made = bisecting.commits(history, "right", "wrong", "right", "wrong", "lacks", "nofunction")
    with pytest.raises(BadInputError, match=wording("bisect.bad-passes", bad=re.compile(".* 2 right"))):
        bisecting(made[0], made[2])
    with pytest.raises(BadInputError, match=wording("bisect.good-fails", kind="numeric mismatch")):
        bisecting(made[1], made[3])
    with pytest.raises(BadInputError, match=wording("bisect.endpoints-exchanged", kind="numeric mismatch")):
        bisecting(made[1], made[0])
    exchanged = re.compile(wording("bisect.exchange-endpoints"))
    with pytest.raises(BadInputError, match=wording("bisect.bad-before-good", exchanged=exchanged)):
        bisecting(made[2], made[1])
    with pytest.raises(CannotRunError, match=wording("bisect.endpoint-unknown", end="bad", kind="missing")):
        bisecting(made[0], made[4])
    with pytest.raises(BadInputError, match="5 nofunction: pack has no function"):
        bisecting(made[0], made[5])
    with pytest.raises(
        BadInputError, match=wording("bisect.commit-unknown", option="--bad", revision="nosuch")
    ):
        bisecting(made[0], "nosuch")
    with pytest.raises(BadInputError, match=wording("bisect.same-commit")):
        bisecting(made[0], made[0])
    with pytest.raises(
        BadInputError, match=wording("bisect.path-needed", reason=re.compile(wording("bisect.path-missing")))
    ):
        bisecting(made[0], made[1], Trial(str(bisecting.store), "elsewhere.kernel:kernel"))
    with pytest.raises(BadInputError, match=wording("bisect.kernel-installed")):
        bisecting(made[0], made[1], Trial(str(bisecting.store), "torch"))


def test_a_good_end_on_another_branch(bisecting: Any, history: Any) -> None:
    base = bisecting.commits(history, "right", "right")[-1]
    history.git("checkout", "--quiet", "-b", "release")
    release = bisecting.commits(history, "right")[-1]
    history.git("checkout", "--quiet", "main")
    made = bisecting.commits(history, "right", "right", "wrong", "wrong")
    answer = bisecting("release", "main")
    assert answer.found["commit"]["hash"] == made[2]
    assert any(told.startswith(base[:10]) for told in bisecting.told)  # looked at first: it must be good
    history.git("checkout", "--quiet", "-b", "mended", made[2])
    mended = bisecting.commits(history, "right")[-1]
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
    bisecting: Any, history: Any, replays: Any
) -> None:
    begun = bisecting.commits(history, "right")[-1]
    for number in range(20):
        history.commit(f"note {number}", {"notes.txt": str(number)})
    guilty = bisecting.commits(history, "right", "wrong")[-1]
    for number in range(20):
        history.commit(f"more {number}", {"notes.txt": f"more {number}"})
    assert bisecting(begun, "main").found["commit"]["hash"] == guilty
    # Two ends of five replays each, whose states are all that the package had, and two with stages.
    assert len(replays.asked) == 2 * 5 + 2


def test_the_users_checkout_is_left_alone(bisecting: Any, history: Any) -> None:
    made = bisecting.commits(history, "right", "right", "wrong", "wrong")
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


def test_a_build_that_fails_is_passed_over(bisecting: Any, history: Any) -> None:
    made = bisecting.commits(history, "right", "right", "unbuilt", "wrong", "wrong")
    build = "! grep -q unbuilt pack/kernel.py || { echo no compiler >&2; exit 4; }; touch built"
    answer = bisecting(made[0], made[-1], build=build)
    assert {one["hash"] for one in answer.found["candidates"]} == set(made[2:4])
    verdict = next(one["verdict"] for one in answer.found["candidates"] if one["hash"] == made[2])
    assert verdict["kind"] == "build failure"
    assert re.fullmatch(
        wording("bisect.build-failed", how="exit status 4", reason=": no compiler"), verdict["reason"]
    )


def test_submodules_are_there_when_asked_for(
    bisecting: Any, history: Any, another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = another("inner")
    bisecting.commits(inner, "right")
    for name, value in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    history.git("submodule", "add", "--quiet", str(inner.path), "inner")
    good = history.commit("with a submodule", {})
    bisecting.commits(inner, "wrong")
    history.git("-C", "inner", "pull", "--quiet")
    bad = history.commit("move it", {})
    answer = bisecting(good, bad, path="inner", submodules=True)
    assert answer.found["commit"]["hash"] == bad
    assert history.git("status", "--porcelain") == ""


def test_submodules_are_part_of_the_question(
    bisecting: Any, history: Any, another: Any, replays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was passed over without them is asked again with them."""
    inner = another("inner")
    bisecting.commits(inner, "right")
    for name, value in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    history.git("submodule", "add", "--quiet", str(inner.path), "inner")
    good = history.commit("with a submodule", {})
    bisecting.commits(inner, "wrong")
    history.git("-C", "inner", "pull", "--quiet")
    bad = history.commit("move it", {})
    run = replays.run_trial

    def lacking(trial: Trial) -> Verdict:
        there = (replays.folder / "pack" / "kernel.py").exists()
        return run(trial) if there else Verdict(State.SKIP, "import failure", "no pack")

    monkeypatch.setattr(replays, "run_trial", lacking)
    with pytest.raises(
        CannotRunError, match=wording("bisect.endpoint-unknown", kind="import failure", reason="no pack")
    ):
        bisecting(good, bad, path="inner")
    assert bisecting(good, bad, path="inner", submodules=True).found["commit"]["hash"] == bad


@pytest.mark.every(2)
@pytest.mark.parametrize("fails", ["checkout", "submodule", "start"])
def test_what_may_be_gone_the_next_time_is_asked_again(
    bisecting: Any, history: Any, replays: Any, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A disk that was full, a server that was away, a machine that was too busy to start a process."""
    made = bisecting.commits(history, "right", "wrong", "wrong")
    git, run = worktrees.git, replays.run_trial

    def failing_git(folder: Path, *arguments: str) -> str:
        there = arguments[-1] if arguments[0] == "checkout" else git(folder, "rev-parse", "HEAD").strip()
        if arguments[0] == fails and there == made[1]:
            raise GitError("no space left on device")
        return git(folder, *arguments)

    def failing_start(trial: Trial) -> Verdict:
        if fails == "start" and "wrong 1" in (replays.folder / "pack" / "kernel.py").read_text():
            raise CannotRunError("a process did not start")
        return run(trial)

    with monkeypatch.context() as patched:
        patched.setattr(worktrees, "git", failing_git)
        patched.setattr(replays, "run_trial", failing_start)
        answer = bisecting(made[0], made[2], submodules=True)
        assert {one["hash"] for one in answer.found["candidates"]} == set(made[1:])
    assert bisecting(made[0], made[2], submodules=True).found["commit"]["hash"] == made[1]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("unfenced", "pass under late, numeric mismatch under early"),
        ("unwaited", "numeric mismatch under late, pass under early"),
    ],
)
@pytest.mark.parametrize("good", ["right", "always"])
def test_a_fault_that_one_schedule_shows_is_said_to_be_and_found(
    bisecting: Any, history: Any, word: str, said: str, good: str
) -> None:
    trial = Trial(str(bisecting.store), "pack.kernel:kernel", "sim")
    if good == "always":  # a good endpoint that depends on the schedule is a bad one
        made = bisecting.commits(history, word, word, "wrong")
        with pytest.raises(BadInputError, match=wording("bisect.good-fails")):
            bisecting(made[0], made[-1], trial)
        return
    made = bisecting.commits(history, "right", "right", "right", word, word)
    answer = bisecting(made[0], made[-1], trial)
    assert answer.found["commit"]["hash"] == made[3]
    (note,) = answer.found["notes"]
    assert note.startswith(f"{made[4][:10]} 4 {word} depends on the schedule: ")
    assert said in note


def test_one_that_is_interrupted_leaves_nothing_behind_and_goes_on(
    bisecting: Any, history: Any, replays: Any
) -> None:
    made = bisecting.commits(history, "right", "right", "right", "wrong", "wrong")
    run, stop = replays.run_trial, 2 * 5 + 2  # after both ends and one between them

    def interrupted(trial: Trial) -> Verdict:
        if len(replays.asked) == stop - 1:
            raise KeyboardInterrupt
        return run(trial)

    replays.run_trial = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bisecting(made[0], made[-1])
    assert history.git("worktree", "list").count("\n") == 0
    assert not list(bisecting.state.glob("*/worktree"))
    replays.run_trial = run  # type: ignore[method-assign]
    assert bisecting(made[0], made[-1]).found["commit"]["hash"] == made[3]
    # One more of the commits between, and two with stages: what was known was not asked again.
    assert len(replays.asked) == 2 * 5 + 1 + 1 + 2


def test_a_flaky_end_is_not_bisected(bisecting: Any, history: Any, replays: Any) -> None:
    made = bisecting.commits(history, "right", "wrong")
    run = replays.run_trial

    def by_turns(trial: Trial) -> Verdict:
        found = run(trial)
        return found if len(replays.asked) % 2 else Verdict(State.GOOD, "pass", digest="right")

    replays.run_trial = by_turns  # type: ignore[method-assign]
    answer = bisecting(made[0], made[1])
    assert (answer.exit_code, answer.found["result"]) == (Exit.MISMATCH, "flaky")
    spread = "numeric mismatch 3 of 5, pass 2 of 5"
    assert re.search(wording("bisect.end-flaky", spread=spread), answer.lines[-1])


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

        found = narrow_commits(Repository(history.path), bad, [good], ask)
        assert len(asked) == len(set(asked))
        assert guilty in found.candidates
        assert found.bad not in mute
        assert set(found.candidates) - mute == {found.bad}
        assert found.found == (len(found.candidates) == 1)


def trees(history: Any, kernel: str, revision: str, path: str = "", also: tuple[str, ...] = ()) -> Any:
    return Relevant(Repository(history.path), kernel, path, also).tree_hashes(revision)


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
    assert set(found) == {"pack", "helpers", "single.py", "third"}
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"import a; import b\n", {"a", "b"}),
        (b"try: import a\nexcept ImportError: from b.c import d\n", {"a", "b"}),
        (b"import a, \\\n  b.c as d\n", {"a", "b"}),
        (b"from \\\n  a import (\n b,\n c)\n", {"a"}),
        (b"if True: import a\nx = 1; from b import c\n", {"a", "b"}),
        (b"from . import a\nfrom .b import c\n", set()),
        (b"# coding: latin-1\nx = '\xe4\\d'; import a\n", {"a"}),
        (b'CODE = """\nimport a\n"""\nexec(CODE)\n', {"a"}),
        (b"import a\ndef half(:\n", {"a"}),
    ],
)
def test_imports_however_they_are_written(text: bytes, names: set[str]) -> None:
    assert read_imports(text).names == names


def test_packages_that_lie_elsewhere_by_pyproject(history: Any, tmp_path: Path) -> None:
    table = '[tool.setuptools.package-dir]\n"" = "lib"\nrenamed = "odd"\n'
    files = {"pyproject.toml": table, "lib/pack/__init__.py": "import renamed\n", "odd/__init__.py": ""}
    first = history.commit("first", files)
    assert set(trees(history, "pack:f", first)) == {"lib/pack", "odd", "pyproject.toml"}
    assert set(trees(history, "renamed.deep:f", first)) == {"odd", "pyproject.toml"}
    with open_worktree(Repository(history.path), tmp_path) as files_there:
        roots = Relevant(Repository(history.path), "pack:f", "").import_roots(first)
        files_there.check_out(first, roots)
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
        open_worktree(repository, tmp_path),
        pytest.raises(BadInputError, match=wording("bisect.already-running")),
        open_worktree(repository, tmp_path),
    ):
        pass
