"""The values that chosen warps of a kernel compute, instruction by instruction, in a file.

    writer = TraceWriter(path, Selection(ctas=frozenset({3})))      # given to the simulator
    with read(path) as trace:
        for event in trace.events(): ...

The file is gzip: a line of JSON, which has every instruction of the kernel, then an event for each executed
one that was asked for, and last how many there are. An event is CTA, warp, pc, occurrence and lanes as five
little-endian 32-bit words, then 32 lanes of each register of `Instruction.registers`, each in the bytes of
its width. Lanes that did not execute hold what they held before.
"""

from __future__ import annotations

import gzip
import json
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.errors import BadInputError
from gdnbench.sim.ptx.ir import Address, Immediate, Instruction, Kernel, Negated, Register, Vector
from gdnbench.sim.ptx.register_formats import register_formats

FORMAT = "gdnbench value trace"
VERSION = 1
LANES = 32
MAX_EVENTS = 4_000_000
"""What a trace holds unless told: some 600 MB before compression."""

_HEAD = struct.Struct("<5I")
_END = 0xFFFFFFFF

LOAD, STORE, MATRIX, MOVE, ARITHMETIC, OTHER = "load", "store", "matrix", "move", "arithmetic", "other"
CLASSES = (LOAD, STORE, MATRIX, MOVE, ARITHMETIC, OTHER)
_CLASS_OF = {
    **dict.fromkeys(("ld", "ldu", "ldmatrix", "tcgen05.ld", "tcgen05.ld.red", "atom"), LOAD),
    **dict.fromkeys(("st", "stmatrix", "tcgen05.st", "red", "st.async", "red.async"), STORE),
    **dict.fromkeys(("mma",), MATRIX),
    **dict.fromkeys(("mov", "cvta", "movmatrix", "shfl", "selp"), MOVE),
    **dict.fromkeys(("elect", "activemask", "vote", "match", "bar.warp.sync", "isspacep"), OTHER),
}
_OTHER = ("mbarrier", "bar", "barrier", "cp", "fence", "tcgen05", "wgmma", "tensormap", "mapa", "getctarank")


def class_of(ins: Instruction) -> str:
    """One of `CLASSES`."""
    if ins.op in _CLASS_OF:
        return _CLASS_OF[ins.op]
    return OTHER if ins.op.partition(".")[0] in _OTHER else ARITHMETIC


def _numbers(text: str) -> frozenset[int]:
    """Of "0-3,7"."""
    spans = [_span(part) for part in text.split(",")]
    return frozenset(number for first, last in spans for number in range(first, last + 1))


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _classes(text: str) -> frozenset[str]:
    found = frozenset(text.split(","))
    if not found <= set(CLASSES):
        raise ValueError(text)
    return found


