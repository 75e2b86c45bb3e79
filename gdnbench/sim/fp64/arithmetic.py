# SPDX-License-Identifier: Apache-2.0
"""Float instructions in double: arithmetic, approximate functions, conversions between float formats.

The rounding of an instruction is left out, and so are flushing to zero and the rounding of operands. `.sat`,
`.relu` and the choice of a minimum stay: they are part of the formula. An approximate function (`ex2.approx`,
`rcp.approx`, `tanh.approx`, ...) is the function itself.

Some roundings are meant. `cvt.rni.f32.f32` and its like round to an integer. So does the addition of a number
such as 1.5 * 2^23, whose unit in the last place is 1. The results of these have no shadow: the kernel's own
number, which is that integer, is exact. They do not count as losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gdnbench.sim.fp64.registers import KINDS, Kind, RegisterShadows, kernel_reader, reader, write_values
from gdnbench.sim.interpreter.operation import Step, Thread
from gdnbench.sim.machine.engine_interface import Lanes
from gdnbench.sim.machine.shadow_cells import E4M3, E5M2, F32, F64, Doubles
from gdnbench.sim.ptx.ir import Instruction

Rule = Callable[[Thread, RegisterShadows, Lanes, Step], None]
"""Runs the step of an instruction and writes the shadows of its results."""

Function = Callable[..., Doubles]

_UNIT_ONE = {F32: 2.0**23, F64: 2.0**52}
_NEAR = 1024
"""A number that is equal in all lanes and at most so far from 1 or 1.5 times `_UNIT_ONE` is one that is added
to round to an integer, for the unit in the last place is 1 there: 1.5 * 2^23, 12582913, -12583039, ... Data
of that size differs from lane to lane."""


def _rounds(addend: Doubles, one: float) -> bool:
    """Whether a sum with this operand, f64[active lanes, n], is a rounding to an integer."""
    size = abs(float(addend.flat[0]))
    near = min(abs(size - one), abs(size - 1.5 * one)) <= _NEAR
    return near and bool((addend == addend.flat[0]).all())


def _copysign(sign: Doubles, size: Doubles) -> Doubles:
    return np.copysign(size, sign)


_BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "copysign": _copysign,
}
_UNARY: dict[str, Function] = {
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda a: 1.0 / a,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def _fused(a: Doubles, b: Doubles, c: Doubles) -> Doubles:
    product: Doubles = a * b + c
    return product


def _function(ins: Instruction) -> Function | None:
    if ins.op in ("fma", "mad"):
        return _fused
    if ins.op in ("min", "max"):
        if ins.has("abs", "xorsign"):
            return None
        nan = ins.has("NaN")
        choose = (np.maximum if nan else np.fmax) if ins.op == "max" else (np.minimum if nan else np.fmin)
        return lambda first, *rest: _reduced(choose, first, rest)
    return _BINARY.get(ins.op) or _UNARY.get(ins.op)


def _reduced(choose: Function, first: Doubles, rest: Sequence[Doubles]) -> Doubles:
    for one in rest:
        first = choose(first, one)
    return first


def _kinds(ins: Instruction) -> tuple[list[Kind], Kind] | None:
    """The types of the sources and of the result; with two types the first one is the result's, and the last
    source has it too (PTX ISA 9.7.5)."""
    kinds = [KINDS.get(name) for name in ins.types]
    first, last = kinds[0], kinds[-1]
    if first is None or last is None:
        return None
    sources = [last] * len(ins.sources)
    if len(ins.types) == 2:
        sources[-1] = first
    return sources, first


def arithmetic(ins: Instruction) -> Rule | None:
    """The rule of a float instruction; None if it is none that has one."""
    function = _function(ins)
    if not ins.types or function is None or (ins.op == "mad" and ins.types[0] not in KINDS):
        return None
    kinds = _kinds(ins)
    if kinds is None:
        return None
    sources, kind = kinds
    reads = [reader(ins, source, of) for source, of in zip(ins.sources, sources, strict=True)]
    (dest,) = ins.written()
    saturates, relu = ins.has("sat"), ins.has("relu")
    one = _UNIT_ONE.get(kind.shape)
    addends: list[int] = {"add": [0, 1], "sub": [0, 1], "fma": [2], "mad": [2]}.get(ins.op, [])
    owns = [kernel_reader(ins, ins.sources[i], sources[i]) for i in addends] if one is not None else []

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        operands = [read(thread, shadows) for read in reads]
        integral = one is not None and any(_rounds(own(thread, shadows)[lanes], one) for own in owns)
        result = function(*operands)
        if saturates:
            result = np.where(np.isnan(result), 0.0, np.clip(result, 0.0, 1.0))
        if relu:
            result = np.where(result < 0, 0.0, result)
        step(thread, lanes)
        write_values(
            shadows, dest, kind, result, lanes, np.zeros(result.shape, np.bool_) if integral else None
        )

    return rule


_SMALL = {"e4m3x2": Kind(E4M3, 2), "e5m2x2": Kind(E5M2, 2)}
_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")


def is_intended_rounding(ins: Instruction) -> bool:
    """Whether a conversion rounds on purpose: to an integer, to a power of two, or from or to a number of
    which no shadow is kept because it is exact."""
    target, source = ins.types
    if source not in KINDS and source not in _SMALL:
        return True
    return ins.has(*_TO_INTEGER) or target.startswith("ue8m0") or target[0] in "us"


def conversion(ins: Instruction) -> Rule | None:
    """`cvt` from a float to a float: the shadow passes unchanged. To a pair, the first source is the upper
    element."""
    target, source = ({**KINDS, **_SMALL}.get(name) for name in ins.types)
    if target is None or source is None or ins.has(*_TO_INTEGER):
        return None
    count = len(ins.sources) * source.count
    if count != target.count:
        return None
    reads = [reader(ins, one, source) for one in reversed(ins.sources)]
    (dest,) = ins.written()
    relu, saturates = ins.has("relu"), ins.has("sat")

    def rule(thread: Thread, shadows: RegisterShadows, lanes: Lanes, step: Step) -> None:
        values = np.concatenate([read(thread, shadows) for read in reads], axis=1)
        if relu:
            values = np.where(values < 0, 0.0, values)
        if saturates:
            values = np.where(np.isnan(values), 0.0, np.clip(values, 0.0, 1.0))
        step(thread, lanes)
        write_values(shadows, dest, target, values, lanes)

    return rule
