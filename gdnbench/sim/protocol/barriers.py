# SPDX-License-Identifier: Apache-2.0
"""What a barrier does with an act: pure functions of small tuples, so that states can be hashed.

mbarriers by the PTX ISA: "Phase of the mbarrier object" (a phase completes once no arrivals and no bytes are
pending; the next one then waits for the expected count), "mbarrier.init", "mbarrier.inval",
"mbarrier.arrive" (the count is at most the pending count), "mbarrier.expect_tx", "mbarrier.complete_tx",
"mbarrier.test_wait, mbarrier.try_wait" (a wait for a parity ends while the current phase has the other
parity), "cp.async.mbarrier.arrive", "clusterlaunchcontrol.try_cancel" (undefined once the CTA has read that a
request failed). Named barriers by "bar, barrier": a round is over once as many threads
have arrived as it was asked for, and all its arrivals ask for one number.
"""

from __future__ import annotations

from typing import NamedTuple

from gdnbench.sim.protocol.events import Act, Kind


class BarrierState(NamedTuple):
    """A barrier. `phase` counts the phases that are complete; of a named barrier `expected` is 0 between two
    rounds. Of a CTA's launch control `tx` is 1 once it has read that a request failed."""

    phase: int = 0
    pending: int = 0
    expected: int = 0
    tx: int = 0


class Fault(Exception):
    """The act is undefined: what the machine would do is not known. One line."""


def apply(barrier: BarrierState | None, act: Act) -> BarrierState | None:
    """The barrier after an act that is no wait. Raises Fault."""
    if act.kind is Kind.INIT:
        if barrier is not None:
            raise Fault("initialises an mbarrier that is in use")
        return BarrierState(0, act.amount, act.amount)
    if act.kind is Kind.JOIN:
        return _join(barrier or BarrierState(), act)
    if act.kind is Kind.REFUSED:
        return BarrierState(tx=1)
    if act.kind is Kind.REQUEST:
        if barrier is not None:
            raise Fault("requests a cluster after its CTA has read that a request failed")
        return None
    if barrier is None:
        raise Fault(f"{act.kind.value} an mbarrier that is not initialised")
    if act.kind is Kind.INVAL:
        return None
    if act.kind is Kind.ARRIVE:
        if act.amount > barrier.pending:
            raise Fault(f"arrives {act.amount} times where {barrier.pending} arrivals are pending")
        left = barrier.pending - act.amount
        return _ended(barrier._replace(pending=left, expected=barrier.expected - act.size))
    if act.kind is Kind.INCREMENT:
        return barrier._replace(pending=barrier.pending + act.amount)
    if act.kind is Kind.EXPECT:
        return barrier._replace(tx=barrier.tx + act.amount)
    assert act.kind is Kind.COMPLETE
    return _ended(barrier._replace(tx=barrier.tx - act.amount))


def wait_passes(barrier: BarrierState | None, parity: int) -> bool:
    """Whether a wait for `parity` ends now. Raises Fault."""
    if barrier is None:
        raise Fault("waits for an mbarrier that is not initialised")
    return barrier.phase & 1 != parity


def _ended(barrier: BarrierState) -> BarrierState:
    if barrier.pending or barrier.tx:
        return barrier
    return barrier._replace(phase=barrier.phase + 1, pending=barrier.expected)


def _join(barrier: BarrierState, act: Act) -> BarrierState:
    if not barrier.expected:
        barrier = BarrierState(barrier.phase, act.size, act.size)
    if barrier.expected != act.size:
        raise Fault(f"joins a round of {barrier.expected} threads as one of {act.size}")
    if act.amount > barrier.pending:
        raise Fault(f"brings {act.amount} threads to a round that lacks {barrier.pending}")
    left = barrier.pending - act.amount
    return BarrierState(barrier.phase, left, barrier.expected) if left else BarrierState(barrier.phase + 1)
