# SPDX-License-Identifier: Apache-2.0
"""The axis `commit` in repositories of every shape, and after a process that was killed in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from gdnbench.bisect.commit.relevant import Relevant, Roots
from gdnbench.bisect.commit.repository import Repository
from gdnbench.bisect.commit.worktree import BuildFailure, open_worktree
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.cli.bisect.common import finish, print_progress
from gdnbench.errors import BadInputError
from gdnbench.workers import python_code
from tests.messages import wording
from tests.subset import quick

WORDS = ("right", "right", "wrong", "wrong")


def found(answer: Any) -> str:
    return str(answer.found["commit"]["hash"])


def test_a_bare_clone_and_a_linked_worktree(bisecting: Any, history: Any, tmp_path: Path) -> None:
    made = bisecting.commits(history, *WORDS)
    history.git("clone", "--quiet", "--bare", str(history.path), str(tmp_path / "bare"))
    history.git("worktree", "add", "--quiet", str(tmp_path / "linked"), made[0])
    for name in ("bare", "linked"):
        assert found(bisecting(made[0], made[-1], repo=tmp_path / name)) == made[2]


@pytest.mark.parametrize(
    "name", quick(["with space", "ümläut 世界", "two\nlines", "ends in\n", "-dash", 'it\'s "so"'], 1, 2)
)
def test_odd_names_of_folders(
    bisecting: Any, another: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    there = another(name)
    made = bisecting.commits(there, *WORDS)
    bisecting.state = tmp_path / f"state of {name}"
    assert found(bisecting(made[0], made[-1], repo=there.path)) == made[2]
    assert not list(bisecting.state.glob("*/worktree"))


def test_a_state_that_no_path_can_hold(bisecting: Any, history: Any, tmp_path: Path) -> None:
    made = bisecting.commits(history, *WORDS)
    bisecting.state = tmp_path / "a:b"
    with pytest.raises(BadInputError, match=wording("bisect.state-name-refused")):
        bisecting(made[0], made[-1])


def test_one_commit_apart(bisecting: Any, history: Any) -> None:
    made = bisecting.commits(history, "right", "wrong")
    assert found(bisecting(made[0], made[1])) == made[1]


def test_a_merge_alone_is_wrong(bisecting: Any, history: Any) -> None:
    base = bisecting.commits(history, "right")[0]
    history.git("checkout", "--quiet", "-b", "side")
    history.commit("Side", {"pack/side.py": ""})
    history.git("checkout", "--quiet", "main")
    history.commit("Main", {"pack/main.py": ""})
    history.git("merge", "--quiet", "--no-ff", "--no-commit", "side")
    merged = history.commit("Merge", {"pack/kernel.py": "# wrong merge\n"})
    history.commit("Later", {"pack/later.py": ""})
    answer = bisecting(base, "main")
    assert found(answer) == merged
    assert answer.found["stage"]["tensor"] == "Ai"


def test_histories_that_share_nothing(bisecting: Any, history: Any) -> None:
    good = bisecting.commits(history, "right")[0]
    history.git("checkout", "--quiet", "--orphan", "other")
    made = bisecting.commits(history, "right", "wrong")
    answer = bisecting(good, made[-1])
    assert found(answer) == made[-1]
    assert "have no commit in common" in answer.found["notes"][0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "nosuch"}, "no such package or file in this revision; see --path"),
        ({"path": "pack/kernel.py"}, "no such package or file in this revision; see --path"),
        (
            {"path": "../elsewhere"},
            wording("bisect.path-outside-repository", option="--path", path="../elsewhere"),
        ),
        ({"path": "/etc"}, wording("bisect.path-outside-repository", option="--path", path="/etc")),
        (
            {"also": ("/etc/hosts",)},
            wording("bisect.path-outside-repository", option="--also", path="/etc/hosts"),
        ),
        ({"also": ("nosuch",)}, wording("bisect.also-nowhere", path="nosuch")),
    ],
)
def test_paths_that_are_not_there(bisecting: Any, history: Any, options: Any, said: str) -> None:
    made = bisecting.commits(history, *WORDS)
    with pytest.raises(BadInputError, match=said):
        bisecting(made[0], made[-1], **options)


@pytest.mark.every(3)
@pytest.mark.parametrize("path", [".", "./", "./pack/.."])
def test_paths_that_are_the_root(bisecting: Any, history: Any, path: str) -> None:
    made = bisecting.commits(history, *WORDS)
    assert found(bisecting(made[0], made[-1], path=path)) == made[2]


def test_ends_that_differ_in_nothing_that_counts(bisecting: Any, history: Any, replays: Any) -> None:
    bisecting.commits(history, "right")
    made = [history.commit(f"note {number}", {"notes": str(number)}) for number in range(3)]
    with pytest.raises(BadInputError, match=wording("bisect.same-files")):
        bisecting(made[0], made[-1])
    assert replays.asked == []


def test_a_kernel_that_is_deleted_for_a_while(bisecting: Any, history: Any) -> None:
    good = bisecting.commits(history, "right")[0]
    history.commit("Delete", {"pack/kernel.py": None, "pack/__init__.py": None})
    bad = bisecting.commits(history, "wrong")[0]
    assert [one["subject"] for one in bisecting(good, bad).found["candidates"]] == ["Delete", "0 wrong"]


LINKS = {
    "of the package": {"pack": "real/pack"},
    "of a file in it": {"pack/kernel.py": "../real/pack/kernel.py"},
    "of the folder of imports": {"python": "real"},
}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", LINKS)
def test_symbolic_links(bisecting: Any, history: Any, kind: str) -> None:
    """What a link leads to counts, though the link is the same in all revisions."""
    for name, target in LINKS[kind].items():
        (history.path / name).parent.mkdir(exist_ok=True)
        (history.path / name).symlink_to(target)
    made = []
    for number, word in enumerate(WORDS):
        files = {"real/pack/__init__.py": "", "real/pack/kernel.py": f"# {word} {number}\n"}
        made.append(history.commit(f"{number} {word}", files))
    path = "python" if kind == "of the folder of imports" else ""
    assert found(bisecting(made[0], made[-1], path=path)) == made[2]


def test_a_file_that_is_a_link(history: Any) -> None:
    (history.path / "k.py").symlink_to("real.py")
    first = history.commit("first", {"real.py": "import helper\n", "helper.py": "", "notes": "1"})
    second = history.commit("second", {"helper.py": "# other\n"})
    relevant = Relevant(Repository(history.path), "k.py:kernel", "")
    assert relevant.tree_hashes(first) != relevant.tree_hashes(second)


def test_another_user_s_repository(bisecting: Any, history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bisecting.commits(history, *WORDS)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(BadInputError, match=r"dubious ownership.*git config .*safe\.directory") as caught:
        bisecting(made[0], made[-1])
    assert "\n" not in str(caught.value)


def test_what_a_caller_of_git_and_the_repository_have_set(
    bisecting: Any,
    history: Any,
    another: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bisecting.commits(history, *WORDS)
    ran = tmp_path / "ran"
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {ran}\n")
    monitor.chmod(0o755)
    for name, value in {
        "core.fsmonitor": str(monitor),
        "core.sparseCheckout": "true",
        "color.ui": "always",
        "i18n.logOutputEncoding": "UTF-16",
        "safe.bareRepository": "explicit",
    }.items():
        history.git("config", name, value)
    (history.path / ".git" / "info" / "sparse-checkout").write_text("/notes\n")
    other = another("other")
    for name in ("GIT_DIR", "GIT_COMMON_DIR"):
        monkeypatch.setenv(name, str(other.path / ".git"))
    for name in ("GIT_WORK_TREE", "GIT_SHALLOW_FILE", "GIT_INDEX_FILE", "GIT_ALTERNATE_OBJECT_DIRECTORIES"):
        monkeypatch.setenv(name, str(tmp_path / "nosuch"))
    monkeypatch.setenv("GIT_NAMESPACE", "other")
    assert found(bisecting(made[0], made[-1])) == made[2]
    assert not ran.exists()


def test_a_worktree_that_a_killed_process_left_is_used_again(history: Any, tmp_path: Path) -> None:
    first = history.commit("first", {"a": "1"})
    second = history.commit("second", {"a": "2"})
    repository, roots = Repository(history.path), Roots(("",))

    def leave(revision: str) -> None:
        with pytest.MonkeyPatch.context() as patched, open_worktree(repository, tmp_path) as there:
            there.check_out(revision, roots)
            patched.setattr(there, "remove", lambda: None)
            (tmp_path / "worktree" / "b").write_text("left over")

    damages: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: next(history.path.glob(".git/worktrees/*/index")).with_name("index.lock").write_text(""),
        lambda: next(history.path.glob(".git/worktrees/*/HEAD")).write_text("nonsense"),
        lambda: (tmp_path / "worktree" / ".git").unlink(),
        lambda: history.git("worktree", "remove", "--force", str(tmp_path / "worktree")),
    )
    for damage in damages:
        leave(first)
        damage()
        with open_worktree(repository, tmp_path) as there:
            there.check_out(second, roots)
            assert (tmp_path / "worktree" / "a").read_text() == "2"
            assert not (tmp_path / "worktree" / "b").exists()
        assert history.git("worktree", "list").count("\n") == 0


def test_a_worktree_of_the_user_whose_disk_is_not_there_is_not_forgotten(
    history: Any, tmp_path: Path
) -> None:
    first = history.commit("first", {"a": "1"})
    history.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "disk"))
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with open_worktree(Repository(history.path), tmp_path) as there:
        there.check_out(first, Roots(("",)))
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert history.git("worktree", "list").count("\n") == 1
    assert history.git("-C", str(tmp_path / "disk"), "status", "--porcelain") == ""


def test_two_bisections_of_one_repository(history: Any, tmp_path: Path) -> None:
    made = [history.commit(name, {"a": name}) for name in ("first", "second")]
    repository, roots = Repository(history.path), Roots(("",))
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    with open_worktree(repository, places[0]) as one:
        one.check_out(made[0], roots)
        with open_worktree(repository, places[1]) as other:
            other.check_out(made[1], roots)
        one.check_out(made[1], roots)
        assert (places[0] / "worktree" / "a").read_text() == "second"
    assert history.git("worktree", "list").count("\n") == 0


PARENT = """
import os, signal, sys
from gdnbench.workers import python_code
code = "import subprocess; subprocess.Popen(['sleep', '600'])"
code += "; os.write(int(sys.argv[1]), b'up'); signal.pause()"
os.set_inheritable(int(sys.argv[1]), True)
_popen = python_code.subprocess.Popen
def popen(*arguments, pass_fds, **options):
    return _popen(*arguments, pass_fds=(*pass_fds, int(sys.argv[1])), **options)
