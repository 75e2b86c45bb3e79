# SPDX-License-Identifier: Apache-2.0
"""f64 arithmetic. Rounding to nearest is the host's own; the other directions and the fused product are
computed on integers of any size, lane by lane: slow, exact, and rare in kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gdnbench.sim.interpreter.operation import Operation
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.ptx.ir import Instruction

MODES = ("rn", "rz", "rm", "rp")
# PTX ISA leaves the NaN of f64 open; the hardware gives this one.
NAN = np.uint64(0xFFF8_0000_0000_0000)
_PRECISION, _MINIMUM, _MAXIMUM = 53, -1022, 1023


def canonical(value: Array) -> Array:
    """Every NaN as the one of f64."""
    return np.where(np.isnan(value), NAN.view(np.float64), value)


def nearest(value: Fraction, mode: str, negative_zero: bool) -> float:
    """An exact value as f64; a zero gets the sign that its caller knows."""
    if value == 0:
        return -0.0 if negative_zero else 0.0
    negative, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = max(exponent, _MINIMUM) - (_PRECISION - 1)
    scaled = size / Fraction(2) ** quantum
    down = scaled.numerator // scaled.denominator
    up = mode == {True: "rm", False: "rp"}[negative] and scaled != down
    if mode == "rn":
        up = 2 * (scaled - down) > 1 or (2 * (scaled - down) == 1 and down % 2 == 1)
    units = down + up
    if units.bit_length() + quantum - 1 > _MAXIMUM:
        to_largest = mode == "rz" or mode == {True: "rp", False: "rm"}[negative]
        result = math.ldexp(2**53 - 1, _MAXIMUM - 52) if to_largest else math.inf
    else:
        result = math.ldexp(units, quantum)
    return -result if negative else result


@dataclass(frozen=True, slots=True)
class Exact:
    """An operation on exact values, the sign of its zero results, and its results where Inf or NaN come
    in."""

    value: Callable[..., Fraction]
    negative_zero: Callable[[Sequence[float], str], bool]
    native: Callable[..., Array]  # what IEEE 754 says of Inf, NaN and division by zero

    def rounded(self, mode: str) -> Callable[..., Array]:
        """Lane by lane where everything is finite; the host's own result where not: nothing is rounded
        there."""

        def compute(*sources: Array) -> Array:
            result = np.array(self.native(*sources))
            finite = np.logical_and.reduce([np.isfinite(source) for source in sources])
            for lane in np.nonzero(finite)[0]:
                values = [float(source[lane]) for source in sources]
                if self is _QUOTIENT and values[1] == 0:
                    continue
                exact = self.value(*(Fraction(value) for value in values))
                result[lane] = nearest(exact, mode, exact == 0 and self.negative_zero(values, mode))
            return canonical(result)

        return compute


def _negative(value: float) -> bool:
    return math.copysign(1.0, value) < 0


def _sum_sign(values: Sequence[float], mode: str) -> bool:
    """A zero sum keeps the sign of its terms if they agree; if they do not, it is -0 only when rounded
    down."""
    *factors, last = values
    first = _product_sign(factors, mode) if len(factors) == 2 else _negative(factors[0])
    return first if first == _negative(last) else mode == "rm"


def _product_sign(values: Sequence[float], mode: str) -> bool:
    return _negative(values[0]) != _negative(values[1])


def _special_fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c where one of them is Inf or NaN; a finite product counts as 0 lest it overflow."""
    return np.where(np.isfinite(a) & np.isfinite(b), 0.0, a * b) + c


_SUM = Exact(lambda a, b: a + b, _sum_sign, np.add)
_PRODUCT = Exact(lambda a, b: a * b, _product_sign, np.multiply)
_QUOTIENT = Exact(lambda a, b: a / b, _product_sign, np.divide)
_FUSED = Exact(lambda a, b, c: a * b + c, _sum_sign, _special_fused)


def fused_product(ins: Instruction) -> Callable[[Array, Array, Array], Array]:
    """a * b + c of arrays of f64, rounded once as `ins` says."""
    return _FUSED.rounded(_mode(ins))


def _mode(ins: Instruction) -> str:
    return ins.choice(*MODES, default="rn")


def sum_(ins: Instruction, *, negate: bool) -> Operation:
    mode = _mode(ins)
    total = np.add if mode == "rn" else _SUM.rounded(mode)
    return Operation(("f64", "f64"), ("f64",), lambda a, b: canonical(total(a, -b if negate else b)))


def product(ins: Instruction) -> Operation:
    mode = _mode(ins)
    times = np.multiply if mode == "rn" else _PRODUCT.rounded(mode)
    return Operation(("f64", "f64"), ("f64",), lambda a, b: canonical(times(a, b)))


def quotient(ins: Instruction) -> Operation:
    mode = _mode(ins)
    divide = np.divide if mode == "rn" else _QUOTIENT.rounded(mode)
    return Operation(("f64", "f64"), ("f64",), lambda a, b: canonical(divide(a, b)))


def fused(ins: Instruction) -> Operation:
    mode = _mode(ins)
    return Operation(("f64",) * 3, ("f64",), _FUSED.rounded(mode))


def _root(value: float, mode: str) -> float:
    """The square root of a positive finite number: an integer root with a sticky bit, rounded once."""
    exact = Fraction(value)
    shift = 2 * 1200  # 2^1200 more than the smallest subnormal's root needs
    scaled = exact.numerator * (1 << shift) // exact.denominator
    root = math.isqrt(scaled)
    sticky = 1 if root * root != scaled or exact.numerator * (1 << shift) % exact.denominator else 0
    return nearest(Fraction(2 * root + sticky, 1 << (shift // 2 + 1)), mode, False)


def reciprocal_root(ins: Instruction) -> Operation:
    """1 / sqrt(a) rounded to nearest. A NaN keeps its bits and becomes quiet."""

    def compute(a: Array) -> Array:
        result = np.array(1.0 / np.sqrt(a))
        for lane in np.nonzero((a > 0) & np.isfinite(a))[0]:
            scaled = Fraction(float(a[lane])) * Fraction(1, 1 << 2 * 1200)
            inverse = 1 / scaled
            root = math.isqrt(inverse.numerator // inverse.denominator)
            sticky = int(root * root != inverse)
            result[lane] = nearest(Fraction(2 * root + sticky, 2 << 1200), "rn", False)
        quiet = (a.view(np.uint64) | np.uint64(1 << 51)).view(np.float64)
        return np.where(np.isnan(a), quiet, canonical(result))

    return Operation(("f64",), ("f64",), compute)


def unary(ins: Instruction) -> Operation:
    """`rcp` and `sqrt`."""
    mode = _mode(ins)
    if ins.op == "rcp":
        one = np.ones(32)
        divide = _QUOTIENT.rounded(mode)
        return Operation(("f64",), ("f64",), lambda a: canonical(divide(one, a)))
    if mode == "rn":
        return Operation(("f64",), ("f64",), lambda a: canonical(np.sqrt(a)))

    def roots(a: Array) -> Array:
        result = np.array(np.sqrt(a))
        for lane in np.nonzero((a > 0) & np.isfinite(a))[0]:
            result[lane] = _root(float(a[lane]), mode)
        return canonical(result)

    return Operation(("f64",), ("f64",), roots)
