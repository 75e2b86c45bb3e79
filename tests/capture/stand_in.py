# SPDX-License-Identifier: Apache-2.0
"""A CPU in the place of a GPU: streams whose copies to the host come as late as they may, and graphs.

A `StandInGraph` logs the operators of a region and, on replay, runs them again into the same memory. As on a
GPU, what is between its kernels is gone afterwards: the results of its operators are filled with NaN.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gdnbench.capture import runtime
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.recorder import Counts
from gdnbench.capture.report import Report
from gdnbench.capture.sealing import seal_segment
from gdnbench.capture.session import Session

_FACTORIES = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


class LateWay:
    """Reads the memory at the last moment: when a host that is let through waits for it."""

    def __init__(self, streams: StandInStreams, memory: Tensor) -> None:
        self._streams = streams
        self._memory = memory

    def begin(self) -> None:
        self._streams.log.append(("begin", threading.current_thread().name))

    def arrived(self) -> Tensor:
        self._streams.log.append(("arrived", threading.current_thread().name))
        self._streams.gate.wait(60)
        return self._memory.clone()


class LateGrowing:
    """The same of memory that is filled bit by bit."""

    def __init__(self, streams: StandInStreams, memory: Tensor) -> None:
        self._streams = streams
        self._memory = memory
        self._nbytes = 0

    def written(self, nbytes: int) -> None:
        self._nbytes = max(self._nbytes, nbytes)

    def arrived(self) -> Tensor:
        for what in ("to_host", "begin", "arrived"):
            self._streams.log.append((what, threading.current_thread().name))
        self._streams.gate.wait(60)
        memory = self._memory[: self._nbytes]
        self._nbytes = 0
        found = memory.clone()
        memory.zero_()
        return found


class StandInStreams:
    """All tensors are on the device but those in `host`. Copies to the host read their source at the last
    moment, once `gate` is open. `log` has what was asked of the way to the host, and by which thread."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.log: list[tuple[str, str]] = []
        self.host: set[int] = set()
        self.stream = 0  # the current one

    def sent(self) -> int:
        """Stretches of memory that were sent to the host, those that no one has asked for yet among them."""
        return sum(what == "to_host" for what, _ in self.log)

    def holds(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() not in self.host

    def capturing(self) -> bool:
        return StandInGraph.current is not None

    def to_host(self, memory: Tensor) -> LateWay:
        assert not self.capturing(), "a copy to the host in a graph"
        self.log.append(("to_host", threading.current_thread().name))
        return LateWay(self, memory)

    def lane(self, device: torch.device) -> int:
        return self.stream

    def lane_here(self, device: int | None) -> int | None:
        return self.stream

    def growing(self, memory: Tensor) -> LateGrowing:
        return LateGrowing(self, memory)

    def to_device(self, numbers: Tensor, device: torch.device) -> Tensor:
        return numbers

    def graph_memory(self, graph: StandInGraph) -> list[tuple[int, int]]:
        return graph.memory()


class Operators(TorchDispatchMode):
    """Names of the operators that this thread runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def count(self, name: str) -> int:
        return self.names.count(name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [one for item in value for one in _tensors(item)] if isinstance(value, list | tuple) else []


class StandInGraph:
    current: StandInGraph | None = None

    def __init__(self) -> None:
        self._log = _Log()
        self.replays = 0

    def capture_begin(self) -> None:
        self._log = _Log()
        StandInGraph.current = self
        self._log.__enter__()

    def capture_end(self) -> None:
        self._log.__exit__(None, None, None)
        StandInGraph.current = None

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, result in self._log.steps:
            if func._schema.is_mutable:
                func(*args, **kwargs)
            elif self._made(func, args, result):
                for old, new in zip(_tensors(result), _tensors(func(*args, **kwargs)), strict=True):
                    old.copy_(new)
        for func, args, _, result in self._log.steps:
            if not func._schema.is_mutable and self._made(func, args, result):
                for one in _tensors(result):
                    one.fill_(torch.nan if one.is_floating_point() else 99)

    def memory(self) -> list[tuple[int, int]]:
        made = [
            r for f, a, _, result in self._log.steps if self._made(f, a, result) for r in _tensors(result)
        ]
        return [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in made if one.nbytes]

    @staticmethod
    def _made(func: Any, args: Any, result: Any) -> bool:
        """Whether the operator computes tensors of its own: no view, no memory to be filled later."""
        if func._schema.name in _FACTORIES:
            return False
        given = {one.untyped_storage().data_ptr() for one in _tensors(list(args))}
        return any(one.untyped_storage().data_ptr() not in given for one in _tensors(result))


@contextmanager
def graph_of(graph: StandInGraph) -> Iterator[None]:
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


@contextmanager
def capturing_stand_in(
    store: Path, streams: StandInStreams, options: CaptureOptions | None = None
) -> Iterator[Counts]:
    """`capturing`, with the stand-ins; the host sees no copy arrive before the block ends."""
    options = options or CaptureOptions()
    capture = runtime.Capture(store, options, report=Report(None), on_first_record=None)
    session = Session(store, options, report=Report(None), streams=streams, graph_class=StandInGraph)
    capture._session = session
    runtime.running.append(capture)
    try:
        yield session.counts
    finally:
        runtime.running.remove(capture)
        streams.gate.set()
        session.close()
    if session.segment is not None:
        seal_segment(store, session.segment)


@contextmanager
def patched() -> Iterator[None]:
    """Has the innermost capture wrap what is imported: `capturing_stand_in` has no import hook."""
    capture = runtime.innermost()
    assert capture is not None
    capture.patcher.patch_loaded()
    try:
        yield
    finally:
        capture.patcher.restore()
