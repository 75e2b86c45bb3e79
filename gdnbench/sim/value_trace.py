# SPDX-License-Identifier: Apache-2.0
"""Value traces: which executions are selected, how a trace describes instructions, and the recorder protocol.

    class Printer:                                              # a `Recorder`; a `Watch` passes it on
        selection = Selection.parse("cta=3 class=store")
        def add_event(self, cta, warp, pc, occurrence, lanes, values): ...

An event has all 32 lanes; a lane that did not execute has the register's previous value.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import InputError
from gdnbench.sim.ptx.forms import Until
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Kernel, Negated, Register, Vector
from gdnbench.sim.ptx.register_formats import register_formats

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Launch

LANES = 32

LOAD, STORE, MATRIX, MOVE, ARITHMETIC, OTHER = "load", "store", "matrix", "move", "arithmetic", "other"
CLASSES = (LOAD, STORE, MATRIX, MOVE, ARITHMETIC, OTHER)
ALL = "all"
_CLASS_OF = {
    **dict.fromkeys(("ld", "ldu", "ldmatrix", "tcgen05.ld", "tcgen05.ld.red", "atom", "wmma.load"), LOAD),
    **dict.fromkeys(("st", "stmatrix", "tcgen05.st", "red", "st.async", "red.async", "wmma.store"), STORE),
    **dict.fromkeys(("mma", "wmma.mma"), MATRIX),
    **dict.fromkeys(("mov", "cvta", "movmatrix", "shfl", "selp"), MOVE),
    **dict.fromkeys(("elect", "activemask", "vote", "match", "bar.warp.sync", "isspacep"), OTHER),
}
_OTHER = ("mbarrier", "bar", "barrier", "cp", "fence", "tcgen05", "wgmma", "tensormap", "mapa", "getctarank")


def instruction_class(ins: Instruction) -> str:
    """One of `CLASSES`."""
    return _CLASS_OF.get(ins.op, OTHER if ins.op.partition(".")[0] in _OTHER else ARITHMETIC)


@dataclass(frozen=True, slots=True)
class Spans:
    """The numbers in text such as "0-3,7"."""

    spans: tuple[tuple[int, int], ...]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number <= last for first, last in self.spans)


def _numbers(text: str) -> Spans | None:
    return None if text == ALL else Spans(tuple(map(_span, text.split(","))))


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    span = int(first), int(last or first)
    if span[1] < span[0]:
        raise ValueError(text)
    return span


def _classes(text: str) -> frozenset[str]:
    found = frozenset(text.split(","))
    if not found <= set(CLASSES):
        raise ValueError(text)
    return found


def _source(text: str) -> tuple[str, int, int]:
    file, _, lines = text.rpartition(":")
    if not file:
        raise ValueError(text)
    return (file, *_span(lines))


_PARSERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "cta": lambda text: {"ctas": _numbers(text)},
    "warp": lambda text: {"warps": _numbers(text)},
    "class": lambda text: {"classes": _classes(text)},
    "lines": lambda text: {"lines": _span(text)},
    "source": lambda text: {"source": _source(text)},
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which executions are recorded: those of these CTAs and warps, None for all. `lines` is the first and
    last PTX line. `source` is the end of a Python file's path with its first and last line. `text` is what
    `parse` was given."""

    ctas: Container[int] | None
    warps: Container[int] | None = None
    classes: frozenset[str] | None = None
    lines: tuple[int, int] | None = None
    source: tuple[str, int, int] | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Parse "cta=0-3,7 warp=4 class=load,store lines=100-180 source=gemm.py:80-95". Without cta= only CTA
        0 is recorded; cta=all records every CTA, and "all" alone everything. Raises InputError."""
        given: dict[str, Any] = {"ctas": None if text.strip() == ALL else Spans(((0, 0),)), "text": text}
        for part in () if text.strip() == ALL else text.split():
            name, named, value = part.partition("=")
            try:
                if not named:
                    raise ValueError
                given |= _PARSERS[name](value)
            except (KeyError, ValueError):
                raise InputError(
                    f"{part!r} selects no values; write cta=0-3,7 warp=4 class=load,store lines=100-180"
                    f" source=FILE.py:80-95, cta=all, or all; classes are {', '.join(CLASSES)}"
                ) from None
        return cls(**given)

    def includes_cta(self, cta: int) -> bool:
        return self.ctas is None or cta in self.ctas

    def includes_warp(self, warp: int) -> bool:
        return self.warps is None or warp in self.warps

    def includes(self, ins: Instruction) -> bool:
        """Whether the selection includes `ins`, in the CTAs and warps that it includes."""
        place = ins.place
        if self.classes is not None and instruction_class(ins) not in self.classes:
            return False
        if self.lines is not None and not self.lines[0] <= place.line <= self.lines[1]:
            return False
        if self.source is not None:
            file, first, last = self.source
            if place.file is None or place.file_line is None or not place.file.endswith(file):
                return False
            return first <= place.file_line <= last
        return True


@dataclass(frozen=True, slots=True)
class TracedRegister:
    """`format` is the register's number format by `register_formats`."""

    index: int
    name: str
    bits: int
    format: str


