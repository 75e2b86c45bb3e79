# SPDX-License-Identifier: Apache-2.0
"""The critical path of a replayed SM: what the cycles from its start to its end were spent on.

Each point in time that something may wait for is a node: its cycle, and its *cause*, the node that it
followed last. The issue of a product follows the wait before it; the wait follows the landing of a copy;
the landing follows the copy before it in the copy engine, or the copy's issue. Walked back from the end of
the SM, causes lead to cycle 0, and the times between them add up to all of its cycles. Nodes are columns of
numbers, since a replay has some 100,000.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from gdnbench.sim.predict.regions import Pipe, Region
from gdnbench.sim.predict.server import Server

ROOT = -1
"""The cause of what begins at cycle 0."""
TICKS = 1 << 20
"""Ticks of a cycle. Sums of whole ticks have no rounding errors, in whatever order they are added."""
_SPAN = 32  # bits of the second of two numbers that are packed into one


class Activity(IntEnum):
    """What cycles of the path were spent on: the service of a unit, or a latency."""

    ISSUE = 0
    FMA = 1
    ALU = 2
    SPECIAL = 3
    TENSOR = 4
    SHARED = 5
    COPIER = 6
    L2 = 7
    HBM = 8
    CTA_INTERVAL = 9
    CTA_START = 10
    SCOREBOARD = 11
    SPECIAL_LATENCY = 12
    PRODUCT_LATENCY = 13
    OPERANDS = 14
    SHARED_LATENCY = 15
    L1_LATENCY = 16
    L2_LATENCY = 17
    MEMORY_LATENCY = 18
    COPY_LATENCY = 19
    TENSOR_MEMORY = 20
    BARRIER = 21

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def is_unit(self) -> bool:
        """Whether it is the service of a unit that serves one request after the other."""
        return self <= Activity.CTA_INTERVAL


_TEXTS = {
    Activity.ISSUE: "issue",
    Activity.FMA: Pipe.FMA.value,
    Activity.ALU: Pipe.ALU.value,
    Activity.SPECIAL: Pipe.SPECIAL.value,
    Activity.TENSOR: Pipe.TENSOR.value,
    Activity.SHARED: "shared memory",
    Activity.COPIER: "copy engine",
    Activity.L2: "L2",
    Activity.HBM: "HBM",
    Activity.CTA_INTERVAL: "CTA start",
    Activity.CTA_START: "CTA start",
    Activity.SCOREBOARD: "scoreboard",
    Activity.SPECIAL_LATENCY: "special functions latency",
    Activity.PRODUCT_LATENCY: "product latency",
    Activity.OPERANDS: "operands read",
    Activity.SHARED_LATENCY: "shared memory latency",
    Activity.L1_LATENCY: "L1 latency",
    Activity.L2_LATENCY: "L2 latency",
    Activity.MEMORY_LATENCY: "memory latency",
    Activity.COPY_LATENCY: "copy latency",
    Activity.TENSOR_MEMORY: "tensor memory",
    Activity.BARRIER: "barrier latency",
}
SHARED_UNITS = (Activity.TENSOR, Activity.COPIER, Activity.L2, Activity.HBM)
OF_PIPE = {
    Pipe.ISSUE: Activity.ISSUE,
    Pipe.FMA: Activity.FMA,
    Pipe.ALU: Activity.ALU,
    Pipe.SPECIAL: Activity.SPECIAL,
    Pipe.TENSOR: Activity.TENSOR,
}
RESULT_OF = {Pipe.SPECIAL: Activity.SPECIAL_LATENCY, Pipe.TENSOR: Activity.PRODUCT_LATENCY}
"""By pipe of an instruction: the latency that a warp which waits for its scoreboard waits for. `SCOREBOARD`
for any other pipe."""


def span(first: int, last: int) -> int:
    """Both numbers packed into one."""
    return first << _SPAN | last


class Segment(NamedTuple):
    """Cycles `start` to `end` of the path: `activity` for a warp of the role, at PTX instruction `pc`. For
    the start of a CTA the role is empty, and `pc` is `ROOT`. `queued`: the next segment of the path waited
    for this service to end. `span`: the service was for machine instructions first to last of the region
    that begins at `pc`; both are 0 if it was for the instruction itself."""

    start: float
    end: float
    role: str
    activity: Activity
    pc: int
    queued: bool
    span: tuple[int, int]

    @property
    def text(self) -> str:
        """ "warp 4 MMA: tensor core", "warps 0-3 compute: queue at issue"."""
        activity = f"queue at {self.activity.text}" if self.queued else self.activity.text
        return f"{self.role}: {activity}" if self.role else activity


class Pending(NamedTuple):
    """A scoreboard that is taken. It becomes a node only when a warp waits for it. Its instruction was issued
    at cycle `at`, as machine instruction `place` of a region, after the node `cause`, which ended before
    instruction `first`."""

    cause: int
    first: int
    place: int
    region: int
    at: float
    activity: Activity
    pc: int


class CriticalPath:
    """The nodes of a replay. `cause` is the latest node of the warp or operation that is being replayed:
    `add`, `later` and the servers of `server` take it as the cause of a new node, and set it to that node.
    `role`, `pc` and `span` are those of new nodes. `end` is the node at which the SM ends."""

    def __init__(self) -> None:
        self.cause = ROOT
        self.role = 0
        self.pc = 0
        self.span = 0
        self.end = ROOT
        self._names = [""]
        self._times = array("d")
        self._causes = array("q")  # twice the node, and 1 if the new node queued behind it
        self._labels = array("q")  # role, what
        self._pcs = array("q")
        self._spans = array("q")

    def role_of(self, name: str) -> int:
        """The number of the role of this name, for `role`."""
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def time(self, node: int) -> float:
        return self._times[node] if node != ROOT else 0.0

    def add(self, time: float, activity: int, cause: int, queued: bool = False) -> int:
        """Add a node at cycle `time`, and return its number."""
        self._times.append(time)
        self._causes.append(2 * cause + queued)
        self._labels.append(self.role << _SPAN | activity)
        self._pcs.append(self.pc)
        self._spans.append(self.span)
        self.cause = node = len(self._times) - 1
        return node

    def later(self, time: float, activity: Activity) -> int:
        """A node at `time`, a latency after `cause`. Where `time` is before `cause`, since the unit is busy
        for longer than the request took, causes that end later do not count."""
        while self.cause != ROOT and self._times[self.cause] > time:
            self.cause = self._causes[self.cause] >> 1
        if time > self.time(self.cause):
            self.add(time, activity, self.cause)
        return self.cause

    def issued(self, cause: int, time: float, region: int, first: int, last: int) -> int:
        """A node at `time`, when machine instructions first to last of a region have been issued after
        `cause`."""
        if time > self.time(cause):
            self.pc, self.span = region, span(first, last)
            cause = self.add(time, Activity.ISSUE, cause)
            self.span = 0
        return cause

    def free(self, taken: int | Pending, time: float) -> int:
        """The node at `time`, when a scoreboard becomes free."""
        if isinstance(taken, int):
            return taken
        cause = self.issued(taken.cause, taken.at, taken.region, taken.first, taken.place)
        self.pc = taken.pc
        return self.add(time, taken.activity, cause)

    def server(self, activity: Activity) -> Server:
        """A unit each of whose services is a node."""
        return _RecordedServer(self, activity)

    def node_of(self, server: Server) -> int:
        """The node at the end of the unit's last service."""
        assert isinstance(server, _RecordedServer)
        return server.node

    # What was recorded

    def segments(self) -> list[Segment]:
        """The critical path, from the start to `end`."""
        found = []
        node, queued = self.end, False
        while node != ROOT:
            cause = self._causes[node]
            if self._times[node] > self.time(cause >> 1):
                found.append(self._segment(node, queued))
            node, queued = cause >> 1, bool(cause & 1)
        return found[::-1]

    def services(self) -> Iterator[Segment]:
        """The services of the units that an SM has once; those of its sub-partitions have a span."""
        for node in range(len(self._times)):
            if not self._spans[node]:
                segment = self._segment(node, queued=False)
                if segment.activity in SHARED_UNITS:
                    yield segment

    def _segment(self, node: int, queued: bool) -> Segment:
        label, span = self._labels[node], self._spans[node]
        activity = Activity(label & (1 << _SPAN) - 1)
        return Segment(
            self.time(self._causes[node] >> 1),
            self._times[node],
            self._names[label >> _SPAN],
            activity,
            self._pcs[node],
            queued and activity.is_unit,
            (span >> _SPAN, span & (1 << _SPAN) - 1),
        )


