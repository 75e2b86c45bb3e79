"""What capture asks of a device whose work is queued: a second stream for the way to the host, and graphs.

The caller's stream is never waited for, nor the device. Capture puts two kinds of work on it: copies into
memory of ours on the same device, which cost a fraction of what the way to the host would, and, where a graph
is about to overwrite what is still being read, a wait that the device does.
"""

from __future__ import annotations

import sys
from typing import Protocol

import torch
from torch import Tensor

_TREES = "torch._inductor.cudagraph_trees"
_FRAMES = 12  # between it and `capture_begin`: a context manager or two


class Event(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Wait on the host until the stream has passed it."""


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

    def to_host(self, memory: Tensor) -> tuple[Tensor, Event]:
        """Queue a copy of `memory` (uint8 [n]), which the current stream has written, on the side stream.

        The host's tensor is filled once the event is passed. The current stream may free `memory` at once,
        and must not overwrite it before the event.
        """

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        """Queue a copy of a small tensor of the host on the current stream."""

    def wait(self, event: Event) -> None:
        """Have the current stream, not the host, wait for an event of the side stream."""

    def graph_memory(self, graph: Graph) -> list[tuple[int, int]]:
        """Addresses [start, stop) of the memory in which a captured graph has its intermediates."""


class CudaStreams:
    """Streams of CUDA: one side stream for each device, made at the first use."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, torch.cuda.Stream] = {}

    def holds(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def capturing(self) -> bool:
        started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return started and torch.cuda.is_current_stream_capturing()

    def to_host(self, memory: Tensor) -> tuple[Tensor, Event]:
        device = memory.device
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side = self._sides[device]
        side.wait_event(torch.cuda.current_stream(device).record_event())
        # Torch keeps freed pinned blocks and hands them out once the copies into them are done.
        host = torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=True)
        # Whoever waits for it sleeps; otherwise a thread of ours would take a core from the program.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            host.copy_(memory, non_blocking=True)
            done.record(side)
        # The allocator hands the memory out again in the order of the caller's stream, which does not know
        # of this reader.
        memory.record_stream(side)
        return host, done

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        return numbers.pin_memory().to(device, non_blocking=True)  # from other memory the copy would wait

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(event)

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
