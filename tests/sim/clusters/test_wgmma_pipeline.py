# SPDX-License-Identifier: Apache-2.0
"""A pipeline of multicast copies and wgmma over two CTAs of sm_90a, as CUTLASS's GEMMs for Hopper have it.

CTA r multiplies rows 64 r to 64 r + 63 of A by all of B. For each tile of 64 columns it copies its rows of A
for itself, and half r of the rows of B to both CTAs. A stage is filled by bytes of two CTAs and is free when
the warpgroups of both have read it. Sums of small integers are exact in any order.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gdnbench.sim.checker.findings import FindingGroup
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx
from tests.messages import wording
from tests.sim.clusters.cluster_kernels import ENGINES, SCHEDULES
from tests.sim.machine.tma_model import Map
from tests.sim.tcgen05.products import codes
from tests.sim.wgmma.kernel_text import d_places
from tests.subset import quick

TILES, STAGES, ROWS, COLUMNS, WIDTH = 4, 2, 64, 16, 64
A_BYTES, B_BYTES = 2 * ROWS * WIDTH, 2 * COLUMNS * WIDTH
STAGE_BYTES = A_BYTES + B_BYTES
REGISTERS = ROWS * COLUMNS // 128
D = ", ".join(f"%f{i}" for i in range(REGISTERS))
COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
# Each warp has waited for its part of a product alone, so each arrives, at both CTAs.
RELEASES = tuple(
    f"mapa.shared::cluster.u32 %r9, %empty, {rank};\n"
    "@%lead mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];\n"
    for rank in range(2)
)
LEAVE = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
# Descriptors of 128-byte swizzles, 8 rows 1,024 bytes apart.
PRODUCTS = "".join(
    f"""add.s64 %d4, %d2, {2 * step};
add.s64 %d5, %d3, {2 * step};
wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{D}}}, %d4, %d5, %more, 1, 1, 0, 0;
setp.eq.u32 %more, 0, 0;
"""
    for step in range(WIDTH // 16)
)
INIT = "".join(
    f"mbarrier.init.shared.b64 [fulls+{8 * stage}], 1;\nmbarrier.init.shared.b64 [empties+{8 * stage}], 8;\n"
    for stage in range(STAGES)
)
STORE = "".join(f"st.global.f32 [%d0+{512 * i}], %f{i};\n" for i in range(REGISTERS))
KERNEL = f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .align 64 .b8 a[128], .param .align 64 .b8 b[128])
.explicitcluster .reqnctapercluster 2
{{
.reg .pred %p, %one, %lead, %more, %copies;
.reg .b16 %h0;
.reg .b32 %t, %rank, %tile, %stage, %parity, %full, %empty, %sa, %sb, %r<12>;
.reg .b64 %out, %a, %b, %d<8>;
.reg .f32 %f<{REGISTERS}>;
.shared .align 1024 .b8 buffer[{STAGES * STAGE_BYTES}];
.shared .align 8 .b64 fulls[{STAGES}];
.shared .align 8 .b64 empties[{STAGES}];
mov.u32 %t, %tid.x;
mov.u32 %rank, %cluster_ctarank;
ld.param.u64 %out, [out];
mov.b64 %a, a;
cvta.param.u64 %a, %a;
mov.b64 %b, b;
cvta.param.u64 %b, %b;
setp.eq.u32 %one, %t, 0;
and.b32 %r0, %t, 31;
setp.eq.u32 %lead, %r0, 0;
setp.eq.u32 %copies, %t, 128;
setp.ne.u32 %more, 0, 0;
mov.b16 %h0, 3;
mov.u32 %tile, 0;
@!%one bra made;
{INIT}fence.mbarrier_init.release.cluster;
made:
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.aligned;
next:
and.b32 %stage, %tile, {STAGES - 1};
shr.u32 %parity, %tile, 1;
and.b32 %parity, %parity, 1;
mov.u32 %full, fulls;
mad.lo.u32 %full, %stage, 8, %full;
mov.u32 %empty, empties;
mad.lo.u32 %empty, %stage, 8, %empty;
mov.u32 %sa, buffer;
mad.lo.u32 %sa, %stage, {STAGE_BYTES}, %sa;
add.u32 %sb, %sa, {A_BYTES};
setp.lt.u32 %p, %t, 128;
@%p bra multiply;
@!%copies bra after;
xor.b32 %r0, %parity, 1;
free: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%empty], %r0;
@!%p bra free;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%full], {STAGE_BYTES};
shl.b32 %r1, %tile, 6;
shl.b32 %r2, %rank, 6;
shl.b32 %r3, %rank, 3;
mad.lo.u32 %r4, %rank, {B_BYTES // 2}, %sb;
{COPY} [%sa], [%a, {{%r1, %r2}}], [%full];
{COPY}.multicast::cluster [%r4], [%b, {{%r1, %r3}}], [%full], %h0;
bra after;
multiply:
ready: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [%full], %parity;
@!%p bra ready;
shr.u32 %r5, %sa, 4;
cvt.u64.u32 %d2, %r5;
or.b64 %d2, %d2, {1 << 62 | 64 << 32 | 1 << 16};
shr.u32 %r5, %sb, 4;
cvt.u64.u32 %d3, %r5;
or.b64 %d3, %d3, {1 << 62 | 64 << 32 | 1 << 16};
wgmma.fence.sync.aligned;
{PRODUCTS}wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{"".join(RELEASES)}after:
bar.warp.sync -1;
add.u32 %tile, %tile, 1;
setp.lt.u32 %p, %tile, {TILES};
@%p bra next;
setp.lt.u32 %p, %t, 128;
@!%p bra stored;
mad.lo.u32 %r6, %rank, {128 * REGISTERS}, %t;
mad.wide.u32 %d0, %r6, 4, %out;
{STORE}stored:
{LEAVE}ret;
}}
"""


