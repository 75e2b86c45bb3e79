# SPDX-License-Identifier: Apache-2.0
"""All orders of small kernels: what the machine does is recorded, and the check says which orders differ."""

import numpy as np
import pytest

from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.protocol.drains import without
from gdnbench.sim.protocol.events import Kind, Protocol
from gdnbench.sim.protocol.launch import OrdersOfLaunches, sampled_parts
from gdnbench.sim.protocol.orders import Verdict, check
from gdnbench.sim.protocol.recorder import ProtocolRecorder
from gdnbench.sim.protocol.result import CheckedLaunch
from gdnbench.sim.protocol.search import Wrong
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import run_ptx

HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>;
.shared .align 128 .b8 data[4096]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty;
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
setp.eq.u32 %p1, %r0, 32;
@%p0 mbarrier.init.shared.b64 [full], 1;
@%p0 mbarrier.init.shared.b64 [empty], 1;
bar.sync 0;
@!%p0 bra others;
"""


def recorded(producer: str, consumer: str) -> Protocol:
    """Thread 0 and thread 32 of two warps, each `turn` %r1 = 0, 1, 2 with parity %r2 and other parity %r3."""
    loop = """mov.u32 %r1, 0;
{name}: and.b32 %r2, %r1, 1; xor.b32 %r3, %r2, 1;
{body}
add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3; @%p2 bra {name};
bra end;
"""
    text = loop.format(name="produce", body=producer) + "others: @!%p1 bra end;\n"
    text += loop.format(name="consume", body=consumer)
    recorders = []

    def begin(cta: Cta) -> ProtocolRecorder:
        recorders.append(ProtocolRecorder(cta))
        return recorders[-1]

    out = np.zeros(4096, np.float32)
    module = parse(f"{HEAD}{text}end: ret;\n}}\n")
    run_ptx(module, "k", (1, 1, 1), (64, 1, 1), [out], checker=begin, path=True, threads=1)
    return recorders[0].protocol()


def wait(name: str, barrier: str, parity: str) -> str:
    return f"{name}: mbarrier.try_wait.parity.shared.b64 %p3, [{barrier}], {parity}; @!%p3 bra {name};\n"


COPY = """mbarrier.arrive.expect_tx.shared.b64 _, [full], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [data], [%d0], 256, [full];
"""
ARRIVE = "mbarrier.arrive.shared.b64 _, [full];\n"
RELEASE = "mbarrier.arrive.shared.b64 _, [empty];\n"


@pytest.mark.parametrize(("fill", "per_turn"), [(ARRIVE, 4), (COPY, 6)])
def test_a_ring_with_releases_is_proved(fill: str, per_turn: int):
    protocol = recorded(wait("a", "empty", "%r3") + fill, wait("b", "full", "%r2") + RELEASE)
    # init of both, two joins and leaves; a turn: wait and fill (arrival, issue, landing), wait and release
    assert len(protocol.events) == 2 + 4 + 3 * per_turn
    assert check(protocol).verdict is Verdict.PROVED


def test_the_landing_of_a_copy_completes_its_bytes():
    protocol = recorded(wait("a", "empty", "%r3") + COPY, wait("b", "full", "%r2") + RELEASE)
    acts = [act for one in protocol.events for act in one.acts if act.kind in (Kind.EXPECT, Kind.COMPLETE)]
    assert [act.amount for act in acts] == [256] * 6


SPIN = """mov.u32 %r4, 0;
spin: add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 20000; @%p4 bra spin;
"""


def test_a_fill_that_is_only_slow_is_not_held_back():
    """In the run the producer is slow enough for the consumer to see each phase. Nothing else holds it back:
    the second fill can come before the consumer's first wait."""
    protocol = recorded(SPIN + ARRIVE, wait("b", "full", "%r2") + RELEASE)
    found = check(protocol)
    assert found.verdict is Verdict.BROKEN
    assert found.broken.wrong is Wrong.MISSED
    # Both inits, joins, the leave of warp 0, two fills.
    assert len(found.broken.order) == 2 + 2 + 1 + 2
    assert found.then.wrong is Wrong.STUCK


