# SPDX-License-Identifier: Apache-2.0
"""Asynchronous stores, reductions and copies into other CTAs of a cluster, and multicasts by mask.

Where several threads reduce into one word, the operation commutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tests.sim.silicon.cluster_text import SYNC, Questions, init, is_over, wait
from tests.sim.silicon.microkernel import Buffer, MicroKernel, TensorMapOf
from tests.sim.silicon.patterns import random_u32
from tests.sim.silicon.tensormap import DataType, Swizzle, TensorMap
from tests.sim.silicon.tma import box_bytes, contents, tensor_map

WIDTHS = (
    ("b32", 4, "%r1"), ("u32", 4, "%r1"), ("s32", 4, "%r1"), ("f32", 4, "%f0"), ("b64", 8, "%d0"),
    ("u64", 8, "%d0"), ("s64", 8, "%d0"), ("f64", 8, "%g0"), ("v2.b32", 8, "{%r1, %r2}"),
    ("v4.b32", 16, "{%r1, %r2, %r3, %r4}"), ("v2.b64", 16, "{%d0, %d1}"),
    ("v4.s32", 16, "{%r1, %r2, %r3, %r4}"),
)  # fmt: skip
PATTERN = 0xA5A5A5A5


def clear(asked: Questions, words: int, at: str = "%r10") -> None:
    for i in range(words):
        asked.add(f"st.shared.b32 [{at}+{4 * i}], {PATTERN};")


def words_there(asked: Questions, label: str, words: int, at: str = "%r10") -> None:
    for i in range(words):
        asked.add(f"ld.shared.b32 %r6, [{at}+{4 * i}];")
        asked.store(f"{label}, word {i}", "%r6")


def async_stores(ctas: int = 4) -> MicroKernel:
    """st.async of every type and vector to the next CTA: 16 bytes a thread that held 0xA5; one phase each."""
    asked = Questions()
    asked.add(
        ".reg .f32 %f0;\n.reg .f64 %g0;\nmad.lo.u32 %r10, %t, 16, %buf;\nmad.lo.u32 %r11, %t, 16, %far;\n"
        "ld.global.b32 %r1, [%in];\nnot.b32 %r2, %r1;\nmul.lo.u32 %r3, %r1, 3;\nmul.lo.u32 %r4, %r1, 5;\n"
        "mov.b64 %d0, {%r1, %r3};\nmov.b64 %d1, {%r2, %r4};\nmov.b32 %f0, %r4;\nmov.b64 %g0, %d1;\n" + init(1)
    )
    for phase, (width, size, what) in enumerate(WIDTHS):
        clear(asked, 4)
        asked.add(
            f"""@%one mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {32 * size};
{SYNC}
st.async{".weak" if phase % 2 else ""}.shared::cluster.mbarrier::complete_tx::bytes.{width}
    [%r11], {what}, [%there];
{wait(phase & 1, label=f"S{phase}")}"""
        )
        asked.store(f"st.async.{width}: its bytes have arrived", "%r23")
        words_there(asked, f"st.async.{width}", 4)
        asked.add(SYNC)
    name = "async_stores" if ctas == 4 else f"async_stores_of_{ctas}"
    return asked.kernel(name, ctas, x=random_u32(511, ctas * 32))


REDUCTIONS = (
    *(f"{o}.{k}" for o in ("add", "min", "max") for k in ("u32", "s32")),
    *("inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32", "add.u64"),
)


def async_reductions(ctas: int) -> MicroKernel:
    """red.async: all CTAs to one word a lane of rank 0. inc and dec wrap; with one limit they commute."""
    asked = Questions()
    asked.add(
        "mad.lo.u32 %r10, %t, 8, %buf;\nmapa.shared::cluster.u32 %r11, %r10, 0;\n"
        "mapa.shared::cluster.u32 %r12, %bar, 0;\nld.global.b32 %r1, [%in];\nmul.lo.u32 %r2, %r1, 1664525;\n"
        "mov.b64 %d0, {%r1, %r2};\n" + init(1)
    )
    for phase, operation in enumerate(REDUCTIONS):
        size = 8 if operation.endswith("64") else 4
        start, given = ("0x123456789abcdef0", "%d0" if size == 8 else "%r1")
        if operation[:3] in ("inc", "dec"):
            start, given = "3", "5"
        asked.add(
            f"""st.shared.b64 [%r10], {start};
and.pred %p, %one, %first;
@%p mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {32 * size * ctas};
{SYNC}
red.async.relaxed.cluster.{operation.replace(".", ".shared::cluster.mbarrier::complete_tx::bytes.")}
    [%r11], {given}, [%r12];
