# SPDX-License-Identifier: Apache-2.0
"""fp32 arithmetic: every rounding mode, flush to zero, saturation, comparison and the NaN rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tests.sim.silicon.elementwise import Operation, asm, elementwise, op
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import f32_one, f32_three, f32_two

ROUNDINGS = ("rn", "rz", "rm", "rp")
FLUSH = ("", ".ftz")
SATURATE = ("", ".sat")
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")


def comparison(compare: str, suffix: str) -> Operation:
    """A setp as a 0/1 word, both of its results."""
    label = f"setp.{compare}{suffix}"
    text = f"{label} $p|$q, $a, $b;\nselp.b32 $d, 1, 0, $p;\nselp.b32 $d1, 1, 0, $q;"
    return asm(label, text, "b32", "b32")


def add_sub_mul() -> MicroKernel:
    a, b = f32_two(1, 8192)
    spellings = (
        f"{o}.{r}{f}{s}.f32" for o, f, s, r in product(("add", "sub", "mul"), FLUSH, SATURATE, ROUNDINGS)
    )
    return elementwise("f32_add_sub_mul", (a, b), [op(s, sources=2) for s in spellings])


def fused() -> MicroKernel:
    inputs = f32_three(2, 12288)
    spellings = (f"fma.{r}{f}{s}.f32" for f, s, r in product(FLUSH, SATURATE, ROUNDINGS))
    return elementwise("f32_fma", inputs, [op(s, sources=3) for s in spellings])


def minimum_maximum() -> MicroKernel:
    inputs = f32_two(3, 4096)
    modes = (f"{f}{nan}{x}" for f, nan, x in product(FLUSH, ("", ".NaN"), ("", ".xorsign.abs")))
    operations = [op(f"{o}{m}.f32", sources=2) for m in modes for o in ("min", "max")]
    operations += [op("copysign.f32", sources=2), *(op(f"abs{f}.f32") for f in FLUSH)]
    operations += [op(f"neg{f}.f32") for f in FLUSH]
    return elementwise("f32_min_max", inputs, operations)


def compared() -> MicroKernel:
    inputs = f32_two(4, 4096)
    names = (*ORDERED, *UNORDERED, "num", "nan")
    operations = [comparison(c, f"{f}.f32") for f in FLUSH for c in names]
    for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        operations.append(
            asm(f"testp.{kind}.f32", f"testp.{kind}.f32 $p, $a;\nselp.b32 $d, 1, 0, $p;", "b32")
        )
    operations += [op(f"set.{c}.u32.f32", sources=2) for c in ("lt", "neu")]
    operations += [op(f"set.{c}.ftz.f32.f32", sources=2) for c in ("ge", "equ")]
    return elementwise("f32_compare", inputs, operations)


def divided() -> MicroKernel:
    inputs = f32_two(5, 4096)
    spellings = (f"div.{r}{f}.f32" for f, r in product(FLUSH, ROUNDINGS))
    return elementwise("f32_div", inputs, [op(s, sources=2) for s in spellings])


def rooted() -> MicroKernel:
    """Correctly rounded reciprocal and square root."""
    spellings = (f"{o}.{r}{f}.f32" for o, f, r in product(("rcp", "sqrt"), FLUSH, ROUNDINGS))
    return elementwise("f32_rcp_sqrt_rounded", (f32_one(6, 4096),), [op(s) for s in spellings])


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    add_sub_mul,
    fused,
    minimum_maximum,
    compared,
    divided,
    rooted,
)
