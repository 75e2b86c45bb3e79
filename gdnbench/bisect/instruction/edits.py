# SPDX-License-Identifier: Apache-2.0
"""Finds what was edited between two versions of a kernel, from their source files alone.

A line table names the innermost function: code that a helper emits has the helper's line, not the caller's,
and code that a compiler merges has none. If a value cannot be tied to a statement, the edits are named
instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.diff.traces.statements import Source, Statement, pair

SHOWN = 5
"""Edits that are named; of more there is the count."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A statement that the versions do not have alike. `how`: "edited" or "added", as in the bad version, or
    "removed", as in the good one."""

    how: str
    file: str
    line: int
    function: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "file": self.file,
            "line": self.line,
            "function": self.function,
            "text": self.text,
        }


def edits(good_files: Iterable[str], bad_files: Iterable[str]) -> list[Edit]:
    """Of the files that only one version has at that path, and of the packages that they are in: what was
    compiled before is not imported again. By file and line."""
    before, after = set(good_files), set(bad_files)
    good, bad = _with_packages(before - after), _with_packages(after - before)
    same = good.keys() & bad.keys()
    same = {one for one in same if good[one].read_bytes() == bad[one].read_bytes()}
    was, now = (
        Source.of_files(sorted(str(path) for one, path in side.items() if one not in same))
        for side in (good, bad)
    )
    pairing = pair(was, now)
    kept = set(pairing.of.values())
    found = [_edit("removed", was, one) for one in _all(was) if one not in kept]
    found += [
        _edit("edited" if one in pairing.edited else "added", now, one)
        for one in _all(now)
        if one in pairing.edited or one not in pairing.of
    ]
    return sorted(found, key=lambda one: (one.file, one.line))


def _with_packages(files: Iterable[str]) -> dict[str, Path]:
    """Files by their names within the package that they are in, else by their own, with all others of it."""
    found: dict[str, Path] = {}
    for root in {_root(Path(file)) for file in files}:
        paths = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        found |= {str(path.relative_to(root.parent)): path for path in paths}
    return found


def _root(file: Path) -> Path:
    """The outermost package that a file is in, else the file."""
    found = file
    while (found.parent / "__init__.py").is_file():
        found = found.parent
    return found


def _all(source: Source) -> list[Statement]:
    return [one for statements in source.functions().values() for one in statements]


def _edit(how: str, source: Source, one: Statement) -> Edit:
    return Edit(how, one.file, one.line, one.function, source.line_text(one.file, one.line))
