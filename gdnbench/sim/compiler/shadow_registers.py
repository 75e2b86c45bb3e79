# SPDX-License-Identifier: Apache-2.0
"""Shadow registers: compiled code of a checked launch records in them which registers have no value yet.

A register that may be used too early (`uninitialized_analysis`) has a shadow of its own width per reason. For
"unwritten" the shadow's bytes are 0xFF where the register was written. For "computed" they are 0xFF where the
register was computed from one without a value, and zero elsewhere. For "in flight" they are the number of the
operation, 128 to 255, and zero where nothing is in flight. A move applies the same instruction to the
shadows; any other write sets them. At each such use a record stores the lanes without a value
(`register_watch`). A kernel without such uses has no shadow registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gdnbench.sim.compiler.blocks import Block, Blocks, is_service
from gdnbench.sim.compiler.emit import I1, I32, I64, Code, Library, Value, const, lane_constants
from gdnbench.sim.compiler.layout import ALIGN, Layout, slot_bytes
from gdnbench.sim.compiler.translator import Translate, Translator, register_type
from gdnbench.sim.compiler.uninitialized_analysis import (
    Lack,
    computed_sources,
    find_unready_registers,
    moved_sources,
)
from gdnbench.sim.compiler.warp import arrive, per_set
from gdnbench.sim.deadline import check_time
from gdnbench.sim.ptx.flow import registers_of
from gdnbench.sim.ptx.ir import (
    Destination,
    Immediate,
    Instruction,
    Kernel,
    Pair,
    Register,
    Sink,
    Source,
    Vector,
)
from gdnbench.sim.ptx.literals import width_of
from gdnbench.sim.ptx.packed import Element, elements_of

RECORD = np.dtype([("lanes", np.uint32), ("when", np.uint32), ("flight", np.uint64)])
"""Record of one use: the lanes without a value since the record was last read, the sequence number of that
note, and the largest shadow of the register among the lanes."""

_READY = {
    Lack.UNWRITTEN: Immediate(-1, "-1"),
    Lack.COMPUTED: Immediate(0, "0"),
    Lack.FLYING: Immediate(0, "0"),
}
_UNDEFINED = (Lack.UNWRITTEN, Lack.COMPUTED)


@dataclass(frozen=True, slots=True)
class Use:
    """An instruction that may use a register without a value. `record` is the number of its record."""

    ins: Instruction
    register: Register
    lack: Lack
    record: int


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadows of one kernel: `of` by reason and register index, `uses` in order, `by_pc` the uses by pc.
    Offsets in the state: `records`; `notes`, the number of notes since the records were last read; and
    `flying`, the first byte and the end of all shadows of flights."""

    of: dict[Lack, dict[int, Register]]
    uses: tuple[Use, ...]
    by_pc: dict[int, tuple[Use, ...]]
    records: int
    notes: int
    flying: tuple[int, int]

    def shadow(self, register: object, lack: Lack) -> Register | None:
        return self.of[lack].get(register.index) if isinstance(register, Register) else None

    # Code generation

    def before(self, t: Translator, ins: Instruction, table: dict[str, Translate], entered: Value) -> None:
        """Check the registers that `ins` uses, its guard in the lanes `entered`, and move shadows where `ins`
        moves registers."""
        if is_service(ins):
            return
        for use in self.by_pc.get(ins.pc, ()):
            lanes = t.active
            if ins.guard is not None and use.register == ins.guard.register:
                lanes = entered
            if ins.form.by_rows and use.register in _address(ins):
                lanes = t.code.op("and", lanes, _row_givers(ins))
            self._note(t, use, lanes)
        elements = elements_of(ins)
        undefined = None
        if self._computes(ins):
            if elements:
                self._mark_elements(t, ins, elements)
            else:
                undefined = self._undefined_lanes(t, ins)
        for lack in Lack:
            shadow_ins = self._moving(ins, lack)
            if shadow_ins is not None:
                table[ins.op](t, shadow_ins)
        if undefined is not None:
            moved = self._moving(ins, Lack.COMPUTED) is not None
            for place, register in enumerate(ins.written()):
                shadow = self.shadow(register, Lack.COMPUTED)
                if shadow is not None:
                    kind = register_type(shadow)
                    mark = t.code.select(undefined, const(kind, -1), const(kind, 0))
                    if moved and (place == 0 or ins.form.copies):
                        mark = t.code.op("or", mark, t.register(shadow))
                    t.write(shadow, mark)

    def after(self, t: Translator, ins: Instruction) -> None:
        """Mark the registers that `ins` wrote as written, except moved ones."""
        if is_service(ins):
            return
        for lack in Lack:
            if lack is Lack.COMPUTED and self._computes(ins):
                continue  # `before` has marked them
            follows = self._moving(ins, lack) is not None
            for place, register in enumerate(ins.written()):
                shadow = self.shadow(register, lack)
                if shadow is not None and not (follows and (place == 0 or ins.form.copies)):
                    t.write(shadow, t.read(_READY[lack], shadow.bits))

    def _computes(self, ins: Instruction) -> bool:
        """Whether `ins` may compute a register with a shadow for that from one without a value."""
        return any(self.shadow(register, Lack.COMPUTED) for register in ins.written()) and any(
            self._shadows(ins.sources[place]) for place in computed_sources(ins)
        )

    def _shadows(self, source: Source) -> list[Register]:
        """The shadows of a source in which an undefined value shows."""
        found = (
            self.of[lack].get(register.index) for register in registers_of(source) for lack in _UNDEFINED
        )
        return [shadow for shadow in found if shadow is not None]

    def _undefined_lanes(self, t: Translator, ins: Instruction) -> Value:
        """The lanes in which `ins` computes from a register without a value."""
        code = t.code
        named = arrive(t, ins) if ins.form.lanes_meet else None
        by_place = [self._undefined_source(t, ins.sources[place]) for place in computed_sources(ins)]
        if ins.op in ("and", "or"):
            by_place = _undecided(t, ins, by_place)
        found = by_place[0]
        for each in by_place[1:]:
            found = code.op("or", found, each)
        if not ins.form.lanes_meet:
            return found
        lacking = code.mask_bits(found)

        def some(together: Value) -> list[Value]:
            among = code.comparei("icmp ne", code.op("and", lacking, together), 0)
            return [code.cast("zext", among, "i32")]

        return code.comparei("icmp ne", per_set(t, named, some, [I32])[0], 0)

    def _mark_elements(self, t: Translator, ins: Instruction, elements: tuple[Element, ...]) -> None:
        """Mark the elements of the result that `ins` computes from bytes without a value."""
        code = t.code
        shadow = self.shadow(ins.dests[0], Lack.COMPUTED)
        assert shadow is not None
        kind = register_type(shadow)
        mark = const(kind, 0)
        for element in elements:
            undefined = const(I1, 0)
            for source, places in zip(ins.sources, element.sources, strict=True):
                lacking = self._undefined_source(t, source, _bits_of_bytes(places))
                undefined = code.op("or", undefined, lacking)
            bits = const(kind, _bits_of_bytes(element.result))
            mark = code.op("or", mark, code.select(undefined, bits, const(kind, 0)))
        t.write(shadow, mark)

    def _undefined_source(self, t: Translator, source: Source, of: int = -1) -> Value:
        """The lanes in which the bits `of` of a source have no value."""
        found = const(I1, 0)
        for register in registers_of(source):
            for lack in _UNDEFINED:
                shadow = self.of[lack].get(register.index)
                if shadow is not None:
                    ready = -1 if lack is Lack.UNWRITTEN else 0
                    kind = register_type(shadow)
                    unready = t.code.op("xor", t.register(shadow), const(kind, ready))
                    lacking = t.code.comparei("icmp ne", t.code.op("and", unready, const(kind, of)), 0)
                    found = t.code.op("or", found, lacking)
        return found

    def _moving(self, ins: Instruction, lack: Lack) -> Instruction | None:
        """`ins` with shadows as operands; None if it moves no register with a shadow."""
        places = moved_sources(ins, lack)
        first = list(ins.written()) if ins.form.copies else [*ins.written()][:1]
        if not places or not any(self.shadow(register, lack) for register in first):
            return None
        sources = tuple(
            self._source(source, lack) if place in places else source
            for place, source in enumerate(ins.sources)
        )
        return replace(ins, sources=sources, dests=tuple(self._dest(dest, lack) for dest in ins.dests))

    def _source(self, source: Source, lack: Lack) -> Source:
        if isinstance(source, Vector):
            return Vector(tuple(self.shadow(e, lack) or _READY[lack] for e in source.elements))
        return self.shadow(source, lack) or _READY[lack]

    def _dest(self, dest: Destination, lack: Lack) -> Destination:
        if isinstance(dest, Vector):
            return Vector(tuple(self.shadow(e, lack) or Sink() for e in dest.elements))
        if isinstance(dest, Pair):
            return Pair(self.shadow(dest.first, lack) or Sink(), Sink())
        return self.shadow(dest, lack) or Sink()

    def _note(self, t: Translator, use: Use, lanes: Value) -> None:
        code = t.code
        shadow = self.shadow(use.register, use.lack)
        assert shadow is not None
        value = t.register(shadow)
        ready = -1 if use.lack is Lack.UNWRITTEN else 0
        lacking = code.comparei("icmp ne", value, ready)
        lacking = code.op("and", lacking, lanes)
        tell, on = code.new_label("tell"), code.new_label("on")
        code.branch(code.any(lacking), tell, on)
        code.start_block(tell)
        code.library.helper("note_use", self._define_note)
        wide = code.select(lacking, code.cast("zext", value, I64), const(I64, 0))
        flight = code.intrinsic("vector.reduce.umax", "i64", wide, suffix="v32i64")
        record = code.offset(t.state, self.records + use.record * RECORD.itemsize)
        code.call_void("note_use", t.state, record, code.mask_bits(lacking), flight)
        code.jump(on)
        code.start_block(on)

    def _define_note(self, name: str, library: Library) -> str:
        code, state, record = Code(library), Value("ptr", "%state"), Value("ptr", "%record")
        code.start_block("entry")
        notes = code.offset(state, self.notes)
        count = code.opi("add", code.load("i32", notes, 4), 1)
        code.store(count, notes, 4)
        lanes = code.op("or", code.load("i32", record, 4), Value("i32", "%lanes"))
        code.store(lanes, record, 4)
        when = code.offset(record, 4)
        old = code.load("i32", when, 4)
        code.store(code.select(code.comparei("icmp eq", old, 0), count, old), when, 4)
        code.store(Value("i64", "%flight"), code.offset(record, 8), 8)
        code.line("ret void")
        head = f"define internal void @{name}(ptr %state, ptr %record, i32 %lanes, i64 %flight) noinline #0"
        return f"{head} {{\n{code.text()}\n}}\n"


