# SPDX-License-Identifier: Apache-2.0
"""Launches whose CTAs only store or load, so that the time of their bytes is a lower bound."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.launch import memory_bytes, predict, record, sampled_ctas
from gdnbench.sim.predict.machines import H200
from gdnbench.sim.predict.trace import Accessed, CtaTrace, Space
from gdnbench.sim.ptx.parser import parse
from tests.sim.predict.tools import toolkit

CTAS, THREADS, BYTES = 20_000, 256, 16
SAMPLED = sampled_ctas(CTAS, H200)
STREAM = f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<4>;
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
sub.u32 %r1, %r1, {SAMPLED[0]};
mad.lo.u32 %r2, %r1, {THREADS}, %r0;
mul.wide.u32 %d1, %r2, {BYTES};
add.u64 %d2, %d0, %d1;
mov.f32 %f0, 1.0;
st.global.v4.f32 [%d2], {{%f0, %f0, %f0, %f0}};
ret;
}}
"""
"""The sampled CTAs store at the start of `out`, which need be no larger."""


def test_stores_take_the_time_of_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """82 MB at HBM's rate, on an SM that starts its CTAs at once. Nothing else takes long, so that is the
    bound; the launch and the start of CTAs add a tenth."""
    toolkit(monkeypatch)
    machine = H200.with_values(cta_interval=0)
    module = parse(STREAM)
    memory, out = GlobalMemory(), np.zeros(len(SAMPLED) * THREADS * 4 + 32, np.float32)
    address = memory.add_array(out[-out.ctypes.data % 128 // 4 :], "out")
    request = LaunchRequest(
        STREAM, "k", (CTAS, 1, 1), (THREADS, 1, 1), (1, 1, 1), 0, (address.to_bytes(8, "little"),), 16, 0
    )
    found = predict(machine, module, request, record(module, request, memory, SAMPLED, machine))
    least = CTAS * THREADS * BYTES / (H200.memory_rate.value * 1e9)
    assert least <= found.seconds <= 1.15 * least
    assert found.bound == "HBM"
    assert found.memory_bytes == CTAS * THREADS * BYTES
    assert max(found.limits.values()) <= 1
    assert (found.floor, found.floor_unit) == (pytest.approx(least), "HBM")
    assert found.of_floor == pytest.approx(found.seconds / least)
    # The parts of the critical path are all of the time but the launch itself, and are mostly HBM's.
    assert sum(found.path.values()) == found.cycles
    launch = H200.launch.value * 1e-6
    assert found.cycles / (H200.clock.value * 1e9) + launch == pytest.approx(found.seconds, rel=1e-9)
    assert found.path["warps 0-7 compute: queue at HBM"] >= 0.8 * found.cycles
    store = STREAM.split("\n").index("st.global.v4.f32 [%d2], {%f0, %f0, %f0, %f0};") + 1
    assert next(iter(found.lines)) == f"PTX line {store}"


def test_what_ctas_share_comes_from_memory_once() -> None:
    """Each CTA loads the same two sectors and one of its own, and stores that one: 64 bytes for all, and 32
    read and 32 written for each. A launch of one CTA is its own first."""
    kernel = parse(STREAM.replace("mov.f32 %f0, 1.0", "ld.global.f32 %f0, [%d0]")).kernels["k"]
    pcs = {ins.op: ins.pc for ins in kernel.instructions if ins.has("global")}
    traces = [
        CtaTrace(
            n,
            [
                [
                    Accessed(pcs["ld"], Space.GLOBAL, 1, (0, 1, 9 + n)),
                    Accessed(pcs["st"], Space.GLOBAL, 1, (9 + n,)),
                ]
            ],
            ["compute"],
            [],
            [],
        )
        for n in range(4)
    ]
    assert memory_bytes(kernel, traces, 100) == 64 + 100 * 64
    assert memory_bytes(kernel, traces[:1], 1) == 64 + 64


def test_ctas_with_an_sm_each_are_sampled_from_the_first() -> None:
    """Of 132 SMs: the first CTAs of a persistent kernel have most work."""
    assert sampled_ctas(132, H200) == range(8)
    assert sampled_ctas(5, H200) == range(5)
    assert sampled_ctas(133, H200) == range(62, 70)


LOOP = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
.reg .b32 %r<4>; .reg .pred %p<2>;
mov.u32 %r0, %ctaid.x;
LOOP:
shl.b32 %r1, %r0, 1;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, 100;
@%p1 bra LOOP;
ret;
}
"""


def test_of_ctas_with_an_sm_each_the_longest_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTA n of four loops 100 - n times. The launch takes as long as a launch of the first alone."""
    toolkit(monkeypatch)
    module, seconds = parse(LOOP), []
    for ctas in (4, 1):
        request = LaunchRequest(LOOP, "k", (ctas, 1, 1), (32, 1, 1), (1, 1, 1), 0, (), 16, 0)
        traces = record(module, request, GlobalMemory(), range(ctas), H200)
        seconds.append(predict(H200, module, request, traces[::-1]).seconds)
    assert seconds[0] == seconds[1]
