# SPDX-License-Identifier: Apache-2.0
"""The table of tcgen05 instructions; commit and fences.

PTX ISA 9.7.16. The docstring of the package lists the modules of the other instructions.
"""

from __future__ import annotations

from gdnbench.sim.errors import KernelFault
from gdnbench.sim.machine import mbarrier, tcgen05_access, tcgen05_allocation, tcgen05_copy, tcgen05_mma
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.bulk import destinations
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.operands import SHARED_BITS, SHARED_SPACES, shared_address
from gdnbench.sim.machine.shared_memory import in_cta, rank_of
from gdnbench.sim.machine.tcgen05_issue import STREAM, cta_group, lane_value, single_issuer
from gdnbench.sim.ptx.ir import Instruction


def _commit(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """commit: the mbarrier gets one arrival once all operations in the stream have landed (PTX ISA
    9.7.16.12.1)."""
    group = cta_group(cta, ins)
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
    if len(group) > 1 and warp.index not in cta.tensor_issuers and any(rank != cta.rank for rank in ranks):
        cta.note(
            f"{ins.name} tracks nothing: its warp has issued no product or copy. FlashAttention's authors saw"
            " such a commit arrive in its own CTA alone",
            ins,
        )
    for rank in ranks:
        signalled = in_cta(address, rank)

        def land(signalled: int = signalled) -> None:
            try:
                mbarrier.arrive(cta.cluster_shared, signalled)
            except KernelFault as fault:
                fault.place, fault.thread = ins.place, cta.thread(warp, issuers)
                raise

        group[0].queue.submit(AsyncOperation(ins.op, land, stream=STREAM, signals=(signalled,)))
    return ()


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """fence::before_thread_sync and ::after_thread_sync order operations in flight; they change no value
    here."""
    return ()


HANDLERS: dict[str, Handler] = {
    "tcgen05.commit": _commit,
    "tcgen05.fence::before_thread_sync": _fence,
    "tcgen05.fence::after_thread_sync": _fence,
    **tcgen05_access.HANDLERS,
    **tcgen05_allocation.HANDLERS,
    **tcgen05_copy.HANDLERS,
    **tcgen05_mma.HANDLERS,
}
