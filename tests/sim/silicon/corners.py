# SPDX-License-Identifier: Apache-2.0
"""mma.sync sums that random operands do not reach: a tile of 16 x 16 whose diagonal asks questions.

Question i is element (i, i); the rest of the tile is whatever comes of it. They settle what zeros do to the
alignment of the other terms, the sign of a zero sum, sums that are subnormal and sums that overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gdnbench.sim.tensorcore.formats import FORMATS, Codes, Format
from gdnbench.sim.tensorcore.product import Product
from tests.sim.silicon.fragments import GROUP, THREAD
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.mma import multiply, packed
from tests.sim.silicon.patterns import U32

FULL = 2.0 - 2.0**-23  # a float with all fraction bits set


@dataclass(frozen=True, slots=True)
class Corner:
    """The first elements of a row of A and of B (the rest are zeros, or `fill`), and C."""

    question: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    fill: tuple[float, float] = (0.0, 0.0)


def corners(product: Product) -> tuple[Corner, ...]:
    """The questions that the product's range reaches."""
    wide = product.a.exponent_bits == 8
    huge = 2.0**product.a.max_exponent
    small = 2.0**product.accumulator.min_exponent
    last = small * 2.0**-product.accumulator.fraction_bits  # the smallest subnormal of the accumulator
    common = (
        Corner("sum of negative zeros", (-0.0,), (1.0,), -0.0, fill=(-0.0, 1.0)),
        Corner("cancellation to zero", (1.0, 1.0), (1.0, -1.0), 0.0),
        Corner("cancellation of C", (1.0,), (1.0,), -1.0),
        Corner("exponent of a zero: C at 2^-20", (0.0,), (huge,), FULL * 2.0**-20, fill=(0.0, huge)),
        Corner("exponent of a zero: C at the bottom", (0.0,), (huge,), FULL * small, fill=(0.0, huge)),
        Corner("subnormal C alone", (0.0,), (0.0,), -3 * last),
        Corner("subnormal C and the smallest operand", (2.0**product.a.min_exponent,), (1.0,), 3 * last),
        Corner("negative sum cut or rounded to zero", (-(2.0**-13),), (2.0**-13,), 2.0**-26 - last),
    )
    if not wide:
        return common
    half_range = 2.0 ** (product.accumulator.min_exponent // 2)
    return (
        *common,
        Corner("sum below the smallest subnormal", (-half_range * 2.0**-12,), (half_range * 2.0**-12,), 0.0),
        Corner("sum that is subnormal", (half_range * 2.0**-3,), (half_range * 2.0**-5,), 0.0),
        # Terms that are lost if C's exponent counts as that of the smallest normal number.
        Corner("exponent of a zero C", (), (), 0.0, fill=(1.5 * 2.0**-76, 2.0**-76)),
        Corner("exponent of a subnormal C", (), (), last, fill=(1.5 * 2.0**-76, 2.0**-76)),
        Corner("overflow of one product", (huge,), (huge,), 0.0),
        Corner("overflow by the last place", (2.0**64,), (2.0**40,), FULL * 2.0**127),
        Corner("overflow that cancels", (huge, huge), (huge, -huge), 1.0),
        Corner("largest negative", (-(2.0**63),), (2.0**40,), -FULL * 2.0**127),
    )


def tile(product: Product) -> tuple[Codes, Codes, Codes]:
    """The questions as codes: a[16,K], b[16,K], c[16,16]; two instructions of m16n8."""
    a, b, c = np.zeros((16, product.k)), np.zeros((16, product.k)), np.zeros((16, 16))
    for i, corner in enumerate(corners(product)):
        a[i], b[i] = corner.fill
        a[i, : len(corner.a)], b[i, : len(corner.b)] = corner.a, corner.b
        c[i, i] = corner.c
    return codes(product.a, a), codes(product.b, b), codes(product.accumulator, c)


def codes(form: Format, values: NDArray[np.float64]) -> Codes:
    """Values that the format holds, or for f16 accumulators too small or large, to nearest even."""
    if form.name == "f16":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).view(form.storage)
    single = values.astype(np.float32)
    if form.name in ("f32", "tf32"):
        return single.view(form.storage)
    if form.name == "bf16":
        return (single.view(np.uint32) >> 16).astype(form.storage)
    import ml_dtypes  # byte formats are asked of the simulator only; a recording needs NumPy alone

    name = f"float{form.bits}_{form.name}" + ("" if form.name == "e5m2" else "fn")
    rounded = values.astype(getattr(ml_dtypes, name)).view(np.uint8)
    return rounded.astype(form.storage)


def fragments(a: Codes, b: Codes, c: Codes, product: Product) -> list[list[U32]]:
    """The tile as the fragments of two warps, each with eight columns: one array a register."""
    each = 4 // product.a.storage.itemsize
    names = (product.a.name, product.b.name, product.accumulator.name)
    warps = []
    for half in (b[:8], c[:, :8]), (b[8:], c[:, 8:]):
        columns, sums = half
        of_a = [
            a[GROUP + 8 * (r % 2), each * THREAD + 4 * each * (r // 2) + e]
            for r in range(16 * product.k // 32 // each)
            for e in range(each)
        ]
        of_b = [
            columns[GROUP, each * THREAD + 4 * each * r + e]
            for r in range(8 * product.k // 32 // each)
            for e in range(each)
        ]
        of_c = [sums[GROUP + 8 * (i // 2), 2 * THREAD + i % 2] for i in range(4)]
        warps.append([np.stack(part, axis=-1) for part in (of_a, of_b, of_c)])
    joined = [np.concatenate(parts) for parts in zip(*warps, strict=True)]
    registers = [
        packed(name, part.astype(np.uint32)).reshape(64, -1) for name, part in zip(names, joined, strict=True)
    ]
    return [[np.ascontiguousarray(column) for column in part.T] for part in registers]


def asked(k: int, d: str, operands: str) -> MicroKernel:
    """The tile as a micro-kernel of two warps."""
    form = FORMATS[operands]
    product = Product(form, form, d, k, "mma.sync")
    spelling = f"m16n8k{k}.row.col.{d}.{operands}.{operands}.{d}"
    return multiply(f"corners_m16n8k{k}_{d}_{operands}", spelling, fragments(*tile(product), product))


KERNELS: tuple[Callable[[], MicroKernel], ...] = tuple(
    partial(asked, k, d, operands)
    for k, d, operands in (
        (16, "f32", "bf16"), (8, "f32", "bf16"), (16, "f32", "f16"), (8, "f32", "f16"),
        (16, "f16", "f16"), (8, "f16", "f16"), (8, "f32", "tf32"), (4, "f32", "tf32"),
    )
)  # fmt: skip
