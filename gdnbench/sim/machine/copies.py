# SPDX-License-Identifier: Apache-2.0
"""cp.async: per-thread copies of 4, 8 or 16 bytes, their groups and their mbarrier arrivals.

A warp's instruction is one operation in flight. When some of its lanes wait, all of it lands; for the other
lanes that is a legal time too.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.bulk import with_place
from gdnbench.sim.machine.copied_shadows import CopiedLanes
from gdnbench.sim.machine.copy_state import CopyInFlight
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import LANES, Argument, Lanes, Results, Values, Wait, Warp
from gdnbench.sim.machine.footprint import Span
from gdnbench.sim.machine.memory import check_aligned
from gdnbench.sim.machine.operands import active_lanes, scalar_operand, shared_address, uniform_value
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction, Negated, Register

MANY_GROUPS = 1 << 32  # more than a launch can commit
CP_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


def _source_sizes(ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], width: int) -> Values:
    """The number of bytes that each lane reads; the rest of its `width` bytes becomes zero."""
    extra = len(sources) - 3 - ins.has("L2::cache_hint")
    if extra == 0:
        return np.full(LANES, width, np.uint64)
    values, operand = scalar_operand(sources[3]), ins.sources[3]
    if isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type == "pred"):
        return np.where(values != 0, np.uint64(0), np.uint64(width))
    sizes = values & np.uint64(0xFFFF_FFFF)
    if (sizes[lanes] > width).any():
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS, f"{ins.name} reads {int(sizes[lanes].max())} of {width} bytes"
        )
    return sizes


def _cp_async(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    target, source = scalar_operand(sources[0]), scalar_operand(sources[1])
    width = uniform_value(sources[2], lanes, "the copy's size")
    if width not in CP_SIZES["cg" if ins.has("cg") else "ca"]:
        raise KernelFault(FaultKind.MISALIGNED, f"{ins.name} of {width} bytes")
    sizes = _source_sizes(ins, lanes, sources, width)
    target, source, mask = target.copy(), source.copy(), lanes.copy()
    whole = mask & (sizes == width)
    short = active_lanes(mask & (sizes != 0) & ~whole)
    cta.shared.check_lanes(target, mask, width)
    check_aligned(source, mask, width)
    cta.memory.check_lanes(source, whole, width)
    for lane in short:
        cta.memory.check(int(source[lane]), int(sizes[lane]))
    data = np.zeros((LANES, width), np.uint8)
    shadows = CopiedLanes(cta, source, target, mask, sizes) if cta.launch.shadowed else None

    def read() -> None:
        data[:] = cta.memory.load(source, whole, width)
        for lane in short:
            size = int(sizes[lane])
            data[lane, :size] = cta.memory.view(int(source[lane]), size)
        if shadows is not None:
            shadows.read(width)

    def land() -> None:
        cta.shared.store(target, mask, data)
        if shadows is not None:
            shadows.land()

    watched = active_lanes(mask) if cta.queue.checker is not None else ()
    operation = AsyncOperation(
        ins.name,
        land=land,
        read=read,
        reads=tuple(Span("global", int(source[lane]), int(sizes[lane])) for lane in watched),
        writes=tuple(Span("shared", int(target[lane]), width) for lane in watched),
    )
    copies = cta.copies.threads(warp)
    copies.flying.append(CopyInFlight(operation, mask, copies.group.copy()))
    cta.queue.submit(operation, lambda: cta.shared.poison(target, mask, width))
    cta.counters.traffic["global to shared"] += int(sizes[mask].sum())
    return ()


def _commit(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    cta.copies.threads(warp).group[lanes] += 1
    return ()


def _wait(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """wait_group N lands all but the N most recent groups of these lanes; wait_all also lands uncommitted
    copies."""
    copies = cta.copies.threads(warp)
    last = copies.group.copy()
    if ins.form.sync is Sync.WAIT_GROUP:
        last -= min(uniform_value(sources[0], lanes, "the number of groups"), MANY_GROUPS) + 1
    for copy in copies.flying:
        if (lanes & copy.lanes & (copy.group <= last)).any():
            cta.queue.complete(copy.operation)
    copies.prune()
    return ()


def _arrive(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Arrive for each lane once its earlier cp.async have landed. Without .noinc the phase first expects one
    more arrival (PTX ISA, "cp.async.mbarrier.arrive")."""
    copies = cta.copies.threads(warp)
    copies.prune()
    earlier = [copy.operation for copy in copies.flying if (copy.lanes & lanes).any()]
    addresses = [shared_address(address, ins) for address in scalar_operand(sources[0])[lanes].tolist()]
    if not ins.has("noinc"):
        for address in addresses:
            mbarrier.expect_arrival(cta.shared, address)

    def land() -> None:
        for operation in earlier:
            cta.queue.complete(operation)
        for address in addresses:
            mbarrier.arrive(cta.shared, address)

    signals = tuple(dict.fromkeys(addresses))
    cta.queue.submit(AsyncOperation(ins.name, land=with_place(ins, land), signals=signals))
    return ()


HANDLERS: dict[str, Handler] = {
    "cp.async": _cp_async,
    "cp.async.commit_group": _commit,
    "cp.async.wait_group": _wait,
    "cp.async.wait_all": _wait,
    "cp.async.mbarrier.arrive": _arrive,
}
