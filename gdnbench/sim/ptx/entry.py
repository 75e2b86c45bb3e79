# SPDX-License-Identifier: Apache-2.0
"""An entry of a PTX text -> `Kernel`: its parameters, its directives and its body."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.calls import CallInliner
from gdnbench.sim.ptx.declarations import Declarations, Space, read_parameter
from gdnbench.sim.ptx.ir import Kernel, Variable
from gdnbench.sim.ptx.kernel_code import KernelCode
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.operands import split_operands
from gdnbench.sim.ptx.registers import RegisterList
from gdnbench.sim.ptx.scope import MAX_DEPTH, Cursor, Scope
from gdnbench.sim.ptx.statements import Statement, resolve_statement

_TRIPLES = {".reqntid", ".maxntid", ".reqnctapercluster"}
# Directives of an entry that affect a compiler, not the launch.
_IGNORED_ENTRY = {".noreturn": 0, ".explicitcluster": 0}


@dataclass(slots=True)
class _Limits:
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    maxnreg: int | None = None
    minnctapersm: int | None = None
    max_cluster: int | None = None


class EntryParser:
    """Parses one entry, in two steps: `read_header` when the module's parser meets it, `parse` once all
    functions of the module are known."""

    def __init__(self, declared: Declarations, name: Token) -> None:
        self.declared = declared
        self.cursor = declared.cursor
        self.name = name
        self.position = 0  # of the cursor at the body's `{`
        self.params: list[Variable] = []
        self.limits = _Limits()
        self.param_space, self.shared = Space("param"), Space("shared")
        self.scope = Scope(declared.scope)
        self.code = KernelCode(RegisterList(declared.source))
        self.calls = CallInliner(declared, self.code, self._block)

    def read_header(self) -> None:
        """Read the parameters and the directives, and skip the body."""
        cursor = self.cursor
        if cursor.accept("("):
            while not cursor.accept(")"):
                cursor.expect(".param")
                self.params.append(read_parameter(cursor, self.scope, self.param_space, "param"))
                cursor.accept(",")
        while not cursor.at("{"):
            self._entry_directive()
        self.position = cursor.position
        cursor.skip_block()

    def _entry_directive(self) -> None:
        cursor = self.cursor
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
            place = self.declared.source.place(token.line)
            raise UnsupportedError(f"entry directive {token.text}", place)

    def parse(self) -> Kernel:
        """Parse the body. Raises PtxSyntaxError and UnsupportedError."""
        self.cursor.position = self.position
        self.shared.size = self.declared.shared.size
        self._block(self.scope)
        code, limits = self.code, self.limits
        instructions = tuple(
            resolve_statement(pc, statement, self.declared.target)
            for pc, statement in enumerate(code.statements)
        )
        return Kernel(
            self.name.text,
            tuple(self.params),
            tuple(code.registers.registers),
            tuple(code.variables),
            instructions,
            self.shared.size,
            code.local.size,
            limits.reqntid,
            limits.maxntid,
            limits.maxnreg,
            limits.minnctapersm,
            limits.cluster,
            limits.max_cluster,
        )

    def _block(self, scope: Scope, depth: int = 1) -> None:
        cursor = self.cursor
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
                scope.labels[token.text] = self.code.pc
                cursor.next()
                cursor.next()
                if cursor.accept(".branchtargets"):
                    names = split_operands(cursor.until(";"))
                    scope.tables[token.text] = ["".join(t.text for t in name) for name in names]
            else:
                self._statement(scope)

    def _directive(self, token: Token, scope: Scope) -> None:
        declared, cursor, code = self.declared, self.cursor, self.code
        if token.text == ".reg":
            code.registers.read(cursor, scope)
        elif token.text == ".loc":
            loc = _read_loc(cursor)
            if token.line not in declared.source.inline_asm:
                code.loc = loc
        elif token.text == ".param":
            # An argument or a result of a call: memory of the thread, which is what .local is.
            code.variables.append(read_parameter(cursor, scope, code.local, "local"))
            cursor.expect(";")
        elif token.text in (".calltargets", ".callprototype"):
            cursor.until(";")
        elif token.text == ".shared" and code.inlining:
            raise UnsupportedError("a .shared variable in a function", declared.source.place(token.line))
        elif token.text in (".shared", ".local"):
            code.variables.append(declared.read_variable(token, scope, self.shared, code.local))
        elif token.text in (".global", ".const"):
            declared.variables.append(declared.read_variable(token, scope, self.shared, code.local))
        elif token.text == ".pragma":
            cursor.until(";")
        else:
            raise UnsupportedError(f"directive {token.text}", declared.source.place(token.line))

    def _statement(self, scope: Scope) -> None:
        cursor = self.cursor
        guard = None
        if cursor.accept("@"):
            negated = cursor.accept("!")
            guard = (negated, cursor.next())
        opcode = cursor.next()
        tokens = cursor.until(";")
        while tokens and tokens[0].kind == "word" and tokens[0].text.startswith("."):
            opcode = opcode._replace(
                text=opcode.text + tokens.pop(0).text
            )  # ptxas takes `ld .global.b32` too
        place = self.declared.source.place(opcode.line, self.code.loc)
        if opcode.text in ("call", "call.uni"):
            self.calls.inline(guard, opcode, tokens, scope, place)
        else:
            self.code.append(Statement(guard, opcode, split_operands(tokens), scope, place))


def _read_loc(cursor: Cursor) -> tuple[int, int]:
    """File and line of a `.loc`: `file line column, function_name $L, inlined_at file line column`."""
    loc = cursor.integer(), cursor.integer()
    cursor.next()
    while cursor.at(","):
        cursor.next()
        cursor.next()
        while cursor.peek().kind == "number" or cursor.at("+"):
            cursor.next()
        if cursor.peek().kind == "word" and cursor.peek().text.startswith("$"):
            cursor.next()
            if cursor.accept("+"):
                cursor.next()
    return loc
