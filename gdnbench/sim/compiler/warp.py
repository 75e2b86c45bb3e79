# SPDX-License-Identifier: Apache-2.0
"""Warp collectives: shfl, vote, match, redux, elect, activemask, bar.warp.sync.

Each begins a block and first waits, by `Exit.JOIN`, until the lanes of its member mask have arrived. Lanes
may name different masks at once; each set of lanes then executes separately. With a constant mask of all
lanes the one set is the active lanes, and the code is plain vector code.
"""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.sim.compiler.access_log import log_meeting
from gdnbench.sim.compiler.emit import (
    F32,
    I1,
    I32,
    LANE_IDS,
    Code,
    Library,
    Value,
    const,
    lane_constants,
    lanes_of,
)
from gdnbench.sim.compiler.exits import FaultCode
from gdnbench.sim.compiler.floating import extremum
from gdnbench.sim.compiler.formats import encode
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Immediate, Instruction, Operand, Pair

_ALL = 0xFFFF_FFFF
_BITS = lane_constants("i32", [1 << i if i < 31 else -(1 << 31) for i in range(32)])


def _one_set(ins: Instruction) -> bool:
    mask = ins.sources[-1]
    return isinstance(mask, Immediate) and mask.bits & _ALL == _ALL


def arrive(t: Translator, ins: Instruction) -> Value | None:
    """Wait for the named lanes. Returns the member mask of each lane, or None if all masks are full. Shadow
    registers arrive at the same instruction again, which then is no more than this result."""
    if t.arrived is not None and t.arrived[0] == ins.pc:
        return t.arrived[1]
    named = _arrive(t, ins)
    t.arrived = ins.pc, named
    return named


def _arrive(t: Translator, ins: Instruction) -> Value | None:
    code = t.code
    if _one_set(ins):
        t.gather(ins, const("i32", -1))
        log_meeting(t, ins, const(I32, -1))
        return None
    named = t.read(ins.sources[-1], 32)
    active = code.select(t.active, named, const(I32, 0))
    t.gather(ins, code.intrinsic("vector.reduce.or", "i32", active, suffix="v32i32"))
    outside = code.comparei("icmp eq", code.op("and", named, _BITS), 0)
    t.fault(
        code.op("and", outside, t.active),
        FaultCode.COLLECTIVE,
        ins,
        code.cast("zext", named, lanes_of("i64")),
    )
    log_meeting(t, ins, named)
    return named


def per_set(
    t: Translator, named: Value | None, each: Callable[[Value], list[Value]], kinds: list[str]
) -> list[Value]:
    """Compute `each(lanes)` for every set of active lanes with one mask (`lanes` is a mask of 32 bits) and
    write its scalar results to the lanes of the set."""
    code = t.code
    if named is None:
        return [code.splat(value) for value in each(code.mask_bits(t.active))]
    places = [t.scratch_at(index * 256) for index in range(len(kinds))]
    begin, body, done, entry = (code.new_label(s) for s in ("sets", "set", "served", "before"))
    code.jump(entry)
    code.start_block(entry)
    all_lanes = code.mask_bits(t.active)
    code.jump(begin)
    code.start_block(begin)
    left, rest = code.name(), code.name()
    left_phi = len(code.lines)
    code.line("")
    code.branch(code.comparei("icmp eq", Value("i32", left), 0), done, body)
    code.start_block(body)
    first = code.intrinsic("cttz", "i32", Value("i32", left), const("i1", 0))
    mask = code.extract(named, first)
    same = code.mask_bits(code.compare("icmp eq", named, code.splat(mask)))
    together = code.op("and", same, Value("i32", left))
    members = code.bits(together, I1)
    for value, place in zip(each(together), places, strict=True):
        kind = lanes_of(value.type)
        old = code.load(kind, place, 64)
        code.store(code.select(members, code.splat(value), old), place, 64)
    code.line(f"{rest} = xor i32 {left}, {together.text}")
    code.lines[left_phi] = f"  {left} = phi i32 [ {all_lanes.text}, %{entry} ], [ {rest}, %{code.label} ]"
    code.jump(begin)
    code.start_block(done)
    return [code.load(kind, place, 64) for kind, place in zip(kinds, places, strict=True)]


