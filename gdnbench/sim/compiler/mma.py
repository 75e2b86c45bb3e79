# SPDX-License-Identifier: Apache-2.0
"""mma.sync: converts a warp's fragments to matrices, multiplies them with the tensor core's model, and back.

A fragment's lane is 4 * group + t (PTX ISA, "Matrix Fragments for mma"). Index tables, one per shape, map
each element of A, B and C to its register and lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler import wmma
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Argument, Results
from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product

Index = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint32]

_M, _N = 16, 8
_SHAPES = {"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16, "m16n8k32": 32}


@dataclass(frozen=True, slots=True)
class Plan:
    """A product and the positions of its elements: indices into registers as [register, lane, element of a
    register]."""

    product: Product
    a: Index  # [16, k]
    b: Index  # [8, k]
    c: Index  # [16, 8]
    registers: tuple[int, int, int]


def _operand(rows: int, k: int, per: int) -> Index:
    """Register r has rows from 8 * (r % (rows / 8)) and columns from 4 * per * (r / (rows / 8)) on; in it
    lane 4 * group + t has row `group` and columns from per * t on."""
    row, column = np.arange(rows)[:, None], np.arange(k)[None, :]
    blocks = rows // 8
    register = row // 8 + blocks * (column // (4 * per))
    lane = 4 * (row % 8) + column % (4 * per) // per
    index: Index = (register * LANES + lane) * per + column % per
    return index


def _accumulator(per: int) -> Index:
    """C and D: two neighbouring columns per lane, in two registers of f32 or one of halves."""
    row, column = np.arange(_M)[:, None], np.arange(_N)[None, :]
    lane = 4 * (row % 8) + column // 2
    if per == 2:
        packed: Index = (row // 8 * LANES + lane) * 2 + column % 2
        return packed
    single: Index = (2 * (row // 8) + column % 2) * LANES + lane
    return single


@cache
def plan(shape: str, types: tuple[str, ...]) -> Plan:
    """The plan of one shape, such as m16n8k16, and the types of D, A, B and C."""
    d, a, b, _ = types
    k = _SHAPES[shape]
    product = Product(FORMATS[a], FORMATS[b], "f32" if d == "f32" else "f16", k, "mma.sync")
    per = 4 // FORMATS[a].storage.itemsize
    halves = 2 if d == "f16" else 1
    counts = (2 * k // (4 * per), k // (4 * per), 4 // halves)
    return Plan(product, _operand(_M, k, per), _operand(_N, k, per), _accumulator(halves), counts)


def plan_of(ins: Instruction) -> Plan:
    """The plan of an instruction."""
    return plan(ins.choice(*_SHAPES), ins.types)


def execute(cta: Cta, ins: Instruction, sources: tuple[Argument, ...]) -> Results:
    """D = A B + C for the whole warp."""
    if ins.op == "wmma.mma":
        return wmma.execute(cta, ins, sources)
    if ins.types[0] == "s32":
        return _execute_integers(cta, ins, sources)
    form = plan_of(ins)
    stacks = [np.array(source, np.uint64).astype(np.uint32).reshape(-1, LANES) for source in sources]
    counts = tuple(len(stack) for stack in stacks)
    if counts != form.registers or len(tuple(ins.written())) != form.registers[2]:
        raise UnsupportedError(ins.name, ins.place)
    return list(product(cta, form, *stacks).astype(np.uint64))


_INTEGER_SHAPES = {"m8n8k16": (8, 16), "m16n8k16": (16, 16), "m16n8k32": (16, 32)}


def _execute_integers(cta: Cta, ins: Instruction, sources: tuple[Argument, ...]) -> Results:
    """Bytes times bytes in 32-bit sums, which wrap, or stay at the nearest bound with `.satfinite`. Four
    products of a register's bytes fit 32 bits, all of them 64."""
    rows, k = _INTEGER_SHAPES[ins.choice(*_INTEGER_SHAPES)]
    stacks = [np.array(source, np.uint64).astype(np.uint32).reshape(-1, LANES) for source in sources]
    counts = (rows * k // 128, k // 16, rows // 4)
    if tuple(len(stack) for stack in stacks) != counts or len(tuple(ins.written())) != counts[2]:
        raise UnsupportedError(ins.name, ins.place)
    a, b, c = stacks

    def matrix(words: Words, kind: str, height: int) -> npt.NDArray[np.int64]:
        codes = words.view(np.int8 if kind == "s8" else np.uint8).reshape(-1)
        return codes[_operand(height, k, 4)].astype(np.int64)

    places = _accumulator(1)[:rows]
    total = matrix(a, ins.types[1], rows) @ matrix(b, ins.types[2], _N).T
    total += c.view(np.int32).reshape(-1)[places]
    if ins.has("satfinite"):
        total = np.minimum(np.maximum(total, -(2**31)), 2**31 - 1)
    if cta.config.profile:
        cta.counters.mma_macs += rows * _N * k
    out = np.empty(places.size, np.uint32)
    out[places] = total.astype(np.uint64) & np.uint64(0xFFFF_FFFF)
    return list(out.reshape(-1, LANES).astype(np.uint64))


def product(cta: Cta, form: Plan, a: Words, b: Words, c: Words) -> Words:
    """The registers of D from those of A, B and C, all [registers, 32]."""
    kind = form.product
    storage = kind.accumulator.storage
    multiply = cta.config.multiply
    assert multiply is not None
    d = multiply(
        kind,
        cta.config.mma,
        a.view(kind.a.storage).reshape(-1)[form.a],
        b.view(kind.b.storage).reshape(-1)[form.b],
        c.view(storage).reshape(-1)[form.c],
    )
    if cta.config.profile:
        cta.counters.mma_macs += _M * _N * kind.k
    out = np.empty(form.c.size, storage)
    out[form.c] = d
    return out.view(np.uint32).reshape(-1, LANES)
