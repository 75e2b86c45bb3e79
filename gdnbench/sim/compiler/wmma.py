# SPDX-License-Identifier: Apache-2.0
"""`wmma.load`, `wmma.store` and `wmma.mma`. A fragment consists of those of `mma.sync` (`ptx.wmma`): blocks
of 16 or 8 rows of the left operand, of 8 columns of the right one. In a block lane 4 * group + t has row (or
column) `group`. Loads and stores are code, an access for each run of elements; products are Python."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.emit import I32, I64, Value, const, lane_constants, lanes_of
from gdnbench.sim.compiler.matrix import multiply_doubles
from gdnbench.sim.compiler.memory import (
    count_access,
    locate,
    log_located_access,
    read_rows,
    space_of,
    write_rows,
    zero_elsewhere,
)
from gdnbench.sim.compiler.runtime_calls import enter_service
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Argument, Results
from gdnbench.sim.ptx import wmma
from gdnbench.sim.ptx.ir import Instruction, Operand, Vector
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product

Index = npt.NDArray[np.intp]
Shape = tuple[int, int, int]


def _element(operand: str, shape: Shape, per: int, register: int, lane: int, at: int) -> tuple[int, int]:
    """(row, column) of an element of a register."""
    m, n, k = shape
    turned = wmma.is_transposed(shape)
    group, t = lane // 4, lane % 4
    if operand == "c":
        rows, columns = (n, m) if turned else (m, n)
        high = 2 if rows >= 16 else 1
        number, at = (register, at) if per == 2 else divmod(register, 2)
        number, half = divmod(number, high)
        block, right = divmod(number, columns // 8)
        row, column = 8 * (high * block + half) + group, 8 * right + 2 * t + at
        return (column, row) if turned else (row, column)
    outer = m if operand == "a" else n
    high = 2 if (operand == "a") != turned and outer >= 16 else 1
    number, half = divmod(register, high)
    block, deep = divmod(number, k // (4 * per))
    place, depth = 8 * (high * block + half) + group, 4 * per * deep + per * t + at
    return (place, depth) if operand == "a" else (depth, place)


def _addresses(t: Translator, ins: Instruction, base: Value, stride: Operand | None) -> list[list[Value]]:
    """By register, the addresses of its runs of elements."""
    code = t.code
    operand, shape, kind = wmma.operand_of(ins), wmma.shape_of(ins), ins.types[0]
    per, size = wmma.per_register(kind), wmma.element_bytes(kind)
    step = const(I32, wmma.default_stride(ins)) if stride is None else t.read(stride, 32)
    step = code.opi("mul", code.cast("zext", step, I64), size)
    found = []
    for register in range(wmma.distinct_registers(operand, shape, kind)):
        runs = []
        for at in range(0, per, wmma.together(ins)):
            places = [_element(operand, shape, per, register, lane, at) for lane in range(LANES)]
            major, minor = (0, 1) if ins.has("row") else (1, 0)
            lines = code.op("mul", step, lane_constants("i64", [place[major] for place in places]))
            inside = lane_constants("i64", [size * place[minor] for place in places])
            runs.append(code.op("add", base, code.op("add", lines, inside)))
        found.append(runs)
    return found


def load(t: Translator, ins: Instruction) -> None:
    code, kind = t.code, ins.types[0]
    dests = tuple(ins.written())
    if len(dests) != wmma.registers(wmma.operand_of(ins), wmma.shape_of(ins), kind):
        raise UnsupportedError(ins.name)
    t.gather(ins, const("i32", -1))
    space, unit = space_of(ins), wmma.unit_bytes(ins)
    base, everyone, access = t.address(ins, ins.sources[0]), t.active, itertools.count()
    whole = lanes_of("i64" if kind == "f64" else "i32")
    loaded = []
    for runs in _addresses(t, ins, base, ins.sources[1] if len(ins.sources) > 1 else None):
        value = const(whole, 0)
        for number, address in enumerate(runs):
            hosts = locate(t, ins, space, address, unit, next(access))
            log_located_access(t, ins, space, address)
            (part,) = zero_elsewhere(t, read_rows(t, hosts, unit, 1))
            count_access(t, space, address, unit, load=True)
            t.active = everyone
            moved = code.opi("shl", code.cast("zext", part, whole), 8 * unit * number)
            value = code.op("or", value, moved)
        loaded.append(value)
    for index, dest in enumerate(dests):
        t.write(dest, loaded[index % len(loaded)])


def store(t: Translator, ins: Instruction) -> None:
    code, kind = t.code, ins.types[0]
    source = ins.sources[1]
    parts = source.elements if isinstance(source, Vector) else (source,)
    if len(parts) != wmma.registers("c", wmma.shape_of(ins), kind):
        raise UnsupportedError(ins.name)
    t.gather(ins, const("i32", -1))
    space, unit = space_of(ins), wmma.unit_bytes(ins)
    values = [t.read(part, 64 if kind == "f64" else 32) for part in parts]
    base, everyone, access = t.address(ins, ins.sources[0]), t.active, itertools.count()
    runs_of = _addresses(t, ins, base, ins.sources[2] if len(ins.sources) > 2 else None)
    for runs, value in zip(runs_of, values, strict=True):
        for number, address in enumerate(runs):
            hosts = locate(t, ins, space, address, unit, next(access))
            log_located_access(t, ins, space, address)
            part = code.opi("lshr", value, 8 * unit * number) if number else value
            write_rows(t, hosts, [code.cast("trunc", part, lanes_of(f"i{8 * unit}"))], unit)
            count_access(t, space, address, unit, load=False)
            t.active = everyone


def multiply(t: Translator, ins: Instruction) -> None:
    """`wmma.mma`: of f64 here, else by Python."""
    if ins.types[0] == "f64":
        multiply_doubles(t, ins)
    else:
        enter_service(t, ins)


@dataclass(frozen=True, slots=True)
class Plan:
    """The types of D, of A and B, and of C, and for each operand the position of each element: an index into
    its registers as [register, lane, element]. A is [M, K], B [N, K], C and D [M, N]."""

    types: tuple[str, str, str]
    a: Index
    b: Index
    c: Index
    d: Index


@cache
def _index(operand: str, shape: Shape, type_name: str) -> Index:
    per = wmma.per_register(type_name)
    rows, columns = wmma.extent(operand, shape)
    found = np.empty((rows, columns), np.intp)
    for register in range(wmma.distinct_registers(operand, shape, type_name)):
        for lane in range(LANES):
            for at in range(per):
                place = _element(operand, shape, per, register, lane, at)
                found[place] = (register * LANES + lane) * per + at
    return np.ascontiguousarray(found.T) if operand == "b" else found


def _plan(ins: Instruction) -> Plan:
    shape = wmma.shape_of(ins)
    d, ab, c = (ins.types[0], "f16", ins.types[1]) if len(ins.types) == 2 else (*ins.types[:2], ins.types[3])
    a, b = _index("a", shape, ab), _index("b", shape, ab)
    return Plan((d, ab, c), a, b, _index("c", shape, c), _index("c", shape, d))


def execute(cta: Cta, ins: Instruction, sources: tuple[Argument, ...]) -> Results:
    """D = A B + C for the whole warp."""
    plan, shape = _plan(ins), wmma.shape_of(ins)
    d_type, kind, c_type = plan.types
    stacks = [np.array(source, np.uint64).astype(np.uint32).reshape(-1, LANES) for source in sources]
    wanted = [
        wmma.registers(*each) for each in (("a", shape, kind), ("b", shape, kind), ("c", shape, c_type))
    ]
    results = wmma.registers("c", shape, d_type)
    if [len(stack) for stack in stacks] != wanted or len(tuple(ins.written())) != results:
        raise UnsupportedError(ins.name, ins.place)
    if cta.config.profile:
        cta.counters.mma_macs += shape[0] * shape[1] * shape[2]
    a, b, c = stacks
    if d_type == "s32":
        dtype = np.dtype(np.int8 if kind == "s8" else np.uint8)
        left, right = (words.view(dtype).reshape(-1)[at] for words, at in ((a, plan.a), (b, plan.b)))
        wide = left.astype(np.int64) @ right.astype(np.int64).T + c.view(np.int32).reshape(-1)[plan.c]
        if ins.has("satfinite"):
            wide = np.minimum(np.maximum(wide, -(2**31)), 2**31 - 1)
        total: npt.NDArray[Any] = (wide.astype(np.uint64) & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    else:
        total = _multiply_floats(cta, plan, a, b, c)
    out = np.empty(plan.d.size, total.dtype)
    out[plan.d] = total
    return list(out.view(np.uint32).reshape(-1, LANES).astype(np.uint64))


def _multiply_floats(
    cta: Cta,
    plan: Plan,
    a: npt.NDArray[np.uint32],
    b: npt.NDArray[np.uint32],
    c: npt.NDArray[np.uint32],
) -> npt.NDArray[Any]:
    """An H100 computes in f32 if C or D is f32, and rounds a D of f16 at the end; a product of tf32 is two of
    K = 4."""
    d_type, kind, c_type = plan.types
    storage, single = FORMATS[kind].storage, "f32" in (d_type, c_type)
    left, right = a.view(storage).reshape(-1)[plan.a], b.view(storage).reshape(-1)[plan.b]
    total = c.view(np.uint16 if c_type == "f16" else np.uint32).reshape(-1)[plan.c]
    if single and c_type == "f16":
        total = total.view(np.float16).astype(np.float32).view(np.uint32)
    multiply = cta.config.multiply
    assert multiply is not None
    steps = 2 if kind == "tf32" else 1
    depth = left.shape[1] // steps
    product = Product(FORMATS[kind], FORMATS[kind], "f32" if single else "f16", depth, "mma.sync")
    for step in range(steps):
        part = slice(step * depth, (step + 1) * depth)
        sides = [np.ascontiguousarray(side[:, part]) for side in (left, right)]
        total = multiply(product, cta.config.mma, sides[0], sides[1], np.ascontiguousarray(total))
    if single and d_type == "f16":
        return total.view(np.float32).astype(np.float16).view(np.uint16)
    return total


TABLE: dict[str, Translate] = {"wmma.load": load, "wmma.store": store, "wmma.mma": multiply}