def _undecided(t: Translator, ins: Instruction, undefined: list[Value]) -> list[Value]:
    """Of the undefined operands of `and` and `or` those that matter: another operand decides the result alone
    if it is all zeros (`and`) or all ones (`or`)."""
    code = t.code
    absorbing = 0 if ins.op == "and" else -1
    deciding = [
        code.op(
            "and",
            code.comparei("icmp eq", t.read(source, width_of(ins.types[0])), absorbing),
            code.not_(lacking),
        )
        for source, lacking in zip(ins.sources, undefined, strict=True)
    ]
    return [
        code.op("and", undefined[0], code.not_(deciding[1])),
        code.op("and", undefined[1], code.not_(deciding[0])),
    ]


def _bits_of_bytes(mask: int) -> int:
    """The bits of the bytes in a mask of up to 8."""
    return sum(0xFF << 8 * byte for byte in range(8) if mask >> byte & 1)


def _address(ins: Instruction) -> tuple[Register, ...]:
    return tuple(registers_of(ins.sources[0]))


def _row_givers(ins: Instruction) -> Value:
    """The lanes whose addresses a matrix instruction uses: 8 per matrix."""
    rows = 8 * next(count for count in (1, 2, 4) if ins.has(f"x{count}"))
    return lane_constants("i1", [int(lane < rows) for lane in range(32)])


