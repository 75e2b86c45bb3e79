# SPDX-License-Identifier: Apache-2.0
"""Extended-precision integer arithmetic (PTX ISA 9.7.2): sums that keep a carry in CC.CF, one bit a lane.

The ISA says that a subtraction writes its borrow to CC.CF. An H100 writes the complement, which is the carry
of a + ~b + 1, and reads it so. That shows where sums and differences share the flag, as in NVIDIA's division
of 128-bit integers, which is wrong by the ISA's words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter.integer import multiply_high
from gdnbench.sim.interpreter.operation import (
    Step,
    Thread,
    bits_kind,
    fetch,
    find_undefined,
    mark_computed,
    read_registers,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.machine.engine_interface import Lanes
from gdnbench.sim.ptx.ir import Instruction

Sum = Callable[[Array, Array, Array], tuple[Array, Array]]


def add_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """(a + b + carry, carry out); unsigned."""
    partial = a + b
    total = partial + carry.astype(a.dtype)
    return total, (partial < a) | (total < partial)


def subtract_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """(a + ~b + carry, carry out); unsigned."""
    return add_with_carry(a, ~b, carry)


def step(ins: Instruction) -> Step:
    """add.cc, addc, sub.cc, subc, mad.cc and madc; `.cc` also writes the carry."""
    sets = ins.has("cc")
    uses = ins.op.endswith("c")
    multiplies = ins.op in ("mad", "madc")
    part = ins.choice("lo", "hi") if multiplies else ""
    kind, bits = ins.types[0], bits_kind(f"b{ins.types[0][1:]}")
    fetches = tuple(fetch(ins, source, kind) for source in ins.sources)
    used = read_registers(ins.sources)
    dest = next(ins.written())
    put = write(ins, dest, bits)
    minus = ins.op in ("sub", "subc")
    total: Sum = subtract_with_carry if minus else add_with_carry
    product = np.multiply if part == "lo" else multiply_high
    dtype = np.dtype(f"u{int(bits[1:]) // 8}")

    def unsigned(value: Array) -> Array:
        return np.ascontiguousarray(value).view(dtype)

    def run(thread: Thread, lanes: Lanes) -> None:
        undefined = find_undefined(thread, used, lanes)
        values = [get(thread) for get in fetches]
        if multiplies:
            values = [product(values[0], values[1]), values[2]]
        carry = thread.carry if uses else np.full_like(thread.carry, minus)
        result, out = total(unsigned(values[0]), unsigned(values[1]), carry)
        put(thread, lanes, result)
        mark_computed(thread, (dest,), undefined)
        if sets:
            np.copyto(thread.carry, out, where=lanes)

    return run
