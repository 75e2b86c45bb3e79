# SPDX-License-Identifier: Apache-2.0
"""All orders of a launch: some of its CTAs or clusters run on the simulator, each is recorded and checked by
itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.forked import in_a_copy
from gdnbench.sim.host.device import device_for
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.budget import check_cluster, is_clustered
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.grid import ctas_communicate
from gdnbench.sim.machine.launch_grants import uses_launch_control
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.protocol.assumptions import assumed
from gdnbench.sim.protocol.orders import Verdict, check
from gdnbench.sim.protocol.recorder import ProtocolRecorder
from gdnbench.sim.protocol.result import CheckedLaunch, CheckedPart, described
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.run import run_observed

SAMPLED = 8
"""CTAs or clusters of a launch whose orders are checked, spread over the grid."""
EVENTS = 30_000
"""The most events of a CTA or cluster that are checked: the sets of events take N * N / 8 bytes, 113 MB."""


@dataclass(slots=True)
class OrdersOfLaunches:
    """Checks all orders of the launches that it is called with, before each runs, for
    `Settings(before=...)`. `advance` gets the name of each launch that begins, `on_launch` each result."""

    launches: list[CheckedLaunch] = field(default_factory=list)
    advance: Callable[[str], None] | None = None
    on_launch: Callable[[CheckedLaunch], None] | None = None

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        number, grid = len(self.launches), math.prod(request.grid)
        if self.advance is not None:
            self.advance(f"launch {number}: all orders of {request.entry[:60]}")
        parts: tuple[CheckedPart, ...] = ()
        refused = ""
        try:
            if not hasattr(os, "fork"):
                raise UnsupportedError("all orders on a system without fork")
            killed = f"all orders of {request.entry}: the process that checks them was killed"
            sms = device_for(module.target).multiprocessors
            parts = in_a_copy(lambda: check_launch(module, request, memory, sms), killed)
        except UnsupportedError as error:
            refused = error.what
        except KernelFault as fault:  # which the launch itself reports
            refused = f"all orders of {request.entry}, which faults: {fault.kind}"
        self.launches.append(CheckedLaunch(number, request.entry, grid, parts, refused))
        if self.on_launch is not None:
            self.on_launch(self.launches[-1])


def sampled_parts(count: int, most: int = SAMPLED) -> list[int]:
    """Up to `most` of `count` parts at equal distances, the first and the last among them."""
    most = min(count, most)
    return [place * (count - 1) // max(most - 1, 1) for place in range(most)]


def check_launch(
    module: Module, request: LaunchRequest, memory: GlobalMemory, sms: int | None = None
) -> tuple[CheckedPart, ...]:
    """Run `SAMPLED` CTAs of the launch, or clusters, and check all orders of each. Global memory changes as
    they change it. Raises as `record`."""
    found = []
    for part, recorder in record(module, request, memory, sms).items():
        protocol = recorder.protocol()
        if len(protocol.events) > EVENTS:
            why = f"{len(protocol.events)} events are more than {EVENTS}: take a smaller problem"
            found.append(CheckedPart(part, Verdict.OPEN, len(protocol.events), why=why))
            continue
        try:
            found.append(described(part, protocol, check(protocol), assumed(recorder)))
        except ValueError as error:  # some act on a barrier was not recorded
            why = f"not all acts on its barriers were recorded: {error}"
            found.append(CheckedPart(part, Verdict.OPEN, len(protocol.events), why=why))
    return tuple(found)


def record(
    module: Module, request: LaunchRequest, memory: GlobalMemory, sms: int | None = None
) -> dict[int, ProtocolRecorder]:
    """Run `SAMPLED` CTAs of the launch, or clusters, and return what was recorded by its number. Where CTAs
    may wait for one another, or take the work of others, all run, on a GPU of `sms` multiprocessors. Raises
    UnsupportedError for a launch that the check does not cover, and what `run_observed` raises."""
    kernel, size = module.kernels[request.entry], 1
    if is_clustered(kernel, request.cluster, request.preferred_cluster):
        if request.preferred_cluster not in (None, request.cluster):
            raise UnsupportedError("all orders of a launch with clusters of two shapes")
        size = math.prod(check_cluster(kernel, request.cluster, None))
    recorders: dict[int, ProtocolRecorder] = {}
    clusters: dict[int, ProtocolRecorder] = {}

    def begin(cta: Cta) -> ProtocolRecorder:
        if cta.cluster is None:
            recorder = ProtocolRecorder(cta)
            recorders[cta.index] = recorder
        elif cta.rank:
            recorder = clusters[id(cta.cluster)].member(cta)
        else:
            recorder = clusters[id(cta.cluster)] = ProtocolRecorder(cta)
            recorders[cta.cluster.place.ctas[0]] = recorder
        return recorder

    if not ctas_communicate(kernel) and not uses_launch_control(kernel):
        run_observed(module, request, memory, begin, sampled_parts(math.prod(request.grid) // size), sms)
        return recorders
    run_observed(module, request, memory, begin, None, sms)
    started = sorted(recorders)
    return {started[part]: recorders[started[part]] for part in sampled_parts(len(started))}