@dataclass(frozen=True, slots=True)
class TracedInstruction:
    """One instruction of the kernel. `registers` are those whose values an event has: the results, or the
    stored registers of a store. `operands` are the inputs of the results in order: a register's index, or the
    bits of a constant as text. They leave out addresses; `addresses` has the base registers of those."""

    pc: int
    name: str
    kind: str
    line: int
    text: str
    file: str | None
    file_line: int | None
    registers: tuple[TracedRegister, ...]
    operands: tuple[int | str, ...]
    addresses: tuple[int, ...]
    recorded: bool


@dataclass(frozen=True, slots=True)
class Event:
    """One execution of an instruction by a warp. `occurrence` counts the executions of this instruction by
    this warp. `values` is uint64[registers, 32], zero-extended bits."""

    cta: int
    warp: int
    pc: int
    occurrence: int
    lanes: int
    values: npt.NDArray[np.uint64]


def traced_registers(ins: Instruction) -> tuple[Register, ...]:
    """The registers whose values an event of `ins` has. A wgmma has none: its results arrive with its
    wait."""
    if ins.form.until is Until.WGMMA_GROUP:
        return ()
    if instruction_class(ins) != STORE:
        return tuple(register for register in ins.written() if isinstance(register, Register))
    sources = [source for source in ins.sources if not isinstance(source, Address)]
    sources = sources[:1] if ins.form.fragment else sources  # not the stride
    return tuple(
        register for source in sources for register in _flat(source) if isinstance(register, Register)
    )


def _flat(operand: Any) -> Sequence[Any]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _operands(ins: Instruction) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for source in ins.sources:
        for one in _flat(source):
            if isinstance(one, Negated):
                one = one.register
            if isinstance(one, Register):
                found.append(one.index)
            elif isinstance(one, Immediate):
                found.append(f"{one.bits:#x}")
    return tuple(found)


def _addresses(ins: Instruction) -> tuple[int, ...]:
    found = [one.base for one in ins.sources if isinstance(one, Address)]
    return tuple(base.index for base in found if isinstance(base, Register))


def traced_instructions(kernel: Kernel, selection: Selection) -> list[TracedInstruction]:
    """All instructions of the kernel, in order."""
    formats = register_formats(kernel)
    return [_described(ins, formats, selection) for ins in kernel.instructions]


def _described(ins: Instruction, formats: dict[int, str], selection: Selection) -> TracedInstruction:
    registers = tuple(
        TracedRegister(register.index, register.name, register.bits, formats[register.index])
        for register in traced_registers(ins)
    )
    place = ins.place
    return TracedInstruction(
        ins.pc,
        ins.name,
        instruction_class(ins),
        place.line,
        place.text,
        place.file,
        place.file_line,
        registers,
        _operands(ins),
        _addresses(ins),
        bool(registers) and selection.includes(ins),
    )


class End(StrEnum):
    """How a recorded launch ended."""

    COMPLETE = "complete"
    FAULT = "fault"
    INTERRUPTED = "interrupted"


class Recorder(Protocol):
    """Receives the values of one launch that `selection` includes."""

    @property
    def selection(self) -> Selection: ...

    def begin_launch(self, launch: Launch, engine: str) -> None:
        """The launch begins; `engine` runs what is not recorded."""
        ...

    def add_event(
        self, cta: int, warp: int, pc: int, occurrence: int, lanes: int, values: npt.NDArray[np.uint64]
    ) -> None:
        """One execution, in the order of its warp; `Event` explains the arguments. Calls do not overlap."""
        ...

    def end_launch(self, how: End) -> None: ...
