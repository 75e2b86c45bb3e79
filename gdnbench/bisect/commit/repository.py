"""A git repository, asked and never changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdnbench.errors import BadInputError, CannotRunError

# What git says of the repository that it calls somebody in, such as a hook: another one is asked here.
_LOCAL = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
)


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
    """git refused; what it said last, in one line."""


def environment() -> dict[str, str]:
    """This process' own, without what ties git to another repository."""
    return {name: value for name, value in os.environ.items() if name not in _LOCAL}


def git(folder: Path, *arguments: str) -> str:
    """What `git ARGUMENTS` prints in `folder`, without its hooks. GitError, or CannotRunError without git."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "core.quotePath=false"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise CannotRunError("there is no git here to ask; install it") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise GitError(said[-1])
    return done.stdout


class Repository:
    """The repository that `path` lies in. BadInputError if it lies in none."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise BadInputError(f"--repo {path} is no folder")
        try:
            self.path = Path(git(path, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
        except GitError as error:
            raise BadInputError(f"--repo {path}: {error}") from None

    def commit(self, revision: str, option: str = "revision") -> Commit:
        """BadInputError names `option` if there is no such commit."""
        form = "--format=%H%x00%s%x00%an <%ae>%x00%aI%x00%P"
        try:
            name = git(
                self.path, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
            ).strip()
            found = git(self.path, "show", "--no-patch", "--no-show-signature", form, name)
        except GitError as error:
            more = f"; {UNSHALLOW}" if self.shallow() else ""
            raise BadInputError(f"{option} {revision!r} names no commit: {error}{more}") from None
        identity, subject, author, date, parents = found.strip("\n").split("\0")
        return Commit(identity, subject, author, date, tuple(parents.split()))

    def shallow(self) -> bool:
        """Whether histories are cut off here, as `git clone --depth` leaves them."""
        return (self.path / "shallow").is_file()

    def candidates(self, bad: str, good: Sequence[str]) -> list[str]:
        """Commits that `bad` has and none of `good` has, those first that halve them best; `bad` is one."""
        lines = git(self.path, "rev-list", "--bisect-all", bad, "--not", *good).splitlines()
        return [line.split()[0] for line in lines]

    def history(self, bad: str, good: Sequence[str]) -> list[str]:
        """The same commits, parents first."""
        return git(self.path, "rev-list", "--topo-order", "--reverse", bad, "--not", *good).split()

    def merge_bases(self, one: str, other: str) -> list[str]:
        """Empty for histories that share nothing."""
        try:
            return git(self.path, "merge-base", "--all", one, other).split()
        except GitError:
            return []

    def tree(self, revision: str, path: str = "") -> str | None:
        """The hash of what is at `path` ("" is all), or None."""
        try:
            return git(self.path, "rev-parse", "--verify", "--quiet", f"{revision}:{path}").strip()
        except GitError:
            return None

    def in_submodule(self, revision: str, path: str) -> bool:
        """Whether `path` is a submodule or in one: its files are another repository's."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        found = git(self.path, "ls-tree", revision, "--", *above) if above else ""
        return any(line.startswith("160000 ") for line in found.splitlines())

    def names(self, tree: str) -> dict[str, tuple[str, str]]:
        """What is in a tree, by name: kind (blob, tree or commit) and hash."""
        found = {}
        for line in git(self.path, "ls-tree", "-z", tree).split("\0"):
            if line:
                about, _, name = line.partition("\t")
                _, kind, identity = about.split()
                found[name] = (kind, identity)
        return found

    def files(self, tree: str) -> dict[str, str]:
        """Hashes of all files below a tree, by path."""
        found = {}
        for line in git(self.path, "ls-tree", "-r", "-z", tree).split("\0"):
            if line:
                about, _, name = line.partition("\t")
                _, kind, identity = about.split()
                if kind == "blob":
                    found[name] = identity
        return found

    def blobs(self, identities: Sequence[str]) -> list[bytes]:
        """The contents of files by hash, all in one process."""
        if not identities:
            return []
        done = subprocess.run(
            ["git", "cat-file", "--batch"],
            cwd=self.path,
            env=environment(),
            input="".join(f"{one}\n" for one in identities).encode(),
            capture_output=True,
            check=True,
        )
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
        """The diff stat against the first parent, or of everything in a commit without one."""
        out = git(
            self.path,
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
