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


class Cell(NamedTuple):
    """A barrier. `phase` counts the phases that are complete; of a named barrier `expected` is 0 between two
    rounds. Of a CTA's launch control `tx` is 1 once it has read that a request failed."""

    phase: int = 0
    pending: int = 0
    expected: int = 0
    tx: int = 0


class Fault(Exception):
    """The act is undefined: what the machine would do is not known. One line."""


def apply(cell: Cell | None, act: Act) -> Cell | None:
    """The barrier after an act that is no wait. Raises Fault."""
    if act.kind is Kind.INIT:
        if cell is not None:
            raise Fault("initialises an mbarrier that is in use")
        return Cell(0, act.amount, act.amount)
    if act.kind is Kind.JOIN:
        return _join(cell or Cell(), act)
    if act.kind is Kind.REFUSED:
        return Cell(tx=1)
    if act.kind is Kind.REQUEST:
        if cell is not None:
            raise Fault("requests a cluster after its CTA has read that a request failed")
        return None
    if cell is None:
        raise Fault(f"{act.kind.value} an mbarrier that is not initialised")
    if act.kind is Kind.INVAL:
        return None
    if act.kind is Kind.ARRIVE:
        if act.amount > cell.pending:
            raise Fault(f"arrives {act.amount} times where {cell.pending} arrivals are pending")
        left = cell.pending - act.amount
        return _ended(cell._replace(pending=left, expected=cell.expected - act.size))
    if act.kind is Kind.EXTRA:
        return cell._replace(pending=cell.pending + act.amount)
    if act.kind is Kind.EXPECT:
        return cell._replace(tx=cell.tx + act.amount)
    assert act.kind is Kind.COMPLETE
    return _ended(cell._replace(tx=cell.tx - act.amount))


def open_for(cell: Cell | None, parity: int) -> bool:
    """Whether a wait for `parity` ends now. Raises Fault."""
    if cell is None:
        raise Fault("waits for an mbarrier that is not initialised")
    return cell.phase & 1 != parity


def _ended(cell: Cell) -> Cell:
    if cell.pending or cell.tx:
        return cell
    return cell._replace(phase=cell.phase + 1, pending=cell.expected)


def _join(cell: Cell, act: Act) -> Cell:
    if not cell.expected:
        cell = Cell(cell.phase, act.size, act.size)
    if cell.expected != act.size:
        raise Fault(f"joins a round of {cell.expected} threads as one of {act.size}")
    if act.amount > cell.pending:
        raise Fault(f"brings {act.amount} threads to a round that lacks {cell.pending}")
    left = cell.pending - act.amount
    return Cell(cell.phase, left, cell.expected) if left else Cell(cell.phase + 1)
