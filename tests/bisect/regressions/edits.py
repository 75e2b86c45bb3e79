# SPDX-License-Identifier: Apache-2.0
"""What a commit does to the files of a repository."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bisect.regressions.package import PACKAGE

Files = dict[str, str]
Change = Callable[[Files], None]


@dataclass(frozen=True, slots=True)
class Edit:
    """A commit. `tag`: what it is known by."""

    subject: str
    change: Change
    tag: str = ""


def module(name: str) -> str:
    return f"{PACKAGE}/{name}.py"


def write(path: str, text: str) -> Change:
    return lambda files: files.update({path: f"{text}\n"})


def replace(name: str, old: str, new: str) -> Change:
    """In module `name` of the package. ValueError where the old text is not there, or there twice."""
    return lambda files: files.update({module(name): once(files[module(name)], old, new)})


def once(text: str, old: str, new: str) -> str:
    if (count := text.count(old)) != 1:
        raise ValueError(f"{old!r}, which a commit replaces, is {count} times in its file, not once")
    return text.replace(old, new)
