# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic, logic, shifts, bit fields and byte permutation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sim.silicon.elementwise import Operation, asm, elementwise, op
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import ALL_16, random_u16, random_u32, shuffled, u32_spread, u64_spread


def words() -> MicroKernel:
    a, b, c = u32_spread(61, 2048), shuffled(u32_spread(62, 2048), 63), shuffled(u32_spread(64, 2048), 65)
    operations = [op(f"{o}.{t}", sources=2) for o in ("min", "max") for t in ("s32", "u32")]
    operations += [
        op(f"{o}.s32", sources=2) for o in ("add", "sub", "add.sat", "sub.sat", "min.relu", "max.relu")
    ]
    operations += [
        op(f"{o}.{t}", sources=2)
        for o in ("mul.lo", "mul.hi", "mul24.lo", "mul24.hi")
        for t in ("s32", "u32")
    ]
    operations += [op(f"{o}.{t}", sources=3) for o in ("mad.lo", "mad.hi", "sad") for t in ("s32", "u32")]
    operations += [op(f"mul.wide.{t}", "b64", 2) for t in ("s32", "u32")]
    operations += [op(o, sources=2) for o in ("and.b32", "or.b32", "xor.b32")]
    operations += [
        op(o) for o in ("not.b32", "cnot.b32", "abs.s32", "neg.s32", "popc.b32", "clz.b32", "brev.b32")
    ]
    operations += [op(f"bfind{shift}.{t}") for t in ("s32", "u32") for shift in ("", ".shiftamt")]
    operations += [op("mad.hi.sat.s32", sources=3)]
    # Division by zero has no defined result: the divisor is made odd.
    for o in ("div", "rem"):
        for t in ("s32", "u32"):
            text = f"or.b32 $d, $b, 1;\n{o}.{t} $d, $a, $d;"
            operations.append(asm(f"{o}.{t}", text, "b32"))
    carry = "add.cc.u32 $d, $a, $b;\naddc.cc.u32 $d1, $b, $c;\naddc.u32 $d2, $a, $c;"
    borrow = "sub.cc.u32 $d, $a, $b;\nsubc.cc.u32 $d1, $b, $c;\nsubc.u32 $d2, $a, $c;"
    product = "mad.lo.cc.u32 $d, $a, $b, $c;\nmadc.hi.u32 $d1, $a, $b, 0;"
    operations += [asm("add.cc, addc.cc, addc", carry, "b32", "b32", "b32")]
    operations += [asm("sub.cc, subc.cc, subc", borrow, "b32", "b32", "b32")]
    operations += [asm("mad.lo.cc, madc.hi", product, "b32", "b32")]
    for compare in ("eq", "lt", "ge"):
        for t in ("s32", "u32"):
            text = f"setp.{compare}.{t} $p, $a, $b;\nselp.b32 $d, $a, $c, $p;"
            operations.append(asm(f"setp.{compare}.{t} + selp", text, "b32"))
    for compare in ("lo", "ls", "hi", "hs"):
        text = f"setp.{compare}.u32 $p, $a, $b;\nselp.b32 $d, $a, $c, $p;"
        operations.append(asm(f"setp.{compare}.u32 + selp", text, "b32"))
    for logic in ("and", "or", "xor"):
        text = f"setp.lt.s32 $q, $b, $c;\nsetp.gt.{logic}.s32 $p|$q, $a, $b, $q;\n"
        text += "selp.b32 $d, 1, 0, $p;\nselp.b32 $d1, 1, 0, $q;"
        operations.append(asm(f"setp.gt.{logic}.s32", text, "b32", "b32"))
    operations.append(asm("slct.b32.s32", "slct.b32.s32 $d, $a, $b, $c;", "b32"))
    return elementwise("integer_words", (a, b, c), operations)


def long_words() -> MicroKernel:
    a, b = u64_spread(66, 1024), shuffled(u64_spread(67, 1024), 68)
    operations = [
        op(f"{o}.{t}", "b64", 2) for o in ("min", "max", "mul.hi", "mul.lo") for t in ("s64", "u64")
    ]
    operations += [op(f"{o}.s64", "b64", 2) for o in ("add", "sub")]
    operations += [op(f"mad.{half}.s64", "b64", 3) for half in ("lo", "hi")]
    operations += [op(f"{o}.b64", "b64", 2) for o in ("and", "or", "xor")]
    operations += [op(o, "b64") for o in ("not.b64", "abs.s64", "neg.s64", "brev.b64")]
    operations += [op(o, "b32") for o in ("popc.b64", "clz.b64", "bfind.s64", "bfind.shiftamt.u64")]
    for o in ("div", "rem"):
        for t in ("s64", "u64"):
            operations.append(asm(f"{o}.{t}", f"or.b64 $d, $b, 1;\n{o}.{t} $d, $a, $d;", "b64"))
    for compare in ("lt.s64", "gt.u64", "le.s64"):
        text = f"setp.{compare} $p, $a, $b;\nselp.b64 $d, $a, $b, $p;"
        operations.append(asm(f"setp.{compare} + selp", text, "b64"))
    return elementwise("integer_long_words", (a, b, shuffled(u64_spread(69, 1024), 70)), operations)


