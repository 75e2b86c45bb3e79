# SPDX-License-Identifier: Apache-2.0
"""Checks out one revision after another in one folder and never touches the user's own checkout."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gdnbench.bisect.commit.relevant import Roots
from gdnbench.bisect.commit.repository import GitError, Repository, environment, git
from gdnbench.bisect.session import lock_session
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.workers import python_code
from gdnbench.workers.process import describe_exit

BUILD_SECONDS = 7200.0
_BUILD = """
import subprocess
with open(sys.argv[2], "wb") as log:
    status = subprocess.call(sys.argv[1], shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
sys.exit(status if status >= 0 else 128 - status)
"""


class BuildFailure(Exception):
    """A revision that cannot be built; why, in one line."""


class Worktree:
    """A git worktree in `folder`, created by the first `check_out`."""

    def __init__(self, repository: Repository, folder: Path, submodules: bool, build: str | None) -> None:
        self._repository = repository
        self._folder = folder.resolve() / "worktree"
        self._names = folder.resolve() / "packages"
        self._log = folder.resolve() / "build.log"
        self._submodules = submodules
        self._build = build
        self._revision = ""

    def check_out(self, revision: str, roots: Roots) -> None:
        """Makes the files exactly those of `revision`, and builds. BuildFailure if `--build` fails,
        CannotRunError if the files cannot be checked out."""
        if revision == self._revision:
            return
        self._revision = ""
        try:
            self._check_out(revision)
        except GitError:  # as a process that was killed left it
            self.remove()
            try:
                self._repository.git_output(
                    *("worktree", "add", "--force", "--detach", "--no-checkout", str(self._folder), revision)
                )
                self._check_out(revision)
            except GitError as error:
                raise CannotRunError(f"{self._folder} cannot be checked out: {error}") from None
        if self._submodules:
            try:
                git(self._folder, "submodule", "update", "--init", "--recursive", "--force", "--quiet")
            except GitError as error:
                raise CannotRunError(f"submodules cannot be fetched: {error}") from None
        self._link(roots)
        if self._build is not None:
            self._run(self._build, self.environment(roots))
        self._revision = revision

    def _check_out(self, revision: str) -> None:
        """GitError if there is no worktree, or none that git can use."""
        if not (self._folder / ".git").exists():
            raise GitError("there is no worktree")
        git(self._folder, "checkout", "--quiet", "--force", "--detach", revision)
        git(self._folder, "clean", "-ffdxq")

    def folder(self, path: str) -> str:
        return str(self._folder / path)

    def environment(self, roots: Roots) -> Mapping[str, str]:
        """Environment variables that put the revision's packages before installed ones, in whatever folder a
        process starts."""
        before = [str(self._folder / folder) for folder in roots.folders]
        after = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {"PYTHONPATH": os.pathsep.join([*before, str(self._names), *after])}

    def remove(self) -> None:
        """Removes the folder and git's record of it. `git worktree prune` is not used: it would also forget
        worktrees of the user that are not mounted."""
        shutil.rmtree(self._names, ignore_errors=True)
        for _ in range(2):  # git refuses one whose .git is damaged, and forgets one that is gone
            with contextlib.suppress(GitError):
                self._repository.git_output("worktree", "remove", "--force", "--force", str(self._folder))
            shutil.rmtree(self._folder, ignore_errors=True)

    def _link(self, roots: Roots) -> None:
        """Links packages whose folder has another name than the package, so that imports find them."""
        shutil.rmtree(self._names, ignore_errors=True)
        self._names.mkdir(parents=True)
        for name, folder in roots.renamed.items():
            (self._names / name).symlink_to(self._folder / folder, target_is_directory=True)

    def _run(self, command: str, added: Mapping[str, str]) -> None:
        try:
            ended = python_code.run_python_code(
                [sys.executable, "-I"],
                _BUILD,
                [command, str(self._log)],
                folder=str(self._folder),
                environment={**environment(), **added},
                seconds=BUILD_SECONDS,
            )
        except TimeoutError:
            raise BuildFailure(f"--build did not end within {BUILD_SECONDS:g} s") from None
        if ended.status:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            said = f": {lines[-1].strip()}" if lines else ""
            raise BuildFailure(f"--build ended by {describe_exit(ended.status)}{said}")


@contextmanager
def open_worktree(
    repository: Repository, folder: Path, submodules: bool = False, build: str | None = None
) -> Iterator[Worktree]:
    """A worktree for this process alone, removed at the end. BadInputError if another process has it, or if
    the folder's name cannot stand in PYTHONPATH."""
    if os.pathsep in str(folder.resolve()):
        raise BadInputError(
            f"--state {folder} has a {os.pathsep} in its name, which PYTHONPATH cannot hold; give another"
        )
    with lock_session(folder):
        found = Worktree(repository, folder, submodules, build)
        try:
            yield found
        finally:
            found.remove()
