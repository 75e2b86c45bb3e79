# SPDX-License-Identifier: Apache-2.0
"""Clusters of many shapes; addresses of, and loads, stores and atomics on, other CTAs' shared memory.

No answer depends on the order in which CTAs run: a thread has a word of its own, or the operation commutes
and what it returns is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.sim.silicon.cluster_text import SYNC, Questions
from tests.sim.silicon.microkernel import Buffer, Dim3, MicroKernel, entry
from tests.sim.silicon.patterns import random_u32

SHAPES: tuple[tuple[Dim3, Dim3], ...] = (
    ((8, 1, 1), (8, 1, 1)),
    ((4, 6, 2), (2, 3, 1)),
    ((4, 4, 4), (2, 2, 2)),
    ((2, 2, 2), (1, 1, 2)),
    ((6, 2, 3), (3, 2, 1)),
    ((2, 8, 1), (1, 8, 1)),
    ((10, 2, 1), (5, 1, 1)),
    ((3, 1, 14), (1, 1, 7)),
    ((16, 2, 1), (16, 1, 1)),
    ((8, 4, 2), (4, 4, 1)),
    ((4, 4, 2), (2, 4, 2)),
)
AXES = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid", "ctaid", "nctaid")
REGISTERS = (*(f"{name}.{axis}" for name in AXES for axis in "xyz"), "cluster_ctarank", "cluster_nctarank")


def registers(grid: Dim3, cluster: Dim3, directives: str = "") -> MicroKernel:
    """Every position, in the row of its CTA."""
    asked = Questions()
    asked.add(
        f"mov.u32 %r1, %ctaid.z;\nmov.u32 %r2, %ctaid.y;\nmad.lo.u32 %r1, %r1, {grid[1]}, %r2;\n"
        f"mad.lo.u32 %cta, %r1, {grid[0]}, %cta;\n"
        f"mad.lo.u32 %r0, %cta, {32 * (len(REGISTERS) + (cluster != (1, 1, 1)))}, %t;\n"
        "mad.wide.u32 %out, %r0, 4, %y;"
    )
    for name in REGISTERS:
        asked.add(f"mov.u32 %r3, %{name};")
        asked.store(f"%{name}", "%r3")
    # A launch attribute of one CTA is an explicit cluster to an H200 and none to the simulator.
    if cluster != (1, 1, 1):
        asked.add("mov.pred %p, %is_explicit_cluster;\nselp.b32 %r3, 1, 0, %p;")
        asked.store("%is_explicit_cluster", "%r3")
    by = "x".join(map(str, cluster))
    name = f"clusters_of_{by}_in_{'x'.join(map(str, grid))}{'_required' if directives else ''}"
    return asked.kernel(name, 1 if directives else cluster, grid, directives=directives)


def required() -> MicroKernel:
    """The kernel says the shape, and the launch nothing."""
    return registers((4, 2, 2), (2, 1, 2), ".explicitcluster .reqnctapercluster 2, 1, 2")


def no_cluster() -> MicroKernel:
    return registers((3, 2, 1), (1, 1, 1))


def addresses(ctas: int) -> MicroKernel:
    """Of each thread's word at rank t mod size: mapa and getctarank in both widths, and the windows."""
    asked = Questions()
    asked.add(
        f"""st.shared.b32 [%s], %rank;
{SYNC}
rem.u32 %r1, %t, %size;
mapa.shared::cluster.u32 %r2, %s, %r1;
mapa.shared::cluster.u32 %r3, %s, 0;
sub.u32 %r3, %r2, %r3;
getctarank.shared::cluster.u32 %r4, %r2;
getctarank.shared::cluster.u32 %r5, %s;
ld.shared::cluster.b32 %r6, [%r2];
cvt.u64.u32 %d0, %s;
cvta.shared.u64 %d0, %d0;
mapa.u64 %d1, %d0, %r1;
getctarank.u64 %r7, %d1;
ld.b32 %r8, [%d1];
sub.u64 %d2, %d1, %d0;
isspacep.shared::cta %p, %d0;
selp.b32 %r9, 1, 0, %p;
isspacep.shared::cluster %p, %d0;
selp.b32 %r10, 1, 0, %p;
isspacep.shared::cta %p, %d1;
selp.b32 %r11, 1, 0, %p;
isspacep.shared::cluster %p, %d1;
selp.b32 %r12, 1, 0, %p;
isspacep.global %p, %d1;
selp.b32 %r13, 1, 0, %p;
cvta.to.shared::cluster.u64 %d3, %d1;
cvt.u32.u64 %r14, %d3;
sub.u32 %r14, %r14, %r2;
cvta.shared::cluster.u64 %d4, %d3;
sub.u64 %d4, %d4, %d1;
cvt.u32.u64 %r15, %d4;
{SYNC}"""
    )
    told = (
        (3, "mapa of rank t less mapa of rank 0"),
        (4, "getctarank of it"),
        (5, "getctarank of the own address"),
        (6, "the word there"),
        (7, "getctarank of the generic address"),
        (8, "the word there, generic"),
        (9, "own address is shared::cta"),
        (10, "own address is shared::cluster"),
        (11, "rank t's is shared::cta"),
        (12, "rank t's is shared::cluster"),
        (13, "rank t's is global"),
        (14, "cvta.to of the generic address less mapa"),
        (15, "cvta of that less the generic address"),
    )
    for number, label in told:
        asked.store(label, f"%r{number}")
    return asked.kernel(f"addresses_of_{ctas}", ctas)


