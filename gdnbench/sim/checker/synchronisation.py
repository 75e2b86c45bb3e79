# SPDX-License-Identifier: Apache-2.0
"""Synchronisation: what each instruction of the machine does to the vector clocks.

    instruction                                      effect
    mbarrier.arrive, arrive_drop                     release into the mbarrier's current phase
    mbarrier.test_wait, try_wait that succeeds       acquire from the phase that completed, if the answer
                                                     decides what follows (`gdnbench.sim.ptx.polls`)
    landing of TMA, tcgen05.commit, cp.async.mbarrier.arrive
                                                     release of the operation's tokens into the phase
    bar.arrive                                       release into the barrier's round
    bar.sync, bar.red                                release into the round, then acquire from it
    bar.warp.sync                                    release and acquire among lanes (`on_warp_collective`)
    barrier.cluster.arrive                           release into the barrier's round
    barrier.cluster.wait                             acquire from the round of the arrival
    fence, membar                                    acquire for strong reads before it, release for strong
                                                     writes after it
    fence.proxy.async                                hands generic accesses to the async proxy
    fence.mbarrier_init                              hands mbarrier.init to the async proxy
    tcgen05.fence::before_thread_sync                later releases also cover tensor-memory tokens
    tcgen05.fence::after_thread_sync                 tcgen05 operations follow the tokens acquired so far
    cp.async.wait_group, cp.async.bulk.wait_group,   put the tokens of completed operations into the clocks
    wgmma.wait_group, tcgen05.wait
    griddepcontrol.wait                              acquire of all that the launch in front did

A `.relaxed` arrive or wait orders no memory by itself. A fence before the arrive, or after the wait, does.

`BEGINS` has the handlers that run when a warp first hands an instruction to the machine. `ENDS` has those
that run when the machine has executed it or makes the warp wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from gdnbench.sim.checker.async_operations import start_async
from gdnbench.sim.checker.async_tokens import ProductTokens
from gdnbench.sim.checker.cta_exit import check_unused
from gdnbench.sim.checker.cta_state import CtaState
from gdnbench.sim.checker.earlier_launches import ENDED, LATEST
from gdnbench.sim.checker.events import Access, Event, IssuedInstruction, Proxy
from gdnbench.sim.checker.happens_before import Cause, LanePair, Unordered, Verdict, unordered
from gdnbench.sim.checker.lanes import UNSURE, lane_of, lanes_of, subset_of
from gdnbench.sim.checker.load_store import cells_of_accesses, has_cluster_scope, has_gpu_scope
from gdnbench.sim.checker.mbarriers import TWO_PHASES, Mbarrier
from gdnbench.sim.checker.named_barriers import BARRIER, ROUNDS, Arrivals
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.checker.tensor_memory import TmemShadow
from gdnbench.sim.checker.vector_clocks import SPACES, ClockSet
from gdnbench.sim.machine.barrier_state import BarrierWait, Round
from gdnbench.sim.machine.engine_interface import Lanes, Results, Wait
from gdnbench.sim.machine.operands import (
    distinct_operands,
    same_in_all_lanes,
    scalar_operand,
    shared_address,
    uniform_value,
)
from gdnbench.sim.machine.shared_memory import rank_of
from gdnbench.sim.machine.tcgen05_access import cells_of
from gdnbench.sim.machine.tmem import column_of
from gdnbench.sim.machine.wgmma import matrix_reads
from gdnbench.sim.ptx.forms import Sync, Until
from gdnbench.sim.ptx.instructions import BARRIERS, opcodes
from gdnbench.sim.ptx.ir import Immediate
from gdnbench.sim.ptx.polls import tells

MBARRIER_BYTES = 8


class CtaStateWithTmem(CtaState, Protocol):
    """`CtaState` and the shadows of tensor memory, which themselves use a `CtaState`."""

    def tmem_of(self, rank: int) -> TmemShadow: ...


Begin = Callable[["CtaStateWithTmem", IssuedInstruction], None]
End = Callable[["CtaStateWithTmem", IssuedInstruction, "Wait | None", "Results | Wait"], None]


def _record(
    detector: CtaStateWithTmem,
    issued: IssuedInstruction,
    access: Access,
    *,
    init: bool = False,
    lane: int | None = None,
) -> Event:
    """The event of the instruction; `lane` if it is not all its lanes'."""
    warp = issued.warp.number
    lane = issued.lane if lane is None else lane
    return detector.events.record(
        warp, detector.warp_clocks[warp].own_clock, issued.ins, access, lane=lane, init=init
    )


