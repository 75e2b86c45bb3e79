"""The table of tcgen05 instructions; allocation, commit, fences and the instructions that are refused.

PTX ISA 9.7.16. By file: `tmem` the memory, `tcgen05_descriptor` descriptors, `tcgen05_operand` matrices in
shared memory, `tcgen05_fragment` and `tcgen05_access` loads and stores, `tcgen05_mma` products,
`tcgen05_copy` copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine import mbarrier, tcgen05_access, tcgen05_copy, tcgen05_mma
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.bulk import destinations
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.memory import in_cta, rank_of
from gdnbench.sim.machine.operands import SHARED_BITS, SHARED_SPACES, shared_address, uniform_value
from gdnbench.sim.machine.tcgen05_issue import STREAM, lane_value, refuse_pairs, single_issuer
from gdnbench.sim.machine.tmem import check_size, column_of
from gdnbench.sim.ptx.ir import Instruction


def _allocate(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """alloc: waits while too few columns are free, then writes the address to shared memory."""
    refuse_pairs(ins)
    address = shared_address(uniform_value(sources[0], lanes, "the address of tcgen05.alloc"), ins)
    columns = uniform_value(sources[1], lanes, "nCols of tcgen05.alloc")
    if address % 4:
        raise KernelFault(FaultKind.MISALIGNED, f"tcgen05.alloc writes to {address:#x}, no multiple of 4")
    check_size(columns)
    word = cta.shared.view(address, 4)
    tmem = cta.tmem
    first = tmem.allocate(columns, ins.place)
    if first is None:
        return Wait(
            lambda: tmem.find(columns) is not None,
            lambda: f"tcgen05.alloc of {columns} columns; {tmem.describe_allocations()}",
        )
    word[:] = np.array([first], np.uint32).view(np.uint8)
    cta.shared.written(address, 4)
    return ()


@dataclass(slots=True)
class LastUse(Wait):
    """A deallocation that waits until no other warp can run; `used` names the instructions that accessed its
    columns meanwhile."""

    used: set[str] = field(default_factory=set)


def _deallocate(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """dealloc: under the late schedule it happens when no other warp of the CTA can run.

    A warp may be arbitrarily slow, so this order is legal. If another warp accesses the columns meanwhile,
    nothing ordered the deallocation after that access; a note reports it. Under the other schedules the
    columns are freed at once and such an access is a fault.
    """
    refuse_pairs(ins)
    address = uniform_value(sources[0], lanes, "the address of tcgen05.dealloc")
    columns = uniform_value(sources[1], lanes, "nCols of tcgen05.dealloc")
    tmem = cta.tmem
    if not tmem.check_allocation(address, columns):
        return ()
    if previous is None and cta.queue.schedule.kind == "late" and len(cta.barriers.live) > 1:
        wait = LastUse(lambda: False, lambda: "tcgen05.dealloc, which comes last", expires=True)
        tmem.ending[column_of(address)] = wait.used
        return wait
    tmem.deallocate(address, columns)
    if isinstance(previous, LastUse) and previous.used:
        cta.note(
            f"{', '.join(sorted(previous.used))} of other warps came after warp {warp.index} could free the "
            f"columns: nothing makes tcgen05.dealloc wait for them",
            ins,
        )
    return ()


def _relinquish(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    refuse_pairs(ins)
    cta.tmem.permit = False
    return ()


def _commit(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """commit: the mbarrier gets one arrival once all operations in the stream have landed (PTX ISA
    9.7.16.12.1)."""
    refuse_pairs(ins)
    lane = single_issuer(cta, ins, lanes, sources)
    address = lane_value(sources[0], lane)
    if not ins.has(*SHARED_SPACES) and address < SHARED_BITS:
        cta.note(
            f"{ins.name} has {address:#x}, an address in shared memory, where a generic one is due: the "
            "hardware takes it",
            ins,
        )
    else:
        address = shared_address(address, ins)

    issuers = lanes.copy()
    # With a multicast the mbarrier at this address of every CTA that the mask names gets an arrival.
    multicast = ins.has("multicast::cluster")
    ranks = destinations(cta, ins, lane_value(sources[1], lane)) if multicast else [rank_of(address)]
    for rank in ranks:
        signalled = in_cta(address, rank)

        def land(signalled: int = signalled) -> None:
            try:
                mbarrier.arrive(cta.cluster_shared, signalled)
            except KernelFault as fault:
                fault.place, fault.thread = ins.place, cta.thread(warp, issuers)
                raise

        cta.queue.submit(AsyncOperation(ins.op, land, stream=STREAM, signals=(signalled,)))
    return ()


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """fence::before_thread_sync and ::after_thread_sync order operations in flight; they change no value
    here."""
    return ()


HANDLERS: dict[str, Handler] = {
    "tcgen05.alloc": _allocate,
    "tcgen05.dealloc": _deallocate,
    "tcgen05.relinquish_alloc_permit": _relinquish,
    "tcgen05.commit": _commit,
    "tcgen05.fence::before_thread_sync": _fence,
    "tcgen05.fence::after_thread_sync": _fence,
    **tcgen05_access.HANDLERS,
    **tcgen05_copy.HANDLERS,
    **tcgen05_mma.HANDLERS,
}
