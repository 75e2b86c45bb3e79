# SPDX-License-Identifier: Apache-2.0
"""Decodes the wgmma instructions of a kernel and finds the moves of their registers.

PTX ISA 9.7.15.5.2, "wgmma.mma_async". Operands: d, a-desc or {a}, b-desc, scale-d, imm-scale-a, imm-scale-b,
and for 16-bit types imm-trans-a (only where A is in shared memory), imm-trans-b.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import RegisterList
from gdnbench.sim.ptx.forms import Until
from gdnbench.sim.ptx.ir import Immediate, Instruction, Kernel, Register, Source, Vector
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product

OP = "wgmma.mma_async"
M = 64
A_REGISTERS = 4
_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_FLOATS = ("f16", "bf16", "tf32", "e4m3", "e5m2")
_ONE, _MINUS_ONE = 1, 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One instruction: D[64, n] (+)= A[64, k] B[n, k]^T. `a` is None if A is in shared memory."""

    product: Product
    n: int
    d: RegisterList
    a: RegisterList | None
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool

    @property
    def shape(self) -> tuple[str, int, int]:
        """Products with equal shapes may use the same accumulators without a fence between them."""
        return self.product.d, self.n, self.product.k


Lists = dict[tuple[int, ...], RegisterList]


def form_of(ins: Instruction, lists: Lists) -> Form:
    """Decode an instruction. Raises UnsupportedError for a form that is not modelled, KernelFault for one
    that the ISA forbids. `lists` shares one list among equal registers."""
    shapes = [match for mod in ins.mods if (match := _SHAPE.fullmatch(mod))]
    if len(shapes) != 1 or len(ins.types) != 3 or ins.has("satfinite", "and", "popc"):
        raise UnsupportedError(ins.name, ins.place)
    d, a, b = ins.types
    if d not in ("f32", "f16") or a not in _FLOATS or b not in _FLOATS:
        raise UnsupportedError(ins.name, ins.place)
    n, k = (int(text) for text in shapes[0].groups())
    if n % 8 or not 8 <= n <= 256:
        raise UnsupportedError(ins.name, ins.place)
    try:
        product = Product(FORMATS[a], FORMATS[b], "f16" if d == "f16" else "f32", k, "wgmma")
    except UnsupportedError as error:
        raise UnsupportedError(error.what, ins.place) from error
    in_registers = isinstance(ins.sources[0], Vector)
    transposes = 0 if product.a.storage.itemsize != 2 else 1 if in_registers else 2
    if len(ins.sources) != 5 + transposes:
        raise UnsupportedError(f"{ins.name} with {len(ins.sources)} sources", ins.place)
    constants = [_constant(ins, source) for source in ins.sources[3:]]
    negate_a, negate_b = (_scale(ins, value) for value in constants[:2])
    majors = [_transpose(ins, value) for value in constants[2:]]
    return Form(
        product,
        n,
        _registers(ins, ins.written(), n // 2 if d == "f32" else n // 4, "D", lists),
        _registers(ins, ins.sources[0].elements, A_REGISTERS, "A", lists)
        if isinstance(ins.sources[0], Vector)
        else None,
        negate_a,
        negate_b,
        majors[0] if transposes == 2 else False,
        majors[-1] if transposes else False,
    )


def _check_operands(ins: Instruction) -> None:
    for source in ins.sources:
        if not isinstance(source, Immediate):
            raise UnsupportedError(f"{ins.name} with a register", ins.place)
        if source.bits >= 1 << 31:
            raise KernelFault(FaultKind.WGMMA, f"{ins.name}: fewer than 0 groups", ins.place)


def _constant(ins: Instruction, source: Source) -> int:
    if not isinstance(source, Immediate):
        raise UnsupportedError(f"{ins.name} with a register where a constant stands", ins.place)
    return source.bits & 0xFFFF_FFFF


def _scale(ins: Instruction, value: int) -> bool:
    if value not in (_ONE, _MINUS_ONE):
        raise KernelFault(FaultKind.WGMMA, f"{ins.name}: imm-scale is 1 or -1", ins.place)
    return value == _MINUS_ONE


def _transpose(ins: Instruction, value: int) -> bool:
    if value not in (0, 1):
        raise KernelFault(FaultKind.WGMMA, f"{ins.name}: imm-trans is 0 or 1", ins.place)
    return bool(value)


def _registers(
    ins: Instruction, found: Iterable[object], count: int, name: str, lists: Lists
) -> RegisterList:
    registers = tuple(found)
    chosen = tuple(r for r in registers if isinstance(r, Register) and r.bits == 32)
    if len(chosen) != len(registers) or len(registers) != count:
        raise UnsupportedError(f"{ins.name} with {len(registers)} registers for {name}", ins.place)
    if name == "D" and len({register.index for register in chosen}) != count:
        raise KernelFault(FaultKind.WGMMA, f"{ins.name}: a register stands twice in D", ins.place)
    return lists.setdefault(tuple(register.index for register in chosen), RegisterList(chosen))


@dataclass(frozen=True, slots=True)
class Forms:
    """All wgmma of a kernel. `named` are the registers of their A and D; `rows` maps a list to its rows in
    `named`.

    Compilers place moves anywhere: between a wgmma and its wait, or after the fence before it. ptxas
    preserves their meaning, so such moves are no mistake of the author. `moved_to` maps a register to its
    direct and indirect copies, `moves` are the registers that a `mov` writes, and `by_halves` are copies that
    a `mov` split into 16 bits or joined from them.
    """

    by_pc: dict[int, Form]
    named: RegisterList
    rows: dict[RegisterList, npt.NDArray[np.intp]]
    moved_to: dict[int, tuple[Register, ...]]
    moves: frozenset[int]
    by_halves: frozenset[int]

    @classmethod
    def collect(cls, kernel: Kernel) -> Forms:
        by_pc: dict[int, Form] = {}
        lists: Lists = {}
        for ins in kernel.instructions:
            if ins.form.until is Until.WGMMA_GROUP:
                by_pc[ins.pc] = form_of(ins, lists)
            elif ins.form.ends is Until.WGMMA_GROUP:
                _check_operands(ins)
        named: dict[int, Register] = {}
        for form in by_pc.values():
            for registers in (form.d, form.a):
                named.update({r.index: r for r in registers.registers} if registers else {})
        row = {index: number for number, index in enumerate(named)}
        copies, moves, split = _moves(kernel)
        moved_to = {index: found for index in named if (found := _reached(index, copies))}
        halves = {r.index for found in moved_to.values() for r in found if r.index in split}
        by_halves = {r.index for index in halves for r in _reached(index, copies)} | halves
        return cls(
            by_pc,
            RegisterList(tuple(named.values())),
            {found: np.array([row[index] for index in indices]) for indices, found in lists.items()},
            moved_to,
            frozenset(moves),
            frozenset(by_halves),
        )


def _moves(kernel: Kernel) -> tuple[dict[int, list[Register]], set[int], set[int]]:
    """(the registers that a mov copies each register into, all registers that a mov writes, the 16-bit ones
    among them)."""
    copies: dict[int, list[Register]] = {}
    moves: set[int] = set()
    halves: set[int] = set()
    for ins in kernel.instructions:
        if not ins.form.copies:
            continue
        written = [r for r in ins.written() if isinstance(r, Register)]
        moves.update(register.index for register in written)
        read = [
            r
            for source in ins.sources
            for r in (source.elements if isinstance(source, Vector) else (source,))
            if isinstance(r, Register)
        ]
        for source in read:
            copies.setdefault(source.index, []).extend(r for r in written if r.bits in (16, 32, 64))
            halves.update(r.index for r in written if r.bits == 16)
    return copies, moves, halves


def _reached(index: int, copies: dict[int, list[Register]]) -> tuple[Register, ...]:
    """All registers that moves may copy register `index` into, without itself."""
    found: dict[int, Register] = {}
    todo = [index]
    while todo:
        for register in copies.get(todo.pop(), ()):
            if register.index not in found and register.index != index:
                found[register.index] = register
                todo.append(register.index)
    return tuple(found.values())
