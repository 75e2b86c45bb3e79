# SPDX-License-Identifier: Apache-2.0
"""Small PTX kernels in pairs: one commits a fault, its twin differs in one line and does not.

`@@` in a text stands for that line. Every kernel runs as one CTA and has one parameter, the address
of 1,024 bytes of global memory that hold float32 ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.errors import FaultKind

GLOBAL_BYTES = 1024


def ptx(body: str, directives: str = "", line: str = "") -> str:
    """A module with the kernel `k` of this body; `@@` is replaced by `line`."""
    text = f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{directives}
{{
.reg .pred %p<8>;
.reg .b16 %h<8>;
.reg .b32 %r<64>;
.reg .f32 %f<16>;
.reg .b64 %d<16>;
.shared .align 1024 .b8 buffer[8192];
.shared .align 8 .b8 barrier[16];
.shared .align 4 .b8 columns[4];
ld.param.u64 %d0, [data];
cvta.to.global.u64 %d0, %d0;
mov.u32 %r0, %tid.x;
{body}
ret;
}}
"""
    return text.replace("@@", line)


@dataclass(frozen=True, slots=True)
class Pair:
    """`bad` commits `kind` at the line that contains `at` (the bad line itself if empty); `good` does not."""

    name: str
    kind: FaultKind
    body: str
    bad: str
    good: str
    says: str
    at: str = ""
    threads: int = 32
    interpreter_only: bool = False

    def texts(self) -> tuple[str, str]:
        return ptx(self.body, line=self.bad), ptx(self.body, line=self.good)


ALLOCATE = """
mov.u32 %r1, columns;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
ld.shared.b32 %r2, [columns];
"""
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;"
FILL_TMEM = """
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0};
tcgen05.wait::st.sync.aligned;
"""

BULK = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [%d0], 64, [barrier];\n"

# One thread of the warp makes an mbarrier of one arrival; the others see it.
BARRIER = """
setp.ne.u32 %p1, %r0, 0;
@%p1 bra ready;
mbarrier.init.shared.b64 [barrier], 1;
ready:
bar.sync 0;
"""
WAIT = """
{
again:
mbarrier.try_wait.parity.shared.b64 %p2, [barrier], 0;
@!%p2 bra again;
}
"""

OUT_OF_BOUNDS = (
    Pair(
        "global load",
        FaultKind.OUT_OF_BOUNDS,
        "@@",
        "ld.global.f32 %f0, [%d0+1024];",
        "ld.global.f32 %f0, [%d0+1020];",
        "data",
    ),
    Pair(
        "global store of a vector",
        FaultKind.OUT_OF_BOUNDS,
        "mov.f32 %f0, 0f00000000;\n@@",
        "st.global.v4.f32 [%d0+-16], {%f0, %f0, %f0, %f0};",
        "st.global.v4.f32 [%d0+1008], {%f0, %f0, %f0, %f0};",
        "data",
    ),
    Pair(
        "one lane of a warp",
        FaultKind.OUT_OF_BOUNDS,
        "@@\nadd.u64 %d1, %d0, %d1;\nld.global.f32 %f0, [%d1+0];",
        "mul.wide.u32 %d1, %r0, 36;",
        "mul.wide.u32 %d1, %r0, 32;",
        "data",
        at="ld.global.f32",
    ),
    Pair(
        "shared store",
        FaultKind.OUT_OF_BOUNDS,
        "@@\nst.shared.b32 [%r1], %r0;",
        "mov.u32 %r1, 300000;",
        "mov.u32 %r1, buffer;",
        "shared",
        at="st.shared",
    ),
    Pair(
        "atomic",
        FaultKind.OUT_OF_BOUNDS,
        "@@",
        "atom.global.add.f32 %f0, [%d0+1024], 0f3F800000;",
        "atom.global.add.f32 %f0, [%d0], 0f3F800000;",
        "data",
    ),
    Pair(
        "bulk copy",
        FaultKind.OUT_OF_BOUNDS,
        BARRIER
        + "@%p1 bra done;\nmbarrier.arrive.expect_tx.shared.b64 _, [barrier], 64;\n@@\ndone:\n"
        + WAIT,
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [%d0+976], 64, [barrier];",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer], [%d0+960], 64, [barrier];",
        "data",
    ),
)

