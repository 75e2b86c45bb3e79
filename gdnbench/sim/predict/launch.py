# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a launch: some of its CTAs run on the simulator, one SM is replayed with them, and
the rest of the grid follows from that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from gdnbench.sim.errors import Place, UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.budget import is_clustered
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.grid import ctas_communicate, ctas_of_sm
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.critical_path import (
    ROOT,
    Activity,
    CriticalPath,
    scaled,
    ticks_by,
    ticks_by_pc,
    whole_ticks,
)
from gdnbench.sim.predict.machines import GROUPS, Machine
from gdnbench.sim.predict.recorder import TraceRecorder
from gdnbench.sim.predict.regions import Regions
from gdnbench.sim.predict.roofline import floor_of
from gdnbench.sim.predict.sm import Interval, Sm, is_store, sectors_lacking
from gdnbench.sim.predict.timeline import Timeline
from gdnbench.sim.predict.trace import SECTOR, Accessed, CtaTrace, Kind
from gdnbench.sim.ptx.ir import Kernel, Module
from gdnbench.sim.run import run_observed

# CTAs of a grid that run on the simulator. They are neighbours, so that sectors that neighbours both read are
# seen.
SAMPLED = 8
# CTAs of an SM that are replayed: so many rounds of those that it holds at once, and so many at least. The
# time of more follows from the distance of their ends.
ROUNDS, LEAST = 4, 96


@dataclass(frozen=True, slots=True)
class Prediction:
    """A launch on `machine`: predicted seconds, and their range, `low` to `high`, over the parameters that
    nobody has published. `limits`: by unit of the SM, the fraction of the SM's time in which the unit, or its
    share of HBM, is busy. `waits`: the cycles that warps waited, by role and opcode. An SM runs `ctas` CTAs,
    `resident` at once; the launch moves `memory_bytes` from and to HBM.

    `path` is the critical path of the SM, "role: activity" -> cycles, the most first; they add up to
    `cycles`, all of the SM's. `lines` is the same by source line, the `LINES` longest. The launch takes at
    least `floor` seconds, because of the unit `floor_unit`; `of_floor` is `seconds` divided by that, or None
    if the launch moves no bytes and has no products.
    """

    machine: str
    entry: str
    seconds: float
    low: float
    high: float
    limits: dict[str, float]
    waits: dict[str, float]
    ctas: float
    resident: int
    memory_bytes: float
    cycles: float
    path: dict[str, float]
    lines: dict[str, float]
    floor: float
    floor_unit: str
    of_floor: float | None

    @property
    def bound(self) -> str:
        """The unit that is busy for most of the time; "latency" if none is for half of it."""
        name, part = max(self.limits.items(), key=lambda item: item[1])
        return name if part >= HALF else LATENCY


LINES = 20
HALF = 0.5
LATENCY = "latency"


def sampled_ctas(ctas: int, machine: Machine, count: int = SAMPLED) -> range:
    """The CTAs that run: those in the middle; the first ones of a launch that has an SM for each, because it
    lasts as long as its longest CTA, and a persistent kernel gives the first ones most work."""
    count = min(ctas, count)
    first = 0 if at_once(ctas, machine) else (ctas - count) // 2
    return range(first, first + count)


def at_once(ctas: int, machine: Machine) -> bool:
    """Whether each CTA has an SM of its own."""
    return ctas <= machine.multiprocessors.value


def check_covered(module: Module, request: LaunchRequest) -> None:
    """Raises UnsupportedError for a launch that the model does not cover."""
    if ctas_communicate(module.kernels[request.entry]):
        raise UnsupportedError("the time of a kernel whose CTAs may wait for one another")
    if is_clustered(module.kernels[request.entry], request.cluster, request.preferred_cluster):
        raise UnsupportedError("the time of a launch with clusters")


def record(
    module: Module, request: LaunchRequest, memory: GlobalMemory, ctas: Sequence[int], machine: Machine
) -> list[CtaTrace]:
    """Run these CTAs of the launch and return their traces. Global memory changes as they change it. Raises
    UnsupportedError for a launch that the model does not cover, and what `run_observed` raises."""
    check_covered(module, request)
    recorders: list[TraceRecorder] = []

    def begin(cta: Cta) -> TraceRecorder:
        recorders.append(TraceRecorder(cta))
        return recorders[-1]

    run_observed(module, request, memory, begin, ctas, int(machine.multiprocessors.value))
    return [recorder.trace() for recorder in recorders]


def predict(
    machine: Machine,
    module: Module,
    request: LaunchRequest,
    traces: Sequence[CtaTrace],
    timelines: list[Timeline] | None = None,
) -> Prediction:
    """The time of the launch, from traces of some of its CTAs; its timeline is appended to `timelines`.
    Raises UnsupportedError without ptxas and nvdisasm."""
    given, regions = _with_lacking(machine, request, traces), Regions(module, request.entry, machine)
    path, intervals = CriticalPath(), None if timelines is None else list[Interval]()
    replayed = _replay(machine, regions, module, request, given, path, intervals)
    seconds, sm = replayed.seconds, replayed.sm
    squares = {1: 0.0, -1: 0.0}
    for group in GROUPS:
        moved = [machine.moved(group, end) for end in ("low", "high")]
        ends = [_replay(each, regions, module, request, given).seconds for each in moved]
        squares[-1] += (seconds - min(seconds, *ends)) ** 2
        squares[1] += (max(seconds, *ends) - seconds) ** 2
    kernel, ctas = regions.kernel, _ctas(request)
    moved_bytes = memory_bytes(kernel, traces, ctas)
    floor = floor_of(machine, kernel, traces, ctas, moved_bytes)
    if timelines is not None and intervals is not None:
        clock = machine.clock.value
        timelines.append(Timeline.of(machine.name, clock, seconds, kernel, intervals, path))
    return Prediction(
        machine.name,
        request.entry,
        seconds,
        seconds - math.sqrt(squares[-1]),
        seconds + math.sqrt(squares[1]),
        sm.limits(),
        {f"{role}: {opcode}": cycles for (role, opcode), cycles in sm.waits.most_common()},
        ctas / machine.multiprocessors.value,
        resident_ctas(module, request),
        moved_bytes,
        replayed.cycles,
        *_path(path, replayed, kernel),
        floor.seconds,
        floor.unit,
        seconds / floor.seconds if floor.seconds else None,
    )


