"""What a CTA leaves undone when it ends or hangs: operations in flight, phases of mbarriers begun, bytes that
came without being expected or were expected and never came.

PTX ISA, "Phase of the mbarrier object", "Tracking asynchronous operations by the mbarrier object": a phase is
over once nobody has to arrive and no bytes are outstanding. Bytes count for the phase that they come in, so
that a copy has to be expected in the phase in which it is issued: no later one can be meant, since nothing
keeps the bytes from coming before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict
from gdnbench.sim.checker.mbarriers import TWO_PHASES, Mbarrier
from gdnbench.sim.machine.mbarrier import unpack

if TYPE_CHECKING:
    from gdnbench.sim.checker.cta_detector import Flight, Follower

IN_FLIGHT_AT_END = "in flight at the CTA's end"
UNFINISHED = "a phase of an mbarrier unfinished at the CTA's end"
TRANSACTIONS = "transaction count"


def brings_bytes(event: Event) -> bool:
    """Whether the operation completes bytes of an mbarrier; others arrive at it."""
    return not event.ins.op.startswith(("tcgen05.commit", "cp.async.mbarrier"))


def check_in_phase(follower: Follower, flight: Flight, address: int, *, ended: bool = False) -> None:
    """A copy's bytes come now. If the CTA has `ended`, later, when nobody expects them."""
    if not brings_bytes(flight.event):
        return
    if follower.phase(address) > flight.phase or (ended and unpack(follower.word(address))[2] <= 0):
        missing = "an expect_tx of its bytes in the phase that it was issued in"
        follower.findings.alone(TRANSACTIONS, Verdict.ERROR, missing, flight.event, "shared", address)


def check_unused(follower: Follower, address: int, barrier: Mbarrier, now: Event) -> None:
    """`now` ends the use of an mbarrier: what signals it has to have been waited for."""
    why = Unordered(Cause.IN_FLIGHT, Verdict.ERROR, "a wait for the phase that the first signals")
    for signal in _not_waited_for(follower, address, barrier):
        follower.findings.pair(why, signal, now, "shared", address)


def check_end(follower: Follower) -> None:
    """The CTA has ended; what is in flight will still land."""
    known = 0
    for views in follower.views:
        known |= views.tokens()
    for barrier in follower.mbarriers.values():
        for carried in barrier.phases.values():
            known |= carried.base.tokens
    findings = follower.findings
    for token, event in follower.reading.items():
        if not known >> token & 1:
            findings.alone(IN_FLIGHT_AT_END, Verdict.ERROR, "a wait for it", event, "shared", 0)
    for operation, flight in follower.flights.items():
        for address in set(operation.signals) & follower.mbarriers.keys():
            check_in_phase(follower, flight, address, ended=True)
    for address, barrier in follower.mbarriers.items():
        for signal in _not_waited_for(follower, address, barrier):
            if not brings_bytes(signal):
                missing = "a wait for the phase that it arrives in"
                findings.alone(IN_FLIGHT_AT_END, Verdict.REVIEW, missing, signal, "shared", address)
        _check_behind(follower, address, barrier)
        _check_arrivals(follower, address, barrier)
        _check_bytes(follower, address, barrier, Verdict.REVIEW)


def check_hang(follower: Follower) -> None:
    """Nothing in the CTA can go on, and nothing is in flight."""
    for address, barrier in follower.mbarriers.items():
        _check_bytes(follower, address, barrier, Verdict.ERROR)


def _not_waited_for(follower: Follower, address: int, barrier: Mbarrier) -> Iterator[Event]:
    """Operations that signal an mbarrier in a phase that nobody has found to be over."""
    if barrier.signal is not None and barrier.signalled > barrier.checked:
        yield barrier.signal
    for operation, flight in follower.flights.items():
        if address in operation.signals:
            yield flight.event


def _check_behind(follower: Follower, address: int, barrier: Mbarrier) -> None:
    """The last phase that is over, if nobody waited for it: who waited for the one before may not have seen
    that one's end."""
    last = follower.phase(address) - 1
    for late in barrier.behind(last) if last > barrier.checked else ():
        follower.findings.alone(Cause.PHASES.value, Verdict.ERROR, TWO_PHASES, late, "shared", address)


def _check_arrivals(follower: Follower, address: int, barrier: Mbarrier) -> None:
    """A phase for which some have arrived and not all is a sign of a wrong count: phases before it may have
    ended without those that came too many."""
    pending, expected, _ = unpack(follower.word(address))
    if 0 < pending < expected:
        missing = f"{pending} of {expected} arrivals, or a smaller count"
        follower.findings.alone(UNFINISHED, Verdict.REVIEW, missing, barrier.init, "shared", address)


def _check_bytes(follower: Follower, address: int, barrier: Mbarrier, too_many: Verdict) -> None:
    """Bytes that are outstanding with no copy in flight. `too_many` is the verdict on bytes expected that
    nothing brings: who waits for them hangs, and if nobody does they are no harm."""
    if any(address in operation.signals for operation in follower.flights):
        return
    pending, _, tx = unpack(follower.word(address))
    event = barrier.expects or barrier.init
    if tx < 0:
        missing = f"an expect_tx of {-tx} bytes more, which came and were not expected"
        follower.findings.alone(TRANSACTIONS, Verdict.ERROR, missing, event, "shared", address)
    elif tx > 0 and not pending:
        missing = f"{tx} bytes that were expected and no copy brings"
        follower.findings.alone(TRANSACTIONS, too_many, missing, event, "shared", address)
