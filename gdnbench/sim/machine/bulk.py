# SPDX-License-Identifier: Apache-2.0
"""Bulk copies: cp.async.bulk and cp.reduce.async.bulk of contiguous bytes, their groups, st.async and
red.async.

A bulk instruction is one operation of one thread. Compiled kernels may execute one with all 32 lanes active
and equal operands. ptxas translates it to a uniform instruction, which the warp executes once; so here too
equal operands make one operation, with a note. Different operands make one operation each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.copied_shadows import CopiedBytes
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Values, Wait, Warp
from gdnbench.sim.machine.footprint import Span
from gdnbench.sim.machine.memory import POISON, Bytes
from gdnbench.sim.machine.operands import (
    SHARED_SPACES,
    active_lanes,
    distinct_operands,
    scalar_operand,
    shared_address,
    uniform_value,
)
from gdnbench.sim.machine.reduce import OPERATIONS, reduce
from gdnbench.sim.machine.shared_memory import SharedMemory, in_cta, rank_of
from gdnbench.sim.ptx.ir import Instruction

BULK_ALIGN = 16
MASK_BITS = 16  # of a ctaMask

_KNOWN = frozenset(
    (
        *(*SHARED_SPACES, "global", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint"),
        "multicast::cluster",
    )
)


def refuse_unknown(ins: Instruction, known: frozenset[str]) -> None:
    """Raises UnsupportedError, which names the first suffix that is not modelled."""
    _refuse_unknown(ins.op, ins.mods, known)


@lru_cache(maxsize=256)
def _refuse_unknown(op: str, mods: tuple[str, ...], known: frozenset[str]) -> None:
    for mod in mods:
        if mod not in known:
            raise UnsupportedError(f"{op} with .{mod}")


def issued_operations(
    cta: Cta, ins: Instruction, lanes: Lanes, *arguments: Values
) -> list[tuple[list[int], tuple[int, ...]]]:
    """The operations that the active lanes issue: equal operands make one, with a note."""
    found = list(distinct_operands(lanes, *arguments))
    for members, _ in found:
        if len(members) > 1:
            cta.note(f"{ins.op} reached by {len(members)} lanes with equal operands is done once", ins)
    return found


def with_place(ins: Instruction, effect: Callable[[], None]) -> Callable[[], None]:
    """Wrap `effect` so that its faults carry the place of the instruction that issued it."""

    def landing() -> None:
        try:
            effect()
        except KernelFault as fault:
            fault.place = fault.place or ins.place
            raise

    return landing


def submit_bulk(
    cta: Cta,
    warp: Warp,
    ins: Instruction,
    members: list[int],
    operation: AsyncOperation,
    poison: Callable[[], None] | None,
) -> None:
    """Submit an operation. If it completes by group, it joins the open group of its lanes."""
    if ins.has("bulk_group"):
        cta.copies.bulk(warp).add(members, operation)
    cta.queue.submit(operation, poison)


def memory_view(cta: Cta, space: str, address: int, size: int) -> Bytes:
    """Bytes of shared or global memory; `space` is the instruction's name of the space."""
    if space in SHARED_SPACES:
        return shared_window(cta, space).view(address, size)
    return cta.memory.view(address, size)


def shared_window(cta: Cta, space: str) -> SharedMemory:
    """The shared memory that a state space names: every CTA's of the cluster for shared::cluster."""
    return cta.cluster_shared if space == "shared::cluster" else cta.shared


def check_same_cta(ins: Instruction, target: int, barrier: int) -> None:
    """Raises KernelFault unless the mbarrier is in the shared memory of the CTA that receives the bytes, or
    with .cta_group::2 of its pair (PTX ISA, "cp.async.bulk", "cp.async.bulk.tensor", "st.async")."""
    ctas = 2 if ins.has("cta_group::2") else 1
    if rank_of(target) // ctas != rank_of(barrier) // ctas:
        raise KernelFault(
            FaultKind.BARRIER,
            f"{ins.op} to the CTA of rank {rank_of(target)} with an mbarrier of the CTA of rank "
            f"{rank_of(barrier)}",
        )