LOADS = (
    ("u8", 1, "%h0"), ("s8", 1, "%h0"), ("u16", 2, "%h0"), ("s16", 2, "%h0"), ("b32", 4, "%r1"),
    ("volatile.b32", 4, "%r1"), ("relaxed.cluster.b32", 4, "%r1"), ("acquire.cluster.b32", 4, "%r1"),
    ("acquire.gpu.b32", 4, "%r1"), ("b64", 8, "%d0"), ("f64", 8, "%d0"), ("v2.b32", 8, "{%r1, %r2}"),
    ("v4.b32", 16, "{%r1, %r2, %r3, %r4}"), ("v2.b64", 16, "{%d0, %d1}"),
    ("v4.u8", 4, "{%h0, %h1, %h2, %h3}"),
)  # fmt: skip


def _space(width: str) -> str:
    """`ld.b32` as `ld.shared::cluster.b32`, the space in its place."""
    ordered = width.startswith(("volatile", "relaxed", "acquire", "release"))
    *order, kind = width.rsplit(".", 1) if ordered else (width,)
    return ".".join((*order, "shared::cluster", kind))


def loads() -> MicroKernel:
    """Every width, of what the next CTA stored: 32 random bytes a thread."""
    asked = Questions()
    asked.add("mad.lo.u32 %r10, %t, 32, %buf;\nmad.lo.u32 %r11, %t, 32, %far;\nld.global.b32 %r5, [%in];")
    for i in range(8):
        asked.add(f"mad.lo.u32 %r5, %r5, 1664525, 1013904223;\nst.shared.b32 [%r10+{4 * i}], %r5;")
    asked.add(SYNC)
    for width, size, into in LOADS:
        asked.add(f"ld.{_space(width)} {into}, [%r11+{16 if size > 4 else 16 + size}];")
        registers_ = into.strip("{}").split(", ")
        for i, register in enumerate(registers_):
            if register[1] == "h":
                asked.add(f"cvt.{'s32.s16' if width[0] == 's' else 'u32.u16'} %r6, {register};")
            asked.store(f"ld.{width}, {i}", "%r6" if register[1] == "h" else register, _kind(register))
    asked.add(SYNC)
    return asked.kernel("loads_of_the_next", 4, x=random_u32(501, 4 * 32))


def _kind(register: str) -> str:
    return "b64" if register[1] == "d" else "b32"


STORES = (
    ("b8", "%h0"), ("b16", "%h0"), ("b32", "%r1"), ("volatile.b32", "%r1"), ("relaxed.cluster.b32", "%r1"),
    ("release.cluster.b32", "%r1"), ("b64", "%d0"), ("v2.b32", "{%r1, %r2}"),
    ("v4.b32", "{%r1, %r2, %r3, %r4}"),
    ("v2.b64", "{%d0, %d1}"), ("v2.b16", "{%h0, %h1}"), ("v4.b8", "{%h0, %h1, %h0, %h1}"),
)  # fmt: skip


