# SPDX-License-Identifier: Apache-2.0
"""Raises the KernelFault of an illegal access in compiled code, the same fault as the interpreter's.

Compiled code only detects that an access is illegal. This module repeats the access on the machine's
memories, with the same addresses, and they raise the fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.exits import FaultCode
from gdnbench.sim.compiler.layout import HEADER, SKIP_COUNT, SKIP_LANES
from gdnbench.sim.compiler.memory import space_of
from gdnbench.sim.compiler.runtime_calls import mask_lanes
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.machine.memory import ParameterMemory, resolve_lanes
from gdnbench.sim.ptx import wmma
from gdnbench.sim.ptx.flow import targets_of
from gdnbench.sim.ptx.forms import Access
from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.ptx.literals import width_of

_SPACES = {
    FaultCode.SHARED: "shared",
    FaultCode.CLUSTER: "cluster",
    FaultCode.LOCAL: "local",
    FaultCode.PARAM: "param",
}


def fault(warp: CompiledWarp) -> KernelFault:
    """The fault at which the last turn stopped."""
    code = FaultCode(warp.cells[HEADER["fault_code"] // 4])
    ins = warp.kernel.instructions[warp.cells[HEADER["fault_pc"] // 4]]
    lanes = mask_lanes(warp.cells[HEADER["fault_lanes"] // 4])
    at = HEADER["fault_address"]
    addresses = warp.state[at : at + 8 * LANES].view(np.uint64)
    try:
        if code is FaultCode.TRAP:
            raise KernelFault(FaultKind.TRAP, f"the kernel executed {ins.op}")
        if code is FaultCode.COLLECTIVE:
            lane = int(lanes.argmax())
            raise KernelFault(
                FaultKind.DIVERGENCE,
                f"lane {lane} is not in the member mask {int(addresses[lane]):#010x} that it names",
            )
        if code is FaultCode.BRANCH:
            raise branch_fault(ins, addresses, lanes)
        if code is FaultCode.MATRIX:
            space = resolve_lanes(addresses, lanes)[0][0]
            raise KernelFault(
                FaultKind.OUT_OF_BOUNDS, f"a matrix row in {space} memory, not in shared memory"
            )
        _repeat(warp, code, ins, addresses, lanes)
    except KernelFault as error:
        if error.place is None:
            together = mask_lanes(warp.cells[HEADER["active"] // 4])
            error.place, error.thread = ins.place, warp.cta.thread(warp.warp, together)
        return error
    raise AssertionError(f"compiled code stopped at {ins.place}, where the machine sees no fault")


def report_skipped(warp: CompiledWarp, skips: Sequence[tuple[int, int, int]]) -> None:
    """Report the faults after which compiled code went on since the last call."""
    warp.cells[HEADER["skipped"] // 4] = 0
    for record, pc, code in skips:
        count = warp.longs[(record + SKIP_COUNT) // 8]
        if not count:
            continue
        warp.longs[(record + SKIP_COUNT) // 8] = 0
        ins, lanes = warp.kernel.instructions[pc], mask_lanes(warp.cells[(record + SKIP_LANES) // 4])
        addresses = warp.state[record : record + 8 * LANES].view(np.uint64)
        try:
            _repeat(warp, FaultCode(code), ins, addresses, lanes)
        except KernelFault as fault:
            fault.place, fault.thread = ins.place, warp.cta.thread(warp.warp, lanes)
            warp.cta.skip(fault, count)


def branch_fault(ins: Instruction, indices: Values, lanes: Lanes) -> KernelFault:
    """The PTX ISA leaves a branch beyond its table undefined ("brx.idx")."""
    lane, targets = int(lanes.argmax()), len(targets_of(ins))
    return KernelFault(
        FaultKind.BRANCH, f"{ins.name}: index {int(indices[lane])} of lane {lane}; the table has {targets}"
    )


def access_width(ins: Instruction) -> int:
    """Bytes that a lane of a memory instruction accesses at its address: all elements of a vector, except
    that an atomic updates one after another."""
    if ins.form.by_rows:
        return 16
    if ins.form.fragment:
        return wmma.unit_bytes(ins)
    if ins.form.atomic:
        return width_of(ins.types[-1]) // 8
    return width_of(ins.types[-1]) // 8 * ins.vec


def _repeat(warp: CompiledWarp, code: FaultCode, ins: Instruction, addresses: Values, lanes: Lanes) -> None:
    width = access_width(ins)
    space = _SPACES.get(code, space_of(ins))
    # A generic address says itself where it lies; one of .global means global memory wherever it lies.
    generic = space == "generic"
    parts = resolve_lanes(addresses, lanes) if generic else [(space, lanes, addresses)]
    for space, here, where in parts:
        if space == "cluster" or (generic and space == "shared"):
            warp.cta.cluster_shared.load(where, here, width)
        elif space == "shared":
            warp.cta.shared.load(where, here, width)
        elif space == "local":
            warp.cta.local[warp.warp.index].load(where, here, width)
        elif space == "param":
            _repeat_param(warp, ins, where, here, width)
        else:
            warp.cta.memory.load(where, here, width)


def _repeat_param(warp: CompiledWarp, ins: Instruction, addresses: Values, lanes: Lanes, width: int) -> None:
    memory = ParameterMemory(warp.cta.param)
    data = np.zeros((LANES, width), np.uint8)
    if ins.form.access is not Access.WRITE:
        data = memory.load(addresses, lanes, width)
    if ins.form.access is not Access.READ:
        memory.store(addresses, lanes, data)
