# SPDX-License-Identifier: Apache-2.0
"""The kernels of a PTX text, found without parsing it: a file may hold kernels that the simulator refuses
beside the one that is wanted."""

from __future__ import annotations

import re

_HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', re.DOTALL)
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$%]+)")
_BRACE = re.compile(r"[{}]")


def entry_names(text: str) -> list[str]:
    """The names of the kernels, in order."""
    return [match[1] for match in _ENTRY.finditer(_without_comments(text))]


def keep_entry(text: str, entry: str) -> str:
    """The text with all kernels but `entry` blanked out. Every line keeps its number."""
    plain = _without_comments(text)
    kept, at = [], 0
    for match in _ENTRY.finditer(plain):
        if match.start() < at or match[1] == entry:
            continue
        end = _end_of_body(plain, match.end())
        kept += [text[at : match.start()], "\n" * text.count("\n", match.start(), end)]
        at = end
    return "".join([*kept, text[at:]])


def _end_of_body(text: str, at: int) -> int:
    """The index after the brace that closes the first one behind `at`."""
    depth = 0
    for match in _BRACE.finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _without_comments(text: str) -> str:
    """Comments and strings as blanks, so that indices stay."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
