"""The predicted time of a launch: some of its CTAs run on the simulator, one SM is replayed with them, and
the rest of the grid follows from that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.budget import is_clustered
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.grid import ctas_communicate, ctas_of_sm
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.code import Code
from gdnbench.sim.predict.machines import GROUPS, Machine
from gdnbench.sim.predict.recorder import TraceRecorder
from gdnbench.sim.predict.sm import Sm, is_store, sectors_lacking
from gdnbench.sim.predict.trace import SECTOR, Accessed, CtaTrace, Kind
from gdnbench.sim.ptx.ir import Kernel, Module
from gdnbench.sim.run import run_ptx

# CTAs of a grid that run on the simulator: those in the middle, which are neighbours, so that sectors
# that neighbours both read are seen.
SAMPLED = 8
# CTAs of an SM that are replayed: so many rounds of those that it holds at once, and so many at least. The
# time of more follows from the distance of their ends.
ROUNDS, LEAST = 4, 96


@dataclass(frozen=True, slots=True)
class Prediction:
    """A launch on `machine`: predicted seconds, and the seconds between which they move with the parameters
    that nobody has published. `limits` is the part of the SM's time in which each of its units, or its share
    of the memory, is busy; `waits` the cycles that warps waited, by role and opcode. An SM runs `ctas` CTAs,
    `resident` at once; the launch moves `memory_bytes` from and to HBM."""

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

    @property
    def bound(self) -> str:
        """The unit that is busy for most of the time; "latency" if none is for half of it."""
        name, part = max(self.limits.items(), key=lambda item: item[1])
        return name if part >= HALF else LATENCY


HALF = 0.5
LATENCY = "latency"


def sampled_ctas(ctas: int, count: int = SAMPLED) -> range:
    """The CTAs that run."""
    count = min(ctas, count)
    first = (ctas - count) // 2
    return range(first, first + count)


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
    UnsupportedError for a launch that the model does not cover, and what `run_ptx` raises."""
    check_covered(module, request)
    recorders: list[TraceRecorder] = []

    def begin(cta: Cta) -> TraceRecorder:
        recorders.append(TraceRecorder(cta))
        return recorders[-1]

    run_ptx(
        module,
        request.entry,
        request.grid,
        request.block,
        request.params,
        request.shared_bytes,
        memory=memory,
        threads=1,
        registers=request.registers,
        multiprocessors=int(machine.multiprocessors.value),
        cluster=request.cluster,
        preferred_cluster=request.preferred_cluster,
        checker=begin,
        path=True,
        only=ctas,
    )
    return [recorder.trace() for recorder in recorders]


def predict(
    machine: Machine, module: Module, request: LaunchRequest, traces: Sequence[CtaTrace]
) -> Prediction:
    """The time of the launch, from traces of some of its CTAs. Raises UnsupportedError without the tools that
    make and print machine code."""
    given = _with_lacking(traces)
    seconds, sm = _replay(machine, module, request, given)
    squares = {1: 0.0, -1: 0.0}
    for group in GROUPS:
        ends = [_replay(machine.moved(group, end), module, request, given)[0] for end in ("low", "high")]
        squares[-1] += (seconds - min(seconds, *ends)) ** 2
        squares[1] += (max(seconds, *ends) - seconds) ** 2
    return Prediction(
        machine.name,
        request.entry,
        seconds,
        seconds - math.sqrt(squares[-1]),
        seconds + math.sqrt(squares[1]),
        sm.limits(),
        {f"{role}: {what}": cycles for (role, what), cycles in sm.waits.most_common()},
        _ctas(request) / machine.multiprocessors.value,
        resident_ctas(module, request),
        memory_bytes(module.kernels[request.entry], traces, _ctas(request)),
    )


def predict_seconds(
    machine: Machine, module: Module, request: LaunchRequest, traces: Sequence[CtaTrace]
) -> float:
    """The same seconds without their range and what they consist of, in a tenth of the time."""
    return _replay(machine, module, request, _with_lacking(traces))[0]


def memory_bytes(kernel: Kernel, traces: Sequence[CtaTrace], ctas: int) -> float:
    """The bytes that a launch of so many CTAs moves from and to HBM, by traces of neighbours. The first reads
    all of its sectors; each later one the sectors that no earlier one touched, on average."""
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
    """CTAs that an SM holds at once."""
    warps = -(-math.prod(request.block) // LANES)
    shared = module.kernels[request.entry].shared_with(request.shared_bytes)
    return max(ctas_of_sm(warps, shared, request.registers), 1)


def _ctas(request: LaunchRequest) -> int:
    return math.prod(request.grid)


_Given = Sequence[tuple[CtaTrace, frozenset[int]]]  # with the sectors that L2 lacks


def _with_lacking(traces: Sequence[CtaTrace]) -> _Given:
    return list(zip(traces, sectors_lacking(traces), strict=True))


def _replay(machine: Machine, module: Module, request: LaunchRequest, given: _Given) -> tuple[float, Sm]:
    """Seconds, and the SM as it was replayed: that with the most CTAs. Its share of the memory is as large as
    lets it end with the others, which have one CTA less."""
    code = Code(module, request.entry, machine)
    resident = resident_ctas(module, request)
    ctas, sms = _ctas(request), int(machine.multiprocessors.value)
    most = -(-ctas // sms)
    share = machine.memory_rate.value / machine.clock.value * most / ctas
    few = min(most, max(ROUNDS * resident, LEAST))
    sm = Sm(machine, code, share, resident)
    cycles = sm.run(islice(cycle(given), few))
    if few < most:
        # Stores do not hold up warps here, so CTAs may end faster than a unit serves them.
        served = max(sm.busy_cycles().values()) / len(sm.ends)
        cycles += (most - few) * max(_cycles_each(sm.ends, resident), served)
    between = machine.launch.value - machine.programmatic_saving.value * request.programmatic
    return cycles / (machine.clock.value * 1e9) + between * 1e-6, sm


def _cycles_each(ends: Sequence[float], resident: int) -> float:
    """Cycles between the ends of two CTAs while others follow: without the first round, which fills the SM,
    and the last, which empties it."""
    ordered = sorted(ends)
    skipped = min(resident, len(ordered) // 4)
    first, last = skipped, len(ordered) - skipped - 1
    return (ordered[last] - ordered[first]) / (last - first)
