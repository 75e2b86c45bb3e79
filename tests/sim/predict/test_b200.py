# SPDX-License-Identifier: Apache-2.0
"""The published microbenchmarks of a B200 through the simulator's own instruction streams: small kernels that
do what those did (SemiAnalysisAI/microbench-blackwell, Apache-2.0; products of one CTA)."""

from __future__ import annotations

import pytest

from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.critical_path import CriticalPath
from gdnbench.sim.predict.launch import record
from gdnbench.sim.predict.machines import B200
from gdnbench.sim.predict.regions import Regions
from gdnbench.sim.predict.sm import Interval, Sm, sectors_lacking
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse
from tests.sim.predict.tools import toolkit

WITHIN = 0.05
"""What the issue of this model allows; published figures of formats with equal timing differ by 2 %."""

COLUMNS = (64, 80, 96, 112, 128, 256)
INTERVALS = {  # umma_throughput_max.csv: (M, A in shared memory) -> cycles for a product, by N
    (64, True): (32.5, 40.5, 48.5, 56.5, 64.5, 128.5),
    (128, True): (48.5, 52.5, 56.5, 60.5, 64.5, 128.5),
    (64, False): (32.4, 40.4, 48.4, 56.4, 64.4, 128.4),
    (128, False): (32.4, 40.4, 48.4, 56.4, 64.4, 128.4),
}
"""The figures of BF16, E4M3, S8, MXF8 and MXF4 differ by at most 0.4 cycles: the mean of the largest and the
smallest."""
DATA_PATH = {  # kind, bits of the instruction descriptor without M and N, and whether operands have scales
    "BF16": ("f16", 1 << 4 | 1 << 7 | 1 << 10, False),
    "E4M3": ("f8f6f4", 1 << 4, False),
    "S8": ("i8", 2 << 4 | 1 << 7 | 1 << 10, False),
    "MXF8": ("mxf8f6f4.block_scale.scale_vec::1X", 1 << 23, True),
    "MXF4": ("mxf4.block_scale.scale_vec::2X", 1 << 7 | 1 << 10 | 1 << 23, True),
}
"""PTX ISA, "tcgen05.mma", tables of instruction descriptors; a block-scaled product has at least 128 rows."""
SHAPES = [
    (form, m, n, a_in_shared)
    for form, (_, _, scaled) in DATA_PATH.items()
    for m, a_in_shared in INTERVALS
    for n in COLUMNS
    if m == 128 or not scaled
]
LATENCIES = {  # umma_latency_fit_results.csv: cycles from the issue of one to the end of the wait
    (64, 64, True): 152,
    (64, 256, True): 248,
    (128, 64, True): 168,
    (128, 128, True): 200,
    (128, 256, True): 264,
    (64, 64, False): 136,
    (128, 128, False): 168,
    (128, 256, False): 232,
}


def products(m: int, n: int, a_in_shared: bool, count: int, form: str = "BF16") -> str:
    """So many products one after the other, a commit, and a wait for it. The descriptors are those of K-major
    tiles without anything in them: the time does not depend on the values."""
    kind, idesc, scaled = DATA_PATH[form]
    idesc |= n // 8 << 17 | (m // 128 << 27 if scaled else m // 16 << 24)
    a = "%da" if a_in_shared else "[%t1]"
    scales = "[%t2], [%t3], " if scaled else ""
    mma = f"tcgen05.mma.cta_group::1.kind::{kind} [%t0], {a}, %da, {idesc}, {scales}%p1;\n"
    return f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b32 %t<4>; .reg .b64 %d<2>; .reg .b64 %da;
.shared .align 1024 .b8 data[98304]; .shared .align 8 .b64 bar; .shared .align 4 .b32 place;
mov.u32 %r0, %tid.x;
mov.u32 %r1, place;
mov.u32 %r2, bar;
elect.sync %r5|%p0, 0xffffffff;
@%p0 mbarrier.init.shared.b64 [%r2], 1;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
bar.sync 0;
ld.shared.b32 %t0, [%r1];
add.u32 %t1, %t0, 256;
add.u32 %t2, %t0, 384;
add.u32 %t3, %t0, 400;
mov.u32 %r3, data;
shr.u32 %r4, %r3, 4;
cvt.u64.u32 %d0, %r4;
or.b64 %da, %d0, {1 << 16 | 64 << 32 | 1 << 46 | 2 << 61};
setp.ne.u32 %p1, %r0, %r0;
@!%p0 bra end;
{mma * count}
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
@!%p2 bra wait;
end: bar.sync 0;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 512;
ret;
}}
"""


def timeline(ptx: str) -> tuple[Module, list[Interval]]:
    """The kernel, and what its one warp does on an SM of a B200."""
    module = parse(ptx)
    request = LaunchRequest("", "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (bytes(8),), 128, 0)
    traces = record(module, request, GlobalMemory(), [0], B200)
    found: list[Interval] = []
    path = CriticalPath()
    sm = Sm(B200, Regions(module, "k", B200).on(B200), 1e9, 1, found, path)
    end = sm.run(iter(zip(traces, sectors_lacking(traces), strict=True)))
    # Each cycle is on the critical path once.
    segments = path.segments()
    assert [segment.end for segment in segments] == [*(segment.start for segment in segments[1:]), end]
    assert segments[0].start == 0
    return module, found


def at(module: Module, intervals: list[Interval], op: str) -> list[Interval]:
    return [one for one in intervals if module.kernels["k"].instructions[one.pc].op == op]


@pytest.mark.every(25)
@pytest.mark.parametrize(("form", "m", "n", "a_in_shared"), SHAPES)
def test_intervals_of_products(
    form: str, m: int, n: int, a_in_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 128 products those after the first 64, which fill the pipeline."""
    toolkit(monkeypatch)
    ends = []
    for count in (64, 128):
        module, found = timeline(products(m, n, a_in_shared, count, form))
        ends.append(at(module, found, "mbarrier.try_wait")[-1].end)
    published = INTERVALS[m, a_in_shared][COLUMNS.index(n)]
    assert (ends[1] - ends[0]) / 64 == pytest.approx(published, rel=WITHIN)


@pytest.mark.every(4)
@pytest.mark.parametrize("shape", LATENCIES)
def test_latency_of_a_product(shape: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit(monkeypatch)
    module, found = timeline(products(*shape, 1))
    (issue,) = at(module, found, "tcgen05.mma")
    latency = at(module, found, "mbarrier.try_wait")[-1].end - issue.end
    assert latency == pytest.approx(LATENCIES[shape], rel=WITHIN)
