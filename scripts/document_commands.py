#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/commands.md, the reference of all commands, from the command line itself.

    python scripts/document_commands.py             write it
    python scripts/document_commands.py --check     say which sections are stale; exit status 1 if any is

A command's text is its docstring, its options are its parameters and their help, the options of `synth` are
those of the operations. Only examples and the page to read on are written by hand, in
`gdnbench/cli/examples.py`; a command without an example is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.docs.page import page, sections

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    arguments = parser.parse_args()
    try:
        text = page()
    except ValueError as error:
        parser.error(str(error))
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    there = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    for name in stale(text, there):
        print(f"docs/commands.md: {name} is stale; run python scripts/document_commands.py", file=sys.stderr)
    return 0 if there == text else 1


def stale(text: str, there: str) -> list[str]:
    """Headings of the sections that differ between two versions of the page, or that only one has."""
    new, old = sections(text), sections(there)
    return [name for name in {**new, **old} if new.get(name) != old.get(name)]


if __name__ == "__main__":
    sys.exit(main())
