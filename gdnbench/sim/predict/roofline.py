# SPDX-License-Identifier: Apache-2.0
"""The least time of a launch: its bytes at the memory's rate, or its products at the tensor core's."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.predict.products import K_BYTES
from gdnbench.sim.predict.trace import CtaTrace, Entered, Executed, Kind
from gdnbench.sim.ptx.ir import Instruction, Kernel
from gdnbench.sim.ptx.literals import width_of

BITS = 16
"""`Machine.tensor_rate` counts products of elements of 16 bits; elements of half the size take half the
time."""
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_WARP_PRODUCTS = ("mma", "wmma.mma")


class Floor(NamedTuple):
    """A launch takes at least `seconds`, because of `unit`. `macs`: its multiply-adds, each counted as the
    16-bit ones that take the same time."""

    seconds: float
    unit: str
    macs: float


def floor_of(
    machine: Machine, kernel: Kernel, traces: Sequence[CtaTrace], ctas: int, memory_bytes: float
) -> Floor:
    """The floor of a launch of `ctas` CTAs like the traced ones, which moves `memory_bytes` from and to
    HBM."""
    macs = sum(_macs(kernel, trace) for trace in traces) / len(traces) * ctas
    rate = machine.tensor_rate.value * machine.multiprocessors.value * machine.clock.value * 1e9
    times = {"HBM": memory_bytes / (machine.memory_rate.value * 1e9), "tensor core": macs / rate}
    unit = max(times, key=times.__getitem__)
    return Floor(times[unit], unit, macs)


def _macs(kernel: Kernel, trace: CtaTrace) -> float:
    found = 0.0
    for operation in trace.operations:
        if operation.kind is Kind.PRODUCT and operation.shape is not None:
            found += operation.shape.m * operation.shape.n * K_BYTES * 8 / BITS
    executed: Counter[int] = Counter()
    for steps in trace.warps:
        # Each mma.sync begins a block or is a step by itself.
        executed.update(step.pc for step in steps if isinstance(step, Entered | Executed))
    for pc, count in executed.items():
        ins = kernel.instructions[pc]
        if ins.op in _WARP_PRODUCTS:
            found += count * _warp_macs(ins)
    return found


def _warp_macs(ins: Instruction) -> float:
    """Multiply-adds of a warp-level product, as those of 16 bits. A wmma.mma that names only the types of C
    and D has a 16-bit A."""
    shape = next(match for mod in ins.mods if (match := _SHAPE.fullmatch(mod)))
    bits = width_of(ins.types[1]) if len(ins.types) == 4 else BITS
    return math.prod(map(int, shape.groups())) * bits / BITS