class _RecordedServer(Server):
    """A server each of whose services is a node of the path; `node` is the last."""

    __slots__ = ("activity", "node", "path")

    def __init__(self, path: CriticalPath, activity: Activity) -> None:
        super().__init__()
        self.path, self.activity, self.node = path, activity, ROOT

    def serve(self, at: float, cycles: float) -> float:
        path = self.path
        queued = at < self.free
        cause = self.node if queued else path.cause
        done = super().serve(at, cycles)
        self.node = path.add(done, self.activity, cause, queued) if done > path.time(cause) else cause
        path.cause = self.node
        return done


def ticks_by(segments: list[Segment], key: Callable[[Segment], str]) -> Counter[str]:
    """Ticks of the path by what `key` gives; they add up to those of its end."""
    found: Counter[str] = Counter()
    for segment in segments:
        found[key(segment)] += ticks(segment.end) - ticks(segment.start)
    return found


def ticks(cycles: float) -> int:
    """Cycles in ticks, rounded to the nearest."""
    return round(cycles * TICKS)


def whole_ticks(cycles: float) -> float:
    """The cycles rounded to ticks, so that parts of them add up to them without a rounding error."""
    return ticks(cycles) / TICKS


def ticks_by_pc(segments: list[Segment], region: Callable[[int], Region]) -> Counter[int]:
    """Ticks of the path by PTX instruction, `ROOT` for what no instruction takes. Those of a span of machine
    instructions go to the instructions that they are for, in proportion to their stalls."""
    found: Counter[int] = Counter()
    for segment in segments:
        left = ticks(segment.end) - ticks(segment.start)
        first, last = segment.span
        codes = [cost.code for cost in region(segment.pc).costs[first:last]]
        stalls = sum(code.stall or 1 for code in codes)
        for code in codes:
            stall = code.stall or 1
            part = left * stall // stalls
            found[code.pc] += part
            left, stalls = left - part, stalls - stall
        found[segment.pc] += left
    return found


def scaled(counts: Counter[str], total: float) -> dict[str, float]:
    """The same as cycles that add up to `total`, largest first: parts of a replay stand for a longer
    launch."""
    left, rest = ticks(total), counts.total()
    found = {}
    for name, count in sorted(
        counts.items(), key=lambda item: item[1]
    ):  # what is rounded goes to the largest
        part = left * count // rest
        found[name] = part / TICKS
        left, rest = left - part, rest - count
    return dict(sorted(found.items(), key=lambda item: -item[1]))
