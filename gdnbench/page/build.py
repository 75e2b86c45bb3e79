# SPDX-License-Identifier: Apache-2.0
"""Builds the page as one file, with its own script and style inline and a policy that blocks everything
else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from gdnbench.errors import BadInputError
from gdnbench.page.document import GRID_CHARACTERS, page_data, page_title
from gdnbench.page.embed import csp_hash, script_json
from gdnbench.printable import printable
from gdnbench.report.runs import Run
from gdnbench.whole_file import replace_text

STYLES = ("base", "parts", "charts", "shapes", "print")
MAIN = "main"

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|function|async|class)", re.MULTILINE)


def render_page(runs: Sequence[Run], title: str | None = None, grid_characters: int = GRID_CHARACTERS) -> str:
    """The HTML document for `runs`; deterministic.

    `title`: by default `page_title`. `grid_characters`: see `page_data`. BadInputError for no runs, or a run
    with invalid content.
    """
    if not runs:
        raise BadInputError("a report of no runs: name run stores, or files of replay --json")
    heading = page_title(runs) if title is None else title
    index, blocks = page_data(runs, heading, grid_characters)
    style = "\n".join(asset("style", f"{name}.css") for name in STYLES)
    script = script_of(MAIN)
    # The policy allows the inline script and style by digest, and blocks everything else.
    policy = (
        f"default-src 'none'; script-src {csp_hash(script)}; style-src {csp_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    values = {
        "policy": policy,
        "title": html.escape(printable(f"{heading} - gdnbench report" if title is None else title)),
        "style": style,
        "script": script,
        "index": script_json(index),
        "blocks": "\n".join(
            f'<script type="application/gzip" id="block-{number}">{block}</script>'
            for number, block in enumerate(blocks)
        ),
    }
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], asset("page.html"))


def write_page(runs: Sequence[Run], path: Path, title: str | None = None) -> None:
    """Write `render_page` to a file, atomically; BadInputError if it cannot be written."""
    text = render_page(runs, title)
    try:
        replace_text(path, text)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from None


def script_of(name: str) -> str:
    """The module `name` and its imports as one script, each module once and after its imports.

    They share one scope, so two modules must not use the same name for different things.
    """
    return "\n".join(_modules(name, set()))


def _modules(name: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    text = asset("script", f"{name}.js")
    for needed in _IMPORT.findall(text):
        if needed not in seen:
            yield from _modules(needed, seen)
    yield _EXPORT.sub("", _IMPORT.sub("", text))


def asset(*path: str) -> str:
    """The text of a file in `assets/`."""
    return files("gdnbench.page").joinpath("assets", *path).read_text(encoding="utf-8")
