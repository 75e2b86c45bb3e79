# SPDX-License-Identifier: Apache-2.0
"""Functions and calls: the headers of `.func` and the operands of `call` (PTX ISA, "Function Declarations and
Definitions", "call").

The parser puts the body of a function where it is called, each time with registers and variables of its own.
So engines know no calls: `call` branches into the body and `ret` of a function behind it. A call through a
register has the bodies of all functions of its signature whose address the text takes. Arguments in .param
space are memory of the thread, which `.local` is too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdnbench.sim.errors import Place, PtxSyntaxError
from gdnbench.sim.ptx.forms import TYPES
from gdnbench.sim.ptx.ir import Variable
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.operands import split_operands
from gdnbench.sim.ptx.scope import Cursor, Scope

# Names that no text can declare.
RETURN = "(return)"
BODY = "(body)"
FORMAL = "(formal)"
NONE = "(no function)"
OTHER = "(another function)"

FUNCTIONS = 0x7F00_0000_0000_0000
"""Where the addresses of functions begin. No memory is there."""

EXTERNAL = ("vprintf", "__assertfail")
"""The functions of the CUDA driver that the machine executes (CUDA C++ Programming Guide, "Formatted
Output", "Assertion")."""


@dataclass(frozen=True, slots=True)
class Formal:
    """A parameter or a result of a function. `space` is .param or .reg; `position` that of the cursor behind
    the space, where the rest of the declaration stands."""

    space: str
    name: Token
    type_name: str
    position: int


@dataclass(frozen=True, slots=True)
class Function:
    """A `.func`. `body` is the cursor's position at its `{`; None for a prototype."""

    name: Token
    results: tuple[Formal, ...]
    parameters: tuple[Formal, ...]
    body: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """The operands of a `call`. An argument may be a sign and a number."""

    name: Token
    results: tuple[tuple[Token, ...], ...]
    arguments: tuple[tuple[Token, ...], ...]


def read_function(cursor: Cursor) -> Function:
    """Read a function after `.func` and leave the cursor behind it."""
    results = _formals(cursor) if cursor.at("(") else ()
    name = cursor.next()
    parameters = _formals(cursor) if cursor.at("(") else ()
    while not cursor.at("{") and not cursor.at(";"):
        cursor.next()
    if cursor.accept(";"):
        return Function(name, results, parameters, None)
    body = cursor.position
    cursor.skip_block()
    return Function(name, results, parameters, body)


def _formals(cursor: Cursor) -> tuple[Formal, ...]:
    """`(.param .b32 a, .param .align 8 .b8 b[16], .reg .u32 c)`."""
    found = []
    cursor.expect("(")
    while not cursor.accept(")"):
        space = cursor.next()
        if space.text not in (".param", ".reg"):
            raise PtxSyntaxError(f"PTX line {space.line}: {space.text!r} where a parameter is expected")
        position, type_name = cursor.position, ""
        while cursor.peek().text.startswith("."):
            word = cursor.next().text[1:]
            if word in TYPES:
                type_name = word
            elif word == "align":
                cursor.integer()
        name = cursor.next()
        if not type_name:
            raise PtxSyntaxError(f"PTX line {name.line}: parameter {name.text} has no type")
        if cursor.accept("["):
            cursor.until("]")
        cursor.accept(",")
        found.append(Formal(space.text, name, type_name, position))
    return tuple(found)


def read_call(tokens: list[Token], place: Place) -> Call:
    """`(results), name, (arguments)`; only the name must be there. The name in an indirect call is that of a
    register, and what follows the arguments there, a prototype or targets, is ignored."""
    parts = split_operands(tokens)
    results = _group(parts.pop(0)) if parts and parts[0][0].text == "(" else ()
    if not parts or len(parts[0]) != 1:
        raise PtxSyntaxError(f"call without a function at {place}")
    name = parts.pop(0)[0]
    arguments = _group(parts.pop(0)) if parts and parts[0][0].text == "(" else ()
    return Call(name, results, arguments)


def _group(tokens: list[Token]) -> tuple[tuple[Token, ...], ...]:
    return tuple(tuple(one) for one in split_operands(tokens[1:-1]))


def check_signature(call: Call, function: Function, place: Place) -> None:
    """Raises PtxSyntaxError unless the call has as many arguments and results as the function."""
    for what, given, formal in (
        ("arguments", call.arguments, function.parameters),
        ("results", call.results, function.results),
    ):
        if len(given) != len(formal):
            raise PtxSyntaxError(
                f"{call.name.text} has {len(formal)} {what}, the call has {len(given)} at {place}"
            )


def copy_statement(
    scope: Scope, dest: Iterable[Token], source: Iterable[Token], type_name: str
) -> tuple[str, list[list[Token]]]:
    """The opcode and operands that copy one of a variable, a register or a constant to a variable or a
    register."""
    to, of = list(dest), list(source)
    if isinstance(scope.find(to[0].text), Variable):
        return f"st.local.{type_name}", [_bracketed(to), of]
    if isinstance(scope.find(of[0].text), Variable):
        return f"ld.local.{type_name}", [to, _bracketed(of)]
    return f"mov.{type_name}", [to, of]


def _bracketed(tokens: list[Token]) -> list[Token]:
    line = tokens[0].line
    return [Token("mark", "[", line), *tokens, Token("mark", "]", line)]


def addresses(tokens: Iterable[Token]) -> list[list[Token]]:
    """Variables as memory operands."""
    return [_bracketed([token]) for token in tokens]
