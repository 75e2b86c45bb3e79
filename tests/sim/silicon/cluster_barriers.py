# SPDX-License-Identifier: Apache-2.0
"""mbarriers of other CTAs, and the orders that barrier.cluster makes.

Each step on another CTA's mbarrier is followed by a barrier of the cluster, so that what a step leaves is the
same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.sim.silicon.cluster_text import SYNC, Questions, init, is_over, wait
from tests.sim.silicon.microkernel import MicroKernel

ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there]"
DROP = "mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%there]"
ROUNDS = 5


def look(asked: Questions, after: str) -> None:
    """Which phases are over, and how many arrivals the CTA's own mbarrier still waits for."""
    asked.add(SYNC)
    for parity in (0, 1):
        asked.add(is_over(parity, "%r3"))
        asked.store(f"{after}: parity {parity} is over", "%r3")
    asked.add(SYNC)  # nobody goes on before all have looked


def steps(name: str, count: int | str, *then: tuple[str, str], ctas: int = 4) -> MicroKernel:
    """Thread 0 of every CTA does each step to the mbarrier of the next CTA, which all then look at."""
    asked = Questions()
    asked.add(init(count))
    look(asked, "at first")
    for number, (label, text) in enumerate(then):
        asked.add(f"@!%one bra STEP{number};\n{text}\nSTEP{number}:")
        look(asked, f"{number}, {label}")
    asked.add(SYNC)
    return asked.kernel(name, ctas)


def arrivals() -> MicroKernel:
    return steps(
        "remote_arrivals",
        3,
        ("one arrives", f"{ARRIVE};"),
        ("two at once", f"{ARRIVE}, 2;"),
        ("two at once", f"{ARRIVE}, 2;"),
        ("relaxed", "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%there];"),
        ("three at once", f"{ARRIVE}, 3;"),
        ("own, by its cluster address", "mapa.shared::cluster.u32 %r1, %bar, %rank;\n"
         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];"),
        ("own, in its window", "mbarrier.arrive.release.cta.shared::cta.b64 _, [full];"),
        ("the third", f"{ARRIVE};"),
    )  # fmt: skip


def bytes_expected() -> MicroKernel:
    complete = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%there], "
    return steps(
        "remote_bytes",
        1,
        ("arrives and expects 48", f"{ARRIVE.replace('arrive', 'arrive.expect_tx')}, 48;"),
        ("16 complete", f"{complete}16;"),
        ("32 complete", f"{complete}32;"),
        ("20 complete before they are expected", f"{complete}20;"),
        ("20 expected", "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%there], 20;"),
        ("arrives", f"{ARRIVE};"),
        ("the owner expects 64", "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [full], 64;"),
        ("64 complete", f"{complete}64;"),
        ("arrives relaxed and expects 8",
         "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%there], 8;"),
        ("8 complete", f"{complete}8;"),
    )  # fmt: skip


def drops() -> MicroKernel:
    """The mbarrier waits for fewer arrivals in each phase that follows."""
    return steps(
        "remote_drops",
        4,
        ("one drops out", f"{DROP};"),
        ("three arrive", f"{ARRIVE}, 3;"),
        ("two arrive", f"{ARRIVE}, 2;"),
        ("the third drops out", f"{DROP};"),
        ("one drops out and expects 16", f"{DROP.replace('arrive_drop', 'arrive_drop.expect_tx')}, 16;"),
        ("the second arrives", f"{ARRIVE};"),
        ("16 complete", "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%there], 16;"),
        ("the one that is left", f"{ARRIVE};"),
        ("and again", f"{ARRIVE};"),
    )


def counts() -> MicroKernel:
    """Pending counts that the owner reads from the state of an arrival of its own, after remote ones."""
    asked = Questions()
    asked.add(init(20))
    for number, remote in enumerate((0, 1, 2, 5, 7)):
        if remote:
            asked.add(f"@%one {ARRIVE}, {remote};")
        asked.add(
            f"""{SYNC}
mov.b64 %d0, 0;
mov.b32 %r3, 0;
@!%one bra COUNT{number};
mbarrier.arrive.release.cta.shared::cta.b64 %d0, [full];
mbarrier.pending_count.b64 %r3, %d0;
COUNT{number}:
{SYNC}"""
        )
        asked.store(f"pending before the owner arrives, after {remote} from elsewhere", "%r3")
    look(asked, "all have arrived")
    return asked.kernel("pending_counts", 4)


