# SPDX-License-Identifier: Apache-2.0
"""`cvt` of every family that sm_90 has: narrowing, widening, rounding to integers, integers, fp8, tf32."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tests.sim.silicon.elementwise import Operation, asm, elementwise, op
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import (
    ALL_16,
    f32_near,
    f32_one,
    f64_spread,
    pack_halves,
    random_u16,
    shuffled,
    u32_spread,
    u64_spread,
)

INTEGER_ROUNDINGS = ("rni", "rzi", "rmi", "rpi")
ROUNDINGS = ("rn", "rz", "rm", "rp")
FLUSH = ("", ".ftz")


def register(type_: str) -> str:
    """The width that holds a value of `type_`; PTX keeps 8-bit values in 16-bit registers."""
    bits = int("".join(c for c in type_ if c.isdigit()))
    return f"b{max(bits, 16)}"


def cvt(mods: str, to: str, source: str) -> Operation:
    """`cvt{.mods}.to.source`; a b8 result is zero-extended: a register's upper bits are not defined."""
    spelling = f"cvt{mods}.{to}.{source}"
    if to in ("s8", "u8"):
        return asm(spelling, f"{spelling} $d, $a;\nand.b16 $d, $d, 255;", "b16")
    return op(spelling, register(to))


def narrow() -> MicroKernel:
    """fp32 to f16 and bf16, scalar."""
    modes = [f".{r}{relu}{sat}" for r, relu, sat in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite"))]
    operations = [cvt(m, to, "f32") for to in ("f16", "bf16") for m in modes]
    operations += [cvt(f".{r}{s}", "f16", "f32") for r in ("rm", "rp") for s in ("", ".sat", ".ftz")]
    return elementwise("cvt_f32_to_half", (f32_one(11, 8192),), operations)


def narrow_pairs() -> MicroKernel:
    """Two fp32 to a packed pair; the first source goes to the upper half."""
    a = f32_one(12, 4096)
    modes = [f".{r}{relu}{sat}" for r, relu, sat in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite"))]
    spellings = [f"cvt{m}.{to}.f32" for to in ("f16x2", "bf16x2") for m in modes]
    inputs = (a, shuffled(f32_near(a, 13, 3), 14))
    return elementwise("cvt_f32_to_half_pair", inputs, [op(s, sources=2) for s in spellings])


def tf32() -> MicroKernel:
    modes = (".rna", ".rna.satfinite", ".rn", ".rn.relu", ".rz", ".rz.relu")
    return elementwise("cvt_f32_to_tf32", (f32_one(15, 8192),), [cvt(m, "tf32", "f32") for m in modes])


def fp8_from_pairs() -> MicroKernel:
    """Pairs of fp32 and of f16 to e4m3 and e5m2."""
    a = f32_one(16, 8192)
    halves = pack_halves(shuffled(ALL_16, 17)[:8192], random_u16(18, 8192))
    modes = (".rn.satfinite", ".rn.satfinite.relu")
    operations = [op(f"cvt{m}.{to}.f32", "b16", 2) for to in ("e4m3x2", "e5m2x2") for m in modes]
    for to in ("e4m3x2", "e5m2x2"):
        operations += [asm(f"cvt{m}.{to}.f16x2", f"cvt{m}.{to}.f16x2 $d, $c;", "b16") for m in modes]
    return elementwise("cvt_to_fp8", (a, shuffled(a, 19), halves), operations)


def half_to_all() -> MicroKernel:
    """All 2^16 patterns, read as f16, as bf16 and as a pair of fp8."""
    operations = [cvt("", "f32", "f16"), cvt(".ftz", "f32", "f16"), cvt(".sat", "f32", "f16")]
    operations += [cvt("", "f32", "bf16")]
    operations += [cvt(f".{r}", "bf16", "f16") for r in ROUNDINGS]
    operations += [cvt(f".{r}", "f16", "bf16") for r in ROUNDINGS]
    operations += [cvt(f".{r}", t, t) for t in ("f16", "bf16") for r in INTEGER_ROUNDINGS]
    operations += [cvt(".sat", "f16", "f16")]
    for eight, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        operations.append(op(f"cvt.rn{relu}.f16x2.{eight}"))
    return elementwise("cvt_all_half_patterns", (ALL_16,), operations)


def half_to_integers() -> MicroKernel:
    """All 2^16 patterns to integers; to the wide ones by one rounding, which does not depend on width."""
    operations = [
        cvt(f".{r}", to, t) for t in ("f16", "bf16") for to in ("s32", "s16") for r in INTEGER_ROUNDINGS
    ]
    operations += [cvt(f".{r}", to, "f16") for to in ("s8", "u8") for r in INTEGER_ROUNDINGS]
    for t in ("f16", "bf16"):
        operations += [cvt(".rzi", to, t) for to in ("u16", "u32", "s64", "u64")]
    return elementwise("cvt_all_half_to_integers", (ALL_16,), operations)


def f32_to_integers() -> MicroKernel:
    kinds = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
    operations = [cvt(f".{r}", to, "f32") for to in kinds for r in INTEGER_ROUNDINGS]
    operations += [cvt(f".{r}.ftz", "s32", "f32") for r in INTEGER_ROUNDINGS]
    operations += [cvt(".rni.sat", to, "f32") for to in ("s8", "u16")]
    return elementwise("cvt_f32_to_integers", (f32_one(21, 4096),), operations)


def f32_to_f32() -> MicroKernel:
    operations = [
        cvt(f".{r}{f}{s}", "f32", "f32") for f, s, r in product(FLUSH, ("", ".sat"), INTEGER_ROUNDINGS)
    ]
    operations += [cvt(".sat", "f32", "f32"), cvt(".ftz", "f32", "f32"), cvt(".ftz.sat", "f32", "f32")]
    return elementwise("cvt_f32_to_f32", (f32_one(22, 4096),), operations)


def integers_to_float() -> MicroKernel:
    a, wide = u32_spread(23, 4096), u64_spread(24, 4096)
    operations = [cvt(f".{r}", "f32", t) for t in ("s32", "u32") for r in ROUNDINGS]
    operations += [cvt(".rn.sat", "f32", "s32")]
    operations += [cvt(f".{r}", to, t) for to in ("f16", "bf16") for t in ("s32", "u32") for r in ROUNDINGS]
    for t in ("s64", "u64"):
        for to, roundings in (("f32", ROUNDINGS), ("f16", ("rn",)), ("bf16", ("rn",))):
            operations += [
                asm(f"cvt.{r}.{to}.{t}", f"cvt.{r}.{to}.{t} $d, $b;", register(to)) for r in roundings
            ]
    return elementwise("cvt_integers_to_float", (a, wide), operations)


def short_integers_to_float() -> MicroKernel:
    """All 2^16 patterns as s16 and u16; their low byte as s8 and u8."""
    operations = [cvt(f".{r}", to, t) for to in ("f16", "bf16") for t in ("s16", "u16") for r in ROUNDINGS]
    operations += [cvt(".rn", "f32", t) for t in ("s16", "u16", "s8", "u8")]
    operations += [cvt(".rn", "f16", t) for t in ("s8", "u8")]
    return elementwise("cvt_short_integers_to_float", (ALL_16,), operations)


def integers_to_integers() -> MicroKernel:
    a, wide = u32_spread(25, 2048), u64_spread(26, 2048)
    narrow_kinds = ("s8", "u8", "s16", "u16")
    operations = [cvt(s, to, t) for t in ("s32", "u32") for to in narrow_kinds for s in ("", ".sat")]
    operations += [cvt(s, to, t) for to, t in (("u32", "s32"), ("s32", "u32")) for s in ("", ".sat")]
    operations += [cvt("", to, t) for t in ("s32", "u32") for to in ("s64", "u64")]
    for to, t, s in product(("s16", "u16", "s32", "u32"), ("s64", "u64"), ("", ".sat")):
        operations.append(asm(f"cvt{s}.{to}.{t}", f"cvt{s}.{to}.{t} $d, $b;", register(to)))
    return elementwise("cvt_integers", (a, wide), operations)


def double() -> MicroKernel:
    """fp64 to and from fp32 and integers."""
    a, b = f64_spread(28, 2048), f32_one(29, 2048)
    operations = [cvt(f".{r}{f}", "f32", "f64") for f in FLUSH for r in ROUNDINGS]
    operations += [cvt(f".{r}", to, "f64") for to in ("s32", "u32", "s64") for r in INTEGER_ROUNDINGS]
    operations += [cvt(".rn", "f16", "f64")]
    operations += [asm(f"cvt{f}.f64.f32", f"cvt{f}.f64.f32 $d, $b;", "b64") for f in FLUSH]
    operations += [asm(f"cvt.rn.f64.{t}", f"cvt.rn.f64.{t} $d, $b;", "b64") for t in ("s32", "u32")]
    return elementwise("cvt_double", (a, b), operations)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    narrow,
    narrow_pairs,
    tf32,
    fp8_from_pairs,
    half_to_all,
    half_to_integers,
    f32_to_integers,
    f32_to_f32,
    integers_to_float,
    short_integers_to_float,
    integers_to_integers,
    double,
)
