# SPDX-License-Identifier: Apache-2.0
"""Checks at the end of a CTA, and when it hangs: operations still in flight, mbarrier phases with some of
their arrivals, and transaction counts (bytes that no expect_tx announced, or that never arrived).

PTX ISA, "Phase of the mbarrier object", "Tracking asynchronous operations by the mbarrier object": a phase
completes when no arrivals are pending and no bytes are outstanding. Bytes count for the phase in which they
arrive. So a copy's bytes have to be expected in the phase in which the copy is issued: they may arrive before
any later phase begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdnbench.sim.checker.cta_state import CtaState, PendingSignal
from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict
from gdnbench.sim.checker.mbarriers import TWO_PHASES, Mbarrier
from gdnbench.sim.machine.mbarrier import unpack
from gdnbench.sim.ptx.forms import Sync

IN_FLIGHT_AT_END = "in flight at the CTA's end"
UNFINISHED = "a phase of an mbarrier unfinished at the CTA's end"
TRANSACTIONS = "transaction count"


def brings_bytes(event: Event) -> bool:
    """Whether the operation signals an mbarrier by bytes (complete_tx), and not by an arrival."""
    return event.ins.form.sync is not Sync.COMMIT


def check_in_phase(detector: CtaState, pending: PendingSignal, address: int, *, ended: bool = False) -> None:
    """A copy's bytes arrive now: they must be expected in the phase of its issue. If the CTA has `ended`,
    they arrive later, when nothing expects them."""
    if not brings_bytes(pending.event):
        return
    if detector.mbarrier_phase(address) > pending.phase or (
        ended and unpack(detector.mbarrier_word(address))[2] <= 0
    ):
        missing = "an expect_tx of its bytes in the phase that it was issued in"
        detector.findings.add_single(TRANSACTIONS, Verdict.ERROR, missing, pending.event, "shared", address)


def check_unused(detector: CtaState, address: int, barrier: Mbarrier, now: Event) -> None:
    """`now` ends the use of an mbarrier: everything that signals it must have been waited for."""
    why = Unordered(Cause.IN_FLIGHT, Verdict.ERROR, "a wait for the phase that the first signals")
    for signal in _not_waited_for(detector, address, barrier):
        detector.findings.add_pair(why, signal, now, "shared", address)


def check_end(detector: CtaState) -> None:
    """The CTA has ended; operations in flight will still land."""
    known = 0
    for clocks in detector.warp_clocks:
        known |= clocks.completed_tokens()
    for barrier in detector.mbarriers.values():
        for released in barrier.phases.values():
            known |= released.base.tokens
    findings = detector.findings
    for token, event in detector.shared_reads.items():
        if not known >> token & 1:
            findings.add_single(IN_FLIGHT_AT_END, Verdict.ERROR, "a wait for it", event, "shared", 0)
    for operation, pending in detector.pending_signals.items():
        for address in set(operation.signals) & detector.mbarriers.keys():
            check_in_phase(detector, pending, address, ended=True)
    for address, barrier in detector.mbarriers.items():
        for signal in _not_waited_for(detector, address, barrier):
            if not brings_bytes(signal):
                missing = "a wait for the phase that it arrives in"
                findings.add_single(IN_FLIGHT_AT_END, Verdict.REVIEW, missing, signal, "shared", address)
        _check_behind(detector, address, barrier)
        _check_arrivals(detector, address, barrier)
        _check_bytes(detector, address, barrier, Verdict.REVIEW)


def check_hang(detector: CtaState) -> None:
    """No warp of the CTA can continue, and nothing is in flight."""
    for address, barrier in detector.mbarriers.items():
        _check_bytes(detector, address, barrier, Verdict.ERROR)


def _not_waited_for(detector: CtaState, address: int, barrier: Mbarrier) -> Iterator[Event]:
    """The operations that signal an mbarrier in a phase that no wait has found complete."""
    if barrier.signal is not None and barrier.signalled > barrier.checked:
        yield barrier.signal
    for operation, pending in detector.pending_signals.items():
        if address in operation.signals:
            yield pending.event


def _check_behind(detector: CtaState, address: int, barrier: Mbarrier) -> None:
    """Check the last completed phase if nobody waited for it: a warp that waits for the phase before may test
    the mbarrier only after that completion."""
    last = detector.mbarrier_phase(address) - 1
    for late in barrier.waits_left_behind(last) if last > barrier.checked else ():
        detector.findings.add_single(Cause.PHASES.value, Verdict.ERROR, TWO_PHASES, late, "shared", address)


def _check_arrivals(detector: CtaState, address: int, barrier: Mbarrier) -> None:
    """A phase with some arrivals and not all hints at a wrong count: an earlier phase may have completed
    before its last arrivals, which then counted for this one."""
    pending, expected, _ = unpack(detector.mbarrier_word(address))
    if 0 < pending < expected:
        missing = f"{pending} of {expected} arrivals, or a smaller count"
        detector.findings.add_single(UNFINISHED, Verdict.REVIEW, missing, barrier.init, "shared", address)


def _check_bytes(detector: CtaState, address: int, barrier: Mbarrier, too_many: Verdict) -> None:
    """Bytes are outstanding and no copy is in flight. `too_many` is the verdict for expected bytes that
    nothing brings: a warp that waits for them hangs; if none waits they do no harm."""
    if any(address in operation.signals for operation in detector.pending_signals):
        return
    pending, _, tx = unpack(detector.mbarrier_word(address))
    event = barrier.expects or barrier.init
    if tx < 0:
        missing = f"an expect_tx of {-tx} bytes more, which came and were not expected"
        detector.findings.add_single(TRANSACTIONS, Verdict.ERROR, missing, event, "shared", address)
    elif tx > 0 and not pending:
        missing = f"{tx} bytes that were expected and no copy brings"
        detector.findings.add_single(TRANSACTIONS, too_many, missing, event, "shared", address)
