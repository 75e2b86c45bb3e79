# SPDX-License-Identifier: Apache-2.0
"""Logic and shifts (PTX ISA 9.7.8), and byte permutation (`prmt`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.interpreter.operation import (
    Operation,
    Step,
    Thread,
    bits_kind,
    fetch,
    find_undefined,
    mark_computed,
    read_registers,
    write,
)
from gdnbench.sim.interpreter.registers import Array, all_marks, whole
from gdnbench.sim.machine.engine_interface import LANES, Lanes
from gdnbench.sim.ptx.ir import Immediate, Instruction, Register

_U32 = np.uint32
_U64 = np.uint64


def _bitwise(compute: Callable[..., Array], count: int) -> Callable[[Instruction], Operation]:
    def define(ins: Instruction) -> Operation:
        kind = bits_kind(ins.types[0])
        return Operation((kind,) * count, (kind,), compute)

    return define


def _lop3(ins: Instruction) -> Operation:
    """Any function of three bits; its table is the immediate: bit (a << 2 | b << 1 | c)."""
    if not all(isinstance(table, Immediate) for table in ins.sources[3:]):
        raise UnsupportedError(f"{ins.name} with a table that is no constant", ins.place)

    def compute(a: Array, b: Array, c: Array, table: Array) -> Array:
        out = np.zeros(a.shape, _U32)
        for row in range(8):
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            out |= np.where(table >> _U32(row) & _U32(1), term, _U32(0))
        return out

    return Operation(("u32",) * 4, ("u32",), compute)


def _shift(ins: Instruction) -> Operation:
    """`shl`, `shr`: amounts beyond the width act like the width."""
    left = ins.op == "shl"
    kind = ins.types[0] if ins.types[0][0] == "s" else bits_kind(ins.types[0])
    width = int(kind[1:])

    def compute(a: Array, amount: Array) -> Array:
        inside = np.minimum(amount, _U32(width - 1)).astype(a.dtype)
        shifted: Array = np.left_shift(a, inside) if left else np.right_shift(a, inside)
        if kind[0] == "s":
            return shifted
        return np.where(amount < width, shifted, a.dtype.type(0))

    return Operation((kind, "u32"), (kind,), compute)


def _funnel(ins: Instruction) -> Operation:
    """`shf`: the 64 bits b:a shifted, the upper half kept (left) or the lower (right)."""
    left = ins.choice("l", "r") == "l"
    clamp = ins.choice("clamp", "wrap") == "clamp"

    def compute(a: Array, b: Array, amount: Array) -> Array:
        count = (np.minimum(amount, _U32(32)) if clamp else amount & _U32(31)).astype(_U64)
        both = b.astype(_U64) << _U64(32) | a
        return (both << count >> _U64(32) if left else both >> count).astype(_U32)

    return Operation(("u32",) * 3, ("u32",), compute)


# Which of the eight source bytes goes to result bytes 0..3, by the two low bits of the selector.
PERMUTE_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def selected_bytes(mode: str, control: Array) -> tuple[Array, Array]:
    """(source byte, replicate its sign) for each lane and result byte."""
    if mode:
        index = np.array(PERMUTE_MODES[mode])[(control & _U32(3)).astype(np.intp)]
        return index, np.zeros(index.shape, np.bool_)
    nibbles = control[:, None] >> np.array([0, 4, 8, 12], _U32)
    return (nibbles & _U32(7)).astype(np.intp), (nibbles & _U32(8)).astype(np.bool_)


def _octets(a: Array, b: Array) -> Array:
    """The eight bytes of b:a, uint8[32, 8]."""
    return (b.astype(_U64) << _U64(32) | a).view(np.uint8).reshape(-1, 8)


def prmt(ins: Instruction) -> Step:
    """Bytes are moved, so those that were never written stay so: compilers build vectors of bytes with it,
    one byte at a time, on a register that holds nothing yet."""
    mode = ins.choice(*PERMUTE_MODES)
    get_a, get_b, get_control = (fetch(ins, source, "u32") for source in ins.sources)
    moved, control_used = ins.sources[:2], read_registers(ins.sources[2:])
    dest = next(ins.written())
    put = write(ins, dest, "u32")

    places = np.arange(4, dtype=_U32)

    def byte_marks(thread: Thread, operand: object) -> Array:
        """The marks of each byte of a source, [32, 4]."""
        marks: Array = thread.registers.moved(operand)[:, None] >> places & all_marks(1)
        return marks

    def step(thread: Thread, lanes: Lanes) -> None:
        undefined = find_undefined(thread, control_used, lanes)
        index, sign = selected_bytes(mode, get_control(thread))
        octets = _octets(get_a(thread), get_b(thread))
        picked = np.take_along_axis(octets, index, axis=1)
        result = np.where(sign, np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0)), picked)
        marks = None
        if not all(thread.registers.clean[i] for i in read_registers(moved)):
            sources = np.concatenate([byte_marks(thread, operand) for operand in moved], axis=1)
            marks = (np.take_along_axis(sources, index, axis=1) << places).sum(axis=1, dtype=_U32)
        put(thread, lanes, np.ascontiguousarray(result).view(_U32).reshape(-1))
        if isinstance(dest, Register) and marks is not None:
            zero_extension = _U32(whole(dest) & ~0xF)
            thread.registers.mark_moved(dest.index, lanes, marks | zero_extension, moved)
        mark_computed(thread, (dest,), undefined)

    return step


def conjunction(ins: Instruction) -> Step:
    """`and` and `or`. Where one operand decides the result alone (all zeros, all ones), the other may be
    undefined."""
    kind = bits_kind(ins.types[0])
    compute = np.bitwise_and if ins.op == "and" else np.bitwise_or
    fetches = tuple(fetch(ins, source, kind) for source in ins.sources)
    used = tuple(read_registers([source]) for source in ins.sources)
    dest = next(ins.written())
    put = write(ins, dest, kind)

    def step(thread: Thread, lanes: Lanes) -> None:
        values = [get(thread) for get in fetches]
        lacking = [find_undefined(thread, registers, lanes) for registers in used]
        undefined = None
        if any(each is not None for each in lacking):
            parts = [np.zeros(LANES, np.bool_) if each is None else each for each in lacking]
            decided = [value == (0 if ins.op == "and" else ~value.dtype.type(0)) for value in values]
            undefined = (parts[0] & ~(decided[1] & ~parts[1])) | (parts[1] & ~(decided[0] & ~parts[0]))
        put(thread, lanes, compute(*values))
        mark_computed(thread, (dest,), undefined)

    return step


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "xor": _bitwise(np.bitwise_xor, 2),
    "not": _bitwise(np.invert, 1),
    "cnot": _bitwise(lambda a: (a == 0).astype(a.dtype), 1),
    "lop3": _lop3,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
}
