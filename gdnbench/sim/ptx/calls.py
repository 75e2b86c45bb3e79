# SPDX-License-Identifier: Apache-2.0
"""Calls of functions: the body of the function takes the place of the call (`functions`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdnbench.sim.errors import Place, PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.declarations import Declarations, Space, read_parameter
from gdnbench.sim.ptx.functions import (
    BODY,
    EXTERNAL,
    FORMAL,
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
)
from gdnbench.sim.ptx.ir import Register, Variable
from gdnbench.sim.ptx.kernel_code import KernelCode
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.scope import Scope
from gdnbench.sim.ptx.statements import GuardTokens, Statement


@dataclass(frozen=True, slots=True)
class CallInliner:
    """Adds calls to `code`. `parse_block` parses the `{...}` at the cursor with the names of a scope."""

    declared: Declarations
    code: KernelCode
    parse_block: Callable[[Scope], None]

    def inline(
        self, guard: GuardTokens, opcode: Token, tokens: list[Token], scope: Scope, place: Place
    ) -> None:
        """A call whose operands are `tokens`."""
        call = read_call(tokens, place)
        name = call.name.text
        if isinstance(scope.find(name), Register):
            self._inline_indirect(guard, opcode, call, scope, place)
            return
        function = self.declared.functions.get(name)
        if function is None:
            raise PtxSyntaxError(f"no function {name} at {place}")
        check_signature(call, function, place)
        if function.body is None:
            self._call_external(guard, opcode, call, scope, place)
            return
        target = self._begin_call(guard, opcode, scope, place)
        self._inline_function(function, function.body, call, scope, place)
        if guard is not None:
            target.labels[BODY] = self.code.pc

    def _begin_call(self, guard: GuardTokens, opcode: Token, scope: Scope, place: Place) -> Scope:
        """`call` itself, a branch to what follows. With a guard it branches past the body for the lanes that
        do not call: the caller sets the label `BODY` of the scope to there."""
        skip = None if guard is None else (not guard[0], guard[1])
        target = Scope(scope)
        self.code.append(Statement(skip, opcode, [[Token("word", BODY, opcode.line)]], target, place))
        target.labels[BODY] = self.code.pc
        return target

    def _inline_function(
        self, function: Function, position: int, call: Call, scope: Scope, place: Place
    ) -> None:
        """The body of a function, after its arguments and before its results."""
        name = function.name.text
        if name in self.code.inlining:
            raise UnsupportedError(f"recursion: a call of {name} inside of {name}", place)
        body = Scope(self.declared.scope)
        arguments = list(zip(function.parameters, call.arguments, strict=True))
        results = list(zip(function.results, call.results, strict=True))
        for formal, actual in (*arguments, *results):
            self._declare_formal(formal, actual, body, scope, place)
        for formal, actual in arguments:
            self._copy(formal, actual, body, scope, place, back=False)
        self._parse_body(position, name, body)
        for formal, actual in results:
            self._copy(formal, actual, body, scope, place, back=True)

    def _inline_indirect(
        self, guard: GuardTokens, opcode: Token, call: Call, scope: Scope, place: Place
    ) -> None:
        """A call through a register: the bodies of all functions that it may mean, one after another. A lane
        executes the one whose address it has, and traps if it has none of their addresses."""
        functions = [self.declared.functions[name] for name in self.declared.address_taken]
        fitting = [function for function in functions if self._fits(function, call, scope)]
        if not fitting:
            what = (
                f"a call through register {call.name.text}, and no function that fits has its address taken"
            )
            raise UnsupportedError(what, place)
        target = self._begin_call(guard, opcode, scope, place)
        within = Scope(scope)
        none, other = (Token("word", name, opcode.line) for name in (NONE, OTHER))
        for flag in (none, other):
            self.code.registers.declare(within, flag, "pred")

        def emit(text: str, *operands: Token, under: Token | None = None, at: Scope = within) -> None:
            guarded = None if under is None else (False, under)
            code = Token("word", text, opcode.line)
            self.code.append(Statement(guarded, code, [[operand] for operand in operands], at, place))

        names = [Token("word", function.name.text, opcode.line) for function in fitting]
        for number, address in enumerate(names):
            if number == 0:
                emit("setp.ne.b64", none, call.name, address)
            else:
                emit("setp.ne.and.b64", none, call.name, address, none)
        emit("trap", under=none)
        for function, address in zip(fitting, names, strict=True):
            assert function.body is not None
            around = Scope(within)
            emit("setp.ne.b64", other, call.name, address)
            emit("bra", Token("word", BODY, opcode.line), under=other, at=around)
            self._inline_function(function, function.body, call, scope, place)
            around.labels[BODY] = self.code.pc
        if guard is not None:
            target.labels[BODY] = self.code.pc

    def _fits(self, function: Function, call: Call, scope: Scope) -> bool:
        """Whether a call has the arguments and results of a function, by their number and sizes."""
        pairs = ((function.parameters, call.arguments), (function.results, call.results))
        if function.body is None or any(len(formal) != len(given) for formal, given in pairs):
            return False
        cursor = self.declared.cursor
        behind, sizes = cursor.position, []
        for formal, actual in (pair for formals, given in pairs for pair in zip(formals, given, strict=True)):
            variable = scope.find(actual[0].text)
            if formal.space == ".param" and isinstance(variable, Variable):
                cursor.position = formal.position
                formally = read_parameter(cursor, Scope(None), Space("local"), "local")
                sizes.append((formally.size, variable.size))
        cursor.position = behind
        return all(formal == given for formal, given in sizes)

    def _parse_body(self, position: int, name: str, body: Scope) -> None:
        """Parse the statements of a function at the current place."""
        cursor, code = self.declared.cursor, self.code
        behind, cursor.position, loc = cursor.position, position, code.loc
        code.inlining.append(name)
        self.parse_block(body)
        code.inlining.pop()
        cursor.position, code.loc = behind, loc
        body.labels[RETURN] = code.pc

    def _declare_formal(
        self, formal: Formal, actual: tuple[Token, ...], body: Scope, caller: Scope, place: Place
    ) -> None:
        """Declare a parameter or a result in the body. One in .param space is the caller's variable itself,
        if that is where the caller has it."""
        if formal.space == ".reg":
            self.code.registers.declare(body, formal.name, formal.type_name)
            return
        cursor = self.declared.cursor
        behind, cursor.position = cursor.position, formal.position
        variable = caller.find(actual[0].text)
        if isinstance(variable, Variable) and variable.space == "local":
            formally = read_parameter(cursor, Scope(None), Space("local"), "local")
            if formally.size > variable.size:
                sizes = f"{variable.name} of {variable.size} bytes for {formally.name} of {formally.size}"
                raise PtxSyntaxError(f"{sizes} at {place}")
            body.declare(formal.name, variable)
        else:
            self.code.variables.append(read_parameter(cursor, body, self.code.local, "local"))
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
        self.code.append(Statement(None, Token("word", opcode, place.line), operands, scope, place))

    def _call_external(
        self, guard: GuardTokens, opcode: Token, call: Call, scope: Scope, place: Place
    ) -> None:
        """A call that the machine executes; its operands are the addresses of arguments and results."""
        name = call.name.text
        if name not in EXTERNAL:
            raise UnsupportedError(f"a call of {name}, which the PTX does not define", place)
        tokens = [operand[0] for operand in (*call.arguments, *call.results)]
        for token in tokens:
            if not isinstance(scope.find(token.text), Variable):
                raise UnsupportedError(f"a call of {name} with {token.text}, no .param variable", place)
        called = opcode._replace(text=f"call.{name}")
        self.code.append(Statement(guard, called, addresses(tokens), scope, place))