def stores() -> MicroKernel:
    """Every width into 16 bytes a thread of the next CTA that hold 0xA5."""
    asked = Questions()
    asked.add(
        "mad.lo.u32 %r10, %t, 16, %buf;\nmad.lo.u32 %r11, %t, 16, %far;\nld.global.b32 %r1, [%in];\n"
        "not.b32 %r2, %r1;\nmul.lo.u32 %r3, %r1, 3;\nmul.lo.u32 %r4, %r1, 5;\nmov.b64 %d0, {%r1, %r3};\n"
        "mov.b64 %d1, {%r2, %r4};\ncvt.u16.u32 %h0, %r1;\nshr.u32 %r5, %r1, 16;\ncvt.u16.u32 %h1, %r5;"
    )
    for width, what in STORES:
        for i in range(4):
            asked.add(f"st.shared.b32 [%r10+{4 * i}], 0xA5A5A5A5;")
        asked.add(f"{SYNC}st.{_space(width)} [%r11], {what};\n{SYNC}")
        for i in range(4):
            asked.add(f"ld.shared.b32 %r6, [%r10+{4 * i}];")
            asked.store(f"st.{width}, word {i}", "%r6")
    return asked.kernel("stores_to_the_next", 4, x=random_u32(502, 4 * 32))


ATOMICS = (
    *(f"{o}.{k}" for o in ("add", "min", "max") for k in ("u32", "s32")),
    *(f"{o}.b32" for o in ("and", "or", "xor", "exch", "cas")),
    *(f"{o}.u32" for o in ("inc", "dec")),
    *(f"{o}.u64" for o in ("add", "min", "max")),
    *(f"{o}.s64" for o in ("min", "max")),
    *(f"{o}.b64" for o in ("and", "or", "xor", "exch", "cas")),
    *("add.f32", "add.f64", "add.noftz.f16", "cas.b16"),
)  # fmt: skip
PAIRS = ("add.noftz.f16x2", "add.noftz.bf16x2")
"""See test_ptxas.py: what ptxas 13.0 makes of them adds integers in another CTA's shared memory."""


def atomics(name: str, operations: tuple[str, ...]) -> MicroKernel:
    """Each operation with the thread's own word of the next CTA: what it returns, and what is there then."""
    asked = Questions()
    asked.add(
        "mad.lo.u32 %r10, %t, 8, %buf;\nmad.lo.u32 %r11, %t, 8, %far;\nld.global.b32 %r1, [%in];\n"
        "mul.lo.u32 %r2, %r1, 1664525;\nadd.u32 %r2, %r2, 1013904223;\nmov.b64 %d0, {%r2, %r1};\n"
        "shr.u32 %r3, %r2, 7;\nmov.b64 %d1, {%r1, %r3};"
    )
    for operation in operations:
        wide, narrow = operation.endswith("64"), operation.endswith(("f16", "b16"))
        old, given = ("%d2", "%d0") if wide else ("%h1", "%h0") if narrow else ("%r4", "%r2")
        if operation == "add.f64":  # ordinary numbers: a NaN's bits are not what is asked
            asked.add("cvt.rn.f64.s32 %d0, %r2;\ncvt.rn.f64.u32 %d1, %r1;")
        elif operation == "add.f32":
            asked.add("cvt.rn.f32.s32 %r2, %r2;\ncvt.rn.f32.u32 %r6, %r1;\nmov.b64 %d1, {%r6, %r3};")
        elif "noftz" in operation:
            asked.add(
                "and.b32 %r2, %r2, 0xbbffbbff;\nand.b32 %r6, %r1, 0xbbffbbff;\nmov.b64 %d1, {%r6, %r3};"
            )
        asked.add(f"cvt.u16.u32 %h0, %r2;\nst.shared.b64 [%r10], %d1;\n{SYNC}")
        extra = ""
        if operation.startswith("cas"):  # every second lane compares with what is there
            asked.add("and.b32 %r5, %t, 1;\nsetp.eq.u32 %p, %r5, 0;")
            asked.add("ld.shared::cluster.b64 %d3, [%r11];\n@%p add.u64 %d3, %d3, 1;")
            asked.add("cvt.u32.u64 %r5, %d3;\ncvt.u16.u32 %h2, %r5;\nbar.warp.sync -1;")
            extra = ("%d3" if wide else "%h2" if narrow else "%r5") + ", "
        asked.add(f"atom.relaxed.cluster.shared::cluster.{operation} {old}, [%r11], {extra}{given};\n{SYNC}")
        if narrow:
            asked.add("cvt.u32.u16 %r4, %h1;")
        asked.store(f"{operation} returns", "%r4" if narrow else old, "b64" if wide else "b32")
        asked.add("ld.shared.b64 %d4, [%r10];")
        asked.store(f"{operation} leaves", "%d4", "b64")
    return asked.kernel(name, 4, x=random_u32(503, 4 * 32))


