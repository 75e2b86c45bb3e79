# SPDX-License-Identifier: Apache-2.0
"""Polls of an mbarrier by state and by parity, with and without a limit of time, before and after its phase
is over."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.silicon.cluster_text import Questions, init
from tests.sim.silicon.microkernel import MicroKernel

LANES = 32
BY_STATE = ("test_wait", "test_wait.acquire.cta", "try_wait", "try_wait.relaxed.cluster", "try_wait, 5000")
BY_PARITY = ("test_wait.parity", "try_wait.parity", "try_wait.parity.acquire.cta", "try_wait.parity, 0",
             "try_wait.parity, 1", "try_wait.parity, 200000")  # fmt: skip
"""An instruction, and nanoseconds for which it may wait."""
ARRIVE = "mbarrier.arrive.shared::cta.b64"


def polled(asked: Questions, when: str) -> None:
    """Every spelling, asked by all lanes: is the phase of the state %d0 over, and that of either parity?"""
    for spelled in (*BY_STATE, *BY_PARITY):
        form, _, nanoseconds = spelled.partition(", ")
        limit = f", {nanoseconds}" if nanoseconds else ""
        for phase in ("%d0",) if spelled in BY_STATE else ("0", "1"):
            asked.add(f"mbarrier.{form}.shared::cta.b64 %p, [full], {phase}{limit};\nselp.b32 %r3, 1, 0, %p;")
            asked.store(f"{when}: {spelled}, {'state' if phase == '%d0' else f'parity {phase}'}", "%r3")


def polls() -> MicroKernel:
    """Two phases of 33 arrivals. Each lane arrives once and keeps the state, and lane 0 arrives last."""
    asked = Questions(LANES)
    asked.add(init(LANES + 1))
    for turn in range(2):
        asked.add(f"{ARRIVE} %d0, [full];\nbar.warp.sync -1;")
        polled(asked, f"one arrival of phase {turn} is missing")
        asked.add(f"@%one {ARRIVE} _, [full];\nbar.warp.sync -1;")
        polled(asked, f"phase {turn} is over")
    return asked.kernel("polls", 1)


def late_arrival() -> MicroKernel:
    """A loop of polls with a limit of time, while another warp sleeps before it arrives: 1 after the loop."""
    asked = Questions(2 * LANES)
    asked.add(init(1))
    for turn, limit in enumerate(("", ", 1000", ", 1000000")):
        asked.add(
            f"""setp.lt.u32 %q, %t, {LANES};
@%q bra POLL{turn};
nanosleep.u32 100000;
setp.eq.u32 %p, %t, {LANES};
@%p {ARRIVE} _, [full];
POLL{turn}:
mbarrier.try_wait.parity.shared::cta.b64 %p, [full], {turn & 1}{limit};
@!%p bra POLL{turn};
mbarrier.test_wait.parity.shared::cta.b64 %p, [full], {1 - (turn & 1)};
selp.b32 %r3, 1, 0, %p;
bar.sync 0;"""
        )
        asked.store(f"turn {turn}: the next phase is over", "%r3")
    return asked.kernel("late_arrival", 1)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (polls, late_arrival)
