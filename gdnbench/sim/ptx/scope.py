# SPDX-License-Identifier: Apache-2.0
"""The parser's position in the tokens, and the names of a scope."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.errors import PtxSyntaxError
from gdnbench.sim.ptx.ir import Immediate, Register, Variable, Vector
from gdnbench.sim.ptx.lexer import Token

_END = Token("end", "", 0)

MAX_DEPTH = 200  # scopes in each other; no kernel has so many

# Digits of 2**64. Python converts no integer of more than 4,300 digits.
MAX_DIGITS = 20


@dataclass(slots=True)
class Cursor:
    """A position in a list of tokens."""

    tokens: list[Token]
    position: int = 0

    def done(self) -> bool:
        return self.position >= len(self.tokens)

    def peek(self, ahead: int = 0) -> Token:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else _END

    def next(self) -> Token:
        if self.done():
            line = self.tokens[-1].line if self.tokens else 1
            raise PtxSyntaxError(f"PTX line {line}: the text ends in the middle of a statement")
        self.position += 1
        return self.tokens[self.position - 1]

    def at(self, text: str) -> bool:
        return self.peek().text == text

    def integer(self) -> int:
        token = self.next()
        text = token.text.rstrip("U")
        if not text.isdigit():
            raise PtxSyntaxError(f"PTX line {token.line}: expected a number, found {token.text!r}")
        if len(text) > MAX_DIGITS:
            raise PtxSyntaxError(f"PTX line {token.line}: the integer {text} does not fit 64 bits")
        return int(text)

    def accept(self, text: str) -> bool:
        """Skip `text` if it is next and return whether it was."""
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        token = self.next()
        if token.text != text:
            raise PtxSyntaxError(f"PTX line {token.line}: expected {text!r}, found {token.text!r}")

    def until(self, text: str) -> list[Token]:
        """The tokens before the next `text`; skips `text`."""
        start = end = self.position
        tokens, count = self.tokens, len(self.tokens)
        while end < count and tokens[end].text != text:
            end += 1
        self.position = end
        self.next()  # `text`, unless the tokens end before
        return tokens[start:end]

    def balanced(self) -> list[Token]:
        """The tokens of a `{...}`, including nested braces."""
        taken, depth = [], 0
        while True:
            token = self.next()
            taken.append(token)
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0:
                return taken

    def skip_block(self) -> None:
        """Skip a `{...}`, including nested braces."""
        depth = 0
        tokens = self.tokens
        for position in range(self.position, len(tokens)):
            text = tokens[position].text
            if text == "{":
                depth += 1
                if depth > MAX_DEPTH:
                    line = tokens[position].line
                    raise PtxSyntaxError(f"PTX line {line}: more than {MAX_DEPTH} scopes in each other")
            elif text == "}":
                depth -= 1
            if depth == 0:
                self.position = position + 1
                return
        self.position = len(tokens)
        self.next()  # the text ends in the block


Meaning = Register | Variable | Vector | Immediate
"""An immediate is the address of a function."""


@dataclass(slots=True)
class Scope:
    """Names of one `{...}`: registers, vectors of registers, variables, labels with the pc that they mark,
    and tables of labels (`.branchtargets`)."""

    parent: Scope | None
    symbols: dict[str, Meaning] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)

    def declare(self, name: Token, meaning: Meaning) -> None:
        """Declare `name`, which must be new in this scope."""
        if name.text in self.symbols:
            raise PtxSyntaxError(f"PTX line {name.line}: {name.text} is declared twice")
        self.symbols[name.text] = meaning

    def find(self, name: str) -> Meaning | None:
        """The meaning of `name` in this or an enclosing scope."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.symbols:
                return scope.symbols[name]
            scope = scope.parent
        return None

    def label(self, name: str) -> int | None:
        """The pc of a label here or in an enclosing scope."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None

    def table(self, name: str) -> list[str] | None:
        """The labels of a table here or in an enclosing scope."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tables:
                return scope.tables[name]
            scope = scope.parent
        return None

    def register(self, token: Token) -> Register:
        found = self.find(token.text)
        if not isinstance(found, Register):
            raise PtxSyntaxError(f"PTX line {token.line}: {token.text} is no register")
        return found
