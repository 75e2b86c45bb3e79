# SPDX-License-Identifier: Apache-2.0
"""The registers that a kernel declares."""

from __future__ import annotations

from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.forms import REGISTER_TYPES, VECTORS
from gdnbench.sim.ptx.ir import Register, Vector
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.scope import Cursor, Scope
from gdnbench.sim.ptx.source_lines import SourceLines

MAX_REGISTERS = 1 << 17  # a limit on the memory that a text can make the parser allocate
# Registers of 128 bits are two of 64, and so are their moves, loads and stores.
WIDE, HALF = "b128", "b64"
_ELEMENTS = (("x", "r"), ("y", "g"), ("z", "b"), ("w", "a"))


class RegisterList:
    """The registers of a kernel, in the order of their declarations."""

    def __init__(self, source: SourceLines) -> None:
        self.source = source
        self.registers: list[Register] = []

    def read(self, cursor: Cursor, scope: Scope) -> None:
        """`.reg .b32 %r<15>;` declares %r0 to %r14; `.reg .pred p, q;` two. A register of 128 bits is a
        vector of two of 64."""
        word = cursor.next()
        vector = VECTORS.get(word.text[1:], 1)
        if vector > 1:
            word = cursor.next()
        type_name = word.text[1:]
        if type_name not in REGISTER_TYPES or (vector > 1 and type_name in ("pred", WIDE)):
            raise UnsupportedError(f"registers of type {word.text}", self.source.place(word.line))
        if type_name == WIDE:
            type_name, vector = HALF, 2
        while True:
            name = cursor.next()
            names = [name.text]
            if cursor.accept("<"):
                count = cursor.integer()
                if len(self.registers) + count * vector > MAX_REGISTERS:
                    raise PtxSyntaxError(f"PTX line {name.line}: more than {MAX_REGISTERS} registers")
                names = [f"{name.text}{i}" for i in range(count)]
                cursor.expect(">")
            for each in names:
                self.declare(scope, Token(name.kind, each, name.line), type_name, vector)
            if not cursor.accept(","):
                break
        cursor.expect(";")

    def declare(self, scope: Scope, name: Token, type_name: str, vector: int = 1) -> None:
        """Declare a register, or a vector of them: its elements are name.x, .y, .z and .w, or .r, .g, .b and
        .a (PTX ISA, "Vectors as Operands")."""
        if len(self.registers) + vector > MAX_REGISTERS:
            raise PtxSyntaxError(f"PTX line {name.line}: more than {MAX_REGISTERS} registers")
        if vector == 1:
            register = Register(len(self.registers), name.text, type_name)
            self.registers.append(register)
            scope.declare(name, register)
            return
        if vector > len(_ELEMENTS):
            raise UnsupportedError(f"a vector of {vector} registers", self.source.place(name.line))
        parts = []
        for letter, color in _ELEMENTS[:vector]:
            part = Register(len(self.registers), f"{name.text}.{letter}", type_name)
            self.registers.append(part)
            scope.declare(Token(name.kind, part.name, name.line), part)
            scope.declare(Token(name.kind, f"{name.text}.{color}", name.line), part)
            parts.append(part)
        scope.declare(name, Vector(tuple(parts)))
