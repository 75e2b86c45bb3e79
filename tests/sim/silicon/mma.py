# SPDX-License-Identifier: Apache-2.0
"""mma.sync of every type that sm_90 has, over operands of narrow and wide ranges.

Operands are drawn as sign, exponent and mantissa: `spread` binades lie between the largest and the smallest
exponent, so terms of one dot product differ by up to twice that. C is drawn around the sum's magnitude, so
that it is neither lost nor alone. The fragments are random, hence each warp's 32 lanes test the fragment
layout as well as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.sim.silicon.elementwise import asm, elementwise
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import U32, below, random_words

SPREADS = (0, 6, 20, 40)
WARPS = 16  # per spread


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point operand: `bits` wide, of which `fraction` mantissa and `exponent` exponent bits;
    `pad` low bits that the tensor core does not read (tf32 is kept in 32 bits)."""

    bits: int
    exponent: int
    fraction: int
    pad: int = 0

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1


FORMATS = {
    "f32": Format(32, 8, 23),
    "f16": Format(16, 5, 10),
    "bf16": Format(16, 8, 7),
    "tf32": Format(32, 8, 10, 13),
    "e4m3": Format(8, 4, 3),
    "e5m2": Format(8, 5, 2),
}


def drawn(name: str, seed: int, count: int, spread: int, center: int = 0) -> U32:
    """`count` codes with exponents evenly within `spread` binades around 2^center, clipped to the format's
    range (the lowest code is subnormal there)."""
    form = FORMATS[name]
    words = random_words(seed, count)
    exponent = below(seed + 1, count, spread + 1) - spread // 2 + center + form.bias
    top = (1 << form.exponent) - 2
    exponent = np.clip(exponent, 0, top).astype(np.uint64)
    low = np.uint64((1 << (form.fraction + form.pad)) - 1)
    code = (words & low) | exponent << np.uint64(form.fraction + form.pad)
    code |= (words >> np.uint64(63)) << np.uint64(form.bits - 1)
    return code.astype(np.uint32)


def specials(name: str, seed: int, count: int) -> U32:
    """Ones and small numbers with, now and then, zero, subnormal, largest, infinity or NaN."""
    form = FORMATS[name]
    shift = form.fraction + form.pad
    top = ((1 << form.exponent) - 1) << shift
    rare = [
        0,
        1 << form.pad,
        (1 << shift) - 1,
        top - 1,
        top,
        top | 1 << (shift - 1),
        top | 1,
        top | ((1 << shift) - 1),
    ]
    table = np.array(rare, np.uint64)
    words = random_words(seed + 2, count)
    pick = table[below(seed + 3, count, table.size)] | (words >> np.uint64(63)) << np.uint64(form.bits - 1)
    usual = drawn(name, seed, count, 4).astype(np.uint64)
    return np.where(below(seed + 4, count, 40) == 0, pick, usual).astype(np.uint32)


def packed(name: str, codes: U32) -> U32:
    """Several codes to a 32-bit register, the first lowest."""
    bits = FORMATS[name].bits
    if bits == 32:
        return codes
    view = codes.astype(np.uint16 if bits == 16 else np.uint8)
    return np.ascontiguousarray(view).view(np.uint32)


@dataclass(frozen=True, slots=True)
class Shape:
    """m16n8kK: elements of A, B and C/D that a lane holds."""

    k: int

    @property
    def a(self) -> int:
        return 16 * self.k // 32

    @property
    def b(self) -> int:
        return 8 * self.k // 32


def operand(name: str, seed: int, each: int, special: bool, center: int = 0) -> list[U32]:
    """A fragment for every lane of every warp: one array a register."""
    lanes = WARPS * 32
    parts = []
    for i, spread in enumerate((*SPREADS, -1)):
        make = (
            specials(name, seed + 10 * i, lanes * each)
            if spread < 0
            else drawn(name, seed + 10 * i, lanes * each, spread, center)
        )
        if spread >= 0 or special:
            parts.append(packed(name, make).reshape(lanes, -1))
    return [np.ascontiguousarray(column) for column in np.concatenate(parts).T]


def cancelling(c: list[U32]) -> list[U32]:
    """A third of the accumulators zero, so that the products alone decide."""
    return [
        np.where(np.arange(x.size) % 3 == i % 3, np.uint32(0), x).astype(np.uint32) for i, x in enumerate(c)
    ]


def product(k: int, d: str, a: str, b: str, seed: int) -> MicroKernel:
    shape = Shape(k)
    fragments = [
        operand(a, seed, shape.a, True),
        operand(b, seed + 100, shape.b, True),
        cancelling(operand(d, seed + 200, 4, True, 2)),
    ]
    return multiply(f"mma_m16n8k{k}_{d}_{a}_{b}", f"m16n8k{k}.row.col.{d}.{a}.{b}.{d}", fragments)


def multiply(name: str, spelling: str, fragments: list[list[U32]]) -> MicroKernel:
    letters = iter("abcefghijl")
    groups = ["{" + ", ".join(f"${next(letters)}" for _ in fragment) + "}" for fragment in fragments]
    outs = len(fragments[2])
    registers = ", ".join(("$d", "$d1", "$d2", "$d3")[:outs])
    text = f"mma.sync.aligned.{spelling} {{{registers}}}, {', '.join(groups)};"
    inputs = [column for fragment in fragments for column in fragment]
    return elementwise(name, inputs, [asm(f"mma.sync.aligned.{spelling}", text, *["b32"] * outs)])


FLOATS = (
    (16, "f32", "bf16", "bf16"),
    (16, "f32", "f16", "f16"),
    (16, "f16", "f16", "f16"),
    (8, "f32", "bf16", "bf16"),
    (8, "f32", "f16", "f16"),
    (8, "f16", "f16", "f16"),
    (4, "f32", "tf32", "tf32"),
    (8, "f32", "tf32", "tf32"),
    (32, "f32", "e4m3", "e4m3"),
    (32, "f32", "e5m2", "e5m2"),
    (32, "f32", "e4m3", "e5m2"),
    (32, "f32", "e5m2", "e4m3"),
    (16, "f32", "e4m3", "e4m3"),
    (16, "f32", "e5m2", "e5m2"),
    (32, "f16", "e4m3", "e4m3"),
    (16, "f16", "e5m2", "e5m2"),
)
KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(product, *args, seed=1000 + 400 * i) for i, args in enumerate(FLOATS)),
)
