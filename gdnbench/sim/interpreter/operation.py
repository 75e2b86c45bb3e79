# SPDX-License-Identifier: Apache-2.0
"""What an instruction computes, separate from where its operands are, and how the two are joined.

An `Operation` defines an instruction: the types of its sources and results, and a function on arrays of 32
lanes. `bind` joins it to the operands of one instruction and gives a `Step`, the form that a warp executes.
Steps are made once for a kernel and run for any of its warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.interpreter.registers import WIDTHS, Array, RegisterFile, view
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values, Warp, window_of_variable
from gdnbench.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from gdnbench.sim.ptx.packed import Element, elements_of


class Thread(Protocol):
    """The state of one warp, as steps see it."""

    cta: Cta
    warp: Warp
    kernel: Kernel
    registers: RegisterFile
    carry: Array  # the carry flag CC.CF of each lane

    def skip(self, fault: KernelFault) -> None:
        """Record a fault of the instruction that runs, and return if the launch goes on after it."""
        ...

    def special(self, name: str) -> Values: ...


Step = Callable[[Thread, Lanes], None]
Fetch = Callable[[Thread], Array]
Write = Callable[[Thread, Lanes, Array], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """`compute(*sources) -> result`, or a tuple of results where `writes` names more than one."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    compute: Callable[..., Any]


def refuse(ins: Instruction) -> NoReturn:
    """The instruction is not one that the interpreter defines."""
    raise UnsupportedError(ins.name, ins.place)


def bits_kind(type_name: str) -> str:
    """The unsigned kind that holds the bits of a type: f16 u16, bf16x2 u32, b64 u64, pred pred."""
    if type_name == "pred":
        return "pred"
    name, _, count = type_name.partition("x")
    digits = int("".join(c for c in name.removeprefix("b").removeprefix("f") if c.isdigit()))
    return f"u{digits * int(count or 1)}"


def constant(bits: int, kind: str) -> Array:
    """A constant in all lanes."""
    return view(np.full(LANES, bits & 0xFFFF_FFFF_FFFF_FFFF, np.uint64), kind).copy()


def symbol_address(thread: Thread, symbol: Symbol) -> int:
    """The address of a variable in its own state space."""
    variable = symbol.variable
    if variable.space == "shared":
        return thread.cta.shared.first + thread.kernel.shared_offset(variable) + symbol.offset
    if variable.space in ("global", "const"):
        return thread.cta.memory.symbols[variable.name] + symbol.offset
    return variable.offset + symbol.offset


def fetch(ins: Instruction, operand: object, kind: str) -> Fetch:
    """How a scalar source operand is read as `kind`."""
    if isinstance(operand, Register):
        if (operand.type == "pred") != (kind == "pred"):
            raise UnsupportedError(f"{ins.name} of register {operand.name}, .{operand.type}", ins.place)
        index = operand.index
        return lambda thread: thread.registers.views[kind][index]
    if isinstance(operand, Immediate):
        value = constant(operand.bits, kind)
        return lambda thread: value
    if isinstance(operand, Special):
        name = operand.name
        return lambda thread: view(thread.special(name), kind)
    if isinstance(operand, Negated) and kind == "pred":
        index = operand.register.index
        return lambda thread: ~thread.registers.views["pred"][index]
    if isinstance(operand, Symbol):
        symbol = operand
        return lambda thread: constant(symbol_address(thread, symbol), kind)
    raise UnsupportedError(f"{ins.name} with such an operand", ins.place)


