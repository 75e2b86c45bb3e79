# SPDX-License-Identifier: Apache-2.0
"""The shadows of results of arithmetic on bits: `and`, `or`, `xor`, `lop3`, `add`, `bfi`, `min`, ...

The bits of the result are compared with those of each operand that has a shadow:

    equal                                       the shadow stays: half of a select, a union of halves
    equal but for the sign bit                  the sign of the shadow changes with it
    an f32 of equal significand, both normal    the shadow is multiplied by the ratio, a power of two
                                                (2^n by an addition to the exponent)
    an f32 with up to 16 low bits cleared       the shadow stays: a rounding toward zero

A result that matches none of these has no shadow. Whole f32 come first, then halves, then bytes, each at its
place.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.fp64.arithmetic import Rule
from gdnbench.sim.fp64.registers import ROOM, RegisterShadows
from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Words
from gdnbench.sim.machine.shadow_cells import (
    BF16,
    F16,
    F32,
    Bytes,
    Cells,
    Doubles,
    current,
    make_cells,
    marks_of,
    read_elements,
)
from gdnbench.sim.ptx.ir import Instruction, Register

_LOW = 16  # low bits of an f32 that a mask may clear


def result_cells(cells: Cells, before: Bytes, after: Bytes) -> Cells:
    """The cells of `after`, uint8[32, width], which were computed from `before`, whose cells are `cells`."""
    cells = current(cells, before)
    found = np.zeros_like(cells)
    for start in range(0, before.shape[1] - before.shape[1] % 4, 4):
        part = slice(start, start + 4)
        old, new = before[:, part], after[:, part]
        values, present = read_elements(np.ascontiguousarray(cells[:, part]), old, F32)
        factor = _ratio(_words(old), _words(new))
        fits = present & (factor != 0)[:, None]
        found[:, part] = make_cells(values * factor[:, None], new, F32, fits)
    _halves(cells, before, after, found)
    same = (before == after) & (marks_of(found) == 0)
    marks_of(found)[same] = marks_of(cells)[same]
    found.real[same] = cells.real[same]
    return found


def _words(data: Bytes) -> Words:
    words: Words = np.ascontiguousarray(data).view(np.uint32)[:, 0]
    return words


def _ratio(old: Words, new: Words) -> Doubles:
    """The factor from the shadow of `old` to that of `new`, by lane; 0 if there is none."""
    significand, sign = np.uint32(0x7F_FFFF), np.uint32(0x8000_0000)
    exponents = [(bits >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64) for bits in (old, new)]
    normal = np.logical_and.reduce([(e > 0) & (e < 255) for e in exponents])
    changed = old ^ new
    scaled = normal & (changed & significand == 0)
    cut = (changed < 1 << _LOW) & (new & changed == 0) & (exponents[0] < 255)
    flipped = changed & ~sign == 0
    power = np.where(scaled, np.exp2(exponents[1] - exponents[0]), 1.0)
    factor = np.where(scaled | cut | flipped, power, 0.0)
    return np.where(changed & sign != 0, -factor, factor)


def _halves(cells: Cells, before: Bytes, after: Bytes, found: Cells) -> None:
    """Write to `found` the halves whose sign alone changed."""
    for start in range(0, before.shape[1] - 1, 2):
        part = slice(start, start + 2)
        old, new = before[:, part], after[:, part]
        flipped = (old[:, 0] == new[:, 0]) & (old[:, 1] ^ new[:, 1] == 0x80)
        if not flipped.any():
            continue
        for shape in (BF16, F16):
            values, present = read_elements(np.ascontiguousarray(cells[:, part]), old, shape)
            fits = present[:, 0] & flipped & (marks_of(found)[:, part] == 0).all(axis=1)
            if fits.any():
                found[fits, part] = make_cells(-values, new, shape)[fits]


def bit_arithmetic(ins: Instruction) -> Rule:
    """The rule of an instruction on bits with one result."""
    sources = [source for source in ins.sources if isinstance(source, Register) and source.type != "pred"]
    dests = [dest for dest in ins.written() if isinstance(dest, Register) and dest.type != "pred"]

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        held = [
            (shadows.cells[one.index].copy(), shadows.bytes[one.index].copy())
            for one in sources
            if shadows.shadowed[one.index]
        ]
        step(thread, lanes)
        for dest in dests:
            if not held:
                shadows.clear(dest.index, lanes)
                continue
            width = max(dest.bits // 8, 1)
            after = shadows.bytes[dest.index]
            found = np.zeros((LANES, ROOM), np.complex128)
            for cells, before in held:
                one = result_cells(cells, before, after)
                free = marks_of(found) == 0
                found = np.where(free, one, found)
            shadows.write(dest.index, lanes, found[:, :width])

    return rule