def _path(
    path: CriticalPath, replayed: _Replayed, kernel: Kernel
) -> tuple[dict[str, float], dict[str, float]]:
    """The cycles of the critical path by role and activity, and those of the `LINES` longest source lines."""
    segments = path.segments()
    by_role = scaled(ticks_by(segments, lambda segment: segment.text), replayed.cycles)
    by_line: Counter[str] = Counter()
    for pc, count in ticks_by_pc(segments, replayed.sm.code.region).items():
        name = Activity.CTA_START.text if pc == ROOT else _line(kernel.instructions[pc].place)
        by_line[name] += count
    return by_role, dict(islice(scaled(by_line, replayed.cycles).items(), LINES))


def _line(place: Place) -> str:
    return f"PTX line {place.line}" if place.file is None else f"{place.file}:{place.file_line}"


def predict_seconds(
    machine: Machine, module: Module, request: LaunchRequest, traces: Sequence[CtaTrace]
) -> float:
    """The seconds of `predict` without range, limits and path, in a tenth of the time. Raises the same."""
    return _replay(
        machine,
        Regions(module, request.entry, machine),
        module,
        request,
        _with_lacking(machine, request, traces),
    ).seconds


def memory_bytes(kernel: Kernel, traces: Sequence[CtaTrace], ctas: int) -> float:
    """The bytes that a launch of so many CTAs moves from and to HBM, by traces of neighbouring CTAs. The
    first reads all of its sectors. Each later one reads only sectors that no traced CTA before it touched,
    the mean of their number. All stores are written."""
    touched: set[int] = set()
    new, written = [], 0
    for trace in traces:
        read, stored = set[int](), set[int]()
        for step in chain.from_iterable(trace.warps):
            if isinstance(step, Accessed):
                if is_store(kernel.instructions[step.pc]):
                    stored.update(step.sectors)
                    written += SECTOR * len(step.sectors)
                else:
                    read.update(step.sectors)
        for operation in trace.operations:
            if operation.kind is Kind.COPY_OUT:
                stored.update(operation.sectors)
                written += operation.size
            else:
                read.update(operation.sectors)
        new.append(SECTOR * len(read - touched))
        touched |= read | stored
    first, *later = new
    return first + (ctas - 1) * sum(later) / max(len(later), 1) + written / len(traces) * ctas


def resident_ctas(module: Module, request: LaunchRequest) -> int:
    """How many CTAs of the launch an SM holds at once, by warps, shared memory and registers."""
    warps = -(-math.prod(request.block) // LANES)
    shared = module.kernels[request.entry].shared_with(request.shared_bytes)
    return max(ctas_of_sm(warps, shared, request.registers), 1)


def _ctas(request: LaunchRequest) -> int:
    return math.prod(request.grid)


_Given = Sequence[tuple[CtaTrace, frozenset[int]]]  # each with the sectors that L2 lacks


def _with_lacking(machine: Machine, request: LaunchRequest, traces: Sequence[CtaTrace]) -> _Given:
    """Of CTAs that run at once the longest comes first: it alone is replayed."""
    if not at_once(_ctas(request), machine):
        return list(zip(traces, sectors_lacking(traces), strict=True))
    given = zip(traces, sectors_lacking(traces, together=True), strict=True)
    return sorted(given, key=lambda one: -sum(map(len, one[0].warps)))


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A replay of one SM: the launch's seconds, its cycles in whole ticks, and the SM."""

    seconds: float
    cycles: float
    sm: Sm


def _replay(
    machine: Machine,
    regions: Regions,
    module: Module,
    request: LaunchRequest,
    given: _Given,
    path: CriticalPath | None = None,
    timeline: list[Interval] | None = None,
) -> _Replayed:
    """Seconds, cycles, and the SM as it was replayed: that with the most CTAs. Its share of the memory is as
    large as lets it end with the others, which have one CTA less."""
    resident = resident_ctas(module, request)
    ctas, sms = _ctas(request), int(machine.multiprocessors.value)
    most = -(-ctas // sms)
    share = machine.memory_rate.value / machine.clock.value * most / ctas
    few = min(most, max(ROUNDS * resident, LEAST))
    sm = Sm(machine, regions.on(machine), share, resident, timeline, path)
    cycles = sm.run(islice(cycle(given), few))
    if few < most:
        # Stores do not hold up warps here, so CTAs may end faster than a unit serves them.
        served = max(sm.busy_cycles().values()) / len(sm.ends)
        cycles += (most - few) * max(_cycles_each(sm.ends, resident), served)
    between = machine.launch.value - machine.programmatic_saving.value * request.programmatic
    return _Replayed(cycles / (machine.clock.value * 1e9) + between * 1e-6, whole_ticks(cycles), sm)


def _cycles_each(ends: Sequence[float], resident: int) -> float:
    """Cycles between the ends of two CTAs while others follow: without the first round, which fills the SM,
    and the last, which empties it."""
    ordered = sorted(ends)
    skipped = min(resident, len(ordered) // 4)
    first, last = skipped, len(ordered) - skipped - 1
    return (ordered[last] - ordered[first]) / (last - first)
