# SPDX-License-Identifier: Apache-2.0
"""The digests of a graph's next replay, prepared while the device is busy with the latest.

The device is often idle until a replay is queued, and the digests of the pools before it are queued first. A
prepared batch leaves little Python to run at that moment, in few functions: while the program waited for the
device, other programs used the processor's caches, and code that has left them takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gdnbench.capture.digest_buffer import Slice
from gdnbench.capture.graph_digests import DigestBatch
from gdnbench.capture.recorder import Counts, Recorder
from gdnbench.capture.selection import Selection
from gdnbench.capture.streams import Streams


class Host(Protocol):
    """What a prepared batch needs of the session."""

    counts: Counts

    @property
    def selection(self) -> Selection: ...

    @property
    def recorder(self) -> Recorder | None: ...


@dataclass(eq=False, slots=True)
class ReadyBatch:
    """The batch of the next replay."""

    batch: DigestBatch
    spare: list[Slice]  # the batch's slice; whoever pops it has it
    lane: int  # the stream that it is for
    device: int | None
    queue: Callable[[], Any]
    recorder: Recorder

    def open(self, host: Host, lane_here: Callable[[int | None], int | None]) -> DigestBatch | None:
        """As `gdnbench.capture.graph_digests.open_batch`. None if capture does not keep the replay, or it is
        not the one that was expected: it is on another stream, or the chunk has been passed on."""
        try:
            if not host.selection.keeps_all or host.recorder is not self.recorder:
                return None
            if lane_here(self.device) != self.lane:
                return None
            try:
                self.spare.pop()
            except IndexError:
                return None
            try:
                self.queue()
            except BaseException:
                self.recorder.give_up_batch(self.batch)
                raise
        except Exception as error:
            host.counts.fail(error)
            return None
        return self.batch


def ready_batch(latest: DigestBatch, recorder: Recorder, streams: Streams) -> ReadyBatch | None:
    """The batch for the replay after `latest`, which had no claims that are tensors and is finished. None if
    its chunk has no room."""
    plan, chunk = latest.plan, latest.taken.chunk
    spare = recorder.digest_buffer(streams).spare(latest.taken)
    if not spare:
        return None
    taken = spare[0]
    return ReadyBatch(
        DigestBatch(plan, taken, (), {}),
        spare,
        chunk.lane,
        plan.device.index,
        plan.before.bound(chunk.memory, taken.start, chunk.lane),
        recorder,
    )
