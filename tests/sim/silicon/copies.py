# SPDX-License-Identifier: Apache-2.0
"""mbarriers, cp.async and bulk copies: counts and phases, zero fill, and every reduction of a bulk copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.sim.silicon.elementwise import Operation, asm, elementwise
from tests.sim.silicon.microkernel import Buffer, MicroKernel, entry
from tests.sim.silicon.patterns import U32, f32_two, half_two, random_u32, u32_spread, u64_spread

BARRIERS = 32  # one a lane
BULK_BYTES = 2048


def parity(result: str, phase: int) -> str:
    return f"mbarrier.test_wait.parity.shared::cta.b64 $q, [$s], {phase};\nselp.b32 {result}, 1, 0, $q;\n"


def both(first: str, second: str) -> str:
    """Whether the phases of parity 0 and of parity 1 are over."""
    return parity(first, 0) + parity(second, 1)


def steps(label: str, start: str, *then: str) -> Operation:
    """`start`, then each step followed by a look at both parities: results 2i and 2i + 1 are of step i."""
    names = ["$d", *(f"$d{i}" for i in range(1, 2 * len(then) + 2))]
    text = start + "\n" + both(names[0], names[1])
    for i, step in enumerate(then, start=1):
        text += step + "\n" + both(names[2 * i], names[2 * i + 1])
    return asm(label, text + "mbarrier.inval.shared::cta.b64 [$s];", *["b32"] * len(names))


def barriers() -> MicroKernel:
    """$a: an arrival count 1..6; $b: bytes; $c: 0 or 1, whether to arrive once more."""
    init = "mbarrier.init.shared::cta.b64 [$s], $a;"
    one = "mbarrier.arrive.shared::cta.b64 _, [$s];"
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$s], $b;"
    half = "shr.u32 %half, $b, 1;\n"
    complete = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [$s], "
    operations = [
        steps("arrivals one by one", init, *[one] * 8),
        steps("arrive with a count", init, "mbarrier.arrive.shared::cta.b64 _, [$s], $a;", one, one),
        steps(
            "bytes expected, then arrived in two halves",
            "mbarrier.init.shared::cta.b64 [$s], 1;",
            expect,
            f"{half}{complete}%half;",
            f"{half}sub.u32 %half, $b, %half;\n{complete}%half;",
        ),
        steps(
            "bytes arrive before they are expected",
            "mbarrier.init.shared::cta.b64 [$s], 2;",
            f"{complete}$b;",
            one,
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$s], $b;",
            one,
        ),
        steps(
            "bytes outlast the arrivals",
            "mbarrier.init.shared::cta.b64 [$s], 2;",
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$s], $b;",
            one,
            one,
            f"{complete}$b;",
            one,
            one,
        ),
        steps(
            "arrive_drop lowers the next phase's count",
            "mbarrier.init.shared::cta.b64 [$s], 3;",
            "mbarrier.arrive_drop.shared::cta.b64 _, [$s];",
            one,
            one,
            one,
            one,
            "mbarrier.arrive_drop.expect_tx.shared::cta.b64 _, [$s], $b;",
            one,
            f"{complete}$b;",
            one,
        ),
    ]
    pending = (
        f"{init}\nmbarrier.arrive.shared::cta.b64 %state, [$s];\nmbarrier.pending_count.b64 $d, %state;\n"
    )
    pending += "mbarrier.test_wait.shared::cta.b64 $q, [$s], %state;\nselp.b32 $d1, 1, 0, $q;\n"
    pending += "mbarrier.arrive.noComplete.shared::cta.b64 %state, [$s], 1;\n"
    pending += "mbarrier.pending_count.b64 $d2, %state;\n"
    pending += "mbarrier.inval.shared::cta.b64 [$s];"
    counted = pending.replace(init, "add.u32 %half, $a, 2;\nmbarrier.init.shared::cta.b64 [$s], %half;")
    operations.append(asm("pending_count of the state before the arrival", counted, "b32", "b32", "b32"))
    counts = (np.arange(BARRIERS, dtype=np.uint32) % np.uint32(6)) + np.uint32(1)
    inputs = (
        counts,
        random_u32(191, BARRIERS) & np.uint32(0xFFFF0),
        random_u32(192, BARRIERS) & np.uint32(1),
    )
    declare = ".reg .b32 %half;\n.reg .b64 %state;"
    return elementwise("mbarrier_phases", inputs, operations, declare=declare, shared=True)


def asynchronous() -> MicroKernel:
    """cp.async of every size, with fewer source bytes than that, and with the source ignored."""
    count = 512
    words = u64_spread(193, count)
    have = random_u32(194, count)
    find = "ld.param.b64 %from, [in_a];\nand.b32 $d, %i, -2;\nmad.wide.u32 %from, $d, 8, %from;\n"
    clear = "st.shared.v4.b32 [$s], {0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5};\n"
    show = "\nld.shared.v4.b32 {$d, $d1, $d2, $d3}, [$s];"
    operations = []
    for spelling, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        name = f"cp.async.{spelling}.shared.global"
        copy = f"{name} [$s], [%from], {size}"
        limit = f"rem.u32 $d1, $b, {size + 1};\n"
        wait = "\ncp.async.commit_group;\ncp.async.wait_group 0;"
        every = "\ncp.async.wait_all;"
        ignored = f"and.b32 $d1, $b, 1;\nsetp.ne.u32 $p, $d1, 0;\n{copy}, $p;"
        operations += [
            asm(f"{name} {size}", find + clear + copy + ";" + wait + show, *["b32"] * 4),
            asm(f"{name} {size}, fewer", find + clear + limit + copy + ", $d1;" + every + show, *["b32"] * 4),
            asm(f"{name} {size}, ignored if odd", find + clear + ignored + wait + show, *["b32"] * 4),
        ]
    return elementwise(
        "cp_async_zero_fill", (words, have), operations, declare=".reg .b64 %from;", shared=True
    )


def bulk_kernel(
    name: str, opcode: str, old: U32, new: U32, at: int = 64, size: int = BULK_BYTES - 512
) -> MicroKernel:
    """Shared memory takes `new` and goes by bulk copy to `[target + at]`, from the tile's byte 128."""
    body = f""".reg .b32 %thread, %w, %a, %v, %tile;
.reg .b64 %at, %from, %to;
.reg .pred %more, %first;
.shared .align 128 .b8 tile[{BULK_BYTES}];
mov.u32 %thread, %tid.x;
setp.eq.u32 %first, %thread, 0;
mov.b32 %tile, tile;
ld.param.b64 %from, [image];
ld.param.b64 %to, [target];
mov.b32 %w, %thread;
COPY:
mad.wide.u32 %at, %w, 4, %from;
ld.global.b32 %v, [%at];
mad.lo.s32 %a, %w, 4, %tile;
st.shared.b32 [%a], %v;
add.s32 %w, %w, 64;
setp.lt.s32 %more, %w, {BULK_BYTES // 4};
@%more bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%first bra LAST;
{opcode} [%to+{at}], [%tile+128], {size};
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
LAST:
ret;"""
    result = Buffer("target", old.reshape(1, -1).copy(), ("the target afterwards",))
    params = (Buffer("image", new), result)
    return MicroKernel(name, entry(name, ".param .b64 image, .param .b64 target", body), params, 1, 64)


