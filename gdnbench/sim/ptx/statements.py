# SPDX-License-Identifier: Apache-2.0
"""Statements as the text has them, and the instructions that they are once all labels are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import Place, PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.functions import RETURN
from gdnbench.sim.ptx.ir import Address, Guard, Instruction, Register, Source, Target, Variable
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.operands import OperandParser
from gdnbench.sim.ptx.registers import HALF, WIDE
from gdnbench.sim.ptx.scope import Scope

_MOVED_IN_HALVES = ("mov", "ld", "ldu", "st")

GuardTokens = tuple[bool, Token] | None
"""`@!p` as whether there is a `!`, and the register."""


@dataclass(slots=True)
class Statement:
    """An instruction whose labels are not yet resolved."""

    guard: GuardTokens
    opcode: Token
    operands: list[list[Token]]
    scope: Scope
    place: Place


def resolve_statement(pc: int, statement: Statement, target: str) -> Instruction:
    """The instruction of a statement. `target` is the module's `.target`. Raises UnsupportedError for an
    instruction that the simulator does not know, PtxSyntaxError for operands that are wrong."""
    check_time()
    scope, place = statement.scope, statement.place
    op, suffixes = isa.split(statement.opcode.text)
    if not op:
        raise UnsupportedError(f"instruction {statement.opcode.text}", place)
    try:
        mods, types, vec = isa.classify(suffixes)
        if op in _MOVED_IN_HALVES and types == (WIDE,) and vec == 1:
            types, vec = (HALF,), 2
        if foreign := isa.foreign(op, mods, target):
            name = op if foreign == op else f"{op}.{foreign}"
            raise UnsupportedError(f"{name} for .target {target}", place)
        mods = _own_memory(op, mods, statement)
        forms = isa.forms(op, mods, types, vec)
    except UnsupportedError as error:
        raise UnsupportedError(error.what, place) from error
    guard = None
    if statement.guard is not None:
        register = scope.register(statement.guard[1])
        if register.type != "pred":
            raise PtxSyntaxError(f"guard {register.name} is no predicate at {place}")
        guard = Guard(register, statement.guard[0])
    shell = Instruction(pc, op, mods, types, vec, (), (), guard, place, forms[0])
    dests, sources = OperandParser(shell, scope).parse(statement.operands)
    if _row_in_shared_memory(shell, sources):
        mods = (*mods, "shared")
        forms = isa.forms(op, mods, types, vec)
    form = isa.fitting(forms, sources)
    if form is None:
        raise UnsupportedError(f"{shell.name} with {len(sources)} sources, or of other kinds", place)
    behind = scope.label(RETURN)
    if op == "ret" and behind is not None:
        return replace(shell, sources=(Target(behind, RETURN),), form=replace(form, flow=Flow.BRANCH))
    return Instruction(pc, op, mods, types, vec, dests, sources, guard, place, form)


def _row_in_shared_memory(ins: Instruction, sources: tuple[Source, ...]) -> bool:
    """Whether the address of a matrix row, without a state space, is one of shared memory: no register of 32
    bits holds a generic address, and ptxas takes the register's bits as a shared address, which an H100
    confirms. CuTe DSL 4.5 emits such stores."""
    return (
        ins.op in ("ldmatrix", "stmatrix")
        and not ins.has("shared", "shared::cta")
        and any(
            isinstance(source, Address) and isinstance(source.base, Register) and source.base.bits == 32
            for source in sources
        )
    )


def _own_memory(op: str, mods: tuple[str, ...], statement: Statement) -> tuple[str, ...]:
    """The suffixes of a load or store: .param names .local where an argument of a call is accessed."""
    if op not in ("ld", "st") or not {"param", "param::func"} & {*mods}:
        return mods
    operands = statement.operands
    address = operands[0 if op == "st" else 1] if len(operands) > 1 else []
    variable = statement.scope.find(address[1].text) if len(address) > 1 else None
    if not isinstance(variable, Variable) or variable.space != "local":
        return mods
    return tuple("local" if mod in ("param", "param::func") else mod for mod in mods)
