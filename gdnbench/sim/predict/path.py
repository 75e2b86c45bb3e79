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

from gdnbench.sim.predict.code import Pipe, Region
from gdnbench.sim.predict.server import Server

ROOT = -1
"""The cause of what begins at cycle 0."""
TICKS = 1 << 20
"""Of a cycle. Sums of whole ticks have no rounding errors, in whatever order they are added."""
_SPAN = 32  # bits of the second of two numbers in one


class What(IntEnum):
    """What cycles were spent on: the service of a unit, or a latency."""

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
        return self <= What.CTA_INTERVAL


_TEXTS = {
    What.ISSUE: "issue",
    What.FMA: Pipe.FMA.value,
    What.ALU: Pipe.ALU.value,
    What.SPECIAL: Pipe.SPECIAL.value,
    What.TENSOR: Pipe.TENSOR.value,
    What.SHARED: "shared memory",
    What.COPIER: "copy engine",
    What.L2: "L2",
    What.HBM: "HBM",
    What.CTA_INTERVAL: "CTA start",
    What.CTA_START: "CTA start",
    What.SCOREBOARD: "scoreboard",
    What.SPECIAL_LATENCY: "special functions latency",
    What.PRODUCT_LATENCY: "product latency",
    What.OPERANDS: "operands read",
    What.SHARED_LATENCY: "shared memory latency",
    What.L1_LATENCY: "L1 latency",
    What.L2_LATENCY: "L2 latency",
    What.MEMORY_LATENCY: "memory latency",
    What.COPY_LATENCY: "copy latency",
    What.TENSOR_MEMORY: "tensor memory",
    What.BARRIER: "barrier latency",
}
SHARED_UNITS = (What.TENSOR, What.COPIER, What.L2, What.HBM)
OF_PIPE = {
    Pipe.ISSUE: What.ISSUE,
    Pipe.FMA: What.FMA,
    Pipe.ALU: What.ALU,
    Pipe.SPECIAL: What.SPECIAL,
    Pipe.TENSOR: What.TENSOR,
}
RESULT_OF = {Pipe.SPECIAL: What.SPECIAL_LATENCY, Pipe.TENSOR: What.PRODUCT_LATENCY}
"""What a warp that waits for the scoreboard of an instruction of this pipe waits for; else `SCOREBOARD`."""


def span(first: int, last: int) -> int:
    """Both numbers in one."""
    return first << _SPAN | last


class Piece(NamedTuple):
    """Cycles `start` to `end` of the path: `what` for a warp of the role, at the PTX instruction `pc`; the
    start of a CTA is for no warp, and at `ROOT`.
    `queued`: what comes next on the path waited for its turn at that unit. `span`: for machine instructions
    first to last of the region that begins at `pc`; both 0 if it is the instruction itself."""

    start: float
    end: float
    role: str
    what: What
    pc: int
    queued: bool
    span: tuple[int, int]

    @property
    def text(self) -> str:
        """ "warp 4 MMA: tensor core", "warps 0-3 compute: queue at issue"."""
        what = f"queue at {self.what.text}" if self.queued else self.what.text
        return f"{self.role}: {what}" if self.role else what


class Pending(NamedTuple):
    """What a scoreboard is taken for: no node until a warp waits for it. Issued at `at`, as machine
    instruction `place` of a region, after `cause`, which ended before instruction `first`."""

    cause: int
    first: int
    place: int
    region: int
    at: float
    what: What
    pc: int


