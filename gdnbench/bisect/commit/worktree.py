"""The files of one revision after another, in one folder; the user's own checkout is never touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gdnbench.bisect.commit.relevant import Roots
from gdnbench.bisect.commit.repository import GitError, Repository, environment, git
from gdnbench.bisect.session import alone
from gdnbench.errors import CannotRunError

BUILD_SECONDS = 7200.0


class BuildFailure(Exception):
    """A revision that cannot be built; why, in one line."""


class Worktree:
    """A git worktree in `folder`, made at the first `at`."""

    def __init__(self, repository: Repository, folder: Path, submodules: bool, build: str | None) -> None:
        self._repository = repository
        self._folder = folder.resolve() / "worktree"
        self._names = folder.resolve() / "packages"
        self._log = folder.resolve() / "build.log"
        self._submodules = submodules
        self._build = build
        self._revision = ""

    def at(self, revision: str, roots: Roots) -> None:
        """Every file as `revision` has it, nothing else, and built. BuildFailure if that fails."""
        if revision == self._revision:
            return
        self._revision = ""
        if not (self._folder / ".git").exists():
            self.remove()
            self._git(
                self._repository.path,
                "worktree",
                "add",
                "--force",
                "--detach",
                "--no-checkout",
                str(self._folder),
                revision,
            )
        self._git(self._folder, "checkout", "--quiet", "--force", "--detach", revision)
        self._git(self._folder, "clean", "-ffdxq")
        if self._submodules:
            try:
                git(self._folder, "submodule", "update", "--init", "--recursive", "--force", "--quiet")
            except GitError as error:
                raise BuildFailure(f"submodules: {error}") from None
        self._link(roots)
        if self._build is not None:
            self._run(self._build, self.environment(roots))
        self._revision = revision

    def folder(self, path: str) -> str:
        return str(self._folder / path)

    def environment(self, roots: Roots) -> Mapping[str, str]:
        """With the revision's own packages ahead of installed ones, whatever folder a process starts in."""
        before = [str(self._folder / folder) for folder in roots.folders]
        after = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {"PYTHONPATH": os.pathsep.join([*before, str(self._names), *after])}

    def remove(self) -> None:
        """The folder, and what git knows of it."""
        with contextlib.suppress(GitError):
            git(self._repository.path, "worktree", "remove", "--force", "--force", str(self._folder))
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._names, ignore_errors=True)
        with contextlib.suppress(GitError):
            git(self._repository.path, "worktree", "prune")

    def _link(self, roots: Roots) -> None:
        """Packages that lie under other names than they are imported by, where imports find them."""
        shutil.rmtree(self._names, ignore_errors=True)
        self._names.mkdir(parents=True)
        for name, folder in roots.renamed.items():
            (self._names / name).symlink_to(self._folder / folder, target_is_directory=True)

    def _git(self, folder: Path, *arguments: str) -> None:
        try:
            git(folder, *arguments)
        except GitError as error:
            raise CannotRunError(f"git {arguments[0]} failed in {folder}: {error}") from None

    def _run(self, command: str, added: Mapping[str, str]) -> None:
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self._folder,
                env={**environment(), **added},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = process.wait(BUILD_SECONDS)
            except subprocess.TimeoutExpired:
                raise BuildFailure(f"--build did not end within {BUILD_SECONDS:g} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            said = f": {lines[-1].strip()}" if lines else ""
            raise BuildFailure(f"--build ended by exit status {status}{said}")


@contextmanager
def worktree(
    repository: Repository, folder: Path, submodules: bool = False, build: str | None = None
) -> Iterator[Worktree]:
    """One for this process alone, removed in the end. BadInputError if another has it."""
    with alone(folder):
        found = Worktree(repository, folder, submodules, build)
        try:
            yield found
        finally:
            found.remove()