def plan_shadows(kernel: Kernel, blocks: Blocks, layout: Layout) -> tuple[Shadows, Blocks] | None:
    """The shadows of a kernel, with slots in the state, and its blocks with their liveness: a shadow is live
    as long as its register. None if the kernel needs none."""
    found = find_unready_registers(kernel, blocks)
    if not found.uses:
        return None
    of: dict[Lack, dict[int, Register]] = {lack: {} for lack in Lack}
    number = len(kernel.registers)
    places: dict[Lack, list[int]] = {lack: [] for lack in Lack}
    for lack in Lack:
        tracked = [r for r in kernel.registers if found.tracked[lack] >> r.index & 1]
        for register in sorted(tracked, key=lambda r: -r.bits):
            shadow = replace(register, index=number, name=f"{register.name} {lack.name.lower()}")
            number += 1
            of[lack][register.index] = shadow
            size = slot_bytes(shadow)
            layout.slots[shadow.index] = layout.reserve(size, min(size, ALIGN))
            places[lack].append(layout.slots[shadow.index])
    flying = places[Lack.FLYING]
    ends = (flying[0], layout.size) if flying else (0, 0)
    uses = tuple(
        Use(kernel.instructions[pc], register, lack, index)
        for index, (pc, register, lack) in enumerate(
            (pc, register, lack) for pc in sorted(found.uses) for register, lack in found.uses[pc]
        )
    )
    by_pc: dict[int, tuple[Use, ...]] = {}
    for use in uses:
        by_pc[use.ins.pc] = (*by_pc.get(use.ins.pc, ()), use)
    records = layout.reserve(len(uses) * RECORD.itemsize, ALIGN)
    shadows = Shadows(of, uses, by_pc, records, layout.reserve(4, 4), ends)
    return shadows, Blocks(tuple(_with_shadows(blocks, of)), blocks.at)


def _with_shadows(blocks: Blocks, of: dict[Lack, dict[int, Register]]) -> Iterator[Block]:
    pairs = [(index, shadow.index) for shadows in of.values() for index, shadow in shadows.items()]
    for block in blocks.blocks:
        check_time()
        into = block.live_in | sum(1 << shadow for index, shadow in pairs if block.live_in >> index & 1)
        out = block.live_out | sum(1 << shadow for index, shadow in pairs if block.live_out >> index & 1)
        yield replace(block, live_in=into, live_out=out)