def _source(text: str) -> tuple[str, int, int]:
    file, _, lines = text.rpartition(":")
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
    """What is recorded: of these CTAs; None elsewhere is all. `lines`: the first and last line of the PTX,
    `source`: the end of a Python file's path, its first and its last line."""

    ctas: frozenset[int]
    warps: frozenset[int] | None = None
    classes: frozenset[str] | None = None
    lines: tuple[int, int] | None = None
    source: tuple[str, int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> Selection:
        """ "cta=0-3,7 warp=4 class=load,store lines=100-180 source=gemm.py:80-95": CTA 0 unless said."""
        given: dict[str, Any] = {"ctas": frozenset({0})}
        for part in text.split():
            name, named, value = part.partition("=")
            try:
                if not named:
                    raise ValueError
                given |= _PARSERS[name](value)
            except (KeyError, ValueError):
                raise BadInputError(
                    f"{part!r} selects no values; write cta=0-3,7 warp=4 class=load,store lines=100-180"
                    f" source=FILE.py:80-95; classes are {', '.join(CLASSES)}"
                ) from None
        return cls(**given)

    def takes(self, ins: Instruction) -> bool:
        """Whether executions of `ins` are recorded, by anybody who is asked for."""
        place = ins.place
        if self.classes is not None and class_of(ins) not in self.classes:
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
    """`format`: what it holds, as `register_formats` says."""

    index: int
    name: str
    bits: int
    format: str


@dataclass(frozen=True, slots=True)
class TracedInstruction:
    """One instruction of the kernel. `registers` are those whose values an event has: the results, or what a
    store stores. `operands` are what its results come from, in order: a register's index, or the bits of a
    constant as text; addresses are left out."""

    pc: int
    name: str
    kind: str
    line: int
    text: str
    file: str | None
    file_line: int | None
    registers: tuple[TracedRegister, ...]
    operands: tuple[int | str, ...]
    recorded: bool


@dataclass(frozen=True, slots=True)
class Event:
    """One execution of an instruction by a warp. `occurrence` counts those of this instruction in this warp.
    `values`: uint64[registers, 32], zero-extended bits."""

    cta: int
    warp: int
    pc: int
    occurrence: int
    lanes: int
    values: npt.NDArray[np.uint64]


def traced_registers(ins: Instruction) -> tuple[Register, ...]:
    """The registers that an event of `ins` has the values of; of a wgmma none, which come with its wait."""
    if ins.op.startswith("wgmma"):
        return ()
    if class_of(ins) != STORE:
        return tuple(register for register in ins.written() if isinstance(register, Register))
    sources = [source for source in ins.sources if not isinstance(source, Address)]
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


def _described(ins: Instruction, formats: dict[int, str], selection: Selection) -> TracedInstruction:
    registers = tuple(
        TracedRegister(register.index, register.name, register.bits, formats[register.index])
        for register in traced_registers(ins)
    )
    place = ins.place
    return TracedInstruction(
        ins.pc,
        ins.name,
        class_of(ins),
        place.line,
        place.text,
        place.file,
        place.file_line,
        registers,
        _operands(ins),
        bool(registers) and selection.takes(ins),
    )


def _dtype(bits: int) -> np.dtype[Any]:
    return np.dtype(f"<u{max(bits // 8, 1)}")


class TraceWriter:
    """Writes the trace of one launch. After `limit` events nothing more is recorded, and how much is left
    out is said. Safe to use from several threads."""

    def __init__(self, path: Path, selection: Selection, limit: int = MAX_EVENTS) -> None:
        self.selection = selection
        self.recorded = self.dropped = 0
        self._limit = limit
        self._path = path
        self._file: gzip.GzipFile | None = None
        self._occurrences: dict[tuple[int, int, int], int] = {}
        self._lock = threading.Lock()
        self._dtypes: dict[int, list[np.dtype[Any]]] = {}

    def begin(self, kernel: Kernel, grid: tuple[int, int, int]) -> None:
        """The launch begins. BadInputError if the file cannot be written."""
        formats = register_formats(kernel)
        described = [_described(ins, formats, self.selection) for ins in kernel.instructions]
        for one in described:
            self._dtypes[one.pc] = [_dtype(register.bits) for register in one.registers]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "entry": kernel.name,
            "grid": list(grid),
            "instructions": [asdict(one) for one in described],
        }
        try:
            self._file = gzip.GzipFile(self._path, "wb", compresslevel=1, mtime=0)
        except OSError as error:
            raise BadInputError(f"{self._path} cannot be written: {error.strerror}") from None
        self._file.write(json.dumps(header).encode() + b"\n")

    def add(self, cta: int, warp: int, pc: int, lanes: int, values: npt.NDArray[np.uint64]) -> None:
        """An execution, in the order of the warp's."""
        with self._lock:
            key = (cta, warp, pc)
            occurrence = self._occurrences.get(key, 0)
            self._occurrences[key] = occurrence + 1
            if self.recorded >= self._limit:
                self.dropped += 1
                return
            assert self._file is not None
            self.recorded += 1
            rows = zip(values, self._dtypes[pc], strict=True)
            data = b"".join(row.astype(dtype).tobytes() for row, dtype in rows)
            self._file.write(_HEAD.pack(cta, warp, pc, occurrence, lanes) + data)

    def end(self) -> None:
        """The launch has ended, whether well or not."""
        if self._file is None:
            return
        self._file.write(_HEAD.pack(0, 0, _END, 0, 0) + struct.pack("<2Q", self.recorded, self.dropped))
        self._file.close()
        self._file = None


@dataclass(slots=True)
class Trace:
    """A trace that is being read; `recorded` and `dropped` are known once all events have been."""

    entry: str
    grid: tuple[int, int, int]
    instructions: tuple[TracedInstruction, ...]
    recorded: int = 0
    dropped: int = 0
    _file: Any = field(default=None, repr=False)

    def events(self) -> Iterator[Event]:
        """In the order of execution, once. BadInputError for a file that ends before its end."""
        dtypes = {one.pc: [_dtype(register.bits) for register in one.registers] for one in self.instructions}
        while True:
            cta, warp, pc, occurrence, lanes = _HEAD.unpack(self._take(_HEAD.size))
            if pc == _END:
                self.recorded, self.dropped = struct.unpack("<2Q", self._take(16))
                return
            values = np.empty((len(dtypes[pc]), LANES), np.uint64)
            for row, dtype in zip(values, dtypes[pc], strict=True):
                row[:] = np.frombuffer(self._take(LANES * dtype.itemsize), dtype)
            yield Event(cta, warp, pc, occurrence, lanes, values)

    def _take(self, size: int) -> bytes:
        try:
            data: bytes = self._file.read(size)
        except (EOFError, OSError):
            data = b""
        if len(data) != size:
            raise BadInputError("a value trace ends in the middle: what wrote it did not end")
        return data


@contextmanager
def read(path: Path) -> Iterator[Trace]:
    """The trace in a file. BadInputError if it is none."""
    try:
        with gzip.open(path, "rb") as file:
            try:
                header = json.loads(file.readline())
                assert header["format"] == FORMAT
                assert header["version"] == VERSION
                instructions = tuple(_instruction(one) for one in header["instructions"])
            except (ValueError, KeyError, TypeError, AssertionError, EOFError):
                raise BadInputError(f"{path} is no {FORMAT} of version {VERSION}") from None
            yield Trace(header["entry"], tuple(header["grid"]), instructions, _file=file)
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error}") from None


def _instruction(data: dict[str, Any]) -> TracedInstruction:
    registers = tuple(TracedRegister(**one) for one in data["registers"])
    return TracedInstruction(**{**data, "registers": registers, "operands": tuple(data["operands"])})
