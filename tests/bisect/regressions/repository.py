# SPDX-License-Identifier: Apache-2.0
"""The git repository: the package, and a commit for each edit, always by the same hashes."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.bisect.regressions.edits import Edit, Files
from tests.bisect.regressions.history import GOOD, HISTORY
from tests.bisect.regressions.package import first_files

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
AUTHORS = ("A. Uthor <a@example.org>", "C. Ommitter <c@example.org>")


def make(folder: Path) -> dict[str, str]:
    """Makes the repository in `folder`, which is new or empty. Commit hashes by tag."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    _git(folder, "init", "-q", "-b", "main", "--object-format=sha1")
    files: Files = {}
    first = Edit("Kernels of the server", lambda files: files.update(first_files()), GOOD)
    tags = {}
    for number, edit in enumerate((first, *HISTORY)):
        edit.change(files)
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")
        identity = _commit(folder, number, edit.subject)
        if edit.tag:
            _git(folder, "tag", edit.tag)
            tags[edit.tag] = identity
    return tags


def _commit(folder: Path, number: int, subject: str) -> str:
    author = AUTHORS[number % len(AUTHORS)]
    name, _, mail = author.rstrip(">").partition(" <")
    date = (START + timedelta(hours=7 * number)).isoformat()
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", mail), ("DATE", date))
    }
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", subject, **who)
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *arguments: str, **environment: str) -> str:
    """Without the user's configuration, which may sign, rewrite line ends or run hooks."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", *arguments],
        cwd=folder,
        env={**clean, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def check_out(repository: Path, revision: str, folder: Path) -> Path:
    """The files of a revision, in a folder of their own."""
    folder.mkdir()
    index = {"GIT_INDEX_FILE": str(folder.resolve() / ".git-index")}
    work_tree = f"--work-tree={folder.resolve()}"
    _git(repository, work_tree, "read-tree", revision, **index)
    _git(repository, work_tree, "checkout-index", "-a", **index)
    (folder / ".git-index").unlink()
    return folder