class Path:
    """The nodes of a replay. `cause` is the node at the present of what is being replayed: `add`, `later` and
    the servers of `server` take it as the cause of a new node and leave that node in its place. `role`, `pc`
    and `span` are those of new nodes."""

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
        """The number of a role."""
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def time(self, node: int) -> float:
        return self._times[node] if node != ROOT else 0.0

    def add(self, time: float, what: int, cause: int, queued: bool = False) -> int:
        """A node at `time`."""
        self._times.append(time)
        self._causes.append(2 * cause + queued)
        self._labels.append(self.role << _SPAN | what)
        self._pcs.append(self.pc)
        self._spans.append(self.span)
        self.cause = node = len(self._times) - 1
        return node

    def later(self, time: float, what: What) -> int:
        """A node at `time`, which is some cycles after the present; before it where a unit is still busy
        when what it served has ended."""
        while self.cause != ROOT and self._times[self.cause] > time:
            self.cause = self._causes[self.cause] >> 1
        if time > self.time(self.cause):
            self.add(time, what, self.cause)
        return self.cause

    def issued(self, cause: int, time: float, region: int, first: int, last: int) -> int:
        """A node at `time`, at which machine instructions first to last of a region have been issued after
        `cause`."""
        if time > self.time(cause):
            self.pc, self.span = region, span(first, last)
            cause = self.add(time, What.ISSUE, cause)
            self.span = 0
        return cause

    def free(self, taken: int | Pending, time: float) -> int:
        """The node at `time`, at which a scoreboard is free."""
        if isinstance(taken, int):
            return taken
        cause = self.issued(taken.cause, taken.at, taken.region, taken.first, taken.place)
        self.pc = taken.pc
        return self.add(time, taken.what, cause)

    def server(self, what: What) -> Server:
        """A unit whose services are nodes."""
        return _Recorded(self, what)

    def node_of(self, server: Server) -> int:
        """The node at the end of what the unit served last."""
        assert isinstance(server, _Recorded)
        return server.node

    # What was recorded

    def pieces(self) -> list[Piece]:
        """The critical path, from the start to `end`."""
        found = []
        node, queued = self.end, False
        while node != ROOT:
            cause = self._causes[node]
            if self._times[node] > self.time(cause >> 1):
                found.append(self._piece(node, queued))
            node, queued = cause >> 1, bool(cause & 1)
        return found[::-1]

    def services(self) -> Iterator[Piece]:
        """What the units served that an SM has once; services of its sub-partitions have a span."""
        for node in range(len(self._times)):
            if not self._spans[node]:
                piece = self._piece(node, queued=False)
                if piece.what in SHARED_UNITS:
                    yield piece

    def _piece(self, node: int, queued: bool) -> Piece:
        label, span = self._labels[node], self._spans[node]
        what = What(label & (1 << _SPAN) - 1)
        return Piece(
            self.time(self._causes[node] >> 1),
            self._times[node],
            self._names[label >> _SPAN],
            what,
            self._pcs[node],
            queued and what.is_unit,
            (span >> _SPAN, span & (1 << _SPAN) - 1),
        )


class _Recorded(Server):
    """A server whose services are nodes; `node` is the last."""

    __slots__ = ("node", "path", "what")

    def __init__(self, path: Path, what: What) -> None:
        super().__init__()
        self.path, self.what, self.node = path, what, ROOT

    def serve(self, at: float, cycles: float) -> float:
        path = self.path
        queued = at < self.free
        cause = self.node if queued else path.cause
        done = super().serve(at, cycles)
        self.node = path.add(done, self.what, cause, queued) if done > path.time(cause) else cause
        path.cause = self.node
        return done


def ticks_by(pieces: list[Piece], key: Callable[[Piece], str]) -> Counter[str]:
    """Ticks of the path by what `key` gives; they add up to those of its end."""
    found: Counter[str] = Counter()
    for piece in pieces:
        found[key(piece)] += ticks(piece.end) - ticks(piece.start)
    return found


def ticks(cycles: float) -> int:
    return round(cycles * TICKS)


def whole_ticks(cycles: float) -> float:
    """The cycles rounded to ticks, so that parts of them add up to them without a rounding error."""
    return ticks(cycles) / TICKS


def ticks_by_pc(pieces: list[Piece], region: Callable[[int], Region]) -> Counter[int]:
    """Ticks of the path by PTX instruction, `ROOT` for what no instruction takes. Those of a span of machine
    instructions go to the instructions that they are for, in proportion to their stalls."""
    found: Counter[int] = Counter()
    for piece in pieces:
        left = ticks(piece.end) - ticks(piece.start)
        first, last = piece.span
        codes = [cost.code for cost in region(piece.pc).costs[first:last]]
        stalls = sum(code.stall or 1 for code in codes)
        for code in codes:
            stall = code.stall or 1
            part = left * stall // stalls
            found[code.pc] += part
            left, stalls = left - part, stalls - stall
        found[piece.pc] += left
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
