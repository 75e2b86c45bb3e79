# SPDX-License-Identifier: Apache-2.0
"""What stdout is: a terminal of some width, with colours or without, or a pipe.

A pipe or file gets whole lines without colours. A terminal gets tables and sentences that fit its width, and
colours unless NO_COLOR is set (https://no-color.org) or TERM is `dumb`.
"""

from __future__ import annotations

import os
import re
import sys

from gdnbench.printable import printable
from gdnbench.tables import Style, wrapped

RESET = "\x1b[0m"
_CODES = {style: f"\x1b[{style.value}m" for style in Style}
_SPLIT = re.compile("(" + "|".join(map(re.escape, [RESET, *_CODES.values()])) + ")")
_COMMAND = re.compile(r"\s*(?:(?:repeat|and|again|next):\s+)?(?:gdnbench|python|pytest|git|pip)\s")
"""A line that is a command to paste, perhaps behind a label."""
INDENT = "  "


def stdout_width() -> int | None:
    """Columns of the terminal that stdout is; None if it is none."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return max(1, shutil.get_terminal_size().columns)


def has_colours() -> bool:
    """Whether stdout is a terminal that may be given colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: Style) -> str:
    return f"{_CODES[style]}{text}{RESET}"


def shown_line(line: str) -> str:
    """`line` as stdout gets it: `printable`, and on a terminal broken at spaces to fit its width. The colours
    that `painted` sets stay on a terminal that has colours. Commands to paste stay in one line."""
    if has_colours() and "\x1b" in line:
        parts = (part if _SPLIT.fullmatch(part) else printable(part) for part in _SPLIT.split(line))
        return "".join(parts) + ("" if line.endswith(RESET) else RESET)
    text = printable(line)
    width = stdout_width()
    if width is None or len(text) <= width // 2 or _COMMAND.match(text):
        return text
    lead = text[: len(text) - len(text.lstrip(" "))]
    return "\n".join(wrapped(text, width, lead + INDENT))
