# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, a store or a repository, as it may reach a terminal."""

from __future__ import annotations

import re

# Escape sequences of a terminal (ECMA-48, 5.4 to 5.6): control strings up to their end, such as a title;
# control sequences, such as a colour; and the others, of two characters.
_ESCAPES = re.compile(
    "\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|\x1b"
)


def without_escapes(text: str) -> str:
    """`text` without colours and other escape sequences of a terminal, for files."""
    return _ESCAPES.sub("", text)


def printable(text: object) -> str:
    """One line that does nothing to a terminal: what is not printable, line ends and directions of writing
    among it, as Python writes it between quotes."""
    found = str(text)
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in found)


def printable_lines(text: object) -> str:
    """Several lines, each as `printable` makes it; they end where `text` has a line feed and nowhere else."""
    return "\n".join(map(printable, str(text).split("\n")))
