"""All orders of a launch: some of its CTAs run on the simulator, each is recorded and checked by itself."""

from __future__ import annotations

from collections.abc import Sequence

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.budget import is_clustered
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.protocol.events import Protocol
from gdnbench.sim.protocol.recorder import ProtocolRecorder
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.run import run_ptx


def record(
    module: Module, request: LaunchRequest, memory: GlobalMemory, ctas: Sequence[int]
) -> list[Protocol]:
    """Run these CTAs of the launch and return their protocols. Global memory changes as they change it.
    Raises UnsupportedError for a launch that the check does not cover, and what `run_ptx` raises."""
    if is_clustered(module.kernels[request.entry], request.cluster, request.preferred_cluster):
        raise UnsupportedError("all orders of a launch with clusters")
    recorders: list[ProtocolRecorder] = []

    def begin(cta: Cta) -> ProtocolRecorder:
        recorders.append(ProtocolRecorder(cta))
        return recorders[-1]

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
    return [recorder.protocol() for recorder in recorders]