REDUCTIONS = (
    *("add.u32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32"),
    "add.u64",
)
"""Of 64 bits only the sum: the others are not atomic there, as ptxas 13.0 makes them (docs/clusters.md)."""
SPELLINGS = ("red.relaxed.cluster.shared::cluster", "red.release.cluster.shared::cluster", "red.gpu", "atom")


def reductions(ctas: int) -> MicroKernel:
    """All CTAs to one word a lane at rank 1, by `red`, `atom` and generic addresses; all commute."""
    asked = Questions()
    asked.add(
        "mad.lo.u32 %r10, %t, 8, %buf;\nmapa.shared::cluster.u32 %r11, %r10, 1;\nld.global.b32 %r1, [%in];\n"
        "mul.lo.u32 %r2, %r1, 1664525;\nmov.b64 %d0, {%r1, %r2};\ncvt.u64.u32 %d5, %r11;\n"
        "cvta.shared::cluster.u64 %d5, %d5;"
    )
    for i, operation in enumerate(REDUCTIONS):
        asked.add(f"st.shared.b64 [%r10], 0x123456789abcdef0;\n{SYNC}")
        given = "%d0" if operation.endswith("64") else "%r1"
        spelling = SPELLINGS[i % len(SPELLINGS)]
        if spelling == "atom":
            old = "%d1" if operation.endswith("64") else "%r2"
            asked.add(f"atom.relaxed.cluster.{operation} {old}, [%d5], {given};")
        else:
            asked.add(f"{spelling}.{operation} [{'%d5' if 'shared' not in spelling else '%r11'}], {given};")
        asked.add(f"{SYNC}ld.shared.b64 %d2, [%r10];")
        asked.store(f"{spelling}.{operation}", "%d2", "b64")
    return asked.kernel(f"reductions_of_{ctas}", ctas, x=random_u32(504, ctas * 32))


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(registers, *shapes) for shapes in SHAPES),
    required,
    *(partial(addresses, ctas) for ctas in (2, 3, 8, 16)),
    loads,
    stores,
)
ATOMIC: tuple[Callable[[], MicroKernel], ...] = (
    no_cluster,
    partial(atomics, "atomics_of_the_next", ATOMICS),
    *(partial(reductions, ctas) for ctas in (2, 7, 16)),
)


def explicit(name: str = "is_explicit_cluster", cluster: Dim3 | int = 1, directives: str = "") -> MicroKernel:
    """%is_explicit_cluster, by default of a launch that says nothing of clusters."""
    body = """.reg .pred %p;
.reg .b32 %r<2>;
.reg .b64 %y, %at;
ld.param.u64 %y, [out_y];
mov.u32 %r0, %tid.x;
mad.wide.u32 %at, %r0, 4, %y;
mov.pred %p, %is_explicit_cluster;
selp.b32 %r1, 1, 0, %p;
st.global.b32 [%at], %r1;
ret;
"""
    answers = Buffer("out_y", np.full((1, 32), 0xDEADBEEF, np.uint32), ("%is_explicit_cluster",))
    text = entry(name, ".param .u64 out_y", body)
    if directives:
        text = text.replace("out_y)", f"out_y) {directives}", 1)
    return MicroKernel(name, text, (answers,), 1, 32, cluster)


EXPLICIT: tuple[Callable[[], MicroKernel], ...] = (explicit,)
BY_ATTRIBUTE: tuple[Callable[[], MicroKernel], ...] = (
    partial(explicit, "explicit_by_attribute", (1, 1, 1)),
    partial(explicit, "explicit_by_directive", 1, ".reqnctapercluster 1"),
    partial(explicit, "explicit_by_both", (1, 1, 1), ".reqnctapercluster 1"),
)
OF_PTXAS: tuple[Callable[[], MicroKernel], ...] = (partial(atomics, "atomics_of_pairs", PAIRS),)
