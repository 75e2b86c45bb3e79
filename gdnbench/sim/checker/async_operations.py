# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations in the race detector of a CTA: from the issue to the signal of their mbarriers.

The detector checks and records an operation's accesses at the issue, under two tokens: one for its reads, one
for its writes. A wait for the operation (at an mbarrier, for a group, tcgen05.wait) acquires the tokens.
"""

from __future__ import annotations

from gdnbench.sim.checker import cta_exit
from gdnbench.sim.checker.async_tokens import OperationTokens
from gdnbench.sim.checker.cta_state import CtaState, PendingSignal
from gdnbench.sim.checker.events import Access, Event, IssuedInstruction, Proxy, is_async_store
from gdnbench.sim.checker.lanes import lane_of
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.engine_interface import Lanes, Warp
from gdnbench.sim.machine.footprint import Footprint
from gdnbench.sim.ptx.forms import Until
from gdnbench.sim.ptx.ir import Instruction


def record_submitted(detector: CtaState, issued: IssuedInstruction, operation: AsyncOperation) -> None:
    """`issued` has put `operation` into the queue: record its accesses, and the mbarriers that it will
    signal."""
    warp, ins, lanes, _ = issued
    if ins.form.until is Until.WGMMA_GROUP:
        return  # each of the four warps issues its own part: `synchronisation._wgmma_reads`
    async_state, arrivals = detector.async_states[warp.number], 0
    if ins.form.commits is Until.TENSOR_COMMIT:
        completes = async_state.tensor
    elif ins.form.commits is Until.COPY_GROUP:
        completes, arrivals = async_state.copies.pending(lanes), int(lanes.sum())
    else:
        completes = _record_operation(detector, warp, ins, lanes, operation).both
    if operation.signals:
        clocks = detector.warp_clocks[warp.number].clocks_at_issue(issued.subset)
        address = operation.signals[0]
        phase = detector.mbarrier_phase(address) if address in detector.mbarriers else -1
        event = _check_signals(detector, operation, issued)
        detector.pending_signals[operation] = PendingSignal(event, phase, completes, clocks, arrivals)


def _record_operation(
    detector: CtaState, warp: Warp, ins: Instruction, lanes: Lanes, operation: AsyncOperation
) -> OperationTokens:
    """A copy or product: check and record its accesses, and note which wait completes it."""
    async_state = detector.async_states[warp.number]
    if ins.form.until is Until.COPY_GROUP:
        tokens = start_async(detector, warp, ins, lanes, operation.reads, operation.writes, Proxy.GENERIC)
        async_state.copies.add(lanes, tokens)
    elif ins.form.until is Until.TENSOR_COMMIT:
        tokens = start_async(detector, warp, ins, lanes, operation.reads, operation.writes, Proxy.TENSOR)
        async_state.tensor |= tokens.both
        detector.warp_clocks[warp.number].all_lanes.tensor_pipe |= tokens.both
    else:
        proxy = Proxy.GENERIC if is_async_store(ins) else Proxy.ASYNC
        tokens = start_async(detector, warp, ins, lanes, operation.reads, operation.writes, proxy)
        if ins.has("bulk_group"):
            async_state.bulk.add(lanes, tokens)
    return tokens


def start_async(
    detector: CtaState,
    warp: Warp,
    ins: Instruction,
    lanes: Lanes,
    reads: tuple[Footprint, ...],
    writes: tuple[Footprint, ...],
    proxy: Proxy,
) -> OperationTokens:
    """`warp` issues an operation: check and record its reads and writes. Returns its tokens."""
    read, write = detector.events.new_token(), detector.events.new_token()
    clock, lane, each = detector.warp_clocks[warp.number].own_clock, lane_of(lanes), lanes.nonzero()[0]
    # Bulk reductions are relaxed atomics, one for each element (PTX ISA, "cp.reduce.async.bulk").
    written = Access.ATOMIC if ins.form.reduces or ins.op == "red.async" else Access.WRITE
    for access, token, places in ((Access.READ, read, reads), (written, write, writes)):
        if not places:
            continue
        event = detector.events.record_async(warp.number, clock, ins, access, proxy, token, read, lane)
        for number, where in enumerate(places):
            detector.record_footprint(
                where, event, int(each[number]) if ins.form.until is Until.COPY_GROUP else lane
            )
        if any(where.space == "shared" for where in places):
            detector.shared_reads[token] = event
    return OperationTokens(1 << read, 1 << write)


def _check_signals(detector: CtaState, operation: AsyncOperation, issued: IssuedInstruction) -> Event:
    """Check that the mbarriers that an operation will signal are initialised for it."""
    warp, ins = issued.warp, issued.ins
    clock = detector.warp_clocks[warp.number].own_clock
    token = detector.events.new_token()
    # cp.async is not a bulk copy: it and its arrival use the generic proxy.
    proxy = Proxy.GENERIC if ins.form.commits is Until.COPY_GROUP or is_async_store(ins) else Proxy.ASYNC
    event = detector.events.record_async(
        warp.number, clock, ins, Access.ATOMIC, proxy, token, lane=issued.lane
    )
    for address in operation.signals:
        detector.use_mbarrier(address, event)
    return event


def release_landed(detector: CtaState, operation: AsyncOperation) -> None:
    """`operation` is about to land: release its tokens, and the clocks at its issue, into the phase of
    each mbarrier that it signals."""
    pending = detector.pending_signals.pop(operation, None)
    if pending is None:
        return
    for address in operation.signals:
        barrier = detector.mbarriers.get(address)
        if barrier is not None:
            cta_exit.check_in_phase(detector, pending, address)
            barrier.signal, barrier.signalled = (
                pending.event,
                detector.arrival_phase(address, pending.arrivals),
            )
            released = barrier.phase_clocks(barrier.signalled)
            released.join_memory(pending.clocks)
            assert pending.event.token is not None
            released.base.tokens |= pending.completes | 1 << pending.event.token
            released.tcgen05_fenced |= pending.completes
