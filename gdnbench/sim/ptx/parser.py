# SPDX-License-Identifier: Apache-2.0
"""PTX text -> `Module`: the declarations outside of the kernels.

`entry` parses a kernel and `calls` the calls in it, `declarations` has variables, `registers` registers,
`statements` makes instructions of statements, `operands` their operands.
"""

from __future__ import annotations

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.declarations import Declarations
from gdnbench.sim.ptx.entry import EntryParser
from gdnbench.sim.ptx.functions import read_function
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.lexer import Token, tokenize
from gdnbench.sim.ptx.scope import Cursor
from gdnbench.sim.ptx.source_lines import SourceLines

_LINKING = {".visible", ".weak", ".extern", ".common"}
_SPACE_WORDS = {".shared", ".global", ".const", ".local"}
MAX_VERSION = 20  # characters of an ISA version; Python converts no integer of more than 4,300 digits


def parse(text: str) -> Module:
    """Parse a PTX file. Raises PtxSyntaxError for what is not PTX, UnsupportedError for unknown opcodes."""
    declared = Declarations(SourceLines(text), Cursor(tokenize(text)))
    entries: list[EntryParser] = []
    while not declared.cursor.done():
        check_time()
        _declaration(declared, entries)
    declared.find_taken_addresses()
    kernels = {entry.name.text: entry.parse() for entry in entries}  # now that all functions are known
    return Module(declared.version, declared.target, kernels, tuple(declared.variables), text)


def _declaration(declared: Declarations, entries: list[EntryParser]) -> None:
    cursor = declared.cursor
    token = cursor.next()
    while token.text in _LINKING:
        token = cursor.next()
    if token.text == ".version":
        declared.version = _version(cursor.next())
    elif token.text == ".target":
        declared.target = cursor.next().text
        while cursor.accept(","):
            cursor.next()
    elif token.text == ".address_size":
        if cursor.next().text != "64":
            raise UnsupportedError("32-bit addresses", declared.source.place(token.line))
    elif token.text in (".file", ".section"):
        _skip_debug(cursor, token)
    elif token.text in _SPACE_WORDS:
        declared.read_variable(token, declared.scope, declared.shared, None)
    elif token.text == ".entry":
        entry = EntryParser(declared, cursor.next())
        entry.read_header()
        if any(other.name.text == entry.name.text for other in entries):
            raise PtxSyntaxError(f"PTX line {entry.name.line}: a second kernel {entry.name.text}")
        entries.append(entry)
    elif token.text == ".func":
        declared.add_function(read_function(cursor), token.line)
    elif token.text == ".pragma":
        cursor.until(";")
    else:
        raise PtxSyntaxError(f"PTX line {token.line}: {token.text!r} is no declaration")


def _version(token: Token) -> tuple[int, int]:
    major, dot, minor = token.text.partition(".")
    if not (dot and major.isdigit() and minor.isdigit() and len(token.text) <= MAX_VERSION):
        raise PtxSyntaxError(f"PTX line {token.line}: {token.text!r} is no version")
    return int(major), int(minor)


def _skip_debug(cursor: Cursor, token: Token) -> None:
    if token.text == ".file":
        cursor.next()
        cursor.next()
        while cursor.accept(","):
            cursor.next()
        return
    cursor.next()
    cursor.expect("{")
    cursor.until("}")