def bulk_load() -> MicroKernel:
    """Global to shared memory, by its own instruction, counted in bytes."""
    size, words = 1040, BULK_BYTES // 4
    body = f""".reg .b32 %thread, %w, %a, %v, %tile, %bar, %try;
.reg .b64 %at, %from, %to;
.reg .pred %more, %first, %done;
.shared .align 128 .b8 tile[{BULK_BYTES}];
.shared .align 8 .b8 bar[8];
mov.u32 %thread, %tid.x;
setp.eq.u32 %first, %thread, 0;
mov.b32 %tile, tile;
mov.b32 %bar, bar;
ld.param.b64 %from, [image];
ld.param.b64 %to, [target];
mov.b32 %w, %thread;
FILL:
mad.lo.s32 %a, %w, 4, %tile;
st.shared.b32 [%a], 0xA5A5A5A5;
add.s32 %w, %w, 64;
setp.lt.s32 %more, %w, {words};
@%more bra FILL;
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
fence.proxy.async.shared::cta;
bar.sync 0;
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size};
@%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%tile+48], [%from+80], {size}, [%bar];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;
@!%done bra WAIT;
mov.b32 %w, %thread;
DUMP:
mad.lo.s32 %a, %w, 4, %tile;
ld.shared.b32 %v, [%a];
mad.wide.u32 %at, %w, 4, %to;
st.global.b32 [%at], %v;
add.s32 %w, %w, 64;
setp.lt.s32 %more, %w, {words};
@%more bra DUMP;
ret;"""
    name = "bulk_load"
    params = (
        Buffer("image", random_u32(195, words)),
        Buffer("target", np.zeros((1, words), np.uint32), ("tile",)),
    )
    return MicroKernel(name, entry(name, ".param .b64 image, .param .b64 target", body), params, 1, 64)


def operands(kind: str) -> tuple[U32, U32]:
    words = BULK_BYTES // 4
    if kind in ("f16", "bf16"):
        a, b = half_two(196, 2 * words * 3, 10 if kind == "f16" else 7)
        return a[::3].copy().view(np.uint32), b[::3].copy().view(np.uint32)
    if kind == "f32":
        a, b = f32_two(197, 8 * words)
        return a[::8].copy(), b[::8].copy()
    if kind in ("u64", "s64", "b64"):
        return u64_spread(198, words // 2).view(np.uint32), u64_spread(199, words // 2)[::-1].copy().view(
            np.uint32
        )
    a, b = u32_spread(200, words), u32_spread(201, words)[::-1].copy()
    b[::4] = a[::4]
    return a, b


REDUCTIONS = {
    "add": ("s32", "u32", "u64", "f16", "bf16", "f32"),
    "min": ("s32", "u32", "s64", "u64", "f16", "bf16"),
    "max": ("s32", "u32", "s64", "u64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}


def bulk_reduction(name: str, kind: str) -> MicroKernel:
    flush = ".noftz" if kind in ("f16", "bf16") and name == "add" else ""
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}{flush}.{kind}"
    old, new = operands(kind)
    # The shared memory's byte 128 meets the target's byte 64: partners are to stay partners.
    return bulk_kernel(f"bulk_{name}_{kind}", opcode, np.roll(old, -16), new, 64)


def bulk_store() -> MicroKernel:
    old, new = operands("u32")
    return bulk_kernel("bulk_store", "cp.async.bulk.global.shared::cta.bulk_group", old, new, 16, 1008)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    barriers,
    asynchronous,
    bulk_load,
    bulk_store,
    *(partial(bulk_reduction, name, kind) for name, kinds in REDUCTIONS.items() for kind in kinds),
)