python_code.subprocess.Popen = popen
given = dict(folder=".", environment=os.environ, seconds=600)
python_code.run_python_code([sys.executable], code, [sys.argv[1]], **given)
"""


def test_what_runs_on_a_leash_ends_with_a_parent_that_is_killed() -> None:
    """A pipe that the process and what it started hold open ends when all of them have."""
    reader, writer = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(writer)], pass_fds=(writer,))
    os.close(writer)
    assert os.read(reader, 2) == b"up"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_leash_has_an_end() -> None:
    given: dict[str, Any] = {"folder": ".", "environment": os.environ}
    program = "print(sys.argv[1]); sys.exit(3)"
    done = python_code.run_python_code([sys.executable], program, ["word"], seconds=60, **given)
    assert (done.status, done.out) == (3, "word\n")
    with pytest.raises(TimeoutError):
        python_code.run_python_code([sys.executable], "signal.pause()", [], seconds=0.5, **given)
    program = "os.kill(os.getpid(), signal.SIGSEGV)"
    killed = python_code.run_python_code([sys.executable], program, [], seconds=60, **given)
    assert killed.status == -signal.SIGSEGV


def test_a_build_that_is_killed(history: Any, tmp_path: Path) -> None:
    first = history.commit("first", {"a": "1"})
    built = open_worktree(Repository(history.path), tmp_path, build="kill -9 $$")
    with (
        built as there,
        pytest.raises(BuildFailure, match=wording("bisect.build-failed", how="exit status 137")),
    ):
        there.check_out(first, Roots(("",)))


def test_a_revision_that_begins_with_a_dash(bisecting: Any, history: Any) -> None:
    made = bisecting.commits(history, *WORDS)
    for revision in ("--all", "-1", "", "HEAD^{tree}", "a\nb"):
        with pytest.raises(BadInputError, match=wording("bisect.commit-unknown")) as caught:
            bisecting(made[0], revision, Trial(str(bisecting.store), "pack.kernel:kernel"))
        assert "\n" not in str(caught.value)


def test_what_a_repository_says_does_nothing_to_a_terminal(
    bisecting: Any, history: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = bisecting.commits(history, "right")[0]
    files = {"pack/kernel.py": "# wrong 1\n", "pack/\x1b[2J.py": "", "pack/\u202egnp.py": "", "pack/a\nb": ""}
    for name, text in files.items():
        (history.path / name).write_text(text)
    history.git("add", "--all")
    subject, author = "\x1b]0;title\x07 \x9b31m \u202egood", "A\x1b[31m\x08B <a@\u2066example.org>"
    history.git("commit", "--quiet", "--author", author, "--message", subject)
    answer = bisecting(good, "main")
    assert found(answer) == history.git("rev-parse", "HEAD")
    session = Session.begin(tmp_path / "said", "commit", {}, print_progress)
    for line in bisecting.told:
        print_progress(line)
    with pytest.raises(typer.Exit):
        finish(session, answer.found, answer.lines, answer.exit_code, json=False)
    out, err = capsys.readouterr()
    for lines, count in ((out, len(answer.lines)), (err, len(bisecting.told))):
        assert len(lines.splitlines()) == count
        assert all(line.isprintable() for line in lines.splitlines())
    assert r"\x1b]0;title\x07 \x9b31m \u202egood" in out
    assert r"A\x1b[31m\x08B <a@\u2066example.org>" in out