mov.b32 %r23, 2;
@!%first bra R{phase}_NOT;
{wait(phase & 1, label=f"R{phase}")}
R{phase}_NOT:
{SYNC}
ld.shared.b64 %d2, [%r10];"""
        )
        asked.store(f"red.async.{operation}: its bytes have arrived", "%r23")
        asked.store(f"red.async.{operation}", "%d2", "b64")
    return asked.kernel(f"async_reductions_of_{ctas}", ctas, x=random_u32(512, ctas * 32))


# Bytes, where from in the source and where to in the next CTA's `buffer`: (size, from, to).
BULK = (
    (16, 0, 0),
    (16, 16, 4080),
    (48, 32, 16),
    (128, 0, 128),
    (1008, 16, 2048),
    (2048, 0, 0),
    (4080, 16, 0),
)


def bulk_copies(ctas: int, to: str = "next", directives: str = "") -> MicroKernel:
    """cp.async.bulk from a CTA's shared memory to the next one's, or to its own: `to` is the special register
    of its rank, or `window`, where addresses of shared::cta are given as ones of shared::cluster."""
    asked = Questions(128)
    if to == "window":
        asked.add("mov.u32 %far, %buf;\nmov.u32 %there, %bar;")
    elif to != "next":
        asked.add(
            f"mapa.shared::cluster.u32 %far, %buf, %{to};\nmapa.shared::cluster.u32 %there, %bar, %{to};"
        )
    asked.add(
        "ld.global.b32 %r1, [%in];\nadd.u32 %r7, %buf, 4096;\nmad.lo.u32 %r10, %t, 32, %buf;\n"
        "mad.lo.u32 %r11, %t, 32, %r7;"
    )
    for i in range(8):
        asked.add(f"mad.lo.u32 %r1, %r1, 1664525, 1013904223;\nst.shared.b32 [%r11+{4 * i}], %r1;")
    asked.add(init(1))
    for phase, (size, source, target) in enumerate(BULK):
        clear(asked, 8)
        asked.add(
            f"""fence.proxy.async.shared::cta;
@%one mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {size};
bar.sync 0;
{SYNC}
add.u32 %r12, %r7, {source};
add.u32 %r13, %far, {target};
@%one cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r13], [%r12], {size}, [%there];
{wait(phase & 1, label=f"B{phase}")}"""
        )
        asked.store(f"{size} bytes from {source} to {target} have arrived", "%r23")
        words_there(asked, f"{size} bytes from {source} to {target}", 8)
        asked.add(SYNC)
    name = f"bulk_copies{'' if to == 'next' else f'_to_{to}'}_of_{ctas}{'_explicit' if directives else ''}"
    return asked.kernel(name, ctas, x=random_u32(513, ctas * 128), directives=directives)


BULK_REDUCTIONS = (
    *(f"{o}.{k}" for o in ("add", "min", "max") for k in ("u32", "s32")),
    *("inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32", "add.u64"),
)


def bulk_reductions(ctas: int = 4, to: int = 2) -> MicroKernel:
    """cp.reduce.async.bulk from every CTA into 256 bytes of rank `to`: 8 bytes a thread."""
    asked = Questions()
    asked.add(
        "ld.global.b32 %r1, [%in];\nmul.lo.u32 %r2, %r1, 1664525;\nadd.u32 %r7, %buf, 1024;\n"
        f"mapa.shared::cluster.u32 %r12, %buf, {to};\nmapa.shared::cluster.u32 %r13, %bar, {to};\n"
        "mad.lo.u32 %r10, %t, 8, %buf;\nmad.lo.u32 %r11, %t, 8, %r7;\n" + init(1)
    )
    for phase, operation in enumerate(BULK_REDUCTIONS):
        own = "5, 5" if operation[:3] in ("inc", "dec") else "%r1, %r2"
        start = "0x0000000200000003" if operation[:3] in ("inc", "dec") else "0x123456789abcdef0"
        asked.add(
            f"""st.shared.v2.b32 [%r11], {{{own}}};
st.shared.b64 [%r10], {start};
fence.proxy.async.shared::cta;
setp.eq.and.u32 %p, %rank, {to}, %one;
@%p mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {256 * ctas};
{SYNC}
@%one cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}
    [%r12], [%r7], 256, [%r13];
