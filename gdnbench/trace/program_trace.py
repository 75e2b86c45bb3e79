# SPDX-License-Identifier: Apache-2.0
"""Traces the launches of a program on a virtual GPU into one trace, which all its processes share.

A process of the program imports this module and calls `attach_to`, see `gdnbench.sim.virtual.Request`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdnbench.sim import Dim3, Observed
from gdnbench.sim.value_trace import End, Selection
from gdnbench.store.layout import METADATA
from gdnbench.trace.layout import LAUNCHES, launch_name
from gdnbench.trace.request import TraceRequest
from gdnbench.trace.writer import LaunchWriter, TraceWriter

if TYPE_CHECKING:
    from gdnbench.sim import Launch
    from gdnbench.sim.host import Region
    from gdnbench.sim.virtual import VirtualGpu

MODULE = __name__
"""The key of `Request.attach`; its value is `TraceRequest.as_json()`."""


def attach_to(gpu: VirtualGpu, request: Mapping[str, Any]) -> None:
    """Trace the launches of `gpu` that its choice includes, each with its number and the program's line."""
    gpu.settings = replace(gpu.settings, watch=_ProgramWatch(gpu, TraceRequest.from_json(request)))


@dataclass(slots=True)
class _ProgramWatch:
    """Implements `Watch`."""

    gpu: VirtualGpu
    request: TraceRequest
    _writer: TraceWriter | None = None

    def next_launch(self, labels: Mapping[str, Any]) -> LaunchWriter:
        """The writer of the next launch of the trace, which no other process writes to now."""
        path, writer = Path(self.request.path), self._writer
        if writer is None or (path / LAUNCHES / launch_name(writer.launches)).exists():
            writer = self._writer = TraceWriter(path, self.request.limit)
        return writer.launch(Selection.parse(self.request.of), labels)

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None:
        place = self.gpu.running
        labels = {} if place is None else {"launch": place.number, "origin": place.origin}
        return Observed(_SharedRecorder(self, Selection.parse(self.request.of), labels))

    def on_launch_end(self, regions: Sequence[Region]) -> None: ...


@dataclass(slots=True)
class _SharedRecorder:
    """Writes the trace of one launch. Implements `Recorder`. Other processes wait to begin a launch
    meanwhile: launches of a trace are numbered, and its size is limited."""

    watch: _ProgramWatch
    selection: Selection
    labels: Mapping[str, Any]
    _writer: LaunchWriter | None = None
    _lock: IO[bytes] | None = field(default=None, repr=False)

    def begin_launch(self, launch: Launch, engine: str) -> None:
        """Wait for the trace, and create the launch's group."""
        with _released_on_error(self):
            self._lock = open(f"{self.watch.request.path}/{METADATA}", "r+b")  # noqa: SIM115  # to the end
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
            self._writer = self.watch.next_launch(self.labels)
            self._writer.begin_launch(launch, engine)

    def add_event(
        self, cta: int, warp: int, pc: int, occurrence: int, lanes: int, values: npt.NDArray[np.uint64]
    ) -> None:
        """See `LaunchWriter`."""
        assert self._writer is not None
        self._writer.add_event(cta, warp, pc, occurrence, lanes, values)

    def end_launch(self, how: End) -> None:
        """Write everything recorded, and let other processes have the trace."""
        try:
            if self._writer is not None:
                self._writer.end_launch(how)
        finally:
            self.release()

    def release(self) -> None:
        """Give the trace up."""
        self._writer = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextmanager
def _released_on_error(recorder: _SharedRecorder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        recorder.release()
        raise
