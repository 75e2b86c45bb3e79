# SPDX-License-Identifier: Apache-2.0
"""PTX text as tokens, each with its line (PTX ISA, chapter 4, Syntax)."""

from __future__ import annotations

import re
from typing import NamedTuple

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import PtxSyntaxError

# An identifier includes dots and colons: `cp.async.bulk.shared::cta`, `.b32` and `%tid.x` are one token each.
_TOKEN = re.compile(
    r"""(?P<word>[.%$A-Za-z_](?:[A-Za-z0-9_$.]+|::|%)*)
      | (?P<mark>[\[\]{}()<>,;:@!|=+\-*])
      | (?P<space>[ \t\r\f]+|//[^\n]*)
      | (?P<newline>\n[ \t\r\f]*)
      | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
          |[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|[0-9]+U?)
      | (?P<comment>/\*.*?\*/)
      | (?P<string>"(?:[^"\\]|\\.)*")
    """,
    re.VERBOSE | re.DOTALL,
)


# `.reg.b32 a;` without a space, as cuda_fp16.h has it: two tokens.
_DIRECTIVE = re.compile(r"(\.(?:reg|shared|local|global|const|param))\.")

MAX_TOKEN = 1 << 14  # characters of a name or number, which errors quote; mangled names have some thousands
_CHECKED = 1 << 14  # characters between two looks at the clock


class Token(NamedTuple):
    """`kind` is word, number, string or mark."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """All tokens of `text` without comments. Raises PtxSyntaxError at the first character that starts no
    token."""
    tokens: list[Token] = []
    line, position, checked = 1, 0, 0
    while position < len(text):
        if position >= checked:
            check_time()
            checked = position + _CHECKED
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxSyntaxError(f"PTX line {line}: unexpected character {text[position]!r}")
        kind, found = match.lastgroup, match.group()
        assert kind is not None
        if kind == "newline":
            line += 1
        elif kind in ("comment", "string"):
            if kind == "string":
                tokens.append(Token(kind, found, line))
            line += found.count("\n")
        elif kind != "space":
            if len(found) > MAX_TOKEN:
                raise PtxSyntaxError(f"PTX line {line}: a {kind} of more than {MAX_TOKEN:,} characters")
            glued = _DIRECTIVE.match(found) if kind == "word" and found[0] == "." else None
            if glued is not None:
                tokens.append(Token(kind, glued.group(1), line))
                position += glued.end(1)
                continue
            tokens.append(Token(kind, found, line))
        position += len(found)
    return tokens