mov.b32 %r23, 2;
setp.eq.u32 %q, %rank, {to};
@!%q bra R{phase}_NOT;
{wait(phase & 1, label=f"R{phase}")}
R{phase}_NOT:
{SYNC}
ld.shared.b64 %d2, [%r10];"""
        )
        asked.store(f"{operation}: its bytes have arrived", "%r23")
        asked.store(operation, "%d2", "b64")
    name = "bulk_reductions" if ctas == 4 else f"bulk_reductions_of_{ctas}"
    return asked.kernel(name, ctas, x=random_u32(514, ctas * 32))


# Of a cluster of `size`: the CTA that issues, the mask, bytes, from where in x and to where in each `buffer`.
MASKS = {
    4: ((0, 0xF, 512, 0, 0), (2, 0x5, 16, 16, 1008), (1, 0x8, 1008, 32, 16), (3, 0x2, 128, 256, 128),
        (0, 0x1, 64, 0, 0)),
    8: ((7, 0xFF, 256, 64, 0), (3, 0xA5, 48, 16, 32), (0, 0x80, 1024, 0, 0)),
    16: ((0, 0xFFFF, 128, 0, 0), (15, 0x8001, 1008, 16, 0), (9, 0x1248, 32, 96, 64)),
}  # fmt: skip


def expected_by(mask: int, count: int) -> str:
    """`%q`: whether the CTA is of the mask. Those that are expect `count` bytes, before any CTA goes on."""
    return f"""fence.proxy.async.shared::cta;
mov.b32 %r4, {mask};
shr.u32 %r4, %r4, %rank;
and.b32 %r4, %r4, 1;
setp.eq.u32 %q, %r4, 1;
and.pred %p, %q, %one;
@%p mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {count};
{SYNC}"""


def multicasts(size: int) -> MicroKernel:
    """Bulk copies to the CTAs of a mask; the others' bytes and mbarriers stay as they are."""
    asked = Questions()
    asked.add(f"mad.lo.u32 %r10, %t, 32, %buf;\n{init(1)}mov.b32 %r9, 0;")
    for number, (issuer, mask, count, source, target) in enumerate(MASKS[size]):
        clear(asked, 8)
        asked.add(
            f"""{expected_by(mask, count)}
setp.eq.and.u32 %p, %rank, {issuer}, %one;
add.u64 %d0, %x, {source};
add.u32 %r12, %buf, {target};
mov.b16 %h0, {mask};
@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r12], [%d0], {count}, [full], %h0;
mov.b32 %r23, 2;
@!%q bra M{number}_NOT;
{wait("%r9", label=f"M{number}")}
xor.b32 %r9, %r9, 1;
M{number}_NOT:
{SYNC}"""
        )
        label = f"{count} bytes of x+{source} to {target} by {issuer}, mask {mask:#x}"
        asked.store(f"{label}, have arrived", "%r23")
        words_there(asked, label, 8)
    asked.add(is_over(0, "%r3"))
    asked.store("parity 0 is over", "%r3")
    asked.add(SYNC)
    return asked.kernel(f"multicasts_of_{size}", size, x=random_u32(515, 16 * 32 * 2))


class Tiles:
    """A tensor, and boxes of it: the CTA that issues, the mask and the coordinates."""

    def __init__(self, name: str, map_: TensorMap, *boxes: tuple[int, int, tuple[int, ...]]) -> None:
        self.name, self.map, self.boxes = name, map_, boxes


TILES = (
    Tiles("rows", tensor_map(DataType.UINT32, (300,), (64,)),
          (0, 0xF, (0,)), (1, 0x6, (280,)), (2, 0x9, (-12,)), (3, 0x4, (300,)), (0, 0x1, (128,))),
    Tiles("plane", tensor_map(DataType.UINT16, (40, 20), (32, 8)),
          (0, 0xF, (0, 0)), (3, 0x3, (16, 16)), (2, 0xE, (-8, 5)), (1, 0xD, (32, -3))),
    Tiles("swizzled", tensor_map(DataType.BFLOAT16, (128, 24), (64, 8), swizzle=Swizzle.B128),
          (1, 0xF, (0, 0)), (0, 0xA, (64, 8)), (2, 0x5, (96, 20))),
    Tiles("swizzled_64", tensor_map(DataType.UINT8, (200, 12), (64, 8), swizzle=Swizzle.B64),
          (3, 0xF, (64, 4)), (0, 0x6, (160, 8))),
    Tiles("volume", tensor_map(DataType.FLOAT32, (12, 6, 5), (8, 4, 2)),
          (2, 0xF, (0, 0, 0)), (1, 0x9, (8, 4, 4)), (0, 0x7, (-4, 3, -1))),
)  # fmt: skip