MISALIGNED = (
    Pair(
        "vector load",
        FaultKind.MISALIGNED,
        "@@",
        "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d0+8];",
        "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d0+16];",
        "16",
    ),
    Pair(
        "shared store",
        FaultKind.MISALIGNED,
        "@@",
        "st.shared.b32 [buffer+2], %r0;",
        "st.shared.b32 [buffer+4], %r0;",
        "4",
    ),
    Pair(
        "mbarrier",
        FaultKind.MISALIGNED,
        "@@",
        "mbarrier.init.shared.b64 [barrier+4], 1;",
        "mbarrier.init.shared.b64 [barrier+8], 1;",
        "mbarrier",
    ),
    Pair(
        "bulk copy",
        FaultKind.MISALIGNED,
        BARRIER
        + "@%p1 bra done;\nmbarrier.arrive.expect_tx.shared.b64 _, [barrier], 64;\n@@\ndone:\n"
        + WAIT,
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer+8], [%d0], 64, [barrier];",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [buffer+16], [%d0], 64, [barrier];",
        "16",
    ),
)

READ_TMEM = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r2];\ntcgen05.wait::ld.sync.aligned;"

TMEM = (
    Pair(
        "used before it is allocated",
        FaultKind.TMEM_ACCESS,
        "mov.b32 %r2, 0;\n@@\n" + FILL_TMEM + FREE,
        "mov.b32 %r2, 0;",
        ALLOCATE.strip(),
        "column",
        at="tcgen05.st",
    ),
    Pair(
        "used after it is freed",
        FaultKind.TMEM_ACCESS,
        ALLOCATE + FILL_TMEM + "@@",
        f"{FREE}\n{READ_TMEM}",
        f"{READ_TMEM}\n{FREE}",
        "column",
        at="tcgen05.ld",
    ),
    Pair(
        "beyond what is allocated",
        FaultKind.TMEM_ACCESS,
        ALLOCATE + "@@\n" + FILL_TMEM + "sub.s32 %r2, %r2, %r4;\n" + FREE,
        "mov.b32 %r4, 32;\nadd.s32 %r2, %r2, %r4;",
        "mov.b32 %r4, 31;\nadd.s32 %r2, %r2, %r4;",
        "column",
        at="tcgen05.st",
    ),
    Pair(
        "the lanes of another warp",
        FaultKind.TMEM_ACCESS,
        ALLOCATE + "@@\n" + FILL_TMEM + "sub.s32 %r2, %r2, %r4;\n" + FREE,
        "mov.b32 %r4, 0x200000;\nadd.s32 %r2, %r2, %r4;",
        "mov.b32 %r4, 0;\nadd.s32 %r2, %r2, %r4;",
        "lane",
        at="tcgen05.st",
    ),
    Pair(
        "never freed",
        FaultKind.TMEM_LEAK,
        ALLOCATE + FILL_TMEM + "@@",
        "",
        FREE,
        "tcgen05.dealloc",
        at="tcgen05.alloc",
    ),
    Pair(
        "48 columns",
        FaultKind.TMEM_ALLOCATION,
        "mov.u32 %r1, columns;\n@@\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r4;\n"
        "ld.shared.b32 %r2, [columns];\n"
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;",
        "mov.b32 %r4, 48;",
        "mov.b32 %r4, 64;",
        "48",
        at="tcgen05.alloc",
    ),
    Pair(
        "freed with another size",
        FaultKind.TMEM_ALLOCATION,
        ALLOCATE + "@@",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;",
        FREE,
        "64",
    ),
    Pair(
        "freed twice",
        FaultKind.TMEM_ALLOCATION,
        ALLOCATE + f"{FREE}\n@@",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32; // again",
        "",
        "no allocation",
    ),
    Pair(
        "allocated after the permit is given up",
        FaultKind.TMEM_ALLOCATION,
        "mov.u32 %r1, columns;\n@@\nld.shared.b32 %r2, [columns];\n" + FREE,
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;\n"
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "relinquish",
        at="tcgen05.alloc",
    ),
)