def destinations(cta: Cta, ins: Instruction, mask: int) -> list[int]:
    """The ranks of the CTAs that a multicast names by `ctaMask`. Raises KernelFault for one that is not in
    the cluster, or for none."""
    size = 1 if cta.cluster is None else cta.cluster.size
    ranks = [rank for rank in range(MASK_BITS) if mask >> rank & 1]
    if not ranks or ranks[-1] >= size:
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS, f"{ins.op}: ctaMask {mask & 0xFFFF:#06x} in a cluster of {size} CTAs"
        )
    return ranks


def _spaces(ins: Instruction) -> tuple[str, str]:
    """(destination, source), the order in which the instruction names them."""
    named = [mod for mod in ins.mods if mod == "global" or mod in SHARED_SPACES]
    if len(named) != 2:
        raise UnsupportedError(ins.name)
    return named[0], named[1]


def _check_clustered(cta: Cta, ins: Instruction) -> None:
    """Raises KernelFault unless the launch has clusters, be it of one CTA: in no other launch does an H200
    execute bulk copies and reductions from shared memory to shared::cluster, st.async and red.async, not even
    to the own CTA (docs/clusters.md)."""
    if not cta.config.explicit_clusters:
        raise KernelFault(
            FaultKind.TRAP,
            f"{ins.op} to shared::cluster in a launch without clusters is an illegal instruction (CUDA error"
            " 715); launch clusters, be they of one CTA, or declare .reqnctapercluster 1",
        )


def _copy(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """cp.async.bulk and cp.reduce.async.bulk. The kernel may not access the bytes until the operation is
    known to be complete, so the machine chooses when to read them. A multicast is an operation for each CTA
    that receives the bytes, at the same address in each, where the mbarrier of that CTA completes them."""
    reducing = ins.form.reduces
    refuse_unknown(ins, _KNOWN | OPERATIONS | {"noftz"} if reducing else _KNOWN)
    target_space, source_space = _spaces(ins)
    if target_space == "shared::cluster" and source_space in SHARED_SPACES:
        _check_clustered(cta, ins)
    multicast = ins.has("multicast::cluster")
    count = 3 if ins.has("bulk_group") else 4 + multicast
    arguments = [scalar_operand(argument) for argument in sources[:count]]
    for members, (target, source, size, *rest) in issued_operations(cta, ins, lanes, *arguments):
        size &= 0xFFFF_FFFF
        ranks = destinations(cta, ins, rest[1]) if multicast else [rank_of(target)]
        for what, value in (("destination", target), ("source", source), ("size", size)):
            if value % BULK_ALIGN:
                raise KernelFault(
                    FaultKind.MISALIGNED, f"{ins.op}: {what} {value:#x} is no multiple of {BULK_ALIGN}"
                )
        if size == 0:
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"{ins.op} of no bytes")
        memory_view(cta, source_space, source, size)
        if rest:
            check_same_cta(ins, target, rest[0])
        for rank in ranks:
            at = in_cta(target, rank) if multicast else target
            barrier = [in_cta(address, rank) if multicast else address for address in rest[:1]]
            to = memory_view(cta, target_space, at, size)
            operation = _operation(cta, ins, to, (target_space, at), (source_space, source), size, barrier)
            submit_bulk(cta, warp, ins, members, operation, None if reducing else partial(to.fill, POISON))
        count_traffic(cta, source_space, target_space, size)
    return ()


def _operation(
    cta: Cta,
    ins: Instruction,
    to: Bytes,
    target: tuple[str, int],
    source: tuple[str, int],
    size: int,
    barrier: list[int],
) -> AsyncOperation:
    """One bulk copy or reduction of `size` bytes into `to`."""
    data = np.empty(size, np.uint8)
    shared = shared_window(cta, target[0])

    shadows = CopiedBytes(cta, ins, source, target, size, data) if cta.launch.shadowed else None

    def read() -> None:
        data[:] = memory_view(cta, *source, size)
        if shadows is not None:
            shadows.read()

    def land() -> None:
        if target[0] in SHARED_SPACES:
            shared.check(target[1], size)
            shared.written(target[1], size)
        before = to.copy() if shadows is not None else to
        to[:] = reduce(ins, ins.types[0], to, data) if ins.form.reduces else data
        if shadows is not None:
            shadows.land(before, to)
        for address in barrier:
            mbarrier.complete_tx(shared, address, size)

    return AsyncOperation(
        ins.op,
        land=with_place(ins, land),
        read=read,
        signals=tuple(barrier),
        reads=(Span(space_name(source[0]), source[1], size),),
        writes=(Span(space_name(target[0]), target[1], size),),
    )