def _mbarrier_addresses(detector: CtaStateWithTmem, issued: IssuedInstruction, lanes: Lanes) -> list[int]:
    """The addresses of the mbarriers that these lanes name. Addresses outside of shared memory are skipped;
    the machine raises their fault afterwards."""
    named = distinct_operands(lanes, scalar_operand(issued.sources[0]))
    found = [shared_address(address, issued.ins) for _, (address,) in named]
    return [at for at in found if detector.has_shared(at, MBARRIER_BYTES)]


# mbarriers


def _mbarrier_init(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    event = _record(detector, issued, Access.WRITE, init=True)
    for address in _mbarrier_addresses(detector, issued, issued.lanes):
        word = _mbarrier_cells(detector, address)
        detector.record_access("shared", word, event)
        detector.mbarrier_cells[word] = True
        detector.mbarriers[address] = Mbarrier(event, detector.warps)


def _mbarrier_inval(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    event = _record(detector, issued, Access.WRITE)
    clocks = detector.warp_clocks[issued.warp.number]
    for address in _mbarrier_addresses(detector, issued, issued.lanes):
        word = _mbarrier_cells(detector, address)
        detector.mbarrier_cells[word] = False
        detector.record_access("shared", word, event)
        barrier = detector.mbarriers.pop(address, None)
        if barrier is None:
            continue
        check_unused(detector, address, barrier, event)
        for user in barrier.users.values():
            why = unordered(user, event, clocks, "shared", LanePair(user.lane, event.lane))
            if why is not None:
                detector.findings.add_pair(why, user, event, "shared", address)


def _mbarrier_cells(detector: CtaStateWithTmem, address: int) -> Cells:
    """The cells of shared memory that an mbarrier occupies."""
    return cells_of_accesses(np.array([address], np.int64), MBARRIER_BYTES, detector.cell_bytes["shared"])


def _mbarrier_arrive(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    clocks = detector.warp_clocks[issued.warp.number]
    expects = issued.ins.form.sync is Sync.ARRIVE_EXPECT
    counts = (
        scalar_operand(issued.sources[1]) if len(issued.sources) > 1 and not expects else same_in_all_lanes(1)
    )
    for members, (name,) in distinct_operands(issued.lanes, scalar_operand(issued.sources[0])):
        address = shared_address(name, issued.ins)
        lanes = lanes_of(members)
        event = _record(detector, issued, Access.ATOMIC, lane=lane_of(lanes))
        barrier = detector.use_mbarrier(address, event)
        if barrier is not None:
            if expects:
                barrier.expects = event
            arrivals = int(counts[members].sum())
            into = barrier.phase_clocks(detector.arrival_phase(address, arrivals))
            relaxed = issued.ins.has("relaxed")
            clocks.release(into, subset_of(lanes, issued.warp.exists), relaxed=relaxed)
            if relaxed:
                remote = rank_of(address) != issued.warp.rank
                detector.sync_variables.relaxed_arrive(clocks, into, to_cluster=remote)


def _mbarrier_use(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    event = _record(detector, issued, Access.ATOMIC)
    for address in _mbarrier_addresses(detector, issued, issued.lanes):
        barrier = detector.use_mbarrier(address, event)
        if barrier is not None and issued.ins.form.sync is Sync.EXPECT:
            barrier.expects = event


def _mbarrier_wait(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    """A test_wait or try_wait that succeeded acquires the clocks of the completed phase, unless a false
    answer goes on alike."""
    if isinstance(results, Wait):
        return
    passed = issued.lanes & (results[0] != 0)
    if not passed.any() or not tells(detector.cta_of(issued.warp).launch.kernel, issued.ins):
        return
    clocks, subset = detector.warp_clocks[issued.warp.number], subset_of(passed, issued.warp.exists)
    event = _record(detector, issued, Access.ATOMIC)
    for address in _mbarrier_addresses(detector, issued, passed):
        barrier = detector.use_mbarrier(address, event)
        if barrier is None:
            continue
        over = detector.mbarrier_phase(address) - 1
        relaxed = issued.ins.has("relaxed")
        for late in barrier.record_wait(over, event, clocks, subset, relaxed=relaxed):
            why = Unordered(Cause.PHASES, Verdict.ERROR, TWO_PHASES)
            detector.findings.add_pair(why, late, event, "shared", address)
        if relaxed and over >= 0:
            detector.sync_variables.relaxed_read(clocks, barrier.phase_clocks(over))


# Named barriers


def _named_barrier(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    """Release into the barrier's round and acquire from it. A round is identified by the machine's object,
    which lives while the round is open or a warp waits in it."""
    clocks, subset = detector.warp_clocks[issued.warp.number], issued.subset
    if isinstance(previous, BarrierWait):
        clocks.acquire(detector.barrier_clocks[previous.use], subset)
        clocks.synchronize_lanes(subset)
        return
    opened = detector.open_rounds.pop(issued.warp.number, None)
    index = uniform_value(issued.sources[0], issued.lanes, "the barrier's number") & 0xFFFF_FFFF
    if isinstance(results, BarrierWait):
        use = results.use
    else:
        found = opened if opened is not None else detector.cta_of(issued.warp).barriers.rounds.get(index)
        if found is None:  # the barrier waited for this warp alone
            clocks.synchronize_lanes(subset)
            return
        use = found
    _check_barrier_round(detector, issued, index, use)
    released = detector.barrier_clocks.setdefault(use, ClockSet.zero(detector.warps))
    clocks.release(released, subset)
    if issued.ins.form.sync is Sync.BARRIER_ARRIVE:
        clocks.converge_lanes(subset)
    elif not isinstance(results, Wait):
        clocks.acquire(released, subset)
        clocks.synchronize_lanes(subset)


def _check_barrier_round(
    detector: CtaStateWithTmem, issued: IssuedInstruction, index: int, use: Round
) -> None:
    """Check an arrival at barrier `index` in the round `use` against the arrivals of the round before."""
    clocks = detector.warp_clocks[issued.warp.number]
    # A warp has arrived when all of its lanes have.
    event = detector.events.record(clocks.warp, clocks.own_clock, issued.ins, Access.ATOMIC, lane=UNSURE)
    arrivals = detector.barrier_arrivals.setdefault((issued.warp.rank, index), Arrivals(use))
    for early in arrivals.record_arrival(use, event, clocks):
        detector.findings.add_pair(ROUNDS, early, event, BARRIER, index)


def _named_barrier_begins(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    index = uniform_value(issued.sources[0], issued.lanes, "the barrier's number") & 0xFFFF_FFFF
    use = detector.cta_of(issued.warp).barriers.rounds.get(index)
    if use is not None:
        detector.open_rounds[issued.warp.number] = use


# Barriers of the cluster


def _cluster_arrive(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    """Release into the barrier's round (PTX ISA, "barrier.cluster": `.release` unless it is `.relaxed`)."""
    clocks = detector.warp_clocks[issued.warp.number]
    use = detector.cta_of(issued.warp).cluster_barrier.round
    released = detector.barrier_clocks.setdefault(use, ClockSet.zero(detector.warps))
    relaxed = issued.ins.has("relaxed")
    clocks.release(released, issued.subset, relaxed=relaxed)
    if relaxed:
        detector.sync_variables.relaxed_arrive(clocks, released, to_cluster=True)


def _cluster_wait_begins(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    """Keep the rounds that the lanes wait for: the machine forgets them once the wait is over."""
    barrier = detector.cta_of(issued.warp).cluster_barrier
    detector.cluster_waits[issued.warp.number, issued.lanes.tobytes()] = barrier.arrivals(
        issued.warp, issued.lanes
    )


def _cluster_wait(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    """Acquire from the rounds."""
    if isinstance(results, Wait):
        return
    clocks = detector.warp_clocks[issued.warp.number]
    for use in detector.cluster_waits.pop((issued.warp.number, issued.lanes.tobytes())):
        clocks.acquire(detector.barrier_clocks[use], issued.subset)


# Fences


def _fence_proxy(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    spaces = [space for space in SPACES if any(space in mod.split("::") for mod in issued.ins.mods)]
    detector.warp_clocks[issued.warp.number].fence_proxy(spaces or SPACES, issued.subset)


def _fence(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    sc = issued.ins.op == "membar" or issued.ins.has("sc")
    detector.sync_variables.fence(
        detector.warp_clocks[issued.warp.number],
        gpu_scope=has_gpu_scope(issued.ins),
        cluster_scope=has_cluster_scope(issued.ins),
        sc=sc,
    )


def _fence_init(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    detector.warp_clocks[issued.warp.number].fence_mbarrier_init(issued.subset)


def _before_sync(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    detector.warp_clocks[issued.warp.number].tcgen05_fence_before()


def _after_sync(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    detector.warp_clocks[issued.warp.number].tcgen05_fence_after()


# Groups and waits of one thread


def _grid_wait(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    detector.warp_clocks[issued.warp.number].all_lanes.remote.by_cta[LATEST] = ENDED
    detector.dependency.wait()


def _launch_dependents(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    waited = LATEST in detector.warp_clocks[issued.warp.number].all_lanes.remote.by_cta
    detector.dependency.trigger(waited)


def _commit_group(name: str) -> Begin:
    def begin(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
        getattr(detector.async_states[issued.warp.number], name).commit(issued.lanes)

    return begin


def _wait_group(name: str) -> End:
    def end(
        detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
    ) -> None:
        if isinstance(results, Wait):
            return
        groups = getattr(detector.async_states[issued.warp.number], name)
        if issued.ins.form.sync is Sync.WAIT:
            known = groups.wait_all(issued.lanes)
        else:
            operand = issued.ins.sources[0]
            allowed = (
                operand.bits
                if isinstance(operand, Immediate)
                else uniform_value(issued.sources[0], issued.lanes, "the number of groups")
            )
            if name == "wgmma":
                parts = groups.products(issued.lanes, allowed)
                detector.warp_clocks[issued.warp.number].all_lanes.parts_waited |= parts
            known = groups.wait_group(issued.lanes, allowed, only_read=issued.ins.has("read"))
        clocks = detector.warp_clocks[issued.warp.number]
        if name == "wgmma":
            clocks.complete(known)
        else:
            clocks.complete_for_lanes(known, issued.subset)

    return end


def _wgmma_reads(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    """Each of the four warps of a wgmma reads the matrices in shared memory, ordered by its own clocks."""
    cta = detector.cta_of(issued.warp)
    product = cta.warpgroups.state(issued.warp).open[-1]
    reads = matrix_reads(cta, product)
    tokens = start_async(detector, issued.warp, issued.ins, issued.lanes, reads, (), Proxy.ASYNC)
    shared = detector.products.setdefault(product, ProductTokens())
    shared.parts |= tokens.both
    if product.operation is not None:  # the last of its warps
        del detector.products[product]
    tokens = replace(tokens, product=shared)
    detector.async_states[issued.warp.number].wgmma.add(issued.lanes, tokens)


# Tensor memory


def _tmem_access(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    async_state = detector.async_states[issued.warp.number]
    loads = issued.ins.form.until is Until.TENSOR_LOAD
    token = detector.events.new_token()
    event = detector.events.record_async(
        issued.warp.number,
        detector.warp_clocks[issued.warp.number].own_clock,
        issued.ins,
        Access.READ if loads else Access.WRITE,
        Proxy.TENSOR,
        token,
    )
    detector.tmem_of(issued.warp.rank).record_access(
        cells_of(issued.warp, issued.ins, issued.lanes, issued.sources), event
    )
    if loads:
        async_state.loads |= 1 << token
        async_state.unused[async_state.loaded] = event
        async_state.loaded += 1
    else:
        async_state.stores |= 1 << token


def _wait_loads(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    async_state = detector.async_states[issued.warp.number]
    detector.warp_clocks[issued.warp.number].complete(async_state.loads)
    async_state.loads = 0
    async_state.unused.clear()


def _wait_stores(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    async_state = detector.async_states[issued.warp.number]
    detector.warp_clocks[issued.warp.number].complete(async_state.stores)
    async_state.stores = 0


def _tmem_alloc(
    detector: CtaStateWithTmem, issued: IssuedInstruction, previous: Wait | None, results: Results | Wait
) -> None:
    if isinstance(results, Wait):
        return
    address = shared_address(uniform_value(issued.sources[0], issued.lanes, "the address"), issued.ins)
    columns = uniform_value(issued.sources[1], issued.lanes, "nCols")
    # All lanes execute tcgen05.alloc, so each may read the address next without a barrier: lane UNSURE.
    warp = issued.warp.number
    event = detector.events.record(
        warp, detector.warp_clocks[warp].own_clock, issued.ins, Access.WRITE, lane=UNSURE
    )
    starts = np.array([address], np.int64)
    detector.record_access("shared", cells_of_accesses(starts, 4, detector.cell_bytes["shared"]), event)
    first = int(detector.cta_of(issued.warp).shared.view(address, 4).view(np.uint32)[0])
    own, peer = _tmem_group(detector, issued)
    own.record_alloc(first, columns, event, peer)
    if peer is not None:  # the two execute it together: the peer runs
        detector.warp_clocks[warp].all_lanes.started |= 1 << (issued.warp.rank ^ 1)


def _tmem_group(
    detector: CtaStateWithTmem, issued: IssuedInstruction
) -> tuple[TmemShadow, TmemShadow | None]:
    """The shadow of the CTA's tensor memory, and that of the peer's for an instruction of a pair."""
    rank = issued.warp.rank
    return detector.tmem_of(rank), detector.tmem_of(rank ^ 1) if issued.ins.has("cta_group::2") else None


def _tmem_dealloc(detector: CtaStateWithTmem, issued: IssuedInstruction) -> None:
    address = uniform_value(issued.sources[0], issued.lanes, "the address")
    columns = uniform_value(issued.sources[1], issued.lanes, "nCols")
    first = column_of(address)
    allocations = detector.cta_of(issued.warp).tmem.allocations
    if allocations.get(first) == columns:  # the machine raises a fault for any other
        event = _record(detector, issued, Access.WRITE)
        own, peer = _tmem_group(detector, issued)
        own.begin_dealloc(first, columns, event, peer)


BEGINS: dict[str, Begin] = {
    "mbarrier.init": _mbarrier_init,
    "mbarrier.inval": _mbarrier_inval,
    **dict.fromkeys(opcodes(Sync.ARRIVE, Sync.ARRIVE_EXPECT), _mbarrier_arrive),
    **dict.fromkeys(opcodes(Sync.EXPECT, Sync.COMPLETE), _mbarrier_use),
    "fence.proxy.async": _fence_proxy,
    "fence.proxy.async::generic": _fence_proxy,
    "fence.mbarrier_init": _fence_init,
    "fence": _fence,
    "membar": _fence,
    "tcgen05.fence::before_thread_sync": _before_sync,
    "tcgen05.fence::after_thread_sync": _after_sync,
    "tcgen05.wait::ld": _wait_loads,
    "tcgen05.wait::st": _wait_stores,
    "tcgen05.dealloc": _tmem_dealloc,
    "griddepcontrol.wait": _grid_wait,
    "griddepcontrol.launch_dependents": _launch_dependents,
    "cp.async.commit_group": _commit_group("copies"),
    "cp.async.bulk.commit_group": _commit_group("bulk"),
    "wgmma.commit_group": _commit_group("wgmma"),
    **dict.fromkeys(BARRIERS, _named_barrier_begins),
    **dict.fromkeys(opcodes(Sync.CLUSTER_ARRIVE), _cluster_arrive),
    **dict.fromkeys(opcodes(Sync.CLUSTER_WAIT), _cluster_wait_begins),
}

ENDS: dict[str, End] = {
    **dict.fromkeys(opcodes(Sync.POLL), _mbarrier_wait),
    "cp.async.wait_group": _wait_group("copies"),
    "cp.async.wait_all": _wait_group("copies"),
    "cp.async.bulk.wait_group": _wait_group("bulk"),
    "wgmma.wait_group": _wait_group("wgmma"),
    "wgmma.mma_async": _wgmma_reads,
    "tcgen05.ld": _tmem_access,
    "tcgen05.ld.red": _tmem_access,
    "tcgen05.st": _tmem_access,
    "tcgen05.alloc": _tmem_alloc,
    **dict.fromkeys(BARRIERS, _named_barrier),
    **dict.fromkeys(opcodes(Sync.CLUSTER_WAIT), _cluster_wait),
}
