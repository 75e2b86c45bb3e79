# SPDX-License-Identifier: Apache-2.0
"""Atomics on an address per thread, as the order of floating-point sums is undefined; integers on one."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.silicon.elementwise import Operation, asm, elementwise
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import f32_two, half_two, pack_halves, shuffled, u32_spread, u64_spread

COUNT = 1024


def fetched(spelling: str, kind: str, old: str = "$a", operands: str = "$b") -> Operation:
    """`atom.global`: the slot holds `a`, the old value is a result, and so is what it holds then."""
    text = f"st.global.{kind} $m1, {old};\natom.global.{spelling} $d, $m1, {operands};"
    return asm(f"atom.global.{spelling}", text, kind, kind + "*")


def shared(spelling: str, kind: str, old: str = "$a", operands: str = "$b") -> Operation:
    text = f"st.shared.{kind} [$s], {old};\natom.shared.{spelling} $d, [$s], {operands};\n"
    text += f"ld.shared.{kind} $d1, [$s];"
    return asm(f"atom.shared.{spelling}", text, kind, kind)


def reduced(spelling: str, kind: str, old: str = "$a", operands: str = "$b") -> Operation:
    text = f"st.global.{kind} $m, {old};\nred.global.{spelling} $m, {operands};"
    return asm(f"red.global.{spelling}", text, kind + "*")


def integers() -> MicroKernel:
    a, b = u32_spread(111, COUNT), shuffled(u32_spread(112, COUNT), 113)
    b[::5] = a[::5]  # equal operands decide for inc, dec and cas
    operations: list[Operation] = []
    for make in (fetched, shared):
        operations += [make(f"add.{t}", "b32") for t in ("s32", "u32")]
        operations += [make(f"{o}.{t}", "b32") for o in ("min", "max") for t in ("s32", "u32")]
        operations += [make(f"{o}.u32", "b32") for o in ("inc", "dec")]
        operations += [make(f"{o}.b32", "b32") for o in ("and", "or", "xor", "exch")]
        operations += [make("cas.b32", "b32", operands="$b, $c")]
    operations += [reduced(f"{o}.u32", "b32") for o in ("add", "inc", "dec")]
    operations += [reduced(f"{o}.s32", "b32") for o in ("min", "max")]
    operations += [reduced(f"{o}.b32", "b32") for o in ("and", "or", "xor")]
    return elementwise("atomics_words", (a, b, shuffled(a, 114)), operations, shared=True)


def long_integers() -> MicroKernel:
    a, b = u64_spread(115, COUNT), shuffled(u64_spread(116, COUNT), 117)
    b[::5] = a[::5]
    operations: list[Operation] = []
    for make in (fetched, shared):
        operations += [
            make("add.u64", "b64"),
            make("exch.b64", "b64"),
            make("cas.b64", "b64", operands="$b, $c"),
        ]
        operations += [make(f"{o}.{t}", "b64") for o in ("min", "max") for t in ("s64", "u64")]
        operations += [make(f"{o}.b64", "b64") for o in ("and", "or", "xor")]
    operations += [reduced("add.u64", "b64"), reduced("max.s64", "b64")]
    return elementwise("atomics_long_words", (a, b, shuffled(a, 118)), operations, shared=True)


def floats() -> MicroKernel:
    """fp32 sums: global atomics and shared ones may treat subnormals differently."""
    a, b = f32_two(119, 4096)
    operations = [make("add.f32", "b32") for make in (fetched, shared, reduced)]
    return elementwise("atomics_f32", (a, b), operations, shared=True)


def halves() -> MicroKernel:
    f16 = [half_two(s, COUNT * 2, 10) for s in (121, 122)]
    bf16 = [half_two(s, COUNT * 2, 7) for s in (123, 124)]
    a, b = (pack_halves(f16[0][i], f16[1][i][::-1]) for i in (0, 1))
    c, e = (pack_halves(bf16[0][i], bf16[1][i][::-1]) for i in (0, 1))
    operations: list[Operation] = []
    for kind, old, operand in (("f16x2", "$a", "$b"), ("bf16x2", "$c", "$e")):
        for make in (fetched, shared):
            operations.append(make(f"add.noftz.{kind}", "b32", old, operand))
        operations.append(reduced(f"add.noftz.{kind}", "b32", old, operand))
    return elementwise("atomics_halves", (a, b, c, e), operations, shared=True)


def contended() -> MicroKernel:
    """All lanes of a warp on one word: integer results do not depend on the order."""
    a, b = u32_spread(125, COUNT), shuffled(u32_spread(126, COUNT), 127)
    # The warp's lane 0 has its 16 bytes at a multiple of 512.
    operations = []
    for spelling in ("add.u32", "max.s32", "min.u32", "xor.b32", "and.b32", "or.b32"):
        text = "and.b32 $d, $s, -512;\nst.shared.b32 [$s], $a;\nbar.warp.sync -1;\n"
        text += (
            f"red.shared.{spelling} [$d], $b;\nbar.warp.sync -1;\nld.shared.b32 $d, [$d];\nbar.warp.sync -1;"
        )
        operations.append(asm(f"red.shared.{spelling} on one word", text, "b32"))
    return elementwise("atomics_contended", (a, b), operations, shared=True)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (integers, long_integers, floats, halves, contended)