def space_name(space: str) -> str:
    """`shared` for all its spellings."""
    return "shared" if space in SHARED_SPACES else space


def count_traffic(cta: Cta, source: str, target: str, size: int) -> None:
    """Add `size` bytes to the traffic between two memories."""
    cta.counters.traffic[f"{space_name(source)} to {space_name(target)}"] += size


def _commit(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    cta.copies.bulk(warp).commit(active_lanes(lanes))
    return ()


def _wait(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    allowed = uniform_value(sources[0], lanes, "the number of groups")
    cta.copies.bulk(warp).wait(active_lanes(lanes), allowed, cta.queue, only_read=ins.has("read"))
    return ()


_STORE_BYTES = {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}
_STORE = frozenset(("weak", "shared::cluster", "mbarrier::complete_tx::bytes"))
_REDUCE = frozenset(("relaxed", "cluster", "shared::cluster", "mbarrier::complete_tx::bytes"))


def submit_store(
    cta: Cta,
    ins: Instruction,
    shared: SharedMemory,
    address: int,
    barrier: int,
    data: Bytes,
    *,
    reducing: bool = False,
) -> None:
    """Issue a store of `data` to shared memory, or a reduction with it, that completes its bytes at an
    mbarrier. Poisons what is to be stored."""
    size, to = data.size, shared.view(address, data.size)

    def land() -> None:
        shared.check(address, size)
        to[:] = reduce(ins, ins.types[0], to, data) if reducing else data
        shared.written(address, size)
        mbarrier.complete_tx(shared, barrier, size)

    operation = AsyncOperation(
        ins.op, land=with_place(ins, land), signals=(barrier,), writes=(Span("shared", address, size),)
    )
    cta.queue.submit(operation, None if reducing else partial(to.fill, POISON))


def _store(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """st.async and red.async: each lane stores registers to shared memory, or reduces one into it, and
    completes their bytes at an mbarrier there. The PTX ISA defines it for another CTA's memory only."""
    reducing = ins.op == "red.async"
    refuse_unknown(ins, _REDUCE | OPERATIONS if reducing else _STORE)
    _check_clustered(cta, ins)
    shared = cta.cluster_shared
    width = _STORE_BYTES[ins.types[0]]
    values = sources[1] if isinstance(sources[1], tuple) else (sources[1],)
    size = width * len(values)
    kept = (
        np.stack([scalar_operand(value) for value in values], axis=1)
        .view(np.uint8)
        .reshape(-1, len(values), 8)
    )
    for lane in active_lanes(lanes):
        address = shared_address(int(scalar_operand(sources[0])[lane]), ins)
        barrier = shared_address(int(scalar_operand(sources[2])[lane]), ins)
        if address % size:
            raise KernelFault(FaultKind.MISALIGNED, f"{ins.op} of {size} bytes to {address:#x}")
        check_same_cta(ins, address, barrier)
        if cta.cluster is not None and rank_of(address) == cta.rank:
            cta.note(f"{ins.op} to shared memory of its own CTA, which the PTX ISA leaves undefined", ins)
        data = kept[lane, :, :width].reshape(-1)
        submit_store(cta, ins, shared, address, barrier, data, reducing=reducing)
    return ()


def _prefetch(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A prefetch into L2 changes no value."""
    refuse_unknown(ins, frozenset(("L2", "global", "L2::cache_hint")))
    return ()


HANDLERS: dict[str, Handler] = {
    "cp.async.bulk": _copy,
    "cp.reduce.async.bulk": _copy,
    "cp.async.bulk.commit_group": _commit,
    "cp.async.bulk.wait_group": _wait,
    "cp.async.bulk.prefetch": _prefetch,
    "st.async": _store,
    "red.async": _store,
}
