# SPDX-License-Identifier: Apache-2.0
"""Parses the operands of one instruction: which are written, and what each token means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.ir import (
    Address,
    Destination,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Source,
    Special,
    Symbol,
    Target,
    Targets,
    TensorAddress,
    Variable,
    Vector,
)
from gdnbench.sim.ptx.lexer import Token
from gdnbench.sim.ptx.literals import literal_bits
from gdnbench.sim.ptx.scope import Scope

_SCALAR_SPECIALS = """
    laneid warpid nwarpid smid nsmid gridid lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt
    clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi dynamic_smem_size total_smem_size
    aggr_smem_size is_explicit_cluster cluster_ctarank cluster_nctarank"""
_SPECIALS = frozenset(_SCALAR_SPECIALS.split()) | frozenset(
    f"{name}.{axis}"
    for name in (
        "tid",
        "ntid",
        "ctaid",
        "nctaid",
        "clusterid",
        "nclusterid",
        "cluster_ctaid",
        "cluster_nctaid",
    )
    for axis in "xyz"
)
WARP_SIZE = 32  # the constant WARP_SZ

# Immediates that are counts, masks, sizes or coordinates have 32 bits unless a literal needs more.
_OPEN_WIDTH = 32


def split_operands(tokens: list[Token]) -> list[list[Token]]:
    """Split at the commas outside brackets and braces."""
    operands: list[list[Token]] = []
    current: list[Token] = []
    depth = 0
    for token in tokens:
        if token.text == "," and depth == 0:
            operands.append(current)
            current = []
            continue
        depth += {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}.get(token.text, 0)
        current.append(token)
    if current:
        operands.append(current)
    return operands


@dataclass(slots=True)
class OperandParser:
    """Parses the operands of `ins`, whose opcode is already known."""

    ins: Instruction
    scope: Scope

    def parse(self, operands: list[list[Token]]) -> tuple[tuple[Destination, ...], tuple[Source, ...]]:
        count = self._destinations(operands)
        dests = tuple(self._destination(self._operand(tokens, None)) for tokens in operands[:count])
        sources = tuple(
            self._source(self._operand(tokens, index)) for index, tokens in enumerate(operands[count:])
        )
        return dests, sources

    def _destinations(self, operands: list[list[Token]]) -> int:
        dests = self.ins.form.dests
        if dests is None:
            first = operands[0] if operands else []
            return 0 if first and first[0].text == "[" else 1
        if len(operands) < dests:
            raise self._error(f"{self.ins.op} without its destination")
        return dests

    def _error(self, text: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"{text} at {self.ins.place}")

    def _destination(self, operand: Operand) -> Destination:
        if isinstance(operand, Vector):
            if all(isinstance(element, Register | Sink) for element in operand.elements):
                return operand
        elif isinstance(operand, Register | Sink | Pair):
            return operand
        raise self._error("the destination is no register")

    def _source(self, operand: Operand) -> Source:
        if isinstance(operand, Sink | Pair):
            raise self._error("`_` or a pair where a value is read")
        return operand

    def _operand(self, tokens: list[Token], index: int | None) -> Operand:
        if not tokens:
            raise self._error("an operand is missing")
        if self.ins.form.flow is Flow.BRANCH and (self.ins.op != "brx.idx" or index == 1):
            return self._target(tokens) if self.ins.op != "brx.idx" else self._targets(tokens)
        first, last = tokens[0].text, tokens[-1].text
        if (first == "[") != (last == "]") or (first == "{") != (last == "}"):
            raise self._error(f"unbalanced {first}")
        if first == "[":
            return self._address(tokens[1:-1])
        if first == "{":
            elements = tuple(self._element(part, index) for part in split_operands(tokens[1:-1]))
            if not elements:
                raise self._error("a vector without elements")
            return Vector(elements)
        if first == "!" and len(tokens) == 2:
            register = self.scope.register(tokens[1])
            if register.type != "pred":
                raise self._error(f"!{register.name} is no predicate")
            return Negated(register)
        texts = [token.text for token in tokens]
        if "|" in texts:
            bar = texts.index("|")
            return Pair(self._result(tokens[:bar]), self._result(tokens[bar + 1 :]))
        if len(tokens) == 1 and self._takes_vectors():
            vector = self.scope.find(first)
            if isinstance(vector, Vector):
                return vector
        return self._simple(tokens, index)

    def _takes_vectors(self) -> bool:
        """Whether the name of a vector of registers may be an operand."""
        ins = self.ins
        return (
            ins.vec > 1 or ins.op == "mov" or "b128" in ins.types or ins.form.aligned or ins.form.by_machine
        )

    def _result(self, tokens: list[Token]) -> Register | Sink:
        value = self._simple(tokens, None)
        if not isinstance(value, Register | Sink):
            raise self._error("a pair of results must be registers")
        return value

    def _element(self, tokens: list[Token], index: int | None) -> Register | Immediate | Special | Sink:
        value = self._simple(tokens, index)
        if isinstance(value, Symbol):
            raise UnsupportedError("a variable's address inside a vector operand", self.ins.place)
        return value

    def _target(self, tokens: list[Token]) -> Target:
        name = "".join(token.text for token in tokens)
        pc = self.scope.label(name) if len(tokens) == 1 else None
        if pc is None:
            raise self._error(f"unknown label {name}")
        return Target(pc, name)

    def _targets(self, tokens: list[Token]) -> Targets:
        """The labels of a table, which was declared before the branch."""
        name = "".join(token.text for token in tokens)
        table = self.scope.table(name)
        if table is None:
            raise self._error(f"unknown table {name}")
        return Targets(tuple(self._target([Token("word", label, tokens[0].line)]) for label in table), name)

    def _simple(
        self, tokens: list[Token], index: int | None
    ) -> Register | Immediate | Special | Symbol | Sink:
        if not tokens:
            raise self._error("an operand is missing")
        negative = tokens[0].text == "-" and len(tokens) == 2
        token = tokens[1] if negative else tokens[0]
        offset = tokens[1:]
        if negative and token.kind != "number":
            raise self._error(f"-{token.text} is no constant")
        if token.kind == "number":
            if len(tokens) > 1 + negative:
                raise self._error(f"unexpected {tokens[-1].text!r} after {token.text}")
            width = self._width(index)
            bits = literal_bits(token.text, negative, 64 if width is None else width, token.line)
            if width is None:
                bits = bits & 0xFFFF_FFFF if negative or bits < 1 << _OPEN_WIDTH else bits
            return Immediate(bits, ("-" if negative else "") + token.text)
        if token.text == "_":
            return Sink()
        if token.text == "WARP_SZ":
            return Immediate(WARP_SIZE, token.text)
        found = self.scope.find(token.text)
        if isinstance(found, Vector):
            raise self._error(f"the vector {token.text} where one register is expected")
        if isinstance(found, Register | Immediate) and not offset:
            return found
        if isinstance(found, Variable):
            return Symbol(found, self._offset(offset))
        if offset and not negative:
            raise self._error(f"unexpected {offset[0].text!r} after {token.text}")
        if token.text.startswith("%") and token.text[1:] in _SPECIALS:
            return Special(token.text[1:])
        if token.text.startswith("%"):
            raise UnsupportedError(f"register {token.text}", self.ins.place)
        raise self._error(f"{token.text} is not declared")

    def _offset(self, tokens: Iterable[Token]) -> int:
        offset, sign = 0, 1
        for token in tokens:
            if token.text in "+-":
                sign = -sign if token.text == "-" else sign
            elif token.kind == "number":
                offset += sign * literal_bits(token.text, False, 64, token.line)
                sign = 1
            else:
                raise self._error(f"{token.text!r} where an offset is expected")
        return offset

    def _address(self, tokens: list[Token]) -> Address | TensorAddress:
        parts = split_operands(tokens) or [[]]
        address = self._plain_address(parts[0])
        if len(parts) == 1:
            return address
        vector = self._operand(parts[1], None)
        if len(parts) != 2 or not isinstance(vector, Vector):
            raise self._error("expected [tensor map, {coordinates}]")
        coordinates: list[Register | Immediate] = []
        for element in vector.elements:
            if isinstance(element, Immediate):
                coordinates.append(Immediate(element.bits & 0xFFFF_FFFF, element.text))
            elif isinstance(element, Register):
                coordinates.append(element)
            else:
                raise self._error("a coordinate must be a register or a constant")
        return TensorAddress(address, tuple(coordinates))

    def _plain_address(self, tokens: list[Token]) -> Address:
        if not tokens:
            raise self._error("an address is missing")
        head = tokens[0]
        if head.kind == "number" or head.text == "-":
            return Address(None, self._offset(tokens))
        found = self.scope.find(head.text)
        if isinstance(found, Variable):
            return Address(Symbol(found), self._offset(tokens[1:]))
        register = self.scope.register(head)
        if register.bits not in (32, 64):
            raise self._error(f"an address in {register.name} of {register.bits} bits")
        return Address(register, self._offset(tokens[1:]))

    def _width(self, index: int | None) -> int | None:
        """Bits of an immediate in source position `index`; None if the opcode does not determine them."""
        widths = self.ins.form.widths
        return widths[index] if index is not None and index < len(widths) else None