def tensor_multicasts(tiles: Tiles) -> MicroKernel:
    """Boxes, also half and wholly outside of the tensor, to the CTAs of a mask at a stage of its own."""
    asked = Questions()
    count = box_bytes(tiles.map)
    words = -(-count // (4 * 32)) + 1  # and a guard behind
    asked.add(
        f"mad.lo.u32 %r10, %t, {4 * words}, %buf;\nmov.b64 %tm, tm;\ncvta.param.u64 %tm, %tm;\n{init(1)}"
        "mov.b32 %r9, 0;"
    )
    for number, (issuer, mask, at) in enumerate(tiles.boxes):
        clear(asked, words)
        asked.add(
            f"""{expected_by(mask, count)}
setp.eq.u32 %p, %rank, {issuer};
@!%p bra T{number}_SENT;
elect.sync _|%p, -1;
mov.b16 %h0, {mask};
@%p cp.async.bulk.tensor.{len(at)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    .multicast::cluster [%buf], [%tm, {{{", ".join(map(str, at))}}}], [full], %h0;
T{number}_SENT:
mov.b32 %r23, 2;
@!%q bra T{number}_NOT;
{wait("%r9", label=f"T{number}")}
xor.b32 %r9, %r9, 1;
T{number}_NOT:
{SYNC}"""
        )
        label = f"box at {at} by {issuer}, mask {mask:#x}"
        asked.store(f"{label}, has arrived", "%r23")
        words_there(asked, label, words)
    made = asked.kernel(f"tensor_multicasts_{tiles.name}", 4, maps=(TensorMapOf("tm", "tensor", tiles.map),))
    tensor = Buffer("tensor", contents(tiles.map), argument=False)
    return MicroKernel(made.name, made.ptx, (*made.params, tensor), made.grid, made.block, made.cluster)


def slices(size: int) -> MicroKernel:
    """Every CTA multicasts its slice of a tile to all, as a GEMM's CTAs do: each gets the whole tile."""
    map_ = tensor_map(DataType.UINT32, (32, 8 * size), (32, 8))
    asked = Questions(256)
    asked.add(
        f"""mov.b64 %tm, tm;
cvta.param.u64 %tm, %tm;
{init(1)}
@%one mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], {1024 * size};
{SYNC}
mul.lo.u32 %r1, %rank, 8;
mad.lo.u32 %r2, %rank, 1024, %buf;
shl.b32 %r3, 1, %size;
sub.u32 %r3, %r3, 1;
cvt.u16.u32 %h0, %r3;
mov.b32 %r4, 0;
@%one cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%r2], [%tm, {{%r4, %r1}}], [full], %h0;
{wait(0)}"""
    )
    asked.store("all slices have arrived", "%r23")
    for i in range(size):
        asked.add(f"ld.shared.b32 %r6, [%s+{1024 * i}];")
        asked.store(f"slice {i}", "%r6")
    asked.add(SYNC)
    made = asked.kernel(f"slices_of_{size}", size, maps=(TensorMapOf("tm", "tensor", map_),))
    tensor = Buffer("tensor", np.ascontiguousarray(contents(map_)), argument=False)
    return MicroKernel(made.name, made.ptx, (*made.params, tensor), made.grid, made.block, made.cluster)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    async_stores,
    *(partial(async_reductions, ctas) for ctas in (2, 8)),
    *(partial(bulk_copies, ctas) for ctas in (2, 4)),
    bulk_reductions,
    *(partial(multicasts, size) for size in MASKS),
    *(partial(tensor_multicasts, tiles) for tiles in TILES),
    *(partial(slices, size) for size in (2, 8)),
)
TO_ITSELF: tuple[Callable[[], MicroKernel], ...] = tuple(
    partial(bulk_copies, ctas, "rank") for ctas in (1, 2)
)
CLUSTER_OF_ONE: tuple[Callable[[], MicroKernel], ...] = (
    partial(bulk_copies, 1, "rank", ".reqnctapercluster 1"),
    partial(bulk_copies, 1, "window"),
    partial(bulk_copies, 1, "window", ".reqnctapercluster 1"),
    partial(bulk_copies, 2, "window"),
)
"""An H200 refuses copies to shared::cluster in a launch without clusters, whatever the address."""
ALONE: tuple[Callable[[], MicroKernel], ...] = (
    partial(async_stores, 1),
    partial(async_reductions, 1),
    partial(bulk_reductions, 1, 0),
)
"""An H200 refuses these too in a launch without clusters."""


def by_attribute(kernel: MicroKernel) -> MicroKernel:
    """A kernel of one CTA, launched with the attribute for clusters of 1 x 1 x 1."""
    return replace(kernel, name=f"{kernel.name}_by_attribute", entry=kernel.name, cluster=(1, 1, 1))


BY_ATTRIBUTE: tuple[Callable[[], MicroKernel], ...] = (
    lambda: by_attribute(bulk_copies(1, "rank")),
    lambda: by_attribute(bulk_copies(1, "window")),
    *(lambda make=make: by_attribute(make()) for make in ALONE),
)
