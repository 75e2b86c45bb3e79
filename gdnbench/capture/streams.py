"""What capture asks of a device whose work is queued: a second stream for the way to the host, and graphs.

The caller's stream is never waited for, nor the device. Capture puts on it copies into memory of ours on the
same device, which cost a fraction of what the way to the host would, and an event behind them. All else that
the way takes (pinned memory, which the driver takes milliseconds to make, the copy, the wait) is asked for by
the thread that writes the record.
"""

from __future__ import annotations

import sys
from typing import Protocol

import torch
from torch import Tensor

_TREES = "torch._inductor.cudagraph_trees"
_FRAMES = 12  # between it and `capture_begin`: a context manager or two


class Way(Protocol):
    """Memory on its way to the host."""

    def begin(self) -> None:
        """Queue the copy, if nobody has."""

    def arrived(self) -> Tensor:
        """Begin, and wait on the host until the copy has been made."""


class Graph(Protocol):
    """A `torch.cuda.CUDAGraph`, or what stands in for one. Its attributes are where our copies live."""

    def capture_begin(self) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...


class Streams(Protocol):
    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor's elements are written by queued work."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""

    def to_host(self, memory: Tensor) -> Way:
        """The way of `memory` (uint8 [n]) as the current stream has written it by now.

        It is the way's alone from here on: nobody overwrites it before it has arrived.
        """

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Queue a copy of a small tensor of the host on the current stream."""

    def graph_memory(self, graph: Graph) -> list[tuple[int, int]]:
        """Addresses [start, stop) of the memory in which a captured graph has its intermediates."""


class CudaWay:
    """A copy on `side` behind `written`. One thread at a time."""

    def __init__(self, memory: Tensor, written: torch.cuda.Event, side: torch.cuda.Stream) -> None:
        self._memory: Tensor | None = memory
        self._written = written
        self._side = side
        self._host: Tensor | None = None
        # Whoever waits for it sleeps; otherwise a thread of ours would take a core from the program.
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        memory = self._memory
        if memory is None or self._host is not None:
            return
        with torch.cuda.stream(self._side):  # and its device, which this thread may not have been on
            # Torch keeps freed pinned blocks and hands them out once the copies into them are done.
            host = torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=True)
            self._side.wait_event(self._written)
            host.copy_(memory, non_blocking=True)
            self._done.record(self._side)
        self._host = host

    def arrived(self) -> Tensor:
        self.begin()
        assert self._host is not None
        self._done.synchronize()
        # Not before: the allocator hands it out again in the order of the caller's stream, which does not
        # know of the other.
        self._memory = None
        return self._host


class CudaStreams:
    """Streams of CUDA: one side stream for each device, made at the first use."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, torch.cuda.Stream] = {}

    def holds(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def capturing(self) -> bool:
        started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return started and torch.cuda.is_current_stream_capturing()

    def to_host(self, memory: Tensor) -> CudaWay:
        device = memory.device
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return CudaWay(memory, torch.cuda.current_stream(device).record_event(), self._sides[device])

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        return numbers.pin_memory().to(device, non_blocking=True)  # from other memory the copy would wait

    def graph_memory(self, graph: Graph) -> list[tuple[int, int]]:
        pool = tuple(graph.pool())  # type: ignore[attr-defined]
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) == pool
        ]


CUDA = CudaStreams()


def called_by_graph_trees() -> bool:
    """Whether torch.compile's trees of graphs are capturing. They give the memory of one graph to the next as
    their own bookkeeping says, which does not know of tensors that we keep there."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_globals.get("__name__") == _TREES:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
