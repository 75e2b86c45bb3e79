# SPDX-License-Identifier: Apache-2.0
"""Translates the instructions of one block into the body of one LLVM function.

The function is `i32 block(ptr state, i32 active)`. Registers are SSA values inside it: it loads them from the
state at their first use, and at the end stores those that a later block may read. It stores all lanes, which
takes half as much code as storing the active ones; if not all lanes are active, the dispatcher restores the
others. It returns the index of the next block, or one of the codes in `exits.Exit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gdnbench.sim.compiler.access_log_entry import BLOCK, ENTRY_BYTES, LANES_OFFSET, PC_OFFSET
from gdnbench.sim.compiler.blocks import Block, Blocks
from gdnbench.sim.compiler.emit import (
    F32,
    F64,
    I1,
    I32,
    I64,
    Code,
    Library,
    Value,
    bits_of,
    const,
    lanes_of,
)
from gdnbench.sim.compiler.exits import END, Exit, FaultCode
from gdnbench.sim.compiler.layout import HEADER, SITE_BYTES, SKIP_BYTES, Layout
from gdnbench.sim.compiler.special_registers import special_register
from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import SHARED_BASE, window_of_variable
from gdnbench.sim.ptx import wmma
from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

Translate = Callable[["Translator", Instruction], None]


def register_type(register: Register) -> str:
    """The lane type of a register's value."""
    return I1 if register.bits == 1 else lanes_of(f"i{register.bits}")


def part_width(bits: int, vector: Vector) -> int:
    """Bits of each element of a vector of `bits` bits. Raises UnsupportedError for elements that no register
    has."""
    width, rest = divmod(bits, len(vector.elements))
    if rest or width not in (8, 16, 32, 64):
        raise UnsupportedError(f"{bits} bits in {len(vector.elements)} elements")
    return width


class ShadowCode(Protocol):
    """Adds the code for shadow registers around each instruction."""

    def before(
        self, t: Translator, ins: Instruction, table: dict[str, Translate], entered: Value
    ) -> None: ...

    def after(self, t: Translator, ins: Instruction) -> None: ...


TRAFFIC = tuple(
    name
    for space in ("shared", "global", "local", "param")
    for name in (f"{space} to registers", f"registers to {space}")
)
"""The names of the byte counters."""


def module_symbols(ins: Instruction) -> Iterator[Symbol]:
    """Module variables whose addresses the instruction uses."""
    for source in ins.sources:
        operand: Operand | None = source.descriptor if isinstance(source, TensorAddress) else source
        if isinstance(operand, Address):
            operand = operand.base
        if isinstance(operand, Symbol) and operand.variable.space in ("global", "const"):
            yield operand


@dataclass(slots=True)
class Found:
    """What translation finds besides the code. `skips` are (record in the state, pc, fault code) of accesses
    whose faults are skipped. By block: `seen` is the offset of the word that is set once the machine accepted
    the instruction, `moved` the bytes that each lane moves by name of the counter, `writes` (bits, offset) of
    the registers that it stores."""

    seen: dict[int, int] = field(default_factory=dict)
    skips: list[tuple[int, int, int]] = field(default_factory=list)
    moved: dict[int, dict[str, int]] = field(default_factory=dict)
    writes: dict[int, set[tuple[int, int]]] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Add what was found in other blocks."""
        self.seen |= other.seen
        self.skips += other.skips
        self.moved |= other.moved
        self.writes |= other.writes


@dataclass(slots=True)
class Program:
    """State shared by all blocks of a kernel during translation. All that translation needs in the warp's
    state is reserved here, by instruction, so that processes can translate blocks separately."""

    kernel: Kernel
    blocks: Blocks
    layout: Layout
    library: Library
    shadows: ShadowCode | None = None
    keep_going: bool = False
    clustered: bool = False  # for launches with clusters of several CTAs
    path: bool = False  # the log has an entry for each block that a warp enters
    symbol_slots: dict[str, int] = field(default_factory=dict)
    _sites: dict[int, int] = field(default_factory=dict)  # by pc
    _records: dict[int, int] = field(default_factory=dict)  # by pc
    _accepted: dict[int, int] = field(default_factory=dict)  # by block
    found: Found = field(default_factory=Found)

    def __post_init__(self) -> None:
        reserve = self.layout.reserve
        for block in self.blocks.blocks:
            check_time()
            if block.service:
                self._accepted[block.index] = reserve(4, 4)
            for ins in self.kernel.instructions[block.start : block.stop]:
                for symbol in module_symbols(ins):
                    if symbol.variable.name not in self.symbol_slots:
                        self.symbol_slots[symbol.variable.name] = reserve(8, 8)
                if not ins.form.in_engine:
                    continue
                accesses = ins.vec if ins.form.atomic else 1
                if ins.form.fragment:
                    accesses = wmma.accesses(ins)
                self._sites[ins.pc] = reserve(accesses * SITE_BYTES, SITE_BYTES)
                if self.keep_going:
                    self._records[ins.pc] = reserve(accesses * SKIP_BYTES)

    def site(self, ins: Instruction, access: int = 0) -> int:
        """The offset in the state of the interval of global memory that an instruction accessed last."""
        return self._sites[ins.pc] + access * SITE_BYTES

    def skip_record(self, ins: Instruction, access: int = 0) -> int:
        """The offset in the state of the record of an instruction's skipped faults."""
        return self._records[ins.pc] + access * SKIP_BYTES

    def accepted(self, block: Block) -> int:
        """The offset in the state of the word that is set once the machine accepted a block's instruction."""
        self.found.seen[block.index] = self._accepted[block.index]
        return self._accepted[block.index]


