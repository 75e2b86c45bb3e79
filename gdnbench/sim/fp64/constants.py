# SPDX-License-Identifier: Apache-2.0
"""Constants of a kernel that are f32 because they were rounded: the numbers that are meant.

A kernel computes e^x as ex2(x * 0f3FB8AA3B). That constant is log2(e) to 25 bits, and with it no arithmetic
in double comes closer to e^x than 10^-8. So a shadow of a constant is the number that it is the f32 of, where
this is one of

    a number that the caller names (the scalars of a call), and its product with log2(e)
    log2(e), ln 2, log2(10), pi, and what kernels make of these
    1 / sqrt(n) for n up to 1024, and its product with log2(e): softmax and query scales
    a decimal of up to six digits, such as 1e-6 or 0.044715

in an immediate or a parameter of 32 bits. Any other constant is exactly what its bits are, such as a
coefficient of a polynomial. So is a constant that a kernel has in two parts, log2(e) = hi + lo in f32: hi
stands for itself where lo is another constant of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.shadow_cells import F32, Bytes, Cells, make_cells, marks_of
from gdnbench.sim.ptx.ir import Immediate, Kernel

_LOG2E = math.log2(math.e)
_KNOWN = (
    _LOG2E, math.log(2), math.log2(10), math.log10(2), math.pi, 2 * math.pi, math.pi / 2, 1 / math.pi,
    2 / math.pi, 0.5 / math.pi, math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), math.log(10),
    1 / math.log(10), math.e,
)  # fmt: skip
_LARGEST_ROOT = 1024
_DIGITS = 6


def _decimal(number: np.float32) -> float:
    """The decimal of few digits that rounds to an f32; the f32 itself if there is none."""
    text = f"{number:.{_DIGITS - 1}e}"
    return float(text) if np.float32(text) == number else float(number)


class Constants:
    """The meant numbers of f32 constants. `used` are those that differ from their f32, by the f32."""

    def __init__(self, named: Iterable[float] = ()) -> None:
        roots = [n**-0.5 for n in range(1, _LARGEST_ROOT + 1)]
        known = [*_KNOWN, *roots, *(root * _LOG2E for root in roots)]
        for number in named:
            if math.isfinite(number) and number:
                known += [number, number * _LOG2E, 1 / number]
        with np.errstate(over="ignore", under="ignore"):
            # The last one of equal f32 counts: what the caller names.
            self._meant = {float(np.float32(number)): number for number in known}
        self._found: dict[int, float | None] = {}
        self._sizes: frozenset[float] = frozenset()  # of all constants of the kernel
        self.used: dict[float, float] = {}

    def begin_kernel(self, kernel: Kernel) -> None:
        """The constants that follow are those of `kernel`."""
        bits = {
            one.bits
            for ins in kernel.instructions
            for source in ins.sources
            for one in getattr(source, "elements", (source,))
            if isinstance(one, Immediate) and one.bits < 1 << 32
        }
        numbers = np.array(sorted(bits), np.uint32).view(np.float32)
        self._sizes = frozenset(np.abs(numbers).tolist())
        self._found.clear()

    def meant(self, bits: int) -> float | None:
        """The number that the f32 of these bits stands for; None if that is itself."""
        if bits not in self._found:
            self._found[bits] = self._look_up(bits)
        return self._found[bits]

    def _look_up(self, bits: int) -> float | None:
        number = np.array([bits], np.uint32).view(np.float32)[0]
        if not 1e-30 < abs(number) < 1e30:
            return None
        size = self._meant.get(abs(float(number)))
        meant = math.copysign(size, number) if size is not None else _decimal(number)
        if meant == float(number) or self._is_upper_part(float(number), meant):
            return None
        self.used[float(number)] = meant
        return meant

    def _is_upper_part(self, number: float, meant: float) -> bool:
        """Whether the kernel has the rest of the number as well, to a thousandth."""
        rest = abs(meant - number)
        return any(abs(size - rest) <= 1e-3 * rest for size in self._sizes)

    def cells(self, data: Bytes) -> Cells | None:
        """The cells of the words of uint8[32, width] that are such constants; None if none is."""
        words = np.ascontiguousarray(data).view(np.uint32)
        found: Cells | None = None
        for place in range(words.shape[1]):
            column = words[:, place]
            for bits in np.unique(column).tolist():
                meant = self.meant(bits)
                if meant is None:
                    continue
                if found is None:
                    found = np.zeros(data.shape, np.complex128)
                part = slice(4 * place, 4 * place + 4)
                present = (column == bits)[:, None]
                made = make_cells(np.full((LANES, 1), meant), data[:, part], F32, present)
                found[:, part] = np.where(marks_of(made) != 0, made, found[:, part])
        return found
