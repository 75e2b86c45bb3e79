# SPDX-License-Identifier: Apache-2.0
"""The Python sessions of a page: what a reader types behind `>>> `, and what it prints."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.docs.session import Done, difference

_FENCE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_python(page: str, folder: Path) -> Iterator[Done]:
    """All `pycon` blocks of a page as one session in this process, in `folder`. `...` in what is printed
    stands for anything, and figures may differ, as in other sessions. An error prints its last line."""
    names: dict[str, object] = {"__name__": "__main__"}
    for match in _FENCE.finditer(page):
        first = page.count("\n", 0, match.start()) + 2
        for example in doctest.DocTestParser().get_examples(match[1]):
            begin = time.monotonic()
            printed = _printed(example.source, names, folder)
            wrong = difference(example.want, printed)
            command = example.source.strip()
            yield Done(first + example.lineno, command, printed, wrong, time.monotonic() - begin)


def _printed(source: str, names: dict[str, object], folder: Path) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(folder):
        try:
            exec(compile(source, "<page>", "single"), names)
        except Exception as error:
            out.write(traceback.format_exception_only(error)[-1])
    return out.getvalue()
