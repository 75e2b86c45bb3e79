# SPDX-License-Identifier: Apache-2.0
"""Device operations that capture needs: a side stream for device-to-host copies, and CUDA graphs.

Capture never waits for the caller's stream or the device. On the caller's stream it queues copies into device
memory of its own, which take a fraction of the time of a device-to-host copy, and an event behind them. The
thread that writes the record does the rest: it allocates pinned memory, which takes the driver milliseconds,
queues the copy to the host and waits for it.
"""

from __future__ import annotations

import sys
from typing import Protocol

import torch
from torch import Tensor

_TREES = "torch._inductor.cudagraph_trees"
_FRAMES = 12  # stack frames between the tree and `capture_begin`: a context manager or two


class HostCopy(Protocol):
    """A device-to-host copy."""

    def begin(self) -> None:
        """Queue the copy, unless it is queued already."""

    def arrived(self) -> Tensor:
        """Queue the copy, wait on the host until it is complete, and return the host tensor."""


class GrowingCopy(Protocol):
    """A device-to-host copy of memory that is filled bit by bit, and is zero again once it has arrived."""

    def written(self, nbytes: int) -> None:
        """The first `nbytes` are as the stream has written them by now."""

    def arrived(self) -> Tensor:
        """Copy what is written, wait on the host until the copy is complete, and return the host tensor."""


class Graph(Protocol):
    """A `torch.cuda.CUDAGraph` or a stand-in. Capture stores its copies as attributes of the graph."""

    def capture_begin(self) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


class Streams(Protocol):
    def holds(self, tensor: Tensor) -> bool:
        """Whether queued work writes the tensor's elements (the tensor is on the device)."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""

    def to_host(self, memory: Tensor) -> HostCopy:
        """Start a device-to-host copy of `memory` (uint8 [n]) as the current stream has written it by now.

        The copy owns `memory` until it has arrived; nobody else may write to it.
        """

    def lane(self, device: torch.device) -> int:
        """A number of the current stream of `device`: its address, on CUDA."""

    def lane_here(self, device: int | None) -> int | None:
        """The same of the device of this index; None if another device is current in this thread."""

    def growing(self, memory: Tensor) -> GrowingCopy:
        """A copy of `memory` (uint8 [n], zero), which the current stream alone will write."""

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Queue a copy of a small host tensor on the current stream."""

    def graph_memory(self, graph: Graph) -> list[tuple[int, int]]:
        """Address ranges [start, stop) of the memory that holds a captured graph's intermediates."""


class CudaHostCopy:
    """A copy on stream `side`, behind event `written`. Not thread safe."""

    def __init__(self, memory: Tensor, written: torch.cuda.Event, side: torch.cuda.Stream) -> None:
        self._memory: Tensor | None = memory
        self._written = written
        self._side = side
        self._host: Tensor | None = None
        # A blocking event lets the waiting thread sleep; spinning would take a core from the program.
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        memory = self._memory
        if memory is None or self._host is not None:
            return
        with torch.cuda.stream(self._side):  # also makes its device current in this thread
            # Torch reuses freed pinned blocks once the copies into them are done.
            host = torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=True)
            self._side.wait_event(self._written)
            host.copy_(memory, non_blocking=True)
            self._done.record(self._side)
        self._host = host

    def arrived(self) -> Tensor:
        self.begin()
        assert self._host is not None
        self._done.synchronize()
        # Free the device memory only now: the allocator reuses it in the order of the caller's stream, which
        # is not ordered with the side stream.
        self._memory = None
        return self._host


_C = torch._C
"""What torch's own compiled code and triton ask for the current stream: a Stream takes ten times as long."""


class CudaGrowingCopy:
    """A copy on stream `side` of what the stream writes that is current when this is made. Calls of `written`
    and of `arrived` take turns."""

    def __init__(self, memory: Tensor, side: torch.cuda.Stream) -> None:
        self._memory = memory
        self._side = side
        self._stream = torch.cuda.current_stream(memory.device)
        self._nbytes = 0
        self._written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def written(self, nbytes: int) -> None:
        if nbytes > self._nbytes:
            self._nbytes = nbytes
        self._written.record(self._stream)

    def arrived(self) -> Tensor:
        memory = self._memory[: self._nbytes]
        self._nbytes = 0
        with torch.cuda.stream(self._side):
            host = torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=True)
            self._side.wait_event(self._written)
            host.copy_(memory, non_blocking=True)
            memory.zero_()
            self._done.record(self._side)
        self._done.synchronize()
        return host


class CudaStreams:
    """CUDA streams: one side stream for each device, created on first use."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, torch.cuda.Stream] = {}

    def holds(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def capturing(self) -> bool:
        started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return started and torch.cuda.is_current_stream_capturing()

    def to_host(self, memory: Tensor) -> CudaHostCopy:
        device = memory.device
        return CudaHostCopy(memory, torch.cuda.current_stream(device).record_event(), self._side(device))

    def lane(self, device: torch.device) -> int:
        found: int = _C._cuda_getCurrentRawStream(device.index)
        return found

    def lane_here(self, device: int | None) -> int | None:
        return _C._cuda_getCurrentRawStream(device) if device == _C._cuda_getDevice() else None

    def growing(self, memory: Tensor) -> CudaGrowingCopy:
        return CudaGrowingCopy(memory, self._side(memory.device))

    def _side(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._sides[device]

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        return numbers.pin_memory().to(device, non_blocking=True)  # a copy from pageable memory would wait

    def graph_memory(self, graph: Graph) -> list[tuple[int, int]]:
        pool = tuple(graph.pool())  # type: ignore[attr-defined]
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) == pool
        ]


CUDA = CudaStreams()


def called_by_graph_trees() -> bool:
    """Whether torch.compile's cudagraph trees are capturing.

    They reuse the memory of one graph for the next, by bookkeeping that does not know of tensors that capture
    keeps there.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_globals.get("__name__") == _TREES:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