def shfl(t: Translator, ins: Instruction) -> None:
    """The lane to copy from, and whether it is in the segment (PTX ISA, "shfl.sync")."""
    mode = ins.choice("up", "down", "bfly", "idx")
    arrive(t, ins)
    code = t.code
    value = t.read(ins.sources[0], 32)
    b, c = ins.sources[1], ins.sources[2]
    dest = ins.dests[0]
    first, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    if isinstance(b, Immediate) and isinstance(c, Immediate):
        order = [_source_lane(mode, lane, b.bits, c.bits) for lane in range(32)]
        result = code.shuffle(value, [lane for lane, _ in order])
        valid = lane_constants("i1", [int(inside) for _, inside in order])
    else:
        index, valid = _source_lanes(t, mode, t.read(b, 32), t.read(c, 32))
        result = permute(t, value, index)
    t.write(first, result)
    if second is not None:
        t.write(second, valid)


def _source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """(source lane, inside the segment) of one lane for constant operands."""
    offset, clamp, segment = b & 31, c & 31, c >> 8 & 31
    high = (lane & segment) | (clamp & ~segment)
    source = {
        "up": lane - offset,
        "down": lane + offset,
        "bfly": lane ^ offset,
        "idx": (lane & segment) | (offset & ~segment),
    }[mode]
    valid = source >= high if mode == "up" else source <= high
    return (source if valid else lane), valid


def _source_lanes(t: Translator, mode: str, b: Value, c: Value) -> tuple[Value, Value]:
    """`_source_lane` for 32 lanes at run time."""
    code = t.code
    offset, clamp = code.opi("and", b, 31), code.opi("and", c, 31)
    segment = code.opi("and", code.opi("lshr", c, 8), 31)
    outside = code.not_(segment)
    low = code.op("and", LANE_IDS, segment)
    high = code.op("or", low, code.op("and", clamp, outside))
    if mode == "idx":
        source = code.op("or", low, code.op("and", offset, outside))
    else:
        source = code.op({"up": "sub", "down": "add", "bfly": "xor"}[mode], LANE_IDS, offset)
    valid = code.compare("icmp sge" if mode == "up" else "icmp sle", source, high)
    return code.opi("and", code.select(valid, source, LANE_IDS), 31), valid


def permute(t: Translator, value: Value, index: Value) -> Value:
    """value[index[lane]] in each lane, through memory."""
    code = t.code
    table = t.scratch(128)
    code.store(value, table, 64)
    code.library.helper("permute", _permute)
    return code.call("permute", I32, table, index)


def _permute(name: str, library: Library) -> str:
    code = Code(library)
    code.start_block("entry")
    indices = code.value("ptr", f"alloca {I32}, align 64")
    code.store(Value(I32, "%index"), indices, 64)
    result = Value(I32, "poison")
    for lane in range(32):
        index = code.load("i32", code.offset(indices, lane * 4), 4)
        pointer = code.value("ptr", f"getelementptr i32, ptr %table, {index}")
        result = code.value(I32, f"insertelement {result}, {code.load('i32', pointer, 4)}, i32 {lane}")
    code.line(f"ret {result}")
    return f"define internal {I32} @{name}(ptr %table, {I32} %index) noinline #0 {{\n{code.text()}\n}}\n"


def vote(t: Translator, ins: Instruction) -> None:
    named = arrive(t, ins)
    code, mode = t.code, ins.choice("all", "any", "uni", "ballot")
    votes = code.mask_bits(t.read(ins.sources[0], 1))

    def each(together: Value) -> list[Value]:
        cast = code.op("and", votes, together)
        if mode == "ballot":
            return [cast]
        every, none = code.compare("icmp eq", cast, together), code.comparei("icmp eq", cast, 0)
        decided = {"all": every, "any": code.not_(none), "uni": code.op("or", every, none)}[mode]
        return [code.cast("zext", decided, "i32")]

    result = per_set(t, named, each, [I32])[0]
    t.write(ins.dests[0], result if mode == "ballot" else code.comparei("icmp ne", result, 0))