# Ones in A (64 x 16) and B (8 x 16): the layout of a tile of equal values does not matter.
ONES = """
mov.b32 %r5, 0x3F803F80;
mov.u32 %r6, buffer;
shl.b32 %r7, %r0, 2;
add.s32 %r7, %r6, %r7;
mov.b32 %r8, 0;
fill:
st.shared.b32 [%r7], %r5;
add.s32 %r7, %r7, 128;
add.s32 %r8, %r8, 1;
setp.lt.u32 %p3, %r8, 20;
@%p3 bra fill;
fence.proxy.async.shared::cta;
bar.sync 0;
"""
# K-major, no swizzle: rows of 16 bytes, eight to a core matrix, two core matrices along K.
DESCRIPTORS = """
shr.u32 %r6, %r6, 4;
cvt.u64.u32 %d1, %r6;
mov.b64 %d2, 0x0000401000080000;
or.b64 %d1, %d1, %d2;
add.s64 %d3, %d1, 128;
"""
# f32 accumulator, bf16 operands, N 8, M 64.
SHAPE = "mov.b32 %r9, 0x04020490;"
MULTIPLY = "tcgen05.mma.cta_group::1.kind::f16 [%r2], %d1, %d3, %r9, 0;"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [barrier];"


def product(shape: str = SHAPE, descriptors: str = DESCRIPTORS, wait: str = WAIT) -> str:
    """D = A B of ones, by lane 0, then each lane's first column of D to global memory."""
    return f"""
{ALLOCATE}
{FILL_TMEM}
{BARRIER}
{ONES}
{descriptors}
{shape}
@%p1 bra issued;
{MULTIPLY}
{COMMIT}
issued:
bar.warp.sync 0xffffffff;
{wait}
{READ_TMEM}
mul.wide.u32 %d4, %r0, 4;
add.s64 %d4, %d0, %d4;
st.global.b32 [%d4], %r3;
{FREE}
"""


DESCRIPTOR = (
    Pair(
        "M of 48 rows",
        FaultKind.DESCRIPTOR,
        product(shape="@@"),
        "mov.b32 %r9, 0x03020490;",
        SHAPE,
        "M",
        at="tcgen05.mma",
    ),
    Pair(
        "shared matrix descriptor without its version",
        FaultKind.DESCRIPTOR,
        product(descriptors=DESCRIPTORS.replace("mov.b64 %d2, 0x0000401000080000;", "@@")),
        "mov.b64 %d2, 0x0000001000080000;",
        "mov.b64 %d2, 0x0000401000080000;",
        "bits 46..48",
        at="tcgen05.mma",
    ),
)

DIVERGENCE = (
    Pair(
        "half a warp at bar.sync",
        FaultKind.DIVERGENCE,
        "@@\n@%p4 bra skip;\nbar.sync 0;\nskip:\nst.global.b32 [%d0], %r0;",
        "setp.lt.u32 %p4, %r0, 16;",
        "setp.lt.u32 %p4, %r0, 0;",
        "lanes",
        at="bar.sync",
    ),
    Pair(
        "half a warp at tcgen05.alloc",
        FaultKind.DIVERGENCE,
        "mov.u32 %r1, columns;\n@@\n@%p4 bra skip;\n"
        + ALLOCATE
        + FREE
        + "\nskip:\nst.global.b32 [%d0], %r0;",
        "setp.lt.u32 %p4, %r0, 16;",
        "setp.lt.u32 %p4, %r0, 0;",
        "lanes",
        at="tcgen05.alloc",
    ),
)

DEADLOCK = (
    Pair(
        "an mbarrier that nobody arrives at",
        FaultKind.DEADLOCK,
        BARRIER + "@%p1 bra waits;\n@@\nwaits:\n" + WAIT,
        "",
        "mbarrier.arrive.shared.b64 _, [barrier];",
        "parity 0",
        at="mbarrier.try_wait",
    ),
    Pair(
        "more bytes expected than arrive",
        FaultKind.DEADLOCK,
        BARRIER + "@%p1 bra done;\n@@\n" + BULK + "done:\n" + WAIT,
        "mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 80;",
        "mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 64;",
        "16",
        at="mbarrier.try_wait",
    ),
    Pair(
        "a barrier that the other warp does not reach",
        FaultKind.DEADLOCK,
        "setp.ge.u32 %p4, %r0, 32;\n@@\nbar.sync 1, 64;\nskip:",
        "@%p4 bra skip;",
        "",
        "bar",
        at="bar.sync",
        threads=64,
    ),
    Pair(
        "TMEM for the second time while all of it is held",
        FaultKind.DEADLOCK,
        "mov.u32 %r1, columns;\n"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;\n"
        "ld.shared.b32 %r2, [columns];\n@@",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;",
        "0..511",
    ),
)

