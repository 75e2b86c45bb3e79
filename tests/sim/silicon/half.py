# SPDX-License-Identifier: Apache-2.0
"""f16 and bf16 arithmetic, scalar and packed, with the NaN rules of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from tests.sim.silicon.elementwise import asm, elementwise, op
from tests.sim.silicon.microkernel import Array, MicroKernel
from tests.sim.silicon.patterns import ALL_16, half_three, half_two, pack_halves, shuffled

FRACTION = {"f16": 10, "bf16": 7}
COUNT = 8192


def rounded(kind: str) -> list[str]:
    """Suffixes of add, sub and mul: bf16 has no flush to zero and no saturation."""
    return ["", ".ftz", ".sat", ".ftz.sat"] if kind == "f16" else [""]


def arithmetic(kind: str) -> MicroKernel:
    a, b, c = half_three(31, COUNT, FRACTION[kind])
    operations = [op(f"{o}.rn{m}.{kind}", "b16", 2) for m in rounded(kind) for o in ("add", "sub", "mul")]
    operations += [op(f"fma.rn{m}.{kind}", "b16", 3) for m in (*rounded(kind), ".relu")]
    return elementwise(f"{kind}_arithmetic", (a, b, c), operations)


def packed_arithmetic(kind: str) -> MicroKernel:
    """The same on pairs: the halves are shuffled so that a mixed-up pair shows."""
    low = half_three(32, COUNT, FRACTION[kind])
    high = half_three(33, COUNT, FRACTION[kind])
    inputs = [pack_halves(x, y) for x, y in zip(low, high, strict=True)]
    operations = [op(f"{o}.rn{m}.{kind}x2", sources=2) for m in rounded(kind) for o in ("add", "sub", "mul")]
    operations += [op(f"fma.rn{m}.{kind}x2", sources=3) for m in (*rounded(kind), ".relu")]
    return elementwise(f"{kind}x2_arithmetic", inputs, operations)


def pairs(kind: str, seed: int) -> tuple[Array, Array]:
    low, high = half_two(seed, 4096, FRACTION[kind]), half_two(seed + 1, 4096, FRACTION[kind])
    order = seed + 2
    return (
        pack_halves(low[0], shuffled(high[0], order).astype(low[0].dtype)),
        pack_halves(low[1], shuffled(high[1], order).astype(low[1].dtype)),
    )


def extremes(kind: str) -> MicroKernel:
    a, b = half_two(34, 4096, FRACTION[kind])
    flush = ("", ".ftz") if kind == "f16" else ("",)
    modes = [f"{f}{nan}{x}" for f, nan, x in product(flush, ("", ".NaN"), ("", ".xorsign.abs"))]
    operations = [op(f"{o}{m}.{kind}", "b16", 2) for m in modes for o in ("min", "max")]
    for compare in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "equ",
        "neu",
        "ltu",
        "leu",
        "gtu",
        "geu",
        "num",
        "nan",
    ):
        operations += [
            asm(
                f"setp.{compare}{f}.{kind}",
                f"setp.{compare}{f}.{kind} $p, $a, $b;\nselp.b16 $d, 1, 0, $p;",
                "b16",
            )
            for f in flush
        ]
    return elementwise(f"{kind}_min_max_compare", (a, b), operations)


def packed_extremes(kind: str) -> MicroKernel:
    flush = ("", ".ftz") if kind == "f16" else ("",)
    modes = [f"{f}{nan}{x}" for f, nan, x in product(flush, ("", ".NaN"), ("", ".xorsign.abs"))]
    operations = [op(f"{o}{m}.{kind}x2", sources=2) for m in modes for o in ("min", "max")]
    operations += [op(f"{o}.{kind}x2") for o in ("abs", "neg")]
    for compare in ("lt", "neu"):
        text = f"setp.{compare}.{kind}x2 $p|$q, $a, $b;\nselp.b32 $d, 1, 0, $p;\nselp.b32 $d1, 1, 0, $q;"
        operations.append(asm(f"setp.{compare}.{kind}x2", text, "b32", "b32"))
    return elementwise(f"{kind}x2_min_max", pairs(kind, 35), operations)


def unary(kind: str) -> MicroKernel:
    """All 2^16 patterns."""
    operations = [op(f"{o}.{kind}", "b16") for o in ("abs", "neg")]
    if kind == "f16":
        operations += [op(f"{o}.ftz.f16", "b16") for o in ("abs", "neg")]
    return elementwise(f"{kind}_all_unary", (ALL_16,), operations)


def approximate() -> MicroKernel:
    """ex2 and tanh on all 2^16 patterns of both formats."""
    spellings = ("ex2.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.f16", "tanh.approx.bf16")
    return elementwise("half_all_approximate", (ALL_16,), [op(s, "b16") for s in spellings])


def packed_approximate() -> MicroKernel:
    words = pack_halves(shuffled(ALL_16, 41)[:2048], shuffled(ALL_16, 42)[:2048])
    spellings = ("ex2.approx.f16x2", "ex2.approx.ftz.bf16x2")
    spellings += ("tanh.approx.f16x2", "tanh.approx.bf16x2")
    return elementwise("half_pair_approximate", (words,), [op(s) for s in spellings])


def _each(make: Callable[[str], MicroKernel]) -> list[Callable[[], MicroKernel]]:
    return [partial(make, kind) for kind in FRACTION]


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *_each(arithmetic),
    *_each(packed_arithmetic),
    *_each(extremes),
    *_each(packed_extremes),
    *_each(unary),
    approximate,
    packed_approximate,
)