def match(t: Translator, ins: Instruction) -> None:
    """`any`: the lanes with this lane's value; `all`: the set if its values are equal."""
    named = arrive(t, ins)
    code = t.code
    value = t.read(ins.sources[0], int(ins.types[0][1:]))
    dest = ins.dests[0]
    first, second = (dest.first, dest.second) if isinstance(dest, Pair) else (dest, None)
    if ins.has("any"):
        if second is not None:
            raise UnsupportedError(ins.name)
        result = const(I32, 0)
        for lane in range(32):
            equal = code.compare("icmp eq", value, code.splat(code.extract(value, lane)))
            result = code.op(
                "or", result, code.op("and", code.cast("sext", equal, I32), const(I32, 1 << lane))
            )
        members = code.splat(code.mask_bits(t.active))
        result = code.op("and", result, members)
        if named is not None:
            same = [
                code.compare("icmp eq", named, code.splat(code.extract(named, lane))) for lane in range(32)
            ]
            mates = const(I32, 0)
            for lane, equal in enumerate(same):
                mates = code.op(
                    "or", mates, code.op("and", code.cast("sext", equal, I32), const(I32, 1 << lane))
                )
            result = code.op("and", result, mates)
        t.write(first, result)
        return

    def each(together: Value) -> list[Value]:
        leader = code.intrinsic("cttz", "i32", together, const("i1", 0))
        one = code.extract(value, code.opi("and", leader, 31))
        equal = code.mask_bits(code.compare("icmp eq", value, code.splat(one)))
        same = code.compare("icmp eq", code.op("and", equal, together), together)
        return [code.select(same, together, const("i32", 0)), code.cast("zext", same, "i32")]

    results = per_set(t, named, each, [I32, I32])
    t.write(first, results[0])
    if second is not None:
        t.write(second, code.comparei("icmp ne", results[1], 0))


_NEUTRAL = {
    "add": 0,
    "or": 0,
    "xor": 0,
    "and": _ALL,
    "umin": _ALL,
    "umax": 0,
    "smin": 0x7FFF_FFFF,
    "smax": 0x8000_0000,
}


def redux(t: Translator, ins: Instruction) -> None:
    name, kind = ins.choice("add", "min", "max", "and", "or", "xor"), ins.types[0]
    named = arrive(t, ins)
    code = t.code
    value = t.read(ins.sources[0], 32)
    if kind == "f32":
        reduce = _float_reduction(t, ins, value, name)
    else:
        full = f"{kind[0]}{name}" if name in ("min", "max") else name

        def reduce(together: Value) -> list[Value]:
            chosen = code.select(code.bits(together, I1), value, const(I32, _NEUTRAL[full]))
            return [code.intrinsic(f"vector.reduce.{full}", "i32", chosen, suffix="v32i32")]

    t.write(ins.dests[0], per_set(t, named, reduce, [I32])[0], signed=kind == "s32")


def _float_reduction(
    t: Translator, ins: Instruction, value: Value, name: str
) -> Callable[[Value], list[Value]]:
    """min or max by halving, which do not depend on the order of operands. Lanes outside the set repeat its
    first lane."""
    code = t.code

    def reduce(together: Value) -> list[Value]:
        leader = code.intrinsic("cttz", "i32", together, const("i1", 0))
        one = code.splat(code.extract(value, code.opi("and", leader, 31)))
        numbers = code.bits(code.select(code.bits(together, I1), value, one), F32)
        if ins.has("abs"):
            numbers = code.intrinsic("fabs", F32, numbers)
        for step in (16, 8, 4, 2, 1):
            other = code.shuffle(numbers, [lane ^ step for lane in range(32)])
            numbers = extremum(code, numbers, other, name == "max", ins.has("NaN"))
        return [code.extract(encode(code, "f32", numbers), 0)]

    return reduce


def elect(t: Translator, ins: Instruction) -> None:
    """Elects the lowest lane of the set."""
    dest: Operand = ins.dests[0]
    if not isinstance(dest, Pair):
        raise UnsupportedError(ins.name)
    named = arrive(t, ins)
    code = t.code

    def each(together: Value) -> list[Value]:
        return [code.intrinsic("cttz", "i32", together, const("i1", 0))]

    leader = per_set(t, named, each, [I32])[0]
    t.write(dest.first, leader)
    t.write(dest.second, code.compare("icmp eq", LANE_IDS, leader))


def activemask(t: Translator, ins: Instruction) -> None:
    t.write(ins.dests[0], t.code.splat(t.code.mask_bits(t.active)))


def sync(t: Translator, ins: Instruction) -> None:
    """bar.warp.sync: the arrival is the whole effect."""
    arrive(t, ins)


TABLE: dict[str, Translate] = {
    "shfl": shfl,
    "vote": vote,
    "match": match,
    "redux": redux,
    "elect": elect,
    "activemask": activemask,
    "bar.warp.sync": sync,
}