def run(
    text: str, engine: str = "interpreter", schedule: str = "late", checker: LaunchChecker | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """D [128, 16] of the kernel, and of NumPy."""
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-3, 4, (rows, TILES * WIDTH)).astype(np.float32) for rows in (2 * ROWS, COLUMNS))
    data = [codes("bf16", one).view(np.uint16) for one in (a, b)]
    maps = [
        Map(one.ctypes.data, "bf16", one.shape[::-1], (2 * TILES * WIDTH,), (WIDTH, box), 128).encode()
        for one, box in zip(data, (ROWS, COLUMNS // 2), strict=True)
    ]
    memory = GlobalMemory()
    for one in data:
        memory.add_array(one, "operand")
    out = np.zeros((2, REGISTERS, 128), np.float32)
    run_ptx(
        text, "k", (2, 1, 1), (160, 1, 1), [out, *maps], engine=engine, schedule=schedule, memory=memory,
        checker=None if checker is None else checker.begin,
    )  # fmt: skip
    d = np.zeros((2, ROWS, COLUMNS), np.float32)
    for cta in range(2):
        d[cta][d_places(COLUMNS)] = out[cta]
    return d.reshape(2 * ROWS, COLUMNS), a @ b.T


def errors(text: str, schedule: str = "late") -> list[FindingGroup]:
    checker = LaunchChecker(parse(text).kernels["k"])
    run(text, schedule=schedule, checker=checker)
    return [one for one in checker.found() if one.verdict is Verdict.ERROR]


@pytest.mark.parametrize(("engine", "schedule"), quick(product(ENGINES, SCHEDULES), 0, 6))
def test_products(engine: str, schedule: str) -> None:
    found, want = run(KERNEL, engine, schedule)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("schedule", quick(SCHEDULES, 2))
def test_it_is_ordered(schedule: str) -> None:
    assert errors(KERNEL, schedule) == []


def test_one_thread_of_a_warpgroup_frees_a_stage() -> None:
    """As CUTLASS's PipelineTmaAsync does in clusters: for review, since the other warps have not waited."""
    text = KERNEL.replace("@%lead mbarrier", "@%one mbarrier")
    for stage in range(STAGES):
        text = text.replace(f"[empties+{8 * stage}], 8;", f"[empties+{8 * stage}], 2;")
    checker = LaunchChecker(parse(text).kernels["k"])
    found, want = run(text, checker=checker)
    np.testing.assert_array_equal(found, want)
    pairs = [one for one in checker.found() if one.cause is Cause.IN_FLIGHT]
    assert pairs
    assert {one.verdict for one in pairs} == {Verdict.REVIEW}
    assert {first % 5 for one in pairs for first, _ in one.warps} == {1, 2, 3}


def test_a_stage_that_the_other_cta_still_reads() -> None:
    """A CTA copies into both without asking whether the other one's warpgroup has read the stage."""
    own = RELEASES[0].replace("mapa.shared::cluster.u32 %r9, %empty, 0", "mov.u32 %r9, %empty")
    text = KERNEL.replace("".join(RELEASES), own)
    for stage in range(STAGES):
        text = text.replace(f"[empties+{8 * stage}], 8;", f"[empties+{8 * stage}], 4;")
    assert {one.verdict for one in errors(text)} == {Verdict.ERROR}


def test_bytes_that_are_not_expected() -> None:
    """The phase ends with the bytes of A, and B is multiplied before it has arrived."""
    with pytest.raises(KernelFault) as caught:
        run(KERNEL.replace(f"[%full], {STAGE_BYTES};", f"[%full], {A_BYTES};"))
    assert caught.value.kind is FaultKind.UNINITIALISED
    assert caught.value.message.startswith("B: ")


def test_a_cta_that_leaves_early() -> None:
    """The producer's tail is missing: the other CTA's warps still arrive at mbarriers of this one."""
    with pytest.raises(KernelFault, match=wording("sim.machine.cta-exited", rank=0)):
        run(KERNEL.replace(LEAVE, ""), schedule="late")
