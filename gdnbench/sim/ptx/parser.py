"""PTX text -> `Module`: declarations, scopes and statements. Operands are parsed in operands.py."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import Place, PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.forms import REGISTER_TYPES, TYPES, VECTORS, Flow
from gdnbench.sim.ptx.functions import (
    BODY,
    EXTERNAL,
    FORMAL,
    FUNCTIONS,
    NONE,
    OTHER,
    RETURN,
    Call,
    Formal,
    Function,
    addresses,
    check_signature,
    copy_statement,
    read_call,
    read_function,
)
from gdnbench.sim.ptx.ir import (
    DYNAMIC,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Register,
    Target,
    Variable,
    Vector,
)
from gdnbench.sim.ptx.lexer import Token, tokenize
from gdnbench.sim.ptx.literals import literal_bits, width_of
from gdnbench.sim.ptx.operands import OperandParser, split_operands
from gdnbench.sim.ptx.scope import MAX_DEPTH, Cursor, Scope

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d{1,9})[ \t]+"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_LINKING = {".visible", ".weak", ".extern", ".common"}
_SPACE_WORDS = {".shared", ".global", ".const", ".local"}
_TRIPLES = {".reqntid", ".maxntid", ".reqnctapercluster"}
# Directives of an entry that affect a compiler, not the launch.
_IGNORED_ENTRY = {".noreturn": 0, ".explicitcluster": 0}


def parse(text: str) -> Module:
    """Parse a PTX file. Raises PtxSyntaxError for what is not PTX, UnsupportedError for unknown opcodes."""
    return _ModuleParser(text).parse()


# Limits on the memory that a text can make the parser allocate; no kernel exceeds them.
MAX_REGISTERS = 1 << 17
MAX_PLACED = 1 << 17  # instructions of a kernel with the functions that it calls
MAX_ALIGN = 1 << 16
MAX_VERSION = 20  # characters of an ISA version; Python converts no integer of more than 4,300 digits
# Limits on the bytes of a state space's variables (PTX ISA, "State Spaces"; CUDA Programming Guide,
# "Technical Specifications"). `machine.budget` checks shared memory. The global variables of a module are
# tables of a few KB; a GPU's limit on them is its memory.
MAX_BYTES = {"param": 32_764, "const": 64 << 10, "local": 512 << 10, "shared": 1 << 20, "global": 1 << 28}
# Registers of 128 bits are two of 64, and so are their moves, loads and stores.
WIDE, HALF = "b128", "b64"
_MOVED_IN_HALVES = ("mov", "ld", "ldu", "st")
_ELEMENTS = (("x", "r"), ("y", "g"), ("z", "b"), ("w", "a"))
MAX_SHOWN = 400  # characters of a line that an error or a finding shows


@dataclass(slots=True)
class _Space:
    """Assigns offsets to variables one after another, each aligned."""

    name: str
    size: int = 0

    def place(self, size: int, align: int, line: int) -> int:
        if align & (align - 1) or not 0 < align <= MAX_ALIGN:
            raise PtxSyntaxError(f"PTX line {line}: alignment {align} is no power of two up to {MAX_ALIGN}")
        offset = -(-self.size // align) * align
        self.size = offset + size
        self.check(self.size, line)
        return offset

    def check(self, size: int, line: int) -> None:
        """Raises PtxSyntaxError if the space cannot have so many bytes."""
        limit = MAX_BYTES[self.name]
        if size > limit:
            raise PtxSyntaxError(
                f"PTX line {line}: {size} bytes of {self.name} variables; the limit is {limit}"
            )


@dataclass(slots=True)
class _Raw:
    """An instruction whose labels are not yet resolved."""

    guard: tuple[bool, Token] | None
    opcode: Token
    operands: list[list[Token]]
    scope: Scope
    place: Place


class _ModuleParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = [_shown(line) for line in text.split("\n")]
        self.files = {int(number): name for number, name in _FILE.findall(text)}
        self.cursor = Cursor(tokenize(text))
        self.version = (0, 0)
        self.target = ""
        self.inline = _inline_asm(self.lines)
        self.kernels: dict[str, Kernel] = {}
        self.functions: dict[str, Function] = {}
        self.taken: dict[str, None] = {}  # the names of those whose address is taken
        self.entries: list[tuple[_BodyParser, int]] = []  # with the position of its `{`
        self.variables: list[Variable] = []
        self.spaces = {"global": _Space("global"), "const": _Space("const")}
        self.shared = _Space("shared")
        self.scope = Scope(None)

    def parse(self) -> Module:
        while not self.cursor.done():
            check_time()
            self._declaration()
        if self.functions:
            self._find_taken()
        for body, position in self.entries:  # now that all functions are known
            self.cursor.position = position
            self.kernels[body.name.text] = body.parse()
        return Module(self.version, self.target, self.kernels, tuple(self.variables), self.text)

    def _declaration(self) -> None:
        cursor = self.cursor
        token = cursor.next()
        while token.text in _LINKING:
            token = cursor.next()
        if token.text == ".version":
            self.version = self._version(cursor.next())
        elif token.text == ".target":
            self.target = cursor.next().text
            while cursor.accept(","):
                cursor.next()
        elif token.text == ".address_size":
            if cursor.next().text != "64":
                raise UnsupportedError("32-bit addresses", self._place(token.line))
        elif token.text in (".file", ".section"):
            self._skip_debug(token)
        elif token.text in _SPACE_WORDS:
            self._variable(token, self.scope, self.shared, None)
        elif token.text == ".entry":
            self._entry()
        elif token.text == ".func":
            self._function(token)
        elif token.text == ".pragma":
            cursor.until(";")
        else:
            raise PtxSyntaxError(f"PTX line {token.line}: {token.text!r} is no declaration")

    def _version(self, token: Token) -> tuple[int, int]:
        major, dot, minor = token.text.partition(".")
        if not (dot and major.isdigit() and minor.isdigit() and len(token.text) <= MAX_VERSION):
            raise PtxSyntaxError(f"PTX line {token.line}: {token.text!r} is no version")
        return int(major), int(minor)

    def _skip_debug(self, token: Token) -> None:
        if token.text == ".file":
            self.cursor.next()
            self.cursor.next()
            while self.cursor.accept(","):
                self.cursor.next()
            return
        self.cursor.next()
        self.cursor.expect("{")
        self.cursor.until("}")

    def _function(self, token: Token) -> None:
        """Remember a `.func`. A definition takes the place of its prototype."""
        function = read_function(self.cursor)
        known = self.functions.get(function.name.text)
        if known is not None and known.body is not None and function.body is not None:
            raise PtxSyntaxError(f"PTX line {token.line}: a second function {function.name.text}")
        if known is None:
            address = Immediate(FUNCTIONS + 16 * len(self.functions), function.name.text)
            self.scope.symbols.setdefault(function.name.text, address)
        if known is None or known.body is None:
            self.functions[function.name.text] = function

    def address_taken(self, name: str) -> int:
        """The address of a function, which may be called through a register."""
        self.taken[name] = None
        address = self.scope.symbols[name]
        assert isinstance(address, Immediate)
        return address.bits

    def _find_taken(self) -> None:
        """Note the functions whose addresses kernels and functions take by `mov`."""
        tokens = self.cursor.tokens
        for index, token in enumerate(tokens):
            if token.text in self.functions and tokens[index - 3].text.startswith("mov."):
                self.address_taken(token.text)

    def _place(self, line: int, loc: tuple[int, int] | None = None) -> Place:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if loc is None or loc[0] not in self.files:
            return Place(line, text)
        return Place(line, text, self.files[loc[0]], loc[1])

    def _variable(self, space: Token, scope: Scope, shared: _Space, local: _Space | None) -> Variable:
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
                raise UnsupportedError(f"{word.text} in a variable declaration", self._place(word.line))
        name = cursor.next()
        if not type_name:
            raise PtxSyntaxError(f"PTX line {name.line}: {name.text} has no type")
        block = {"shared": shared, "local": local, **self.spaces}[name_of_space]
        if block is None:
            raise UnsupportedError(f".local variable {name.text} outside of a kernel", self._place(name.line))
        element = width_of(type_name) // 8
        count, extern = vector, False
        while cursor.accept("["):
            if cursor.at("]"):
                extern, count = True, 0
            else:
                count *= cursor.integer()
                block.check(element * count, name.line)
            cursor.expect("]")
        init = self._initialiser(element, count, name) if cursor.accept("=") else None
        cursor.expect(";")
        size = element * count
        if extern and init is not None:
            size, extern = len(init), False
        if extern and name_of_space != "shared":
            raise UnsupportedError(f"extern {name_of_space} array {name.text}", self._place(name.line))
        align = element * vector if align is None else align
        offset = DYNAMIC if extern else block.place(size, align, name.line)
        variable = Variable(name.text, name_of_space, size, align, offset, init)
        scope.declare(name, variable)
        if scope is self.scope:
            self.variables.append(variable)
        return variable

    def _initialiser(self, element: int, count: int, name: Token) -> bytes:
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
                values.append(self.address_taken(token.text))
            else:
                raise UnsupportedError(f"initialiser {token.text!r} of {name.text}", self._place(token.line))
        data = b"".join(value.to_bytes(element, "little") for value in values)
        if count and len(data) > element * count:
            raise PtxSyntaxError(
                f"PTX line {name.line}: {len(values)} initial values for {name.text}[{count}]"
            )
        return data.ljust(element * count, b"\0")

    def _entry(self) -> None:
        cursor = self.cursor
        name = cursor.next()
        body = _BodyParser(self, name)
        if cursor.accept("("):
            while not cursor.accept(")"):
                body.parameter()
                cursor.accept(",")
        while not cursor.at("{"):
            body.entry_directive()
        if any(other.name.text == name.text for other, _ in self.entries):
            raise PtxSyntaxError(f"PTX line {name.line}: a second kernel {name.text}")
        self.entries.append((body, cursor.position))
        cursor.skip_block()


@dataclass(slots=True)
class _Limits:
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    maxnreg: int | None = None
    minnctapersm: int | None = None
    max_cluster: int | None = None


@dataclass(slots=True)
class _BodyParser:
    """The parameters, directives and body of one entry."""

    module: _ModuleParser
    name: Token
    params: list[Variable] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    raw: list[_Raw] = field(default_factory=list)
    limits: _Limits = field(default_factory=_Limits)
    param_space: _Space = field(default_factory=lambda: _Space("param"))
    shared: _Space = field(default_factory=lambda: _Space("shared"))
    local: _Space = field(default_factory=lambda: _Space("local"))
    scope: Scope = field(init=False)
    loc: tuple[int, int] | None = None
    calls: list[str] = field(default_factory=list)  # the functions that the current position is in

    def __post_init__(self) -> None:
        self.scope = Scope(self.module.scope)

    def parameter(self) -> None:
        """A parameter of the entry: `.param .align 8 .b8 name[8]`, `.param .u64 .ptr .global .align 16
        name`."""
        self.module.cursor.expect(".param")
        self.params.append(self._parameter(self.scope, self.param_space, "param"))

    def _parameter(self, scope: Scope, block: _Space, space: str) -> Variable:
        """A `.param` variable, after `.param`, as a variable of `space`."""
        cursor = self.module.cursor
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
        offset = block.place(size, align, token.line)
        array = array or vector > 1
        variable = Variable(name, space, size, align, offset, type=type_name, array=array, pointer=pointer)
        scope.declare(token, variable)
        return variable

    def entry_directive(self) -> None:
        cursor = self.module.cursor
        token = cursor.next()
        if token.text in _TRIPLES:
            numbers = [cursor.integer()]
            while cursor.accept(","):
                numbers.append(cursor.integer())
            x, y, z = (*numbers, 1, 1)[:3]
            field_name = "cluster" if token.text == ".reqnctapercluster" else token.text[1:]
            setattr(self.limits, field_name, (x, y, z))
        elif token.text == ".maxnreg":
            self.limits.maxnreg = cursor.integer()
        elif token.text == ".minnctapersm":
            self.limits.minnctapersm = cursor.integer()
        elif token.text == ".maxclusterrank":
            self.limits.max_cluster = cursor.integer()
        elif token.text == ".pragma":
            cursor.until(";")
        elif token.text in _IGNORED_ENTRY:
            for _ in range(_IGNORED_ENTRY[token.text]):
                cursor.next()
        else:
            raise UnsupportedError(f"entry directive {token.text}", self.module._place(token.line))

    def parse(self) -> Kernel:
        self.shared.size = self.module.shared.size
        self._block(self.scope)
        instructions = tuple(self._instruction(pc, raw) for pc, raw in enumerate(self.raw))
        limits = self.limits
        return Kernel(
            self.name.text,
            tuple(self.params),
            tuple(self.registers),
            tuple(self.variables),
            instructions,
            self.shared.size,
            self.local.size,
            limits.reqntid,
            limits.maxntid,
            limits.maxnreg,
            limits.minnctapersm,
            limits.cluster,
            limits.max_cluster,
        )

    def _block(self, scope: Scope, depth: int = 1) -> None:
        cursor = self.module.cursor
        if depth > MAX_DEPTH:
            raise PtxSyntaxError(f"PTX line {cursor.peek().line}: more than {MAX_DEPTH} scopes in each other")
        cursor.expect("{")
        while not cursor.accept("}"):
            check_time()
            token = cursor.peek()
            if token.text == "{":
                self._block(Scope(scope), depth + 1)
            elif token.text.startswith("."):
                self._directive(cursor.next(), scope)
            elif cursor.peek(1).text == ":" and token.kind == "word":
                if token.text in scope.labels:
                    raise PtxSyntaxError(f"PTX line {token.line}: a second label {token.text}")
                scope.labels[token.text] = len(self.raw)
                cursor.next()
                cursor.next()
                if cursor.accept(".branchtargets"):
                    names = split_operands(cursor.until(";"))
                    scope.tables[token.text] = ["".join(t.text for t in name) for name in names]
            else:
                self._statement(scope)

    def _directive(self, token: Token, scope: Scope) -> None:
        cursor = self.module.cursor
        if token.text == ".reg":
            self._registers(scope)
        elif token.text == ".loc":
            number, line = cursor.integer(), cursor.integer()
            cursor.next()
            while cursor.at(","):  # `, function_name $L, inlined_at file line column`
                cursor.next()
                cursor.next()
                while cursor.peek().kind == "number" or cursor.at("+"):
                    cursor.next()
                if cursor.peek().kind == "word" and cursor.peek().text.startswith("$"):
                    cursor.next()
                    if cursor.accept("+"):
                        cursor.next()
            if token.line not in self.module.inline:
                self.loc = (number, line)
        elif token.text == ".param":
            # An argument or a result of a call: memory of the thread, which is what .local is.
            self.variables.append(self._parameter(scope, self.local, "local"))
            cursor.expect(";")
        elif token.text in (".calltargets", ".callprototype"):
            cursor.until(";")
        elif token.text == ".shared" and self.calls:
            raise UnsupportedError("a .shared variable in a function", self.module._place(token.line))
        elif token.text in (".shared", ".local"):
            self.variables.append(self.module._variable(token, scope, self.shared, self.local))
        elif token.text in (".global", ".const"):
            self.module.variables.append(self.module._variable(token, scope, self.shared, self.local))
        elif token.text == ".pragma":
            cursor.until(";")
        else:
            raise UnsupportedError(f"directive {token.text}", self.module._place(token.line))

    def _registers(self, scope: Scope) -> None:
        """`.reg .b32 %r<15>;` declares %r0 to %r14; `.reg .pred p, q;` two. A register of 128 bits is a
        vector of two of 64."""
        cursor = self.module.cursor
        word = cursor.next()
        vector = VECTORS.get(word.text[1:], 1)
        if vector > 1:
            word = cursor.next()
        type_name = word.text[1:]
        if type_name not in REGISTER_TYPES or (vector > 1 and type_name in ("pred", WIDE)):
            raise UnsupportedError(f"registers of type {word.text}", self.module._place(word.line))
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
                self._register(scope, Token(name.kind, each, name.line), type_name, vector)
            if not cursor.accept(","):
                break
        cursor.expect(";")

    def _register(self, scope: Scope, name: Token, type_name: str, vector: int = 1) -> None:
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
            raise UnsupportedError(f"a vector of {vector} registers", self.module._place(name.line))
        parts = []
        for letter, color in _ELEMENTS[:vector]:
            part = Register(len(self.registers), f"{name.text}.{letter}", type_name)
            self.registers.append(part)
            scope.declare(Token(name.kind, part.name, name.line), part)
            scope.declare(Token(name.kind, f"{name.text}.{color}", name.line), part)
            parts.append(part)
        scope.declare(name, Vector(tuple(parts)))

    def _statement(self, scope: Scope) -> None:
        cursor = self.module.cursor
        guard = None
        if cursor.accept("@"):
            negated = cursor.accept("!")
            guard = (negated, cursor.next())
        opcode = cursor.next()
        tokens = cursor.until(";")
        place = self.module._place(opcode.line, self.loc)
        if opcode.text in ("call", "call.uni"):
            self._call(guard, opcode, tokens, scope, place)
        else:
            self._append(_Raw(guard, opcode, split_operands(tokens), scope, place))

    def _append(self, raw: _Raw) -> None:
        if self.calls and len(self.raw) >= MAX_PLACED:
            raise UnsupportedError(f"calls that make more than {MAX_PLACED:,} instructions", raw.place)
        self.raw.append(raw)

    # Calls. The body of the function takes the place of the call (`functions`).

    def _call(
        self, guard: tuple[bool, Token] | None, opcode: Token, tokens: list[Token], scope: Scope, place: Place
    ) -> None:
        call = read_call(tokens, place)
        name = call.name.text
        if isinstance(scope.find(name), Register):
            self._call_through(guard, opcode, call, scope, place)
            return
        function = self.module.functions.get(name)
        if function is None:
            raise PtxSyntaxError(f"no function {name} at {place}")
        check_signature(call, function, place)
        if function.body is None:
            self._call_external(guard, opcode, call, scope, place)
            return
        target = self._begin_call(guard, opcode, scope, place)
        self._put_function(function, function.body, call, scope, place)
        if guard is not None:
            target.labels[BODY] = len(self.raw)

    def _begin_call(
        self, guard: tuple[bool, Token] | None, opcode: Token, scope: Scope, place: Place
    ) -> Scope:
        """`call` itself, a branch to what follows. With a guard it branches past the body for the lanes that
        do not call: the caller sets the label `BODY` of the scope to there."""
        skip = None if guard is None else (not guard[0], guard[1])
        target = Scope(scope)
        self._append(_Raw(skip, opcode, [[Token("word", BODY, opcode.line)]], target, place))
        target.labels[BODY] = len(self.raw)
        return target

    def _put_function(
        self, function: Function, position: int, call: Call, scope: Scope, place: Place
    ) -> None:
        """The body of a function, after its arguments and before its results."""
        name = function.name.text
        if name in self.calls:
            raise UnsupportedError(f"recursion: a call of {name} inside of {name}", place)
        body = Scope(self.module.scope)
        taken = list(zip(function.parameters, call.arguments, strict=True))
        given = list(zip(function.results, call.results, strict=True))
        for formal, actual in (*taken, *given):
            self._declare(formal, actual, body, scope, place)
        for formal, actual in taken:
            self._copy(formal, actual, body, scope, place, back=False)
        self._put_body(position, name, body)
        for formal, actual in given:
            self._copy(formal, actual, body, scope, place, back=True)

    def _call_through(
        self, guard: tuple[bool, Token] | None, opcode: Token, call: Call, scope: Scope, place: Place
    ) -> None:
        """A call through a register: the bodies of all functions that it may mean, one after another. A lane
        executes the one whose address it has, and traps if it has none of their addresses."""
        taken = [self.module.functions[name] for name in self.module.taken]
        found = [function for function in taken if self._fits(function, call, scope)]
        if not found:
            what = (
                f"a call through register {call.name.text}, and no function that fits has its address taken"
            )
            raise UnsupportedError(what, place)
        target = self._begin_call(guard, opcode, scope, place)
        within = Scope(scope)
        none, other = (Token("word", name, opcode.line) for name in (NONE, OTHER))
        for flag in (none, other):
            self._register(within, flag, "pred")

        def emit(text: str, *operands: Token, under: Token | None = None, at: Scope = within) -> None:
            guarded = None if under is None else (False, under)
            code = Token("word", text, opcode.line)
            self._append(_Raw(guarded, code, [[operand] for operand in operands], at, place))

        addresses = [Token("word", function.name.text, opcode.line) for function in found]
        for number, address in enumerate(addresses):
            if number == 0:
                emit("setp.ne.b64", none, call.name, address)
            else:
                emit("setp.ne.and.b64", none, call.name, address, none)
        emit("trap", under=none)
        for function, address in zip(found, addresses, strict=True):
            assert function.body is not None
            around = Scope(within)
            emit("setp.ne.b64", other, call.name, address)
            emit("bra", Token("word", BODY, opcode.line), under=other, at=around)
            self._put_function(function, function.body, call, scope, place)
            around.labels[BODY] = len(self.raw)
        if guard is not None:
            target.labels[BODY] = len(self.raw)

    def _fits(self, function: Function, call: Call, scope: Scope) -> bool:
        """Whether a call has the arguments and results of a function, by their number and sizes."""
        pairs = ((function.parameters, call.arguments), (function.results, call.results))
        if function.body is None or any(len(formal) != len(given) for formal, given in pairs):
            return False
        cursor = self.module.cursor
        behind, sizes = cursor.position, []
        for formal, actual in (pair for formals, given in pairs for pair in zip(formals, given, strict=True)):
            variable = scope.find(actual[0].text)
            if formal.space == ".param" and isinstance(variable, Variable):
                cursor.position = formal.position
                formally = self._parameter(Scope(None), _Space("local"), "local")
                sizes.append((formally.size, variable.size))
        cursor.position = behind
        return all(formal == given for formal, given in sizes)

    def _put_body(self, position: int, name: str, body: Scope) -> None:
        """Parse the statements of a function at the current place."""
        cursor, loc = self.module.cursor, self.loc
        behind, cursor.position = cursor.position, position
        self.calls.append(name)
        self._block(body)
        self.calls.pop()
        cursor.position, self.loc = behind, loc
        body.labels[RETURN] = len(self.raw)

    def _declare(
        self, formal: Formal, actual: tuple[Token, ...], body: Scope, caller: Scope, place: Place
    ) -> None:
        """Declare a parameter or a result in the body. One in .param space is the caller's variable itself,
        if that is where the caller has it."""
        if formal.space == ".reg":
            self._register(body, formal.name, formal.type_name)
            return
        cursor = self.module.cursor
        behind, cursor.position = cursor.position, formal.position
        variable = caller.find(actual[0].text)
        if isinstance(variable, Variable) and variable.space == "local":
            formally = self._parameter(Scope(None), _Space("local"), "local")
            if formally.size > variable.size:
                sizes = f"{variable.name} of {variable.size} bytes for {formally.name} of {formally.size}"
                raise PtxSyntaxError(f"{sizes} at {place}")
            body.declare(formal.name, variable)
        else:
            self.variables.append(self._parameter(body, self.local, "local"))
        cursor.position = behind

    def _copy(
        self,
        formal: Formal,
        actual: tuple[Token, ...],
        body: Scope,
        caller: Scope,
        place: Place,
        *,
        back: bool,
    ) -> None:
        """Copy an argument to its parameter, or a result back, unless they are the same variable."""
        inside = body.symbols[formal.name.text]
        if caller.find(actual[0].text) is inside or (back and actual[0].text == "_"):
            return
        names = (Token("word", FORMAL, formal.name.line),)
        scope = Scope(caller, {FORMAL: inside})
        dest, source = (actual, names) if back else (names, actual)
        opcode, operands = copy_statement(scope, dest, source, formal.type_name)
        self._append(_Raw(None, Token("word", opcode, place.line), operands, scope, place))

    def _call_external(
        self, guard: tuple[bool, Token] | None, opcode: Token, call: Call, scope: Scope, place: Place
    ) -> None:
        """A call that the machine executes; its operands are the addresses of arguments and results."""
        name = call.name.text
        if name not in EXTERNAL:
            raise UnsupportedError(f"a call of {name}, which the PTX does not define", place)
        tokens = [operand[0] for operand in (*call.arguments, *call.results)]
        for token in tokens:
            if not isinstance(scope.find(token.text), Variable):
                raise UnsupportedError(f"a call of {name} with {token.text}, no .param variable", place)
        self._append(_Raw(guard, opcode._replace(text=f"call.{name}"), addresses(tokens), scope, place))

    def _own_memory(self, op: str, mods: tuple[str, ...], raw: _Raw) -> tuple[str, ...]:
        """The suffixes of a load or store: .param names .local where an argument of a call is accessed."""
        if op not in ("ld", "st") or not {"param", "param::func"} & {*mods}:
            return mods
        address = raw.operands[0 if op == "st" else 1] if len(raw.operands) > 1 else []
        variable = raw.scope.find(address[1].text) if len(address) > 1 else None
        if not isinstance(variable, Variable) or variable.space != "local":
            return mods
        return tuple("local" if mod in ("param", "param::func") else mod for mod in mods)

    def _instruction(self, pc: int, raw: _Raw) -> Instruction:
        check_time()
        op, suffixes = isa.split(raw.opcode.text)
        if not op:
            raise UnsupportedError(f"instruction {raw.opcode.text}", raw.place)
        try:
            mods, types, vec = isa.classify(suffixes)
            if op in _MOVED_IN_HALVES and types == (WIDE,) and vec == 1:
                types, vec = (HALF,), 2
            if foreign := isa.foreign(op, mods, self.module.target):
                name = op if foreign == op else f"{op}.{foreign}"
                raise UnsupportedError(f"{name} for .target {self.module.target}", raw.place)
            mods = self._own_memory(op, mods, raw)
            forms = isa.forms(op, mods, types, vec)
        except UnsupportedError as error:
            raise UnsupportedError(error.what, raw.place) from error
        guard = None
        if raw.guard is not None:
            register = raw.scope.register(raw.guard[1])
            if register.type != "pred":
                raise PtxSyntaxError(f"guard {register.name} is no predicate at {raw.place}")
            guard = Guard(register, raw.guard[0])
        shell = Instruction(pc, op, mods, types, vec, (), (), guard, raw.place, forms[0])
        dests, sources = OperandParser(shell, raw.scope).parse(raw.operands)
        form = isa.fitting(forms, sources)
        if form is None:
            raise UnsupportedError(f"{shell.name} with {len(sources)} sources, or of other kinds", raw.place)
        behind = raw.scope.label(RETURN)
        if op == "ret" and behind is not None:
            return replace(shell, sources=(Target(behind, RETURN),), form=replace(form, flow=Flow.BRANCH))
        return Instruction(pc, op, mods, types, vec, dests, sources, guard, raw.place, form)


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
