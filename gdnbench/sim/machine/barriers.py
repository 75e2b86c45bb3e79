# SPDX-License-Identifier: Apache-2.0
"""The bar and barrier instructions, those of barrier.cluster, and setmaxnreg."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.barrier_state import REGISTERS_STEP, BarrierWait, Round
from gdnbench.sim.machine.cluster import ClusterWait
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.operands import same_in_all_lanes, scalar_operand, uniform_value
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.instructions import BARRIERS
from gdnbench.sim.ptx.ir import Instruction

REGISTERS_MIN = 24
REGISTERS_MAX = 256


def _barrier(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """sync, arrive and red of `bar` and `barrier`."""
    reduces = ins.form.sync is Sync.BARRIER_REDUCE
    arrives = ins.form.sync is Sync.BARRIER_ARRIVE
    if isinstance(previous, BarrierWait):
        return _reduced(ins, previous.use) if reduces else ()
    index = uniform_value(sources[0], lanes, "the barrier's number") & 0xFFFF_FFFF
    numbers = sources[1:-1] if reduces else sources[1:]
    threads = (
        uniform_value(numbers[0], lanes, "the barrier's thread count") & 0xFFFF_FFFF if numbers else None
    )
    if arrives and threads is None:
        raise KernelFault(FaultKind.BARRIER, f"{ins.name} without a thread count")
    votes = int((scalar_operand(sources[-1])[lanes] & np.uint64(1)).sum()) if reduces else 0
    use = cta.barriers.arrive(index, threads, warp, lanes, votes)
    if arrives:
        return ()
    if use.done:
        return _reduced(ins, use) if reduces else ()
    return BarrierWait(lambda: use.done, lambda: cta.barriers.describe(index, use), use=use)


def _reduced(ins: Instruction, use: Round) -> Results:
    """The result of bar.red over the participating threads."""
    if ins.has("popc"):
        return (same_in_all_lanes(use.votes),)
    return (same_in_all_lanes(use.votes == use.voters if ins.has("and") else use.votes > 0),)


def _setmaxnreg(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """PTX ISA, "setmaxnreg": dec gives registers to the CTA's pool, inc waits until the pool has enough."""
    count = uniform_value(sources[0], lanes, "the register count")
    if not REGISTERS_MIN <= count <= REGISTERS_MAX or count % REGISTERS_STEP:
        raise KernelFault(
            FaultKind.BUDGET,
            f"{ins.name} {count}: no multiple of {REGISTERS_STEP} from {REGISTERS_MIN} to {REGISTERS_MAX}",
        )
    pool = cta.pool
    if pool.initial is None:
        return ()
    held = pool.registers_of(warp.index)
    if (ins.op.endswith("dec") and count > held) or (ins.op.endswith("inc") and count < held):
        raise KernelFault(
            FaultKind.BUDGET, f"{ins.name} {count} in a warp that has {held} registers a thread"
        )
    if pool.resize(warp.index, count):
        return ()
    return Wait(
        lambda: count - pool.registers_of(warp.index) <= pool.free,
        lambda: f"{count} registers a thread: it has {pool.registers_of(warp.index)}, the pool {pool.free}",
    )


def _cluster_arrive(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """PTX ISA, "barrier.cluster". A CTA without a cluster is one of its own: its barrier is made at the first
    use."""
    cta.cluster_barrier.arrive(warp, lanes)
    return ()


def _cluster_wait(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    barrier = cta.cluster_barrier
    rounds = previous.rounds if isinstance(previous, ClusterWait) else barrier.arrivals(warp, lanes)
    if all(use.done for use in rounds):
        barrier.waited(warp, lanes)
        return ()
    return ClusterWait(lambda: all(use.done for use in rounds), barrier.describe, rounds=rounds)


HANDLERS: dict[str, Handler] = {
    "barrier.cluster.arrive": _cluster_arrive,
    "barrier.cluster.wait": _cluster_wait,
    **dict.fromkeys(BARRIERS, _barrier),
    "setmaxnreg.inc": _setmaxnreg,
    "setmaxnreg.dec": _setmaxnreg,
}
