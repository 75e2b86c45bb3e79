# SPDX-License-Identifier: Apache-2.0
"""What a PTX text declares outside of its kernels' bodies, and how variables and parameters are declared."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.forms import TYPES, VECTORS
from gdnbench.sim.ptx.functions import FUNCTIONS, Function
from gdnbench.sim.ptx.ir import DYNAMIC, Immediate, Variable
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.literals import literal_bits, width_of
from gdnbench.sim.ptx.scope import Cursor, Scope
from gdnbench.sim.ptx.source_lines import SourceLines

MAX_ALIGN = 1 << 16  # a limit on the memory that a text can make the parser allocate
# Limits on the bytes of a state space's variables (PTX ISA, "State Spaces"; CUDA Programming Guide,
# "Technical Specifications"). `machine.budget` checks shared memory. The global variables of a module are
# tables of a few KB; a GPU's limit on them is its memory.
MAX_BYTES = {"param": 32_764, "const": 64 << 10, "local": 512 << 10, "shared": 1 << 20, "global": 1 << 28}


@dataclass(slots=True)
class Space:
    """Assigns offsets to the variables of a state space one after another, each aligned."""

    name: str
    size: int = 0

    def allocate(self, size: int, align: int, line: int) -> int:
        """The offset of a variable of `size` bytes. Raises PtxSyntaxError if it cannot be there."""
        if align & (align - 1) or not 0 < align <= MAX_ALIGN:
            raise PtxSyntaxError(f"PTX line {line}: alignment {align} is no power of two up to {MAX_ALIGN}")
        offset = -(-self.size // align) * align
        self.size = offset + size
        self.check_size(self.size, line)
        return offset

    def check_size(self, size: int, line: int) -> None:
        """Raises PtxSyntaxError if the space cannot have so many bytes."""
        limit = MAX_BYTES[self.name]
        if size > limit:
            raise PtxSyntaxError(
                f"PTX line {line}: {size} bytes of {self.name} variables; the limit is {limit}"
            )


@dataclass(slots=True)
class Declarations:
    """What a module declares. `address_taken` has the names of the functions whose addresses the text
    takes, in order, as keys."""

    source: SourceLines
    cursor: Cursor
    version: tuple[int, int] = (0, 0)
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    address_taken: dict[str, None] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    shared: Space = field(default_factory=lambda: Space("shared"))
    scope: Scope = field(default_factory=lambda: Scope(None))
    spaces: dict[str, Space] = field(
        default_factory=lambda: {"global": Space("global"), "const": Space("const")}
    )

    def add_function(self, function: Function, line: int) -> None:
        """Declare a `.func`. A definition takes the place of its prototype."""
        known = self.functions.get(function.name.text)
        if known is not None and known.body is not None and function.body is not None:
            raise PtxSyntaxError(f"PTX line {line}: a second function {function.name.text}")
        if known is None:
            address = Immediate(FUNCTIONS + 16 * len(self.functions), function.name.text)
            self.scope.symbols.setdefault(function.name.text, address)
        if known is None or known.body is None:
            self.functions[function.name.text] = function

    def take_address(self, name: str) -> int:
        """The address of a function, which may be called through a register."""
        self.address_taken[name] = None
        address = self.scope.symbols[name]
        assert isinstance(address, Immediate)
        return address.bits

    def find_taken_addresses(self) -> None:
        """Note the functions whose addresses kernels and functions take by `mov`."""
        if not self.functions:
            return
        tokens = self.cursor.tokens
        for index, token in enumerate(tokens):
            if token.text in self.functions and tokens[index - 3].text.startswith("mov."):
                self.take_address(token.text)

    def read_variable(self, space: Token, scope: Scope, shared: Space, local: Space | None) -> Variable:
        """`.shared .align 16 .b8 name[64] = {...};` after its space."""
        cursor = self.cursor
        name_of_space = space.text[1:]
        align: int | None = None
        type_name, vector = "", 1
        while cursor.peek().text.startswith("."):
            word = cursor.next()
            if word.text == ".align":
                align = cursor.integer()
            elif word.text[1:] in VECTORS:
                vector = VECTORS[word.text[1:]]
            elif word.text[1:] in TYPES:
                type_name = word.text[1:]
            else:
                place = self.source.place(word.line)
                raise UnsupportedError(f"{word.text} in a variable declaration", place)
        name = cursor.next()
        if not type_name:
            raise PtxSyntaxError(f"PTX line {name.line}: {name.text} has no type")
        block = {"shared": shared, "local": local, **self.spaces}[name_of_space]
        if block is None:
            place = self.source.place(name.line)
            raise UnsupportedError(f".local variable {name.text} outside of a kernel", place)
        element = width_of(type_name) // 8
        count, extern = vector, False
        while cursor.accept("["):
            if cursor.at("]"):
                extern, count = True, 0
            else:
                count *= cursor.integer()
                block.check_size(element * count, name.line)
            cursor.expect("]")
        init = self._initialiser(element, count, name) if cursor.accept("=") else None
        cursor.expect(";")
        size = element * count
        if extern and init is not None:
            size, extern = len(init), False
        if extern and name_of_space != "shared":
            place = self.source.place(name.line)
            raise UnsupportedError(f"extern {name_of_space} array {name.text}", place)
        align = element * vector if align is None else align
        offset = DYNAMIC if extern else block.allocate(size, align, name.line)
        variable = Variable(name.text, name_of_space, size, align, offset, init)
        scope.declare(name, variable)
        if scope is self.scope:
            self.variables.append(variable)
        return variable

    def _initialiser(self, element: int, count: int, name: Token) -> bytes:
        """`{1, -2, function}` or `3` as the bytes of `count` elements of `element` bytes."""
        values: list[int] = []
        cursor = self.cursor
        sign = [cursor.next()] if cursor.at("-") else []
        tokens = cursor.balanced() if cursor.at("{") else [*sign, cursor.next()]
        negative = False
        for token in tokens:
            if token.text in ("{", "}", ","):
                continue
            if token.text == "-":
                negative = True
            elif token.kind == "number":
                values.append(literal_bits(token.text, negative, element * 8, token.line))
                negative = False
            elif token.text in self.functions and element == 8:
                values.append(self.take_address(token.text))
            else:
                place = self.source.place(token.line)
                raise UnsupportedError(f"initialiser {token.text!r} of {name.text}", place)
        data = b"".join(value.to_bytes(element, "little") for value in values)
        if count and len(data) > element * count:
            raise PtxSyntaxError(
                f"PTX line {name.line}: {len(values)} initial values for {name.text}[{count}]"
            )
        return data.ljust(element * count, b"\0")


def read_parameter(cursor: Cursor, scope: Scope, block: Space, space: str) -> Variable:
    """A `.param` variable, after `.param`, as a variable of `space`:
    `.align 8 .b8 name[8]`, `.u64 .ptr .global .align 16 name`."""
    align: int | None = None
    element, vector, type_name, pointer, array = 0, 1, "", False, False
    while cursor.peek().text.startswith("."):
        word = cursor.next().text
        if word == ".align":
            align = cursor.integer()
        elif word == ".ptr":
            pointer = True
            while cursor.peek().text.startswith("."):
                if cursor.next().text == ".align":
                    cursor.next()
        elif word[1:] in VECTORS:
            vector = VECTORS[word[1:]]
        elif word[1:] in TYPES:
            type_name = word[1:]
            element = width_of(type_name) // 8
    element *= vector
    token = cursor.next()
    name, size = token.text, element
    if element == 0:
        raise PtxSyntaxError(f"PTX line {token.line}: parameter {name} has no type")
    if cursor.accept("["):
        array = True
        size *= cursor.integer()
        cursor.expect("]")
    align = element if align is None else align
    offset = block.allocate(size, align, token.line)
    array = array or vector > 1
    variable = Variable(name, space, size, align, offset, type=type_name, array=array, pointer=pointer)
    scope.declare(token, variable)
    return variable