def test_some_ctas_of_a_launch_are_checked_on_a_copy_of_the_memory():
    """Two warps that meet, in each of 20 CTAs, and store: the memory here stays as it is."""
    out = np.zeros(4, np.uint32)
    memory = GlobalMemory()
    address = memory.add_array(out, "out")
    text = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {
.reg .b64 %d<2>;
ld.param.u64 %d0, [out];
bar.sync 0;
st.global.u32 [%d0], 7;
ret;
}
"""
    orders = OrdersOfLaunches()
    params = (address.to_bytes(8, "little"),)
    request = LaunchRequest(text, "k", (20, 1, 1), (64, 1, 1), (1, 1, 1), 0, params, 16, 0)
    orders(parse(text), request, memory)
    (launch,) = orders.launches
    assert launch.refused == ""
    assert [part.cta for part in launch.parts] == sampled_parts(20) == [0, 2, 5, 8, 10, 13, 16, 19]
    assert {part.verdict for part in launch.parts} == {Verdict.PROVED}
    assert {part.events for part in launch.parts} == {4}
    assert not out.any()


def test_a_ring_without_one_of_its_waits_is_broken():
    """Three turns of one slot. Only the first wait of the producer is for a slot that nobody has used.
    Without the last wait of the consumer its release can end the phase after the one that the producer waits
    for."""
    protocol = recorded(wait("a", "empty", "%r3") + COPY, wait("b", "full", "%r2") + RELEASE)
    waits = [at for at, one in enumerate(protocol.events) if one.acts and one.acts[0].kind is Kind.WAIT]
    verdicts = [check(without(protocol, {one})).verdict for one in waits]
    assert len(waits) == 6
    assert [verdict is Verdict.PROVED for verdict in verdicts] == [True, False, False, False, False, False]


REMOTE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<16>;
.shared .align 8 .b64 full;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %cluster_ctarank;
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [full], 2;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r2, full;
mapa.shared::cluster.u32 %r3, %r2, 0;
@%p0 mbarrier.arrive.shared::cluster.b64 _, [%r3];
setp.eq.u32 %p1, %r1, 0;
@!%p1 bra end;
a: mbarrier.try_wait.parity.shared.b64 %p3, [full], 0; @!%p3 bra a;
end: ret;
}
"""


def test_a_cluster_is_one_protocol():
    """Both CTAs arrive at an mbarrier of the first, whose warp waits for them."""
    out = np.zeros(4, np.uint32)
    memory = GlobalMemory()
    params = (memory.add_array(out, "out").to_bytes(8, "little"),)
    request = LaunchRequest(REMOTE, "k", (4, 1, 1), (32, 1, 1), (2, 1, 1), 0, params, 16, 0)
    orders = OrdersOfLaunches()
    orders(parse(REMOTE), request, memory)
    (launch,) = orders.launches
    assert launch.refused == ""
    assert [part.cta for part in launch.parts] == [0, 2]
    # Of each CTA: init, arrive and wait of the cluster, arrival; and the wait of the first.
    assert [part.events for part in launch.parts] == [2 * 4 + 1] * 2
    assert launch.proved
    assert CheckedLaunch.from_json(launch.as_json()) == launch


def test_a_landing_that_lands_copies_arrives():
    """cp.async.mbarrier.arrive lands the thread's copies, then arrives."""
    fill = "cp.async.ca.shared.global [data], [%d0], 16;\ncp.async.mbarrier.arrive.noinc.shared.b64 [full];\n"
    protocol = recorded(wait("a", "empty", "%r3") + fill, wait("b", "full", "%r2") + RELEASE)
    assert check(protocol).verdict is Verdict.PROVED