@dataclass(slots=True)
class Translator:
    """Translates one block. `active` is the mask of the lanes that execute the current instruction."""

    program: Program
    block: Block
    code: Code = field(init=False)
    state: Value = field(init=False)
    entered: Value = field(init=False)
    active: Value = field(init=False)
    values: dict[int, Value] = field(default_factory=dict)
    dirty: dict[int, Register] = field(default_factory=dict)
    scratch_bytes: int = 0
    arrived: tuple[int, Value | None] | None = None  # the last collective's pc and its lanes' member masks
    faults: bool = False
    # What `pack` made of which parts, and `split` of which value, so that neither undoes the other.
    _parts: dict[str, list[Value]] = field(default_factory=dict)
    _wholes: dict[tuple[str, ...], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = Value("ptr", "%state")
        self.entered = Value("i32", "%active")
        self.active = Value(I1, "%lanes")
        self.code = Code(self.program.library, self.entered)

    # The function

    def translate(self, table: dict[str, Translate]) -> str:
        """The text of the function."""
        code, kernel = self.code, self.program.kernel
        code.start_block("entry")
        code.line(f"%lanes = bitcast i32 %active to {I1}")
        check_time()
        body = kernel.instructions[self.block.start : self.block.stop]
        path = self.program.path and not self.block.service
        self.require_log(sum(map(_log_entries, body)) + path)
        if path:
            self.log_block()
        for ins in body:
            self.instruction(ins, table)
        if body[-1].form.flow is Flow.NEXT and not self.block.service:
            self.leave(self.next_block(body[-1].pc + 1))
        if self.faults:
            code.start_block("fault")
            self.ret(const("i32", Exit.FAULT))
        head = f"define i32 @block{self.block.index}(ptr noalias %state, i32 %active) #0 {{\n"
        if self.scratch_bytes:
            code.lines.insert(1, f"  %scratch = alloca [{self.scratch_bytes} x i8], align 64")
        return f"{head}{code.text()}\n}}\n"

    def instruction(self, ins: Instruction, table: dict[str, Translate]) -> None:
        if not ins.form.executed:
            raise UnsupportedError(ins.name, ins.place)
        translate = table[ins.op]
        entered = self.active
        if ins.guard is not None and ins.form.flow is not Flow.BRANCH:
            self.active = self.code.op("and", entered, self.guard(ins))
        shadows = self.program.shadows
        try:
            if shadows is not None:
                shadows.before(self, ins, table, entered)
            translate(self, ins)
            if shadows is not None:
                shadows.after(self, ins)
        except UnsupportedError as error:
            raise error if error.place is not None else UnsupportedError(error.what, ins.place) from error
        self.active = entered

    def guard(self, ins: Instruction) -> Value:
        assert ins.guard is not None
        value = self.register(ins.guard.register)
        return self.code.not_(value) if ins.guard.negated else value

    def next_block(self, pc: int) -> int:
        """The index of the block at `pc`; END after the last instruction."""
        return self.program.blocks.at.get(pc, END)

    def leave(self, block: int) -> None:
        """End the function; the lanes continue at `block`."""
        self.write_back()
        self.go_to(block)

    def exits(self, block: int) -> bool:
        """True if lanes at `block` only exit. They exit earlier, at the branch, so that no collective waits
        for lanes that only have to exit."""
        if block == END:
            return True
        ins = self.program.kernel.instructions[self.program.blocks.blocks[block].start]
        return ins.form.flow is Flow.EXIT and ins.guard is None

    def go_to(self, block: int) -> None:
        """Return the next block, or exit, for all lanes that entered, also those whose guard disabled the
        last instruction."""
        if self.exits(block):
            self.exit_at(block, Value(I1, "%lanes"))
            self.ret(const("i32", Exit.GONE))
        else:
            self.ret(const("i32", block))

    def exit_at(self, block: int, mask: Value) -> None:
        """Make lanes exit by the instruction at `block`, which counts as executed, or at the kernel's end."""
        if block == END:
            self.exit_lanes(mask)
        else:
            self.code.call_void("exit_early", self.state, self.code.mask_bits(mask), const("i32", block))

    def set_block(self, block: int, mask: Value) -> None:
        """Set the block of the lanes of `mask`."""
        self.masked_store(const(I32, block), self.code.offset(self.state, HEADER["block"]), mask, 64)

    def ret(self, code: Value) -> None:
        self.code.line(f"ret {code}")

    def exit_lanes(self, mask: Value) -> None:
        """Mark lanes as exited."""
        code = self.code
        pointer = self.header("live")
        live = code.load("i32", pointer, 4)
        code.store(code.op("and", live, code.not_(code.mask_bits(mask))), pointer, 4)

    def write_back(self) -> None:
        """Store the registers that stay live, in all lanes."""
        code, live = self.code, self.block.live_out
        writes = self.program.found.writes.setdefault(self.block.index, set())
        for register in self.dirty.values():
            if not live >> register.index & 1:
                continue
            value, slot = self.values[register.index], self.slot(register)
            if register.bits == 1:
                code.store(code.mask_bits(value), slot, 4)
            else:
                code.store(value, slot, 64 if register.bits >= 16 else 32)
            writes.add((register.bits, self.program.layout.slots[register.index]))

    def masked_store(self, value: Value, pointer: Value, mask: Value, align: int) -> None:
        code = self.code
        short = f"@llvm.masked.store.v32i{bits_of(value.type)}.p0"
        code.declare(short, "void", value.type, "ptr", I1)
        code.line(f"call void {short}({value}, ptr align {align} {pointer.text}, {mask})")

    # Registers and operands

    def header(self, name: str) -> Value:
        """A pointer to a field of the state's header."""
        return self.code.offset(self.state, HEADER[name])

    def slot(self, register: Register) -> Value:
        return self.code.offset(self.state, self.program.layout.slots[register.index])

    def register(self, register: Register) -> Value:
        """The register's current value."""
        found = self.values.get(register.index)
        if found is None:
            found = self._load(register)
            self.values[register.index] = found
        return found

    def _load(self, register: Register) -> Value:
        code = self.code
        if register.index not in self.program.layout.slots:
            # No path writes it before this use: any value is legal, but it must be the same at each use.
            return const(register_type(register), 0)
        if register.bits == 1:
            return code.bits(code.load("i32", self.slot(register), 4), I1)
        return code.load(register_type(register), self.slot(register), 64 if register.bits >= 16 else 32)

    def read(self, operand: Operand, bits: int, *, signed: bool = False) -> Value:
        """A source operand in all lanes, as `bits` bits."""
        code = self.code
        kind = lanes_of(f"i{bits}")
        if isinstance(operand, Register):
            if (operand.bits == 1) != (bits == 1):
                raise UnsupportedError(f"register {operand.name}, .{operand.type}, for {bits} bits")
            return code.resize(self.register(operand), kind, signed=signed)
        if isinstance(operand, Immediate):
            return const(kind, operand.bits)
        if isinstance(operand, Negated) and bits == 1:
            return code.not_(self.register(operand.register))
        if isinstance(operand, Special):
            value = special_register(code, self.state, operand.name, clustered=self.program.clustered)
            return code.resize(value, kind)
        if isinstance(operand, Symbol):
            return code.resize(self.symbol(operand), kind)
        if isinstance(operand, Vector):
            part = part_width(bits, operand)
            return self.pack([self.read(e, part) for e in operand.elements])
        raise UnsupportedError(f"operand {type(operand).__name__.lower()}")

    def pack(self, parts: list[Value]) -> Value:
        """Elements concatenated in one integer, the first lowest."""
        code = self.code
        whole = self._wholes.get(tuple(part.text for part in parts))
        if whole is not None and bits_of(whole.type) == len(parts) * bits_of(parts[0].type):
            return whole
        width = bits_of(parts[0].type)
        kind = lanes_of(f"i{width * len(parts)}")
        total = code.cast("zext", parts[0], kind)
        for index, part in enumerate(parts[1:], 1):
            total = code.op("or", total, code.opi("shl", code.cast("zext", part, kind), index * width))
        if len(parts) > 1:
            self._parts[total.text] = parts
        return total

    def split(self, value: Value, count: int) -> list[Value]:
        """The inverse of `pack`."""
        code = self.code
        known = self._parts.get(value.text)
        if known is not None and len(known) == count:
            return known
        width = bits_of(value.type) // count
        kind = lanes_of(f"i{width}")
        parts = [
            code.cast("trunc", code.opi("lshr", value, i * width) if i else value, kind) for i in range(count)
        ]
        self._wholes[tuple(part.text for part in parts)] = value
        return parts

    def write(self, destination: Operand, value: Value, *, signed: bool = False) -> None:
        """Write a register in the active lanes; other lanes keep their value."""
        if isinstance(destination, Sink):
            return
        if isinstance(destination, Vector):
            part_width(bits_of(value.type), destination)
            parts = self.split(value, len(destination.elements))
            for element, part in zip(destination.elements, parts, strict=True):
                self.write(element, part)
            return
        if not isinstance(destination, Register):
            raise UnsupportedError(f"destination {type(destination).__name__.lower()}")
        kind = register_type(destination)
        size = 1 if value.type == I1 else bits_of(value.type)
        if size > destination.bits or (size < destination.bits and value.type in (F32, F64)):
            raise UnsupportedError(f"a result of {size} bits into {destination.name} of {destination.bits}")
        if kind == I1:
            pass  # from a predicate: nothing wider fits
        elif value.type == I1:
            value = self.code.cast("zext", value, kind)
        else:
            value = self.code.bits(value, lanes_of(f"i{bits_of(value.type)}"))
            value = self.code.resize(value, kind, signed=signed)
        if self.active.text != "%lanes":
            value = self.code.select(self.active, value, self.register(destination))
        self.values[destination.index] = value
        self.dirty[destination.index] = destination

    # Addresses

    def symbol(self, symbol: Symbol) -> Value:
        """A variable's address in its own state space."""
        variable = symbol.variable
        if variable.space in ("global", "const"):
            slot = self.program.symbol_slots[variable.name]
            address = self.code.load("i64", self.code.offset(self.state, slot), 8)
            return self.code.opi("add", self.code.splat(address), symbol.offset)
        offset = variable.offset
        if variable.space == "shared":
            offset = self.program.kernel.shared_offset(variable)
            if self.program.clustered:
                first = self.code.splat(self.code.load("i64", self.header("shared_first"), 8))
                return self.code.opi("add", first, offset + symbol.offset)
            offset += SHARED_BASE
        return const(I64, offset + symbol.offset)

    def address(self, ins: Instruction, operand: Operand, *, wide: bool = True) -> Value:
        """The effective address of a memory operand of `ins`, of 64 bits if `wide`; a 32-bit base wraps at
        4 GiB."""
        if not isinstance(operand, Address):
            raise UnsupportedError(f"memory operand {type(operand).__name__.lower()}")
        if operand.base is None:
            return const(I64, operand.offset)
        narrow = isinstance(operand.base, Register) and operand.base.bits == 32
        base = self.read(operand.base, 32 if narrow else 64)
        offset = operand.offset
        if isinstance(operand.base, Symbol):
            offset += window_of_variable(ins, operand.base.variable)
        address = self.code.opi("add", base, offset) if offset else base
        return self.code.resize(address, I64) if wide else address

    def scratch(self, size: int) -> Value:
        """Stack memory for the vectors that helper functions fill; the next call may return the same
        memory."""
        self.scratch_bytes = max(self.scratch_bytes, size)
        return Value("ptr", "%scratch")

    def scratch_at(self, offset: int) -> Value:
        """Memory for one vector at a fixed offset of the scratch area."""
        self.scratch(offset + 256)
        return self.code.offset(Value("ptr", "%scratch"), offset)

    def param_bytes(self) -> int:
        """Bytes of the kernel's parameters."""
        return max((p.offset + p.size for p in self.program.kernel.params), default=0)

    # Early returns

    def fault(self, lanes: Value, code_number: FaultCode, ins: Instruction, address: Value | None) -> None:
        """Return with a fault if any lane is in `lanes`; continue otherwise."""
        code = self.code
        bad, good = code.new_label("fault"), code.new_label("ok")
        any_bad = code.any(lanes)
        expect = code.intrinsic("expect.i1", "i1", any_bad, const("i1", 0), suffix="")
        code.branch(expect, bad, good)
        code.start_block(bad)
        where = const(I64, 0) if address is None else code.resize(address, I64)
        arguments = (
            self.state,
            const("i32", code_number),
            const("i32", ins.pc),
            code.mask_bits(lanes),
            where,
        )
        code.call_void("record_fault", *arguments)
        self.ret(const("i32", Exit.FAULT))
        code.start_block(good)

    def fault_if(self, faulted: Value) -> None:
        """Return if `faulted` (i1) is true: a helper has recorded the fault."""
        self.faults = True
        good = self.code.new_label("ok")
        self.code.branch(faulted, "fault", good)
        self.code.start_block(good)

    def skip(
        self, lanes: Value, code_number: FaultCode, ins: Instruction, access: int, address: Value
    ) -> None:
        """Record a fault if any lane is in `lanes` (i32), and go on without these lanes. `access` is the
        number of the access among those of the instruction."""
        code, program = self.code, self.program
        record = program.skip_record(ins, access)
        program.found.skips.append((record, ins.pc, int(code_number)))
        bad, good = code.new_label("skip"), code.new_label("legal")
        code.branch(code.comparei("icmp ne", lanes, 0), bad, good)
        code.start_block(bad)
        code.call_void("record_skip", self.state, const("i64", record), lanes, code.resize(address, I64))
        code.jump(good)
        code.start_block(good)
        self.active = code.op("and", self.active, code.not_(code.bits(lanes, I1)))

    def require_log(self, accesses: int) -> None:
        """Return if the log may be too short for this many more accesses; nothing was executed yet."""
        code, place = self.code, self.program.layout.log
        if place is None or not accesses:
            return
        following, end = (code.load("i64", code.offset(self.state, place + at), 8) for at in (0, 8))
        full, room = code.new_label("full"), code.new_label("room")
        after = code.opi("add", following, accesses * ENTRY_BYTES)
        code.branch(code.compare("icmp ugt", after, end), full, room)
        code.start_block(full)
        self.ret(const("i32", Exit.FULL))
        code.start_block(room)

    def log_block(self) -> None:
        """Log that lanes enter this block."""
        code, place = self.code, self.program.layout.log
        assert place is not None
        next_entry = code.offset(self.state, place)
        entry = code.load("ptr", next_entry, 8)
        code.store(const("i32", BLOCK | self.block.start), code.offset(entry, PC_OFFSET), 4)
        code.store(self.entered, code.offset(entry, LANES_OFFSET), 4)
        code.store(code.offset(entry, ENTRY_BYTES), next_entry, 8)

    def gather(self, ins: Instruction, named: Value) -> None:
        """Return and wait if live lanes in the mask `named` (i32) do not execute with these. Lanes whose
        guard is false first continue at the next instruction."""
        code = self.code
        if ins.guard is not None:
            self._part(ins)
        live = code.load("i32", self.header("live"), 4)
        missing = code.op("and", code.op("and", live, code.not_(self.entered)), named)
        wait, together = code.new_label("wait"), code.new_label("together")
        code.branch(code.comparei("icmp ne", missing, 0), wait, together)
        code.start_block(wait)
        self.ret(const("i32", Exit.JOIN))
        code.start_block(together)

    def _part(self, ins: Instruction) -> None:
        """Send lanes whose guard is false past this instruction if the guard differs between lanes."""
        code = self.code
        chosen = code.mask_bits(self.active)
        mixed = code.op(
            "and",
            code.compare("icmp ne", chosen, self.entered),
            code.comparei("icmp ne", chosen, 0),
        )
        part, agreed = code.new_label("part"), code.new_label("agreed")
        code.branch(mixed, part, agreed)
        code.start_block(part)
        rest = code.op("xor", self.active, Value(I1, "%lanes"))
        following = self.next_block(ins.pc + 1)
        if self.exits(following):
            self.exit_at(following, rest)
        else:
            self.set_block(following, rest)
        self.set_block(self.block.index, self.active)
        self.ret(const("i32", Exit.PART))
        code.start_block(agreed)

    def count_traffic(self, name: str, size: int, among: Value | None = None) -> None:
        """Count `size` bytes under `name` for each active lane, or for those in the mask `among`."""
        if among is None and self.active.text == "%lanes":
            # Known from how often the block ran, and in how many lanes.
            moved = self.program.found.moved.setdefault(self.block.index, {})
            moved[name] = moved.get(name, 0) + size
            return
        code = self.code
        mask = self.active if among is None else code.op("and", self.active, among)
        counter, width = const("i64", TRAFFIC.index(name) * 8), const("i64", size)
        code.call_void("count_bytes", self.state, counter, code.mask_bits(mask), width)


def _log_entries(ins: Instruction) -> int:
    """The most entries that an instruction writes to the log."""
    return wmma.accesses(ins) if ins.form.fragment else int(ins.form.in_engine or ins.form.lanes_meet)
