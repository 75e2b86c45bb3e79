# SPDX-License-Identifier: Apache-2.0
"""Faults of kernels in clusters, each beside a twin that is right and differs in one line (`@@`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from tests.messages import wording
from tests.sim.clusters.cluster_kernels import ENGINES, INIT, LOAD, STORE, SYNC, kernel, run, wait
from tests.subset import quick


@dataclass(frozen=True)
class Pair:
    body: str
    bad: str
    good: str
    kind: FaultKind
    says: str
    schedule: str = "late"


FAULTS = {
    # The CTA of rank 0 exits while the other one still spins, and then reads from it.
    "exited": Pair(
        f"""st.shared.b32 [%s], %t;
{SYNC}
@%first bra over;
mov.u32 %r3, 0;
spin: add.u32 %r3, %r3, 1;
setp.lt.u32 %p, %r3, 10000;
@%p bra spin;
ld.shared::cluster.b32 %r2, [%peer];
{STORE}over:
@@
""",
        "",
        SYNC,
        FaultKind.EXITED,
        wording("sim.machine.cta-exited", rank=0),
    ),
    "arrives twice": Pair(
        f"barrier.cluster.arrive.aligned;\n@@\n{SYNC}",
        "",
        "barrier.cluster.wait.aligned;",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-arrives-twice"),
    ),
    "waits alone": Pair(
        "@@\nbarrier.cluster.wait.aligned;\n",
        "",
        "barrier.cluster.arrive.aligned;",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-wait-alone"),
    ),
    "rank": Pair(
        f"st.shared.b32 [%s], %t;\n{SYNC}@@\nld.shared::cluster.b32 %r2, [%r3];\n{STORE}{SYNC}",
        "mapa.shared::cluster.u32 %r3, %s, 2;",
        "mapa.shared::cluster.u32 %r3, %s, 1;",
        FaultKind.OUT_OF_BOUNDS,
        wording("sim.machine.cluster-rank", rank=2, ctas=2),
    ),
    "own window": Pair(
        f"st.shared.b32 [%s], %t;\n{SYNC}@@\n{STORE}{SYNC}",
        "ld.shared::cta.b32 %r2, [%peer];",
        "ld.shared::cluster.b32 %r2, [%peer];",
        FaultKind.OUT_OF_BOUNDS,
        "the CTA has 2080 bytes",
    ),
    "waits for a peer's mbarrier": Pair(
        f"{INIT}@%one mbarrier.arrive.shared.b64 _, [full];\n{SYNC}@@\n",
        "mbarrier.test_wait.parity.shared.b64 %p, [%there], 0;",
        "mbarrier.test_wait.parity.shared.b64 %p, [full], 0;",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-remote-wait", rank=1),
    ),
    "ctaMask": Pair(
        f"{INIT}@%one mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;\nmov.u32 %r4, buffer;\n"
        "and.pred %p, %one, %first;\n"
        "@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        f" [%r4], [%x], 128, [full], @@;\n{wait()}{SYNC}",
        "7",
        "3",
        FaultKind.OUT_OF_BOUNDS,
        wording("sim.machine.cluster-mask", mask="0x0007", ctas=2),
    ),
    "mbarrier of another CTA": Pair(
        f"{LOAD}{INIT}@%one mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;\n@@\n{wait()}{SYNC}",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%peer], %r1, [%bar];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%peer], %r1, [%there];",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-other-mbarrier"),
    ),
    "state of a peer's mbarrier": Pair(
        f"{INIT}@%one @@\n{wait()}{SYNC}",
        "mbarrier.arrive.shared::cluster.b64 %d0, [%there];",
        "mbarrier.arrive.shared::cluster.b64 _, [%there];",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-remote-state"),
    ),
    # Nobody arrives at the mbarrier of the CTA of rank 0.
    "deadlock": Pair(
        f"{INIT}@@\n@%p mbarrier.arrive.shared::cluster.b64 _, [%there];\n{wait()}{SYNC}",
        "and.pred %p, %one, %first;",
        "and.pred %p, %one, %one;",
        FaultKind.DEADLOCK,
        wording("sim.machine.deadlock", where="the cluster"),
    ),
}


@pytest.mark.parametrize(("name", "engine"), quick([(n, e) for n in FAULTS for e in ENGINES], 0, 1, 9, 19))
def test_faults(name: str, engine: str) -> None:
    pair = FAULTS[name]
    with pytest.raises(KernelFault, match=pair.says) as caught:
        run(kernel(pair.body.replace("@@", pair.bad)), 2, engine=engine)
    assert caught.value.kind is pair.kind
    assert caught.value.place is not None
    run(kernel(pair.body.replace("@@", pair.good)), 2, engine=engine)


def test_a_deadlock_names_the_ctas() -> None:
    pair = FAULTS["deadlock"]
    with pytest.raises(KernelFault) as caught:
        run(kernel(pair.body.replace("@@", pair.bad)), 2)
    lines = caught.value.message.splitlines()
    assert re.fullmatch(wording("sim.machine.deadlock", where="the cluster", waits="2 waits"), lines[0])
    assert "CTA (0, 0, 0), warp 0 (32 lanes) waits for mbarrier 0x" in lines[1]
    assert (
        "CTA (1, 0, 0), warp 0 (32 lanes) waits for barrier.cluster: warps [0] of the CTA of rank 0"
        in lines[2]
    )


def test_a_deadlock_names_waits_for_the_same_once() -> None:
    """Thread 0 of the CTA of rank 3 waits at its mbarrier, all others for it."""
    alone = f"setp.eq.and.u32 %p, %rank, 3, %one;\n@!%p bra over;\n{wait()}over:\n{SYNC}"
    with pytest.raises(KernelFault) as caught:
        run(kernel(f"{INIT}{alone.replace('.aligned', '')}"), 16, engine="compiled", threads=128)
    first, *lines = caught.value.message.splitlines()
    assert re.fullmatch(wording("sim.machine.deadlock", where="the cluster", waits="65 waits"), first)
    all_wait = (
        r"warps \[0, 1, 2, 3\] \(12[78] lanes\) wait for barrier.cluster: warps \[0\] of the CTA of rank 3 "
    )
    assert re.search(rf"CTAs .*\(2, 0, 0\), \(4, 0, 0\).*, in each {all_wait}", lines[0])
    assert re.search(rf"CTA \(3, 0, 0\), {all_wait}", lines[1])
    assert "CTA (3, 0, 0), warp 0 (1 lanes) waits for mbarrier" in lines[2]
    assert len(lines) == 3
