# SPDX-License-Identifier: Apache-2.0
"""Replays the traces of the CTAs of one SM against a clock.

Each warp has a clock of its own. The warp with the earliest clock takes its next step: a block, an access, an
operation, a wait. Units are servers: a request that comes while one is busy is served afterwards. A phase
ends when its last contribution has come; the warps that wait for it then go on.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.critical_path import OF_PIPE, RESULT_OF, ROOT, Activity, CriticalPath, Pending, span
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.predict.products import SHARED_BYTES_A_CYCLE
from gdnbench.sim.predict.regions import SCOREBOARDS, Cost, Pipe, Region, RegionCosts
from gdnbench.sim.predict.server import Server
from gdnbench.sim.predict.trace import (
    SECTOR,
    Accessed,
    Arrived,
    CtaTrace,
    Entered,
    Finished,
    Issued,
    Kind,
    Operation,
    Space,
    Step,
    Waited,
)
from gdnbench.sim.ptx.ir import Instruction

TENSOR_BYTES = 128
"""Bytes of tensor memory that a warp loads or stores a cycle, a word for each lane; assumed."""
NO_PHASE = -1
SECTORS_OF_LINE = 4
_STORES = ("st", "red", "stmatrix", "wmma.store")


@dataclass(slots=True)
class Memory:
    """L2 and HBM as one SM sees them. Bytes come at the rate of L2's port, while HBM reads those that L2
    lacks at the SM's share of its rate; an SM that asked for less before gets `Machine.memory_credit` bytes
    at once. The lengths of HBM's services scatter like those of bursts of `memory_burst` bytes. Lines of
    requests in flight come in turn, so that `memory_interleave` of these bytes pass the port before the last
    line of a request. Each line comes late by an exponentially distributed time of `memory_scatter` cycles
    in the mean, and a request is over with its last line. So large requests take longer, and the rate falls
    off smoothly where few bytes are in flight. In a GPU of two dies each `die_bytes` come from one of them,
    and those of the other one `die_latency` cycles later."""

    machine: Machine
    share: float  # bytes a cycle
    path: CriticalPath | None = None
    hbm: Server = field(init=False)
    l2: Server = field(init=False)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    in_flight: list[tuple[float, int]] = field(default_factory=list)  # a heap: when they land, and bytes
    bytes_in_flight: int = 0

    def __post_init__(self) -> None:
        self.hbm, self.l2 = server(self.path, Activity.HBM), server(self.path, Activity.L2)
        self.hbm.credit = self.machine.memory_credit.value / self.share

    def request(self, at: float, size: int, missing: int) -> float:
        """When `size` bytes are back in the SM, of which L2 lacks `missing`."""
        asked = ROOT if self.path is None else self.path.cause
        done = self._port(at, size)
        latency, activity = self.machine.l2_latency.value, Activity.L2_LATENCY
        if missing:
            ported = ROOT if self.path is None else self.path.cause
            if self.path is not None:
                self.path.cause = asked
            read = self.hbm.serve(at, self._cycles(missing))
            if read > done:
                done = read
            elif self.path is not None:
                self.path.cause = ported
            latency, activity = self._latency(missing), Activity.MEMORY_LATENCY
        done += latency
        if self.path is not None:
            self.path.later(done, activity)
        if self.machine.memory_interleave.value:
            heapq.heappush(self.in_flight, (done, size))
            self.bytes_in_flight += size
        return done

    def _port(self, at: float, size: int) -> float:
        """When L2's port has given `size` bytes, if L2 has them."""
        while self.in_flight and self.in_flight[0][0] <= at:
            self.bytes_in_flight -= heapq.heappop(self.in_flight)[1]
        before = self.machine.memory_interleave.value * self.bytes_in_flight
        done = self.l2.serve(at, size / self.machine.l2_rate.value)
        last = at + (before + size) / self.machine.l2_rate.value
        if last <= done:
            return done
        if self.path is not None:
            self.path.later(last, Activity.L2)
        return last

    def _cycles(self, missing: int) -> float:
        burst = self.machine.memory_burst.value
        return self.random.gammavariate(missing / burst, burst / self.share)

    def _latency(self, missing: int) -> float:
        """Of the last of the lines: the largest of so many exponentially distributed times. Each `die_bytes`
        come from the other die with a probability of a half."""
        lines = -(-missing // (SECTOR * SECTORS_OF_LINE))
        last = self.random.random() ** (1 / lines)
        late = -self.machine.memory_scatter.value * math.log1p(-last)
        farther = self.machine.die_latency.value
        if farther and self.random.random() < 1 - 0.5 ** math.ceil(missing / self.machine.die_bytes.value):
            late += farther
        return self.machine.memory_latency.value * self.machine.clock.value + late


def server(path: CriticalPath | None, activity: Activity) -> Server:
    """A unit. Its services are nodes of the path, if one is recorded."""
    return Server() if path is None else path.server(activity)


@dataclass(slots=True)
class _Cta:
    """A CTA that runs on the SM, in place `slot`. `phase_*` are by phase, the other columns by operation;
    times are cycles, nodes are those of the critical path at that time."""

    trace: CtaTrace
    lacking: frozenset[int]  # sectors that L2 lacks when the CTA first needs them
    slot: int
    arrivals: list[int]  # by phase, contributions that have not come yet
    phase_times: list[float]  # of the latest contribution
    phase_nodes: dict[int, int] = field(default_factory=dict)
    landing_times: dict[int, float] = field(default_factory=dict)
    landing_nodes: dict[int, int] = field(default_factory=dict)
    issued: dict[int, int] = field(default_factory=dict)  # by how many of its warps
    waiting: dict[int, list[_Warp]] = field(default_factory=lambda: defaultdict(list))  # by phase
    loaded: set[int] = field(default_factory=set)  # sectors that are in L1
    warps_left: int = 0


@dataclass(slots=True)
class _Warp:
    """A warp of a CTA, at cycle `at`. `next` is the number of its next step; `board_*` are by scoreboard."""

    cta: _Cta
    index: int
    sub_partition: int
    steps: list[Step]
    at: float
    next: int = 0
    costs: Sequence[Cost] = ()  # of the region that it executes, from `place` on
    place: int = 0
    accesses: dict[int, list[Accessed]] = field(default_factory=dict)  # of the region, by pc
    board_times: list[float] = field(default_factory=lambda: [0.0] * SCOREBOARDS)  # when each is free
    board_nodes: list[int | Pending] = field(default_factory=lambda: [ROOT] * SCOREBOARDS)
    role: int = 0  # the path's number of the role
    node: int = ROOT  # of the path, at `at`
    region: int = 0  # its first pc
    noted: float = 0.0  # until when the timeline has it


class Interval(NamedTuple):
    """From cycle `start` to `end` warp `warp` of CTA `cta`, which has place `slot` of those that the SM holds
    at once, was at the PTX instruction `pc`: `state` is "run" or "wait"."""

    cta: int
    warp: int
    start: float
    end: float
    pc: int
    state: str
    slot: int
    role: str


class Sm:
    """One SM of `machine`. `run` replays CTAs, at most `resident` at once. `share`: the bytes of HBM a cycle
    that the SM may use. The replay appends the intervals of the warps to `timeline`, and to `path` what each
    event waited for; it is faster without the two."""

    def __init__(
        self,
        machine: Machine,
        code: RegionCosts,
        share: float,
        resident: int,
        timeline: list[Interval] | None = None,
        path: CriticalPath | None = None,
    ) -> None:
        self.timeline = timeline
        self.path = path
        self.machine = machine
        self.code = code
        self.resident = resident
        self.sub_partitions = int(machine.schedulers.value)
        self.pipes = [
            {pipe: server(path, OF_PIPE[pipe]) for pipe in Pipe} for _ in range(self.sub_partitions)
        ]
        self.shared = server(path, Activity.SHARED)
        self.tensor = server(path, Activity.TENSOR)
        self.copier = server(path, Activity.COPIER)
        self.starter = server(path, Activity.CTA_INTERVAL)
        self.memory = Memory(machine, share, path)
        self.streams: dict[object, tuple[float, int]] = {}  # cycle and node of the last landing
        self.ends: list[float] = []  # of CTAs
        self.end = 0.0  # of the last CTA and of its stores
        self.waits: Counter[tuple[str, str]] = Counter()  # cycles by role of the warp and opcode
        self._heap: list[tuple[float, int, _Warp]] = []
        self._count = 0
        self._started = 0  # CTAs
        self._warp_number = 0

    def run(self, ctas: Iterator[tuple[CtaTrace, frozenset[int]]]) -> float:
        """The cycle in which the last CTA has ended and all stores are in memory. Raises UnsupportedError if
        a warp waits for a phase that never ends."""
        for slot in range(self.resident):
            given = next(ctas, None)
            if given is not None:
                self._start(given, slot, 0.0, ROOT)
        while self._heap:
            _, _, warp = heapq.heappop(self._heap)
            if warp.next >= len(warp.steps) and not warp.costs:
                warp.cta.warps_left -= 1
                if not warp.cta.warps_left:
                    self.ends.append(warp.at)
                    if self.path is not None and warp.at > self.path.time(self.path.end):
                        self.path.end = warp.node
                    given = next(ctas, None)
                    if given is not None:
                        self._start(given, warp.cta.slot, warp.at, warp.node)
                continue
            if self._step(warp):
                self._note(warp, "run")
                self._push(warp)
        if len(self.ends) < self._started:
            raise UnsupportedError("the time of CTAs whose warps wait for ever in the replay")
        self.end = max([*self.ends, self.memory.hbm.free])
        if self.path is not None and self.end > self.path.time(self.path.end):
            self.path.end = self.path.node_of(self.memory.hbm)
        return self.end

    def _note(self, warp: _Warp, state: str) -> None:
        """Add to the timeline that the warp was in this state since it was noted last."""
        if self.timeline is not None and warp.at > warp.noted:
            cta, pc = warp.cta, warp.steps[warp.next - 1].pc
            role = cta.trace.roles[warp.index]
            self.timeline.append(
                Interval(cta.trace.index, warp.index, warp.noted, warp.at, pc, state, cta.slot, role)
            )
            warp.noted = warp.at

    def _start(self, given: tuple[CtaTrace, frozenset[int]], slot: int, at: float, node: int) -> None:
        """Start a CTA that has place `slot` from `at` on, a node of the path."""
        self._started += 1
        trace, lacking = given
        path, interval = self.path, self.machine.cta_interval.value
        if path is not None:
            path.role, path.pc = 0, ROOT
            path.cause = node
            node = path.node_of(self.starter) if at < self.starter.free else node
        begun = self.starter.serve(at, interval) - interval
        at = begun + self.machine.cta_start.value
        if path is not None:
            path.cause = node
            node = path.later(at, Activity.CTA_START)
        cta = _Cta(trace, lacking, slot, list(trace.arrivals), [0.0] * len(trace.arrivals))
        for index, steps in enumerate(trace.warps):
            if steps:
                cta.warps_left += 1
                warp = _Warp(
                    cta, index, self._warp_number % self.sub_partitions, steps, at, node=node, noted=at
                )
                if path is not None:
                    warp.role = path.role_of(trace.roles[index])
                self._push(warp)
            self._warp_number += 1

    def _push(self, warp: _Warp) -> None:
        self._count += 1
        heapq.heappush(self._heap, (warp.at, self._count, warp))

    def busy_cycles(self) -> dict[str, float]:
        """By unit, the cycles for which it was busy; for the units of sub-partitions their mean."""
        found = {
            pipe.value: sum(pipes[pipe].used for pipes in self.pipes) / self.sub_partitions for pipe in Pipe
        }
        found[Pipe.TENSOR] += self.tensor.used
        return found | {
            "shared memory": self.shared.used,
            "copy engine": self.copier.used,
            "L2": self.memory.l2.used,
            "HBM": self.memory.hbm.used,
        }

    def limits(self) -> dict[str, float]:
        """By unit, the part of the time for which it was busy."""
        return {name: used / (self.end or 1.0) for name, used in self.busy_cycles().items()}

    # Steps

    def _step(self, warp: _Warp) -> bool:
        """Take the warp's next step; False if it waits for a phase."""
        if warp.costs:
            self._continue(warp)
            return True
        step = warp.steps[warp.next]
        warp.next += 1
        if isinstance(step, Entered):
            self._region(warp, step.pc)
        elif isinstance(step, Accessed):
            self._access(warp, step, warp.at, warp.node)
        elif isinstance(step, Waited):
            return self._wait(warp, step)
        elif isinstance(step, Arrived):
            self._region(warp, step.pc)
            for phase in step.phases:
                self._contribute(warp.cta, phase, warp.at, warp.node)
        elif isinstance(step, Issued):
            self._region(warp, step.pc)
            for index in step.operations:
                self._issue(warp, index)
        elif isinstance(step, Finished):
            self._region(warp, step.pc)
            self._latest(warp, step.operations)
        else:
            self._region(warp, step.pc)
        return True

    def _region(self, warp: _Warp, pc: int) -> None:
        """Begin a region."""
        region = self.code.region(pc)
        warp.accesses = self._accesses(warp, region)
        for at in [at for at in warp.accesses if at not in region.accesses]:
            for access in warp.accesses.pop(at):  # for which ptxas made no instruction of its own
                self._access(warp, access, warp.at, warp.node)
        warp.costs, warp.place, warp.region = region.costs, 0, pc
        self._continue(warp)

    def _continue(self, warp: _Warp) -> None:
        """Execute machine instructions of the region in their order, each once the scoreboards that it waits
        for are free, up to the next access: other warps that are earlier come first there."""
        boards, costs, place = warp.board_times, warp.costs, warp.place
        operands_read = self.machine.operands_read.value
        at = start = warp.at
        busy: dict[Pipe, float] = {}
        first = since = place
        path, node = self.path, warp.node
        if path is not None:
            path.role = warp.role
        while place < len(costs):
            cost = costs[place]
            code = cost.code
            for board in cost.boards:
                if boards[board] > at:
                    at = boards[board]
                    if path is not None:
                        node, since = path.free(warp.board_nodes[board], at), place
            accesses = warp.accesses.get(code.pc) if cost.memory else None
            if accesses is not None and at > start:
                break
            done = at + cost.latency
            loaded = ROOT
            if accesses is not None:
                del warp.accesses[code.pc]
                done, loaded = max(self._access(warp, access, at, node) for access in accesses)
            elif cost.busy:
                busy[cost.pipe] = busy.get(cost.pipe, 0.0) + cost.busy
            if code.result is not None and done > boards[code.result]:
                boards[code.result] = done
                if path is not None:
                    activity = RESULT_OF.get(cost.pipe, Activity.SCOREBOARD)
                    pending = Pending(node, since, place, warp.region, at, activity, code.pc)
                    warp.board_nodes[code.result] = pending if loaded == ROOT else loaded
            if code.read is not None and at + operands_read > boards[code.read]:
                boards[code.read] = at + operands_read
                if path is not None:
                    pending = Pending(node, since, place, warp.region, at, Activity.OPERANDS, code.pc)
                    warp.board_nodes[code.read] = pending
            at += code.stall or 1
            place += 1
        busy[Pipe.ISSUE] = float(place - first)
        warp.at, warp.place = self._served(warp, node, since, at, place, busy), place
        if place == len(costs):
            warp.costs, warp.accesses = (), {}

    def _served(
        self, warp: _Warp, node: int, since: int, at: float, place: int, busy: dict[Pipe, float]
    ) -> float:
        """When the pipes have served what the warp issued from `warp.at` to `at`: instructions `since` to
        `place` of its region after `node` of the path."""
        path, start = self.path, warp.at
        pipes = self.pipes[warp.sub_partition]
        if path is None:
            for pipe, cycles in busy.items():
                at = max(at, pipes[pipe].serve(start, cycles))
            return at
        node = path.issued(node, at, warp.region, since, place)
        path.pc, path.span = warp.region, span(warp.place, place)
        for pipe, cycles in busy.items():
            path.cause = warp.node
            done = pipes[pipe].serve(start, cycles)
            if done > at:
                at, node = done, path.cause
        path.span = 0
        warp.node = node
        return at

    def _latest(self, warp: _Warp, operations: Iterable[int]) -> None:
        """Let the warp wait until these operations have landed."""
        cta = warp.cta
        for index in operations:
            landed = cta.landing_times.get(index, 0.0)
            if landed > warp.at:
                warp.at, warp.node = landed, cta.landing_nodes[index]

    def _accesses(self, warp: _Warp, region: Region) -> dict[int, list[Accessed]]:
        """The accesses of the steps that belong to the region, by pc; the warp's next step follows them."""
        steps, number = warp.steps, warp.next
        found: dict[int, list[Accessed]] = {}
        latest = region.start
        while number < len(steps):
            step = steps[number]
            if isinstance(step, Accessed):
                if not latest <= step.pc < region.stop:
                    break
                found.setdefault(step.pc, []).append(step)
            elif not isinstance(step, Entered) or not latest < step.pc < region.stop:
                break
            latest = step.pc
            number += 1
        warp.next = number
        return found

    def _access(self, warp: _Warp, access: Accessed, at: float, node: int) -> tuple[float, int]:
        """When a load has its value, or a store is on its way, and the node of the path; `node` is that at
        `at`."""
        path, machine = self.path, self.machine
        if path is not None:
            path.role, path.pc, path.cause = warp.role, access.pc, node
        ins = self.code.kernel.instructions[access.pc]
        over = self.shared.serve(at, float(access.cycles))
        if access.space is Space.SHARED:
            return self._after(over, machine.shared_latency.value, Activity.SHARED_LATENCY)
        if access.space is Space.LOCAL:
            return self._after(over, machine.l1_latency.value, Activity.L1_LATENCY)
        cta = warp.cta
        if is_store(ins):
            node = ROOT if path is None else path.cause
            size = SECTOR * len(access.sectors)
            self.memory.request(over, size, size)
            return over, node
        new = [sector for sector in access.sectors if sector not in cta.loaded]
        if not new:
            return self._after(over, machine.l1_latency.value, Activity.L1_LATENCY)
        cta.loaded.update(new)
        lacking = sum(sector in cta.lacking for sector in new)
        return self._after(self.memory.request(over, SECTOR * len(new), SECTOR * lacking))

    def _after(
        self, at: float, latency: float = 0.0, activity: Activity = Activity.SCOREBOARD
    ) -> tuple[float, int]:
        """`at` after a latency, and the node of the path there."""
        at += latency
        return at, ROOT if self.path is None else self.path.later(at, activity)

    def _issue(self, warp: _Warp, index: int) -> None:
        cta, operation = warp.cta, warp.cta.trace.operations[index]
        count = cta.issued[index] = cta.issued.get(index, 0) + 1
        if count < operation.issuers:
            return
        if self.path is not None:
            self.path.role, self.path.pc, self.path.cause = warp.role, operation.pc, warp.node
        done, node = self._land(cta, operation, warp.at)
        cta.landing_times[index], cta.landing_nodes[index] = done, node
        for phase in operation.phases:
            self._contribute(cta, phase, done, node)

    def _land(self, cta: _Cta, operation: Operation, at: float) -> tuple[float, int]:
        """When the operation has landed, and the node of the path there."""
        machine, path = self.machine, self.path
        for index in operation.after:
            landed = cta.landing_times.get(index, 0.0)
            if landed > at:
                at = landed
                if path is not None:
                    path.cause = cta.landing_nodes[index]
        if operation.kind is Kind.COPY_IN:
            begun = self.copier.serve(at, machine.copy_cycles.value)
            lacking = sum(sector in cta.lacking for sector in operation.sectors)
            missing = operation.size * lacking // max(len(operation.sectors), 1)
            done = self.memory.request(begun, operation.size, missing)
            done, node = self._after(done, machine.copy_latency.value, Activity.COPY_LATENCY)
        elif operation.kind is Kind.COPY_OUT:
            begun = self.copier.serve(at, machine.copy_cycles.value)
            done = self.memory.request(begun, operation.size, operation.size)
            done, node = self._after(done, machine.copy_latency.value, Activity.COPY_LATENCY)
        elif operation.kind is Kind.PRODUCT:
            assert operation.shape is not None
            time = machine.products(operation.shape)
            begun = self.tensor.serve(at, time.interval) - time.interval
            done, node = self._after(begun, time.latency, Activity.PRODUCT_LATENCY)
        elif operation.kind is Kind.TENSOR_COPY:
            done, node = self._after(self.tensor.serve(at, operation.size / SHARED_BYTES_A_CYCLE))
        elif operation.kind is Kind.TENSOR_MEMORY:
            done = at + operation.size / TENSOR_BYTES + machine.shared_latency.value
            done, node = self._after(done, activity=Activity.TENSOR_MEMORY)
        else:
            done, node = self._after(at)
        if operation.stream is not None:  # they land in order
            key = (id(cta), operation.stream)
            before = self.streams.get(key)
            if before is not None and before[0] > done:
                return before
            self.streams[key] = done, node
        return done, node

    # Phases

    def _contribute(self, cta: _Cta, phase: int, at: float, node: int) -> None:
        if at > cta.phase_times[phase]:
            cta.phase_times[phase], cta.phase_nodes[phase] = at, node
        cta.arrivals[phase] -= 1
        if not cta.arrivals[phase]:
            for warp in cta.waiting.pop(phase, ()):
                if self._wait(warp, warp.steps[warp.next - 1]):
                    self._push(warp)

    def _wait(self, warp: _Warp, step: Step) -> bool:
        assert isinstance(step, Waited)
        cta = warp.cta
        for phase in step.phases:
            if cta.arrivals[phase] > 0:
                cta.waiting[phase].append(warp)
                return False
        last = max(step.phases, key=cta.phase_times.__getitem__, default=NO_PHASE)
        over = 0.0 if last == NO_PHASE else cta.phase_times[last]
        self._region(warp, step.pc)
        waited = over + self.machine.phase_latency.value
        if waited > warp.at:
            op = self.code.kernel.instructions[step.pc].op
            self.waits[cta.trace.roles[warp.index], op] += int(waited - warp.at)
            self._note(warp, "run")
            warp.at = waited
            self._note(warp, "wait")
            if self.path is not None:
                self.path.pc = step.pc
                warp.node = self.path.add(waited, Activity.BARRIER, cta.phase_nodes.get(last, ROOT))
        return True


def is_store(ins: Instruction) -> bool:
    """Whether an access gives no value back."""
    return ins.op.startswith(_STORES)


def sectors_lacking(traces: Sequence[CtaTrace], together: bool = False) -> list[frozenset[int]]:
    """For CTAs that run in this order, the sectors that each is the first to need: L2 lacks them. Of those
    that run `together` each fetches as many of the sectors that several need, lines of them in turn."""
    needed = [_sectors(trace) for trace in traces]
    found, seen = [], set[int]()
    if not together:
        for own in needed:
            found.append(frozenset(own - seen))
            seen |= own
        return found
    by_sector: dict[int, list[int]] = defaultdict(list)
    for number, own in enumerate(needed):
        for sector in own:
            by_sector[sector].append(number)
    shared: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for sector, numbers in by_sector.items():
        shared[tuple(numbers)].append(sector)
    fetched: list[set[int]] = [set() for _ in traces]
    for sharers, sectors in shared.items():
        # In turn in the order of their lines, wherever these lie: by the address of a line, a CTA of four
        # could fetch half of a tile's lines or none, since the rows of a tile lie far apart.
        lines = sorted({sector // SECTORS_OF_LINE for sector in sectors})
        turn = dict(zip(lines, cycle(sharers), strict=False))
        for sector in sectors:
            fetched[turn[sector // SECTORS_OF_LINE]].add(sector)
    return [frozenset(sectors) for sectors in fetched]


def _sectors(trace: CtaTrace) -> set[int]:
    """The sectors of global memory that a CTA accesses."""
    steps = (step for steps in trace.warps for step in steps if isinstance(step, Accessed))
    own = {sector for step in steps for sector in step.sectors}
    return own.union(*(operation.sectors for operation in trace.operations))
