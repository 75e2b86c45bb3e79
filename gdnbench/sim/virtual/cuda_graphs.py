# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what is captured is recorded and runs once for its shapes; a replay runs it again.

On hardware a capture runs nothing. So the memory that was there before is put back at the end of the capture,
and what the capture allocated is filled with NaN bytes until the first replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from weakref import WeakSet

import torch

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.machine.memory import POISON
from gdnbench.sim.virtual import torch_backend
from gdnbench.sim.virtual.device_memory import Bytes
from gdnbench.sim.virtual.gpu import VirtualGpu, current_gpu

_graphs: WeakSet[CUDAGraph] = WeakSet()  # those that were captured


def graph_segments() -> list[dict[str, Any]]:
    """What torch.cuda.memory_snapshot says of the memory of captured graphs: of each allocation its address,
    size in bytes and the graph's pool."""
    return [
        {"address": address, "total_size": size, "segment_pool_id": graph.pool()}
        for graph in list(_graphs)
        for address, size in graph.allocated
    ]


def capturing() -> bool:
    """Whether a graph is being captured."""
    return torch_backend.backend().recorder is not None


class CUDAGraph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._operations: list[Callable[[], object]] = []
        self._before: list[tuple[Bytes, Bytes]] = []
        self._captured = False
        self.allocated: list[tuple[int, int]] = []  # address and size of what the capture allocated

    def add(self, operation: Callable[[], object]) -> None:
        """Record an operation, which every replay runs."""
        self._operations.append(operation)

    def capture_begin(self, *_: Any, **__: Any) -> None:
        if capturing():
            raise RuntimeError("CUDA error: a graph is being captured already")
        gpu = _gpu()
        self._operations.clear()
        arrays = [cast(Bytes, region.keeper) for region in gpu.allocations()]
        self._before = [(array, array.copy()) for array in arrays]
        torch_backend.backend().recorder = gpu.recorder = self

    def capture_end(self) -> None:
        gpu = _gpu()
        torch_backend.backend().recorder = gpu.recorder = None
        known = gpu.variable_addresses()
        for array, before in self._before:
            array[:] = before
            known.add(int(array.ctypes.data))
        self.allocated.clear()
        for region in gpu.allocations():
            if region.address not in known:
                cast(Bytes, region.keeper)[:] = POISON
                self.allocated.append((region.address, region.size))
        self._before = []
        self._captured = True
        _graphs.add(self)

    def instantiate(self) -> None:
        """Nothing to do: a replay needs no preparation."""

    def replay(self) -> None:
        """Run what was captured again, into the same memory."""
        if not self._captured:
            raise RuntimeError("CUDA error: replay of a graph that was not captured")
        with torch.no_grad():
            for operation in self._operations:
                operation()

    def reset(self) -> None:
        self._operations.clear()
        self.allocated.clear()
        self._captured = False

    def pool(self) -> tuple[int, int]:
        return 0, id(self)

    def enable_debug_mode(self) -> None:
        """There is nothing to dump."""


class GraphCapture:
    """torch.cuda.graph."""

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **_: Any) -> None:
        self._graph = cuda_graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()


def _gpu() -> VirtualGpu:
    gpu = current_gpu()
    if gpu is None:
        raise LaunchError("no virtual GPU is active: a CUDA graph outlives its block")
    return gpu