def short_words() -> MicroKernel:
    a, b = shuffled(ALL_16, 71)[:2048], random_u16(72, 2048)
    operations = [op(f"{o}.{t}", "b16", 2) for o in ("min", "max", "mul.hi") for t in ("s16", "u16")]
    operations += [op(f"{o}.s16", "b16", 2) for o in ("add", "sub", "mul.lo")]
    operations += [op(f"mul.wide.{t}", "b32", 2) for t in ("s16", "u16")]
    operations += [op(f"mad.lo.{t}", "b16", 3) for t in ("s16", "u16")]
    operations += [asm(f"mad.wide.{t}", f"mad.wide.{t} $d, $a, $b, $e;", "b32") for t in ("s16", "u16")]
    operations += [op(f"{o}.b16", "b16", 2) for o in ("and", "or", "xor")]
    operations += [op(o, "b16") for o in ("not.b16", "abs.s16", "neg.s16")]
    for o in ("div", "rem"):
        for t in ("s16", "u16"):
            operations.append(asm(f"{o}.{t}", f"or.b16 $d, $b, 1;\n{o}.{t} $d, $a, $d;", "b16"))
    for o, t in (("shl", "b16"), ("shr", "u16"), ("shr", "s16")):
        operations.append(asm(f"{o}.{t}", f"and.b32 $d1, $e, 31;\n{o}.{t} $d, $a, $d1;", "b16", "b32"))
    pairs = [
        asm(f"{o}.{t}", f"{o}.{t} $d, $e, $f;", "b32") for o in ("min", "max") for t in ("s16x2", "u16x2")
    ]
    pairs += [asm(f"{o}.relu.s16x2", f"{o}.relu.s16x2 $d, $e, $f;", "b32") for o in ("min", "max")]
    pairs += [asm(f"add.{t}", f"add.{t} $d, $e, $f;", "b32") for t in ("s16x2", "u16x2")]
    inputs = (a, b, random_u16(73, 2048), random_u32(74, 2048), random_u32(75, 2048))
    return elementwise("integer_short_words", inputs, [*operations, *pairs])


def shifted() -> MicroKernel:
    """Shift counts 0..79: past the width results are zero or sign, by clamping."""
    a, b = u32_spread(76, 2048), shuffled(u32_spread(77, 2048), 78)
    amount = (random_u32(79, 2048) % np.uint32(80)).astype(np.uint32)
    amount[::64] = 0xFFFFFFFF
    wide = u64_spread(80, 2048)
    operations = [
        asm(f"{o}", f"{o} $d, $a, $c;", "b32") for o in ("shl.b32", "shr.u32", "shr.s32", "shr.b32")
    ]
    operations += [asm(f"{o}", f"{o} $d, $e, $c;", "b64") for o in ("shl.b64", "shr.u64", "shr.s64")]
    operations += [op(f"shf.{side}.{mode}.b32", sources=3) for side in "lr" for mode in ("wrap", "clamp")]
    return elementwise("integer_shifts", (a, b, amount, wide), operations)


def bit_fields() -> MicroKernel:
    a, b = u32_spread(81, 2048), random_u32(82, 2048)
    position, length = (random_u32(s, 2048) % np.uint32(40) for s in (83, 84))
    position[::32], length[::48] = 255, 255
    wide = u64_spread(85, 2048)
    operations = [op(f"bfe.{t}", sources=3) for t in ("s32", "u32")]
    operations[:] = [asm(f"bfe.{t}", f"bfe.{t} $d, $a, $c, $e;", "b32") for t in ("s32", "u32")]
    operations += [asm(f"bfe.{t}", f"bfe.{t} $d, $f, $c, $e;", "b64") for t in ("s64", "u64")]
    operations.append(asm("bfi.b32", "bfi.b32 $d, $a, $b, $c, $e;", "b32"))
    operations += [asm(f"bmsk.{m}.b32", f"bmsk.{m}.b32 $d, $c, $e;", "b32") for m in ("wrap", "clamp")]
    operations += [
        asm(f"szext.{m}.{t}", f"szext.{m}.{t} $d, $a, $c;", "b32")
        for m in ("wrap", "clamp")
        for t in ("s32", "u32")
    ]
    offset = "and.b32 $d1, $b, 7;\nsub.s32 $d1, $d1, 4;\nfns.b32 $d, $a, $c, $d1;"
    operations.append(asm("fns.b32", f"and.b32 $d, $c, 31;\n{offset.replace('$c', '$d')}", "b32", "b32"))
    return elementwise("integer_bit_fields", (a, b, position, length, wide), operations)


def permuted() -> MicroKernel:
    a, b = random_u32(86, 2048), random_u32(87, 2048)
    selector = random_u32(88, 2048)
    operations = [op("prmt.b32", sources=3)]
    operations += [op(f"prmt.b32.{mode}", sources=3) for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")]
    operations += [
        asm(f"prmt.b32 0x{s:04x}", f"prmt.b32 $d, $a, $b, 0x{s:04x};", "b32")
        for s in (0x3210, 0x5410, 0x7632, 0xBA98, 0x0123)
    ]
    operations += [
        asm(f"lop3.b32 0x{t:02x}", f"lop3.b32 $d, $a, $b, $c, 0x{t:02x};", "b32")
        for t in (0x00, 0x01, 0x80, 0x96, 0xE8, 0xCA, 0x1B, 0xC0, 0xFE, 0xFF, 0x6A)
    ]
    return elementwise("integer_permute", (a, b, selector), operations)


def dot_products() -> MicroKernel:
    a, b, c = random_u32(91, 1024), random_u32(92, 1024), u32_spread(93, 1024)
    operations: list[Operation] = []
    for x in ("u32", "s32"):
        for y in ("u32", "s32"):
            operations.append(op(f"dp4a.{x}.{y}", sources=3))
            operations += [op(f"dp2a.{half}.{x}.{y}", sources=3) for half in ("lo", "hi")]
    return elementwise("integer_dot_products", (a, b, c), operations)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    words,
    long_words,
    short_words,
    shifted,
    bit_fields,
    permuted,
    dot_products,
)
