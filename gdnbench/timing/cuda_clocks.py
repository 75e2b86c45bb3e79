# SPDX-License-Identifier: Apache-2.0
"""Times launches on a GPU with CUDA events, in one CUDA graph or one after another from the host."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.timing import cupti
from gdnbench.timing.clocks import LONG, Clock, PerfCounter, no_collection
from gdnbench.timing.types import RESOLUTION, Form
from gdnbench_kernels.contract import Launch

cuda: Any = torch.cuda

CLOCKS = ("auto", "events", "cupti")
"""Of a GPU; `auto` is CUPTI where it is installed, and events otherwise."""
HOST = "perf_counter"
"""What `auto` is on a CPU, which has no other clock."""

FASTEST_CLOCK = 2.5e9
"""Hz that no multiprocessor exceeds: so many cycles last a second or longer."""
GRAPH_SECONDS, PLAIN_SECONDS = 0.25, 0.05
"""Of a cold round by the host's clock, which waits for every launch. As a rule every set is launched, and
kernels leave as much written in the cache that no round pays for, whatever their speed: 50 MB or so, 12 us at
4 TB/s. A kernel that takes the host a ms in a graph, or 0.2 ms without, has fewer sets. The device takes
perhaps a tenth of that time in a graph, and half of it or more without: 25 ms of either form, and 12 us of
them are 0.05 %. A second would leave a comparison of three kernels no whole run in 10 s."""
LEAST_HOLD = 50e-6
"""Seconds: the host's cost of recording an event and of launching a small graph, several times over."""


def check_clock(clock: str) -> None:
    """BadInputError for a clock that there is not."""
    if clock not in CLOCKS:
        raise BadInputError(f"clock {clock!r} is not known; there are {', '.join(CLOCKS)}")


def resolved(device: torch.device, clock: str) -> str:
    """The clock that `clock` means here: `events`, `cupti`, or HOST. Times of two of them are never compared:
    events count what lies between launches, and CUPTI does not. BadInputError for a clock that there is not,
    and for a GPU's on a CPU."""
    check_clock(clock)
    if device.type != "cuda":
        if clock != "auto":
            raise BadInputError(f"clock {clock} is a GPU's; a CPU has {HOST} alone: leave it out")
        return HOST
    if clock == "auto":
        return "cupti" if cupti.installed() else "events"
    return clock


def clock_of(device: torch.device, form: Form, clock: str = "auto") -> Clock:
    """What times launches of that form. Raises as `resolved`; CannotRunError where CUPTI is asked for and not
    there."""
    found = resolved(device, clock)
    if found == HOST:
        return PerfCounter()
    events: Clock = GraphClock(device) if form is Form.GRAPH else PlainClock(device)
    return cupti.CuptiClock(events) if found == "cupti" else events


class GraphClock:
    """A round is one CUDA graph, between two events.

    The device is held back by a kernel that only waits until the host has submitted the graph: otherwise the
    first event would come before the host's work for a graph of a thousand nodes, which would be timed.
    """

    method = "CUDA graph, events"
    least = LONG * RESOLUTION["events"]
    goal = GRAPH_SECONDS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self, launches: Sequence[Launch]) -> GraphRound:
        """CannotRunError where a launch does what no graph can hold."""
        stream = cuda.Stream(self._device)
        stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(stream):
            launches[0]()  # what libraries allocate for a stream is there before it is captured
        stream.synchronize()
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph, stream=stream):
                for launch in launches:
                    launch()
        except RuntimeError as error:
            raise CannotRunError(
                "a launch cannot be captured into a CUDA graph, perhaps because it waits for the device"
                f" ({_first_line(error)}); time it with plain launches"
            ) from error
        cuda.synchronize(self._device)
        graph.replay()  # the first one uploads the graph
        cuda.synchronize(self._device)
        begin = time.perf_counter()
        graph.replay()
        submitting = time.perf_counter() - begin
        cuda.synchronize(self._device)
        return GraphRound(graph, 2 * submitting + LEAST_HOLD, tuple(launches))

    def once(self, launch: Launch) -> float:
        return _once(launch, self._device)


class GraphRound:
    """A captured round; its events are made before anything is timed. It keeps its launches: a graph has the
    addresses of what they hold, tables of slots for one, and not the memory."""

    def __init__(self, graph: Any, hold: float, launches: tuple[Launch, ...]) -> None:
        self._graph = graph
        self._launches = launches
        self._cycles = math.ceil(hold * FASTEST_CLOCK)
        self._begin = cuda.Event(enable_timing=True)
        self._end = cuda.Event(enable_timing=True)

    def seconds(self) -> float:
        with no_collection():
            cuda._sleep(self._cycles)
            self._begin.record()
            self._graph.replay()
            self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


class PlainClock:
    """Launches from the host, between two events. The device has nothing else to do when the first comes, so
    a host that is slower than the device is timed too."""

    method = "plain launches, events"
    least = LONG * RESOLUTION["events"]
    goal = PLAIN_SECONDS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self, launches: Sequence[Launch]) -> PlainRound:
        return PlainRound(tuple(launches), self._device)

    def once(self, launch: Launch) -> float:
        return _once(launch, self._device)


class PlainRound:
    def __init__(self, launches: tuple[Launch, ...], device: torch.device) -> None:
        self._launches = launches
        self._device = device
        self._begin = cuda.Event(enable_timing=True)
        self._end = cuda.Event(enable_timing=True)

    def seconds(self) -> float:
        cuda.synchronize(self._device)
        with no_collection():
            self._begin.record()
            for launch in self._launches:
                launch()
            self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def _once(launch: Launch, device: torch.device) -> float:
    cuda.synchronize(device)
    begin = time.perf_counter()
    launch()
    cuda.synchronize(device)
    return time.perf_counter() - begin


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