UNINITIALISED = (
    Pair(
        "shared memory",
        FaultKind.UNINITIALISED,
        "@@\nld.shared.b32 %r3, [buffer];",
        "",
        "st.shared.b32 [buffer], %r0;",
        "shared",
        at="ld.shared.b32 %r3",
        interpreter_only=True,
    ),
    Pair(
        "a register",
        FaultKind.UNINITIALISED,
        "@@\nst.global.b32 [%d0], %r3;",
        "",
        "mov.b32 %r3, 0;",
        "%r3",
        at="st.global",
        interpreter_only=True,
    ),
    Pair(
        "a register computed from another",
        FaultKind.UNINITIALISED,
        "@@\nadd.s32 %r4, %r3, 1;\nst.global.b32 [%d0], %r4;",
        "",
        "mov.b32 %r3, 0;",
        "%r4",
        at="st.global",
        interpreter_only=True,
    ),
    Pair(
        "TMEM",
        FaultKind.UNINITIALISED,
        ALLOCATE + "@@\n" + READ_TMEM + FREE,
        "",
        FILL_TMEM.strip(),
        "TMEM",
        at="tcgen05.ld",
        interpreter_only=True,
    ),
)

OTHER = (
    Pair("trap", FaultKind.TRAP, "setp.eq.u32 %p4, %r0, 40;\n@@", "trap;", "@%p4 trap;", "trap"),
    Pair(
        "a barrier of 40 threads",
        FaultKind.BARRIER,
        "@@\nbar.sync 1, %r4;",
        "mov.b32 %r4, 40;",
        "mov.b32 %r4, 32;",
        "40",
        at="bar.sync",
    ),
)

PAIRS = (
    *OUT_OF_BOUNDS,
    *MISALIGNED,
    *TMEM,
    *DESCRIPTOR,
    *DIVERGENCE,
    *DEADLOCK,
    *UNINITIALISED,
    *OTHER,
)

LOAD_TMEM = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r4, %r5}, [%r2];\n"
WAIT_LOAD = "tcgen05.wait::ld.sync.aligned;"
# What happens to %r4 and %r5 between tcgen05.ld and the wait, and the instruction that must not be there.
USES = {
    "arithmetic": ("add.s32 %r6, %r4, %r0;", "add.s32"),
    "the second register": ("neg.s32 %r6, %r5;", "neg.s32"),
    "a global store": ("st.global.b32 [%d0], %r4;", "st.global"),
    "a shared store": ("st.shared.b32 [buffer], %r4;", "st.shared"),
    "an address": ("ld.shared.b32 %r6, [%r4];", "ld.shared"),
    "a predicate": ("setp.ne.u32 %p4, %r4, 0;", "setp"),
    "another store to TMEM": ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r4};", "tcgen05.st"),
    "a shuffle": ("shfl.sync.idx.b32 %r6, %r4, 0, 31, -1;", "shfl"),
    "a moved register": ("mov.b32 %r6, %r4;\nadd.s32 %r7, %r6, 1;", "add.s32"),
    "a packed pair": ("mov.b64 %d5, {%r5, %r4};\nadd.s64 %d6, %d5, 1;", "add.s64"),
    "half of a pair": ("mov.b64 %d5, {%r4, %r0};\nmov.b64 {%r6, %r7}, %d5;\nneg.s32 %r8, %r6;", "neg.s32"),
    "a half": ("mov.b32 {%h0, %h1}, %r4;\nadd.s16 %h2, %h1, 1;", "add.s16"),
    "a chosen register": (
        "setp.eq.u32 %p4, %r0, 5;\nselp.b32 %r6, %r4, 0, %p4;\nneg.s32 %r7, %r6;",
        "neg.s32",
    ),
    "permuted bytes": ("prmt.b32 %r6, %r0, %r4, 0x3254;\nneg.s32 %r7, %r6;", "neg.s32"),
    "bytes permuted in place": ("prmt.b32 %r4, %r4, %r0, 0x0123;\nneg.s32 %r7, %r4;", "neg.s32"),
}


def used_early(name: str) -> str:
    """The body of a kernel with one of `USES`; `@@` stands where the wait belongs."""
    fill = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r0};\ntcgen05.wait::st.sync.aligned;\n"
    if name == "an address":
        fill = "mov.u32 %r6, buffer;\nst.shared.b32 [buffer], %r0;\n" + fill.replace("{%r0", "{%r6")
    return ALLOCATE + fill + LOAD_TMEM + "@@\n" + USES[name][0] + "\n" + WAIT_LOAD + "\n" + FREE
