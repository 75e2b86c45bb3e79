# SPDX-License-Identifier: Apache-2.0
"""clusterlaunchcontrol: requests that cancel pending clusters, and their responses.

PTX ISA 9.0, "clusterlaunchcontrol.try_cancel" and "clusterlaunchcontrol.query_cancel"; CUDA Programming Guide
13, 4.12. try_cancel is an asynchronous operation of each thread that executes it: ptxas (CUDA 13.0) loops
over the active lanes, also where their operands are equal. It writes 16 bytes to the shared memory of its own
CTA, or with .multicast::cluster::all of every CTA of the cluster, and completes 16 bytes at the mbarrier of
that CTA. `launch_grants` decides what it cancels.

The response is opaque. Its bits are those that ptxas reads for query_cancel, and a mark:

    [0, 32), [32, 48), [48, 64)   x, y and z of the first CTA of the cancelled cluster
    64                            the request succeeded
    [96, 128)                     `_MARK`, so that other bytes, poison among them, are no response

The first CTA of a request that failed is undefined, so all bits of it are ones. CuTe DSL asks for it and does
not use it: this is a note, not a fault. A request by a CTA that has seen one fail is undefined too, and a
fault.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.bulk import check_same_cta, submit_store
from gdnbench.sim.machine.cta import Cta, Handler, coordinates
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Values, Wait, Warp
from gdnbench.sim.machine.launch_grants import TRY_CANCEL, ClusterGrants
from gdnbench.sim.machine.operands import active_lanes, scalar_operand, shared_address, vector_operand
from gdnbench.sim.machine.shared_memory import in_cta
from gdnbench.sim.ptx.ir import Instruction

RESPONSE_BYTES = 16
_MARK = 0x434C_4352
_NO_COORDINATE = 0xFFFF_FFFF
_AXES = ("get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")


def _fault(message: str) -> KernelFault:
    return KernelFault(FaultKind.LAUNCH_CONTROL, message)


def encode_response(first_cta: tuple[int, int, int] | None) -> bytes:
    """The response to a request that cancelled the cluster whose first CTA has these coordinates; None: it
    failed."""
    x, y, z = (_NO_COORDINATE, 0xFFFF, 0xFFFF) if first_cta is None else first_cta
    return np.array([x | y << 32 | z << 48, (first_cta is not None) | _MARK << 32], np.uint64).tobytes()


def _grants(cta: Cta) -> ClusterGrants:
    assert cta.grants is not None
    return cta.grants


def _try_cancel(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A request of each lane, answered in the order of the lanes."""
    grants, members = _grants(cta), active_lanes(lanes)
    addresses, barriers = scalar_operand(sources[0]), scalar_operand(sources[1])
    if cta.rank in grants.failure_seen:
        raise _fault(f"{TRY_CANCEL} after a query_cancel of this CTA has answered that a request failed")
    if len(members) > 1:
        cta.note(f"{len(members)} lanes execute {TRY_CANCEL}: each cancels a cluster of its own", ins)
    for lane in members:
        address = shared_address(int(addresses[lane]), ins)
        barrier = shared_address(int(barriers[lane]), ins)
        if address % RESPONSE_BYTES:
            raise KernelFault(
                FaultKind.MISALIGNED, f"{TRY_CANCEL} to {address:#x}, no multiple of {RESPONSE_BYTES}"
            )
        cta.shared.check(address, RESPONSE_BYTES)
        check_same_cta(ins, address, barrier)
        cancelled = grants.cancel()
        response = encode_response(None if cancelled is None else _first_cta(cta, cancelled))
        everywhere = ins.has("multicast::cluster::all") and cta.cluster is not None
        shared = cta.cluster_shared if everywhere else cta.shared
        for member in cta.members if everywhere else (cta,):
            at, there = in_cta(address, member.rank), in_cta(barrier, member.rank)
            submit_store(cta, ins, shared, at, there, np.frombuffer(response, np.uint8))
    return ()


def _first_cta(cta: Cta, cluster: int) -> tuple[int, int, int]:
    clusters = cta.launch.clusters
    return coordinates(cluster if clusters is None else clusters.clusters(cluster)[0].ctas[0], cta.grid)


def _query_cancel(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    words = vector_operand(sources[0])
    if len(words) != 2:
        raise UnsupportedError(ins.name)
    low, high = words
    if (high[lanes] >> np.uint64(32) != _MARK).any():
        raise _fault(
            f"{ins.name} of bytes that are no response of {TRY_CANCEL}: none was written there, or it is on"
            " its way"
        )
    succeeded: Values = high & np.uint64(1)
    failed = lanes & (succeeded == 0)
    if ins.has("is_canceled"):
        if failed.any():
            _grants(cta).failure_seen.add(cta.rank)
        return (succeeded,)
    if failed.any():
        cta.note(f"{ins.name} of a request that failed: its CTA is undefined, here {_NO_COORDINATE:#x}", ins)
    half = np.uint64(0xFFFF)
    parts = low & np.uint64(_NO_COORDINATE), low >> np.uint64(32) & half, low >> np.uint64(48)
    found = [np.where(succeeded != 0, part, np.uint64(_NO_COORDINATE)) for part in parts]
    for axis, name in enumerate(_AXES):
        if ins.has(name):
            return (found[axis],)
    return (*found, np.full_like(low, _NO_COORDINATE))


HANDLERS: dict[str, Handler] = {
    TRY_CANCEL: _try_cancel,
    "clusterlaunchcontrol.query_cancel": _query_cancel,
}
