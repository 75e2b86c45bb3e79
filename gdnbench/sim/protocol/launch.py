# SPDX-License-Identifier: Apache-2.0
"""All orders of a launch: some of its CTAs run on the simulator, each is recorded and checked by itself."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.forked import in_a_copy
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.budget import is_clustered
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.grid import ctas_communicate
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.protocol.events import Protocol
from gdnbench.sim.protocol.orders import Checked, check
from gdnbench.sim.protocol.recorder import ProtocolRecorder
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.run import run_ptx

SAMPLED = 8
"""CTAs of a launch whose orders are checked, spread over the grid: the first, the last and some between."""


@dataclass(frozen=True, slots=True)
class CheckedLaunch:
    """The launch number `number` of a call. `ctas` are those that were checked, with what was found and the
    texts of the events of the order that is wrong; `refused` is why there are none."""

    number: int
    entry: str
    grid: int
    ctas: tuple[tuple[int, Checked, tuple[str, ...]], ...] = ()
    refused: str = ""


@dataclass(slots=True)
class LaunchOrders:
    """Checks all orders of the launches that it is called with, before each runs, for
    `Settings(before=...)`."""

    launches: list[CheckedLaunch] = field(default_factory=list)

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        number, grid = len(self.launches), math.prod(request.grid)
        try:
            if not hasattr(os, "fork"):
                raise UnsupportedError("all orders on a system without fork")
            killed = f"all orders of {request.entry}: the process that checks them was killed"
            ctas = in_a_copy(lambda: _checked(module, request, memory, sampled_ctas(grid)), killed)
        except UnsupportedError as error:
            self.launches.append(CheckedLaunch(number, request.entry, grid, refused=error.what))
        except KernelFault as fault:  # which the launch itself reports
            refused = f"all orders of {request.entry}, which faults: {fault.kind}"
            self.launches.append(CheckedLaunch(number, request.entry, grid, refused=refused))
        else:
            self.launches.append(CheckedLaunch(number, request.entry, grid, ctas))


def sampled_ctas(grid: int, count: int = SAMPLED) -> list[int]:
    """Up to `count` CTAs at equal distances, the first and the last among them."""
    count = min(grid, count)
    return [place * (grid - 1) // max(count - 1, 1) for place in range(count)]


def _checked(
    module: Module, request: LaunchRequest, memory: GlobalMemory, ctas: Sequence[int]
) -> tuple[tuple[int, Checked, tuple[str, ...]], ...]:
    found = []
    for cta, protocol in record(module, request, memory, ctas).items():
        checked = check(protocol)
        order = () if checked.broken is None else checked.broken.order
        found.append((cta, checked, tuple(protocol.events[event].text for event in order)))
    return tuple(found)


def record(
    module: Module, request: LaunchRequest, memory: GlobalMemory, ctas: Sequence[int]
) -> dict[int, Protocol]:
    """Run these CTAs of the launch and return their protocols by CTA. Global memory changes as they change
    it. Raises UnsupportedError for a launch that the check does not cover, and what `run_ptx` raises."""
    if is_clustered(module.kernels[request.entry], request.cluster, request.preferred_cluster):
        raise UnsupportedError("all orders of a launch with clusters")
    if ctas_communicate(module.kernels[request.entry]):
        raise UnsupportedError("all orders of a kernel whose CTAs may wait for one another")
    recorders: dict[int, ProtocolRecorder] = {}

    def begin(cta: Cta) -> ProtocolRecorder:
        recorders[cta.index] = ProtocolRecorder(cta)
        return recorders[cta.index]

    run_ptx(
        module,
        request.entry,
        request.grid,
        request.block,
        request.params,
        request.shared_bytes,
        memory=memory,
        threads=1,
        registers=request.registers,
        cluster=request.cluster,
        preferred_cluster=request.preferred_cluster,
        checker=begin,
        path=True,
        only=ctas,
    )
    return {index: recorder.protocol() for index, recorder in recorders.items()}
