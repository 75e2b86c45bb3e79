# SPDX-License-Identifier: Apache-2.0
"""The lines of a PTX text, for the places that errors and findings name."""

from __future__ import annotations

import re

from gdnbench.sim.errors import Place

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d{1,9})[ \t]+"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
MAX_SHOWN = 400  # characters of a line that an error or a finding shows


class SourceLines:
    """The lines of a text, the files that its `.file` directives number, and which lines are inline
    assembly."""

    def __init__(self, text: str) -> None:
        self.lines = [_shown(line) for line in text.split("\n")]
        self.files = {int(number): name for number, name in _FILE.findall(text)}
        self.inline_asm = _inline_asm(self.lines)

    def place(self, line: int, loc: tuple[int, int] | None = None) -> Place:
        """The place of a line of the PTX; `loc` is the last `.loc`: a file's number and a line in it."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if loc is None or loc[0] not in self.files:
            return Place(line, text)
        return Place(line, text, self.files[loc[0]], loc[1])


def _shown(line: str) -> str:
    """A line as errors and findings show it: every instruction has its line, and there may be thousands of
    instructions in a line of megabytes."""
    line = " ".join(line.split()) if "\t" in line else line.strip()
    return line if len(line) <= MAX_SHOWN else line[:MAX_SHOWN] + "..."


def _inline_asm(lines: list[str]) -> set[int]:
    """The lines of inline assembly. Inside it NVVM increments the `.loc` line for each line of the text, so
    only the first `.loc` is right."""
    found: set[int] = set()
    inside = False
    for number, line in enumerate(lines, 1):
        if line == "// begin inline asm":
            inside = True
        elif line == "// end inline asm":
            inside = False
        elif inside:
            found.add(number)
    return found