def all_arrive(ctas: int) -> MicroKernel:
    """Every thread of every CTA arrives at every CTA's mbarrier, for three phases."""
    asked = Questions(64)
    asked.add(f"mul.lo.u32 %r1, %size, 64;\n{init('%r1')}")
    for phase in range(3):
        asked.add(
            f"""mov.u32 %r2, 0;
ALL{phase}:
mapa.shared::cluster.u32 %r3, %bar, %r2;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
add.u32 %r2, %r2, 1;
setp.lt.u32 %p, %r2, %size;
@%p bra ALL{phase};
{wait(phase & 1, label=f"PHASE{phase}")}"""
        )
        asked.store(f"phase {phase} is over", "%r23")
        asked.add(is_over(1 - (phase & 1), "%r3"))
        asked.store(f"phase {phase}: the next one is not", "%r3")
        asked.add(SYNC)
    return asked.kernel(f"all_arrive_of_{ctas}", ctas)


def token(ctas: int) -> MicroKernel:
    """A word goes around the cluster: each CTA adds its rank + 1, stores it in the next and arrives there."""
    asked = Questions()
    asked.add(f"{init(1)}mov.u32 %r1, 0;\nmov.u32 %r2, 0;\n@%one st.shared.b32 [buffer], 0;\n{SYNC}")
    for lap in range(ROUNDS):
        parity = lap & 1
        skip = "" if lap else "@%first bra HAVE0;\n"  # rank 0 begins
        asked.add(
            f"""{skip}{wait(parity if not lap else "%r5", label=f"LAP{lap}")}
ld.shared.b32 %r1, [buffer];
HAVE{lap}:
add.u32 %r1, %r1, %rank;
add.u32 %r1, %r1, 1;
bar.warp.sync -1;
@!%one bra PASSED{lap};
st.shared::cluster.b32 [%far], %r1;
{ARRIVE};
PASSED{lap}:
selp.b32 %r6, 1, 0, %first;
mov.u32 %r5, {(lap + 1) & 1};
xor.b32 %r5, %r5, %r6;"""
        )
        asked.store(f"the word, lap {lap}", "%r1")
    asked.add(SYNC)
    return asked.kernel(f"token_of_{ctas}", ctas)


RELEASES = {
    "arrive": "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
    "arrive.release": "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;",
    "fence and relaxed": "fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\n"
    "barrier.cluster.wait.acquire.aligned;",
    "not aligned": "barrier.cluster.arrive;\nbarrier.cluster.wait;",
    "lanes one after the other": "and.b32 %r9, %t, 1;\nsetp.eq.u32 %q, %r9, 0;\n@%q bra EVEN;\n"
    "barrier.cluster.arrive.release;\nbra MET;\nEVEN:\nbarrier.cluster.arrive.release;\nMET:\n"
    "barrier.cluster.wait.acquire;",
    "work in between": "barrier.cluster.arrive.release.aligned;\nadd.u32 %r8, %r8, 3;\nbar.sync 0;\n"
    "barrier.cluster.wait.acquire.aligned;",
}


def orders(ctas: int, threads: int) -> MicroKernel:
    """Words that all CTAs pass on, with each spelling of the barrier between their stores and loads."""
    asked = Questions(threads)
    asked.add("ld.global.b32 %r1, [%in];\nmov.u32 %r8, 0;\nmapa.shared::cluster.u32 %peer, %s, %next;")
    for label, barrier in RELEASES.items():
        asked.add(f"st.shared.b32 [%s], %r1;\n{barrier}\nld.shared::cluster.b32 %r1, [%peer];\n{SYNC}")
        asked.store(label, "%r1")
    asked.store("the work in between", "%r8")
    x = np.arange(ctas * threads, dtype=np.uint32) ** 2
    return asked.kernel(f"orders_of_{ctas}_with_{threads}", ctas, x=x)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(all_arrive, ctas) for ctas in (2, 5, 16)),
    *(partial(token, ctas) for ctas in (2, 3, 8, 16)),
    *(partial(orders, ctas, threads) for ctas, threads in ((2, 32), (4, 128), (16, 96))),
)
STEPS: tuple[Callable[[], MicroKernel], ...] = (arrivals, bytes_expected, drops, counts)