def fetch_address(ins: Instruction, address: Address) -> Fetch:
    """How the effective address of a memory operand is computed, as uint64[32]."""
    total = address.offset
    base = address.base
    if isinstance(base, Symbol):
        total += window_of_variable(ins, base.variable)
    offset = np.uint64(total & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(base, Register):
        index = base.index
        if base.bits == 64:
            return lambda thread: thread.registers.bits[index] + offset
        # A 32-bit base reaches 4 GiB of its state space and wraps there.
        low = np.uint64(0xFFFF_FFFF)
        return lambda thread: (thread.registers.bits[index] + offset) & low
    if base is None:
        value = np.full(LANES, offset, np.uint64)
        return lambda thread: value
    symbol = base
    return lambda thread: np.full(LANES, symbol_address(thread, symbol), np.uint64) + offset


def read_registers(operands: Sequence[object]) -> tuple[int, ...]:
    """Registers that the operands read, each once."""
    found: dict[int, None] = {}
    for operand in operands:
        if isinstance(operand, Register):
            found[operand.index] = None
        elif isinstance(operand, Negated):
            found[operand.register.index] = None
        elif isinstance(operand, Address) and isinstance(operand.base, Register):
            found[operand.base.index] = None
        elif isinstance(operand, Vector):
            found.update(dict.fromkeys(read_registers(operand.elements)))
    return tuple(found)


def require(thread: Thread, indices: Sequence[int], lanes: Lanes) -> None:
    """Fault if a lane uses a register without a value."""
    registers = thread.registers
    for index in indices:
        if not registers.clean[index]:
            registers.require(index, lanes)


def find_undefined(thread: Thread, indices: Sequence[int], lanes: Lanes) -> Lanes | None:
    """The lanes in which one of the registers has no value, so that what they compute from it is undefined;
    None if there are none."""
    registers = thread.registers
    found: Lanes | None = None
    for index in indices:
        if not registers.clean[index]:
            lacking = registers.undefined(index, lanes)
            if lacking.any():
                found = lacking if found is None else found | lacking
    return found


def mark_computed(thread: Thread, dests: Sequence[object], undefined: Lanes | None) -> None:
    """Note that these lanes computed the destinations, just written, from a register without a value."""
    if undefined is not None:
        for dest in dests:
            if isinstance(dest, Register):
                thread.registers.mark_computed(dest.index, undefined)


def _undefined_elements(
    thread: Thread, ins: Instruction, elements: Sequence[Element], lanes: Lanes
) -> Array | None:
    """By lane the mask of the bytes of the result that `ins` computes from bytes without a value; None if
    there are none."""
    registers = thread.registers
    found: Array | None = None
    for place, source in enumerate(ins.sources):
        if isinstance(source, Register) and not registers.clean[source.index]:
            lacking = registers.undefined_bytes(source.index, lanes)
            if not lacking.any():
                continue
            found = np.zeros(LANES, np.uint32) if found is None else found
            for element in elements:
                found[lacking & np.uint32(element.sources[place]) != 0] |= np.uint32(element.result)
    return found


def _discard(thread: Thread, lanes: Lanes, value: Array) -> None:
    """The write of `_`."""


def write(ins: Instruction, dest: object, kind: str) -> Write:
    """How a result of `kind` is written. A wider register gets it sign- or zero-extended (PTX ISA 9.4.1)."""
    if isinstance(dest, Sink):
        return _discard
    if not isinstance(dest, Register):
        raise UnsupportedError(f"{ins.name} with such a destination", ins.place)
    index, bits, target = dest.index, dest.bits, kind
    if bits < WIDTHS[kind]:
        raise UnsupportedError(f"{ins.name} into {dest.name} of {bits} bits", ins.place)
    if bits > WIDTHS[kind]:
        target = f"s{bits}" if kind in ("s8", "s16", "s32") else f"u{bits}"
        if kind.startswith("f") or "x" in kind:
            raise UnsupportedError(f"{ins.name} into {dest.name} of {bits} bits", ins.place)
    packed = "x" in kind

    def store(thread: Thread, lanes: Lanes, value: Array) -> None:
        registers = thread.registers
        where = lanes[:, None] if packed else lanes
        np.copyto(registers.views[target][index], value, where=where, casting="unsafe")
        if not registers.clean[index]:
            registers.mark(index, lanes)

    return store


def bind(ins: Instruction, operation: Operation) -> Step:
    """The step that reads the operands of `ins`, computes and writes."""
    if len(ins.sources) != len(operation.reads):
        raise UnsupportedError(f"{ins.name} with {len(ins.sources)} sources", ins.place)
    fetches = tuple(fetch(ins, s, kind) for s, kind in zip(ins.sources, operation.reads, strict=True))
    used = read_registers(ins.sources)
    compute = operation.compute
    dests = tuple(ins.written())
    if len(operation.writes) == 1 and len(dests) == 1:
        store = write(ins, dests[0], operation.writes[0])
        dest, elements = dests[0], elements_of(ins)
        if elements and isinstance(dest, Register):
            index = dest.index

            def by_element(thread: Thread, lanes: Lanes) -> None:
                lacking = _undefined_elements(thread, ins, elements, lanes)
                store(thread, lanes, compute(*[get(thread) for get in fetches]))
                if lacking is not None:
                    thread.registers.mark_computed_bytes(index, lacking)

            return by_element

        def single(thread: Thread, lanes: Lanes) -> None:
            undefined = find_undefined(thread, used, lanes)
            store(thread, lanes, compute(*[get(thread) for get in fetches]))
            if undefined is not None:
                mark_computed(thread, dests, undefined)

        return single
    if len(dests) > len(operation.writes):
        raise UnsupportedError(f"{ins.name} with {len(dests)} destinations", ins.place)
    stores = tuple(write(ins, d, kind) for d, kind in zip(dests, operation.writes, strict=False))

    def several(thread: Thread, lanes: Lanes) -> None:
        undefined = find_undefined(thread, used, lanes)
        results = compute(*[get(thread) for get in fetches])
        for put, result in zip(stores, results, strict=False):
            put(thread, lanes, result)
        mark_computed(thread, dests, undefined)

    return several
