# SPDX-License-Identifier: Apache-2.0
"""Reads from a git repository and never changes it.

The repository is the user's own, which `--repo` names: its code is built and run, and git runs the filters of
files that its configuration names. `gdnbench.provenance` asks git about folders that may be anybody's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdnbench.errors import BadInputError, CannotRunError

# What git says of the repository that it calls somebody in, such as a hook: another one is asked here.
_LOCAL = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
# What a repository or its user may have configured and is not to act here: programs that git would run, an
# encoding other than that its output is read in, and files that it would leave out.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.sparseCheckout=false",
    "core.quotePath=false",
    "gc.auto=0",
    "i18n.logOutputEncoding=UTF-8",
)
LINK = "link"
"""The kind of a symbolic link, which to git is a file that holds where it leads."""


@dataclass(frozen=True, slots=True)
class Commit:
    hash: str
    subject: str
    author: str
    author_date: str
    parents: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.hash[:10]} {self.subject}"


UNSHALLOW = "history is cut off here, git fetch --unshallow brings the rest"


class GitError(Exception):
    """git failed; the message is its last error, in one line."""


def environment() -> dict[str, str]:
    """This process's environment without variables that tie git to another repository."""
    return {name: value for name, value in os.environ.items() if name not in _LOCAL}


def git(folder: Path, *arguments: str) -> str:
    """What `git ARGUMENTS` prints in `folder`, without its hooks. GitError, or CannotRunError without git."""
    done = _run(folder, arguments)
    if done.returncode:
        raise GitError(_said(done.stderr.decode(errors="replace")) or f"exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def _run(folder: Path, arguments: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env={**environment(), "LC_ALL": "C.UTF-8"},
            input=given,
            capture_output=True,
        )
    except FileNotFoundError:
        raise CannotRunError("there is no git here to ask; install it") from None


def _said(stderr: str) -> str:
    """git's error message without its hints."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("fatal: ", "error: "))]
    found = (wrong or lines or [""])[-1]
    if "dubious ownership" in found:
        return f"{found}; it is another user's, {lines[-1]} trusts it"
    return found


class Repository:
    """The repository that `path` lies in. BadInputError if it lies in none."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise BadInputError(f"--repo {path} is no folder")
        try:
            found = git(path, "rev-parse", "--path-format=absolute", "--git-common-dir")
        except GitError as error:
            raise BadInputError(f"--repo {path}: {error}") from None
        self.path = Path(found.removesuffix("\n"))
        self._here = ("--git-dir", str(self.path))  # what lies around it is not asked

    def git_output(self, *arguments: str) -> str:
        """stdout of `git ARGUMENTS` in this repository; errors as `git`."""
        return git(self.path, *self._here, *arguments)

    def commit(self, revision: str, option: str = "revision") -> Commit:
        """BadInputError names `option` if there is no such commit."""
        form = "--format=%H%x00%s%x00%an <%ae>%x00%aI%x00%P"
        try:
            name = self.git_output(
                "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
            ).strip()
            found = self.git_output("show", "--no-patch", "--no-show-signature", form, name)
        except GitError as error:
            more = f"; {UNSHALLOW}" if self.shallow() else ""
            raise BadInputError(f"{option} {revision!r} names no commit: {error}{more}") from None
        identity, subject, author, date, parents = found.strip("\n").split("\0")
        return Commit(identity, subject, author, date, tuple(parents.split()))

    def shallow(self) -> bool:
        """Whether the history is cut off, as `git clone --depth` leaves it."""
        return (self.path / "shallow").is_file()

    def candidates(self, bad: str, good: Sequence[str]) -> list[str]:
        """Commits that are ancestors of `bad` and of none of `good`, `bad` included. The commits that halve
        them best come first."""
        lines = self.git_output("rev-list", "--bisect-all", bad, "--not", *good).splitlines()
        return [line.split()[0] for line in lines]

    def history(self, bad: str, good: Sequence[str]) -> list[str]:
        """The same commits, parents first."""
        return self.git_output("rev-list", "--topo-order", "--reverse", bad, "--not", *good).split()

    def merge_bases(self, one: str, other: str) -> list[str]:
        """The merge bases of two commits; empty if their histories share nothing."""
        try:
            return self.git_output("merge-base", "--all", one, other).split()
        except GitError:
            return []

    def tree(self, revision: str, path: str = "") -> str | None:
        """The hash of the object at `path` (an empty path is the root), or None. Links inside the repository
        are followed."""
        try:
            return self.git_output("rev-parse", "--verify", "--quiet", f"{revision}:{path}").strip()
        except GitError:
            return self.target(revision, path)

    def target(self, revision: str, path: str) -> str | None:
        """The hash of the object at `path` with all links followed. None if it does not exist or a link
        leaves the repository."""
        if "\n" in path:
            return None
        found = _run(
            self.path,
            (*self._here, "cat-file", "--batch-check=%(objectname)", "--follow-symlinks"),
            f"{revision}:{path}\n".encode(),
        ).stdout.split()
        return found[0].decode() if len(found) == 1 else None

    def in_submodule(self, revision: str, path: str) -> bool:
        """Whether `path` is a submodule or in one: its files are another repository's."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        found = self.git_output("ls-tree", revision, "--", *above) if above else ""
        return any(line.startswith("160000 ") for line in found.splitlines())

    def names(self, tree: str) -> dict[str, tuple[str, str]]:
        """The entries of a tree by name: kind (blob, link, tree or commit) and hash. A file has none."""
        try:
            return self._listed("ls-tree", "-z", tree)
        except GitError:
            return {}

    def files(self, tree: str) -> dict[str, tuple[str, str]]:
        """All files below a tree by path: kind (blob, link or commit) and hash."""
        return self._listed("ls-tree", "-r", "-z", tree)

    def _listed(self, *arguments: str) -> dict[str, tuple[str, str]]:
        found = {}
        for line in filter(None, self.git_output(*arguments).split("\0")):
            about, _, name = line.partition("\t")
            mode, kind, identity = about.split()
            found[name] = (LINK if mode == "120000" else kind, identity)
        return found

    def blobs(self, identities: Sequence[str]) -> list[bytes]:
        """The contents of files by hash, read by one git process."""
        if not identities:
            return []
        done = _run(
            self.path,
            (*self._here, "cat-file", "--batch"),
            "".join(f"{one}\n" for one in identities).encode(),
        )
        if done.returncode:
            raise CannotRunError(f"git cat-file: {_said(done.stderr.decode(errors='replace'))}")
        data, at, found = done.stdout, 0, []
        for one in identities:
            end = data.index(b"\n", at)
            about = data[at:end].split()
            if len(about) != 3:
                raise CannotRunError(f"git has no object {one}; is this a partial clone?")
            size = int(about[2])
            found.append(data[end + 1 : end + 1 + size])
            at = end + 1 + size + 1
        return found

    def stat(self, commit: Commit) -> list[str]:
        """The diff stat against the first parent; for a commit without parents, of all its files."""
        out = self.git_output(
            "diff-tree",
            "--root",
            "--no-commit-id",
            "--stat=100",
            "-M",
            "-m",
            "--first-parent",
            "-r",
            commit.hash,
        )
        return [line for line in out.splitlines() if line.strip()]
