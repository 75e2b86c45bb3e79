"""Replays the traces of the CTAs of one SM against a clock.

Each warp has a clock of its own. The warp with the earliest clock takes its next step: a block, an access, an
operation, a wait. Units are servers: a request that comes while one is busy is served afterwards. A phase
ends when its last contribution has come; the warps that wait for it then go on.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.code import Code, Cost, Pipe, Region
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.predict.products import SHARED_BYTES_A_CYCLE
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

SCOREBOARDS = 6
"""Of a warp, on Volta and later."""
TENSOR_BYTES = 128
"""Of tensor memory a cycle for a warp, a word a lane; assumed."""
_STORES = ("st", "red", "stmatrix", "wmma.store")


@dataclass(slots=True)
class Server:
    """A unit that serves one request after the other; `used` cycles so far."""

    free: float = 0.0
    used: float = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """When a request that comes at `at` has been served."""
        start = at if at > self.free else self.free
        self.free = start + cycles
        self.used += cycles
        return self.free


@dataclass(slots=True)
class Memory:
    """L2 and HBM as one SM sees them: its share of the rates. Requests to HBM are served in bursts whose
    lengths scatter (`Machine.memory_burst`), so that the rate falls off smoothly where few bytes are in
    flight."""

    machine: Machine
    share: float  # bytes a cycle
    hbm: Server = field(default_factory=Server)
    l2: Server = field(default_factory=Server)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def request(self, at: float, size: int, missing: int) -> float:
        """When `size` bytes are back in the SM, of which L2 lacks `missing`."""
        done = self.l2.serve(at, size / self.machine.l2_rate.value)
        if not missing:
            return done + self.machine.l2_latency.value
        burst = self.machine.memory_burst.value
        cycles = self.random.gammavariate(missing / burst, burst / self.share)
        wait = self.machine.memory_latency.value * self.machine.clock.value
        return self.hbm.serve(done, cycles) + wait


@dataclass(slots=True)
class _Cta:
    trace: CtaTrace
    lacking: frozenset[int]  # sectors that L2 lacks when the CTA first needs them
    arrivals: list[int]
    over: list[float]
    landed: dict[int, float] = field(default_factory=dict)
    issued: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, list[_Warp]] = field(default_factory=lambda: defaultdict(list))
    loaded: set[int] = field(default_factory=set)
    warps_left: int = 0


@dataclass(slots=True)
class _Warp:
    cta: _Cta
    index: int
    part: int
    steps: list[Step]
    at: float
    next: int = 0
    costs: Sequence[Cost] = ()  # of the region that it executes, from `place` on
    place: int = 0
    accesses: dict[int, list[Accessed]] = field(default_factory=dict)
    boards: list[float] = field(default_factory=lambda: [0.0] * SCOREBOARDS)


class Interval(NamedTuple):
    """From cycle `start` to `end` warp `warp` of CTA `cta` was at the PTX instruction `pc`: `what` is "run"
    or "wait"."""

    cta: int
    warp: int
    start: float
    end: float
    pc: int
    what: str


class Sm:
    """One SM. `run` executes CTAs, at most `resident` at once. `timeline` takes what warps do."""

    def __init__(
        self,
        machine: Machine,
        code: Code,
        share: float,
        resident: int,
        timeline: list[Interval] | None = None,
    ) -> None:
        self.timeline = timeline
        self.machine = machine
        self.code = code
        self.resident = resident
        self.parts = int(machine.schedulers.value)
        self.pipes = [{pipe: Server() for pipe in Pipe} for _ in range(self.parts)]
        self.shared = Server()
        self.tensor = Server()
        self.copier = Server()
        self.starter = Server()
        self.memory = Memory(machine, share)
        self.streams: dict[object, float] = defaultdict(float)
        self.ends: list[float] = []
        self.end = 0.0  # of the last CTA and of its stores
        self.waits: Counter[tuple[str, str]] = Counter()  # cycles by role of the warp and opcode
        self._heap: list[tuple[float, int, _Warp]] = []
        self._count = 0
        self._started = 0  # CTAs
        self._warp_number = 0

    def run(self, ctas: Iterator[tuple[CtaTrace, frozenset[int]]]) -> float:
        """The cycle in which the last CTA has ended and all stores are in memory. Raises UnsupportedError if
        a warp waits for a phase that never ends."""
        for _ in range(self.resident):
            given = next(ctas, None)
            if given is not None:
                self._start(given, 0.0)
        while self._heap:
            _, _, warp = heapq.heappop(self._heap)
            if warp.next >= len(warp.steps) and not warp.costs:
                warp.cta.warps_left -= 1
                if not warp.cta.warps_left:
                    self.ends.append(warp.at)
                    given = next(ctas, None)
                    if given is not None:
                        self._start(given, warp.at)
                continue
            begun = warp.at
            if self._step(warp):
                self._note(warp, begun, "run")
                self._push(warp)
        if len(self.ends) < self._started:
            raise UnsupportedError("the time of CTAs whose warps wait for ever in the replay")
        self.end = max([*self.ends, self.memory.hbm.free])
        return self.end

    def _note(self, warp: _Warp, begun: float, what: str) -> None:
        """Add to the timeline what the warp did since `begun`."""
        if self.timeline is not None:
            pc = warp.steps[warp.next - 1].pc
            self.timeline.append(Interval(warp.cta.trace.index, warp.index, begun, warp.at, pc, what))

    def _start(self, given: tuple[CtaTrace, frozenset[int]], at: float) -> None:
        """Start a CTA that has a place from `at` on."""
        self._started += 1
        trace, lacking = given
        interval = self.machine.cta_interval.value
        begun = self.starter.serve(at, interval) - interval
        at = begun + self.machine.cta_start.value
        cta = _Cta(trace, lacking, list(trace.arrivals), [0.0] * len(trace.arrivals))
        for index, steps in enumerate(trace.warps):
            if steps:
                cta.warps_left += 1
                self._push(_Warp(cta, index, self._warp_number % self.parts, steps, at))
            self._warp_number += 1

    def _push(self, warp: _Warp) -> None:
        self._count += 1
        heapq.heappush(self._heap, (warp.at, self._count, warp))

    def busy_cycles(self) -> dict[str, float]:
        """By unit, the cycles for which it was busy; of the units of sub-partitions the mean."""
        found = {pipe.value: sum(pipes[pipe].used for pipes in self.pipes) / self.parts for pipe in Pipe}
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
            self._access(warp, step, warp.at)
        elif isinstance(step, Waited):
            return self._wait(warp, step)
        elif isinstance(step, Arrived):
            self._region(warp, step.pc)
            for phase in step.phases:
                self._contribute(warp.cta, phase, warp.at)
        elif isinstance(step, Issued):
            self._region(warp, step.pc)
            for index in step.operations:
                self._issue(warp, index)
        elif isinstance(step, Finished):
            self._region(warp, step.pc)
            landed = warp.cta.landed
            warp.at = max([warp.at, *(landed.get(index, 0.0) for index in step.operations)])
        else:
            self._region(warp, step.pc)
        return True

    def _region(self, warp: _Warp, pc: int) -> None:
        """Begin a region."""
        region = self.code.region(pc)
        warp.accesses = self._accesses(warp, region)
        for at in [at for at in warp.accesses if at not in region.accesses]:
            for access in warp.accesses.pop(at):  # for which ptxas made no instruction of its own
                self._access(warp, access, warp.at)
        warp.costs, warp.place = region.costs, 0
        self._continue(warp)

    def _continue(self, warp: _Warp) -> None:
        """Execute machine instructions of the region in their order, each once the scoreboards that it waits
        for are free, up to the next access: other warps that are earlier come first there."""
        boards, costs, place = warp.boards, warp.costs, warp.place
        operands_read = self.machine.operands_read.value
        at = start = warp.at
        busy: dict[Pipe, float] = {}
        first = place
        while place < len(costs):
            cost = costs[place]
            code = cost.code
            for board in cost.boards:
                if boards[board] > at:
                    at = boards[board]
            accesses = warp.accesses.get(code.pc) if cost.memory else None
            if accesses is not None and at > start:
                break
            done = at + cost.latency
            if accesses is not None:
                del warp.accesses[code.pc]
                done = max(self._access(warp, access, at) for access in accesses)
            elif cost.busy:
                busy[cost.pipe] = busy.get(cost.pipe, 0.0) + cost.busy
            if code.result is not None and done > boards[code.result]:
                boards[code.result] = done
            if code.read is not None and at + operands_read > boards[code.read]:
                boards[code.read] = at + operands_read
            at += code.stall or 1
            place += 1
        busy[Pipe.ISSUE] = float(place - first)
        for pipe, cycles in busy.items():
            at = max(at, self.pipes[warp.part][pipe].serve(start, cycles))
        warp.at, warp.place = at, place
        if place == len(costs):
            warp.costs, warp.accesses = (), {}

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

    def _access(self, warp: _Warp, access: Accessed, at: float) -> float:
        """When a load has its value, or a store is on its way."""
        ins = self.code.kernel.instructions[access.pc]
        over = self.shared.serve(at, float(access.cycles))
        if access.space is Space.SHARED:
            return over + self.machine.shared_latency.value
        if access.space is Space.LOCAL:
            return over + self.machine.l1_latency.value
        cta = warp.cta
        if is_store(ins):
            size = SECTOR * len(access.sectors)
            self.memory.request(over, size, size)
            return over
        new = [sector for sector in access.sectors if sector not in cta.loaded]
        if not new:
            return over + self.machine.l1_latency.value
        cta.loaded.update(new)
        lacking = sum(sector in cta.lacking for sector in new)
        return self.memory.request(over, SECTOR * len(new), SECTOR * lacking)

    def _issue(self, warp: _Warp, index: int) -> None:
        cta, operation = warp.cta, warp.cta.trace.operations[index]
        count = cta.issued[index] = cta.issued.get(index, 0) + 1
        if count < operation.issuers:
            return
        done = self._land(cta, operation, warp.at)
        cta.landed[index] = done
        for phase in operation.phases:
            self._contribute(cta, phase, done)

    def _land(self, cta: _Cta, operation: Operation, at: float) -> float:
        at = max([at, *(cta.landed.get(index, 0.0) for index in operation.after)])
        machine = self.machine
        if operation.kind is Kind.COPY_IN:
            begun = self.copier.serve(at, machine.copy_cycles.value)
            lacking = sum(sector in cta.lacking for sector in operation.sectors)
            missing = operation.size * lacking // max(len(operation.sectors), 1)
            done = self.memory.request(begun, operation.size, missing) + machine.copy_latency.value
        elif operation.kind is Kind.COPY_OUT:
            begun = self.copier.serve(at, machine.copy_cycles.value)
            done = self.memory.request(begun, operation.size, operation.size) + machine.copy_latency.value
        elif operation.kind is Kind.PRODUCT:
            assert operation.shape is not None
            time = machine.products(operation.shape)
            done = self.tensor.serve(at, time.interval) - time.interval + time.latency
        elif operation.kind is Kind.TENSOR_COPY:
            done = self.tensor.serve(at, operation.size / SHARED_BYTES_A_CYCLE)
        elif operation.kind is Kind.TENSOR_MEMORY:
            done = at + operation.size / TENSOR_BYTES + machine.shared_latency.value
        else:
            done = at
        if operation.stream is not None:  # they land in order
            key = (id(cta), operation.stream)
            done = self.streams[key] = max(done, self.streams[key])
        return done

    # Phases

    def _contribute(self, cta: _Cta, phase: int, at: float) -> None:
        cta.over[phase] = max(cta.over[phase], at)
        cta.arrivals[phase] -= 1
        if not cta.arrivals[phase]:
            for warp in cta.waiting.pop(phase, ()):
                begun = warp.at
                if self._wait(warp, warp.steps[warp.next - 1]):
                    self._note(warp, begun, "wait")
                    self._push(warp)

    def _wait(self, warp: _Warp, step: Step) -> bool:
        assert isinstance(step, Waited)
        cta = warp.cta
        for phase in step.phases:
            if cta.arrivals[phase] > 0:
                cta.waiting[phase].append(warp)
                return False
        over = max((cta.over[phase] for phase in step.phases), default=0.0)
        self._region(warp, step.pc)
        waited = over + self.machine.phase_latency.value
        if waited > warp.at:
            op = self.code.kernel.instructions[step.pc].op
            self.waits[cta.trace.roles[warp.index], op] += int(waited - warp.at)
            warp.at = waited
        return True


def is_store(ins: Instruction) -> bool:
    """Whether an access gives no value back."""
    return ins.op.startswith(_STORES)


def sectors_lacking(traces: Sequence[CtaTrace]) -> list[frozenset[int]]:
    """For CTAs that run in this order, the sectors that each is the first to need: L2 lacks them."""
    seen: set[int] = set()
    found = []
    for trace in traces:
        steps = (step for steps in trace.warps for step in steps if isinstance(step, Accessed))
        own = {sector for step in steps for sector in step.sectors}
        own |= {sector for operation in trace.operations for sector in operation.sectors}
        found.append(frozenset(own - seen))
        seen |= own
    return found
