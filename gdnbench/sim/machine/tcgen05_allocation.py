# SPDX-License-Identifier: Apache-2.0
"""tcgen05.alloc, tcgen05.dealloc and tcgen05.relinquish_alloc_permit (PTX ISA 9.7.16.7.1).

With .cta_group::2 a warp of each CTA of the pair executes alloc and dealloc together (table 46): the first of
the two waits for the other (`cta_pair`). That dealloc waits too follows from CUTLASS's kernels, in which the
odd CTA deallocates and exits without waiting for the even one, which must still have an active peer when it
deallocates (`sm100_gemm_tma_warpspecialized.hpp`, "follower does arrive + free").
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.cta_pair import Meeting, PairCall, PairWait
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.operands import shared_address, uniform_value
from gdnbench.sim.machine.tcgen05_issue import check_pair_runs, cta_group
from gdnbench.sim.machine.tmem import check_size, column_of
from gdnbench.sim.ptx.ir import Instruction


def _allocate(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """alloc: waits while too few columns are free, then writes the address to shared memory."""
    address = shared_address(uniform_value(sources[0], lanes, "the address of tcgen05.alloc"), ins)
    columns = uniform_value(sources[1], lanes, "nCols of tcgen05.alloc")
    if address % 4:
        raise KernelFault(FaultKind.MISALIGNED, f"tcgen05.alloc writes to {address:#x}, no multiple of 4")
    check_size(columns)
    word = cta.shared.view(address, 4)
    first = (_allocate_pair if ins.has("cta_group::2") else _allocate_alone)(cta, ins, columns, previous)
    if isinstance(first, Wait):
        return first
    word[:] = np.array([first], np.uint32).view(np.uint8)
    cta.shared.written(address, 4)
    return ()


def _allocate_alone(cta: Cta, ins: Instruction, columns: int, previous: Wait | None) -> int | Wait:
    """The first column, or a wait for it."""
    cta_group(cta, ins)
    tmem = cta.tmem
    first = tmem.allocate(columns, ins.place)
    if first is not None:
        return first
    return Wait(
        lambda: tmem.find(columns) is not None,
        lambda: f"tcgen05.alloc of {columns} columns; {tmem.describe_allocations()}",
    )


def _allocate_pair(cta: Cta, ins: Instruction, columns: int, previous: Wait | None) -> int | Wait:
    """The first column, which is the same in both CTAs, or a wait for it."""
    call, peer = _meet(cta, ins, previous, 0, columns)
    if isinstance(peer, Wait):
        return peer
    if call.first < 0:  # the peer has not allocated for both
        own, other = cta.tmem, cta.members[peer.rank].tmem
        own.check_request(columns)
        other.check_request(columns)
        first = own.find(columns, other)
        if first is None:
            return PairWait(
                lambda: call.first >= 0 or own.find(columns, other) is not None,
                lambda: (
                    f"tcgen05.alloc of {columns} columns; {own.describe_allocations()}, in the CTA of rank"
                    f" {peer.rank}: {other.describe_allocations()}"
                ),
                call=call,
            )
        own.allocate_at(first, columns, ins.place)
        other.allocate_at(first, columns, ins.place)
        call.first = peer.first = first
    return call.first


def _meet(
    cta: Cta, ins: Instruction, previous: Wait | None, address: int, columns: int
) -> tuple[PairCall, PairCall | Wait]:
    """The call of this instruction, and that of the peer or a wait for it. Raises KernelFault if the peer
    exits before, or if the two differ."""
    if isinstance(previous, PairWait):
        call = previous.call
    else:
        even, _ = cta_group(cta, ins)
        assert cta.cluster is not None
        call = PairCall(cta.rank, address, columns)
        pair = cta.cluster.pairs[even.rank // 2]
        meeting: Meeting = pair.allocations if ins.op == "tcgen05.alloc" else pair.deallocations
        meeting.enter(call)
    peer, other = call.peer, cta.members[cta.rank ^ 1]
    if peer is None:
        check_pair_runs(ins, (other,))
        assert cta.cluster is not None
        runs = cta.cluster.arrays.runs
        return call, PairWait(
            lambda: call.peer is not None or not runs(other.rank),
            lambda: f"{ins.op}.cta_group::2 of the CTA of rank {other.rank}, which both execute together",
            call=call,
        )
    if (peer.address, peer.columns) != (address, columns):
        raise KernelFault(
            FaultKind.PAIR,
            f"{ins.op}.cta_group::2 of {_columns(ins, call)} in the CTA of rank {cta.rank}, and of"
            f" {_columns(ins, peer)} in that of rank {peer.rank}",
        )
    return call, peer


def _columns(ins: Instruction, call: PairCall) -> str:
    where = f" at 0x{call.address:08x}" if ins.op == "tcgen05.dealloc" else ""
    return f"{call.columns} columns{where}"


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
    address = uniform_value(sources[0], lanes, "the address of tcgen05.dealloc")
    columns = uniform_value(sources[1], lanes, "nCols of tcgen05.dealloc")
    tmem = cta.tmem
    if previous is None:
        cta_group(cta, ins)
    if not tmem.check_allocation(address, columns):
        return ()
    if ins.has("cta_group::2") and not isinstance(previous, LastUse):
        _, peer = _meet(cta, ins, previous, address, columns)
        if isinstance(peer, Wait):
            return peer
        previous = None
    tmem.check_idle(column_of(address), columns)
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
    cta_group(cta, ins)
    cta.tmem.permit = False
    return ()


HANDLERS: dict[str, Handler] = {
    "tcgen05.alloc": _allocate,
    "tcgen05.dealloc": _deallocate,
    "tcgen05.relinquish_alloc_permit": _relinquish,
}
