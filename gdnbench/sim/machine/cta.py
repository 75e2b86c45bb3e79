# SPDX-License-Identifier: Apache-2.0
"""One CTA's machine: its memories, barriers and asynchronous operations, and the dispatch of machine
instructions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, Place, UnsupportedError
from gdnbench.sim.machine.async_queue import LATE, AsyncQueue, Schedule
from gdnbench.sim.machine.barrier_state import NamedBarriers, RegisterPool
from gdnbench.sim.machine.bounds import Meter
from gdnbench.sim.machine.cluster import Cluster, ClusterBarrier, ClusterGrid
from gdnbench.sim.machine.copy_state import CopyState
from gdnbench.sim.machine.counters import Counters, counted_as
from gdnbench.sim.machine.engine_interface import (
    LANES,
    WRITTEN,
    Argument,
    Dim3,
    Lanes,
    Results,
    Wait,
    Warp,
    WarpEngine,
)
from gdnbench.sim.machine.keep_going import GOES_ON, Skipped, SkippedFaults
from gdnbench.sim.machine.launch_grants import ClusterGrants, LaunchGrants
from gdnbench.sim.machine.memory import GlobalMemory, LocalMemory
from gdnbench.sim.machine.observer import Checker, Parts
from gdnbench.sim.machine.recorder import Recorder
from gdnbench.sim.machine.shared_memory import ClusterMemory, SharedMemory
from gdnbench.sim.machine.tmem import TensorMemory
from gdnbench.sim.machine.wgmma_form import Forms
from gdnbench.sim.machine.wgmma_state import Warpgroups
from gdnbench.sim.ptx.ir import Instruction, Kernel, Module
from gdnbench.sim.tensorcore.product import Multiply
from gdnbench.sim.tensorcore.scaled import MultiplyScaled

MULTIPROCESSORS = 148  # of a B200

Handler = Callable[["Cta", Warp, Instruction, Lanes, "tuple[Argument, ...]", "Wait | None"], "Results | Wait"]
"""Executes a machine instruction. Arguments: cta, warp, instruction, lanes, sources, and the Wait that the
instruction returned last time, or None."""


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """How a launch is simulated. `mma` names the model of the tensor core; `multiply` and `multiply_scaled`
    implement it for the engine. `track` records which shared bytes were written and checks reads. `registers`
    is the register count per thread if known. `check`: CTAs have a checker. `multiprocessors` bounds how many
    CTAs that wait for one another run at once. `keep_going`: faults that can be skipped are recorded, and the
    launch goes on. `clustered`: the launch has clusters of several CTAs; `explicit_clusters`: it names
    a shape of clusters, be it of one CTA. `path`: the engine reports
    the path of each warp to a `PathObserver`."""

    schedule: Schedule = LATE
    mma: str = "hardware"
    multiply: Multiply | None = None
    multiply_scaled: MultiplyScaled | None = None
    track: bool = True
    profile: bool = False
    registers: int | None = None
    check: bool = False
    multiprocessors: int = MULTIPROCESSORS
    keep_going: bool = False
    clustered: bool = False
    explicit_clusters: bool = False
    path: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A legal act of a launch that the reader should know."""

    message: str
    place: Place

    def __str__(self) -> str:
        return f"{self.message} at {self.place}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How an instruction is dispatched."""

    ins: Instruction
    handler: Handler
    aligned: bool
    results: int


@dataclass(slots=True)
class Launch:
    """What all CTAs of a grid share."""

    module: Module
    kernel: Kernel
    grid: Dim3
    block: Dim3
    param: bytes
    memory: GlobalMemory
    config: MachineConfig
    static_shared: int
    dynamic_shared: int
    shared_size: int  # static, padding to the dynamic part's alignment, dynamic
    handler: Callable[[str], Handler]  # by `Instruction.op`; `units.handler`
    recorder: Callable[[int], Recorder] | None = None  # by CTA index
    checker: Callable[[Cta], Checker] | None = None
    parts: Parts | None = None  # without them checked CTAs run one by one in this process
    notes: Counter[Note] = field(default_factory=Counter)
    skipped: SkippedFaults = field(default_factory=SkippedFaults)
    plans: dict[int, Plan] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    meter: Meter = field(default_factory=Meter)
    tile_steps: tuple[tuple[int, ...], ...] = ()  # pcs of `ring_reuse.tile_steps`, which are counted
    clusters: ClusterGrid | None = None  # None: no CTA shares anything with another
    launch_control: bool = False  # whether clusters may cancel others
    shadowed: bool = False  # all memories have `shadow_cells`
    lost_shadows: Counter[int] = field(default_factory=Counter)  # elements, by the pc that lost them
    grants: LaunchGrants | None = None  # with launch control, once the launch runs
    _wgmma: Forms | None = None
    _cta_groups: frozenset[str] | None = None

    @property
    def cta_groups(self) -> frozenset[str]:
        """The values of .cta_group that the kernel's tcgen05 instructions have."""
        if self._cta_groups is None:
            self._cta_groups = frozenset(
                mod
                for ins in self.kernel.instructions
                if ins.op.startswith("tcgen05.")
                for mod in ins.mods
                if mod.startswith("cta_group::")
            )
        return self._cta_groups

    @property
    def wgmma(self) -> Forms:
        """The kernel's wgmma forms, decoded at the first execution."""
        if self._wgmma is None:
            self._wgmma = Forms.collect(self.kernel)
        return self._wgmma

    def plan(self, ins: Instruction) -> Plan:
        """How `ins` is dispatched; cached by the instruction's identity."""
        made = self.plans[id(ins)] = Plan(
            ins, self.handler(ins.op), ins.form.aligned, sum(1 for _ in ins.written())
        )
        return made

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a CTA; the last may be partial."""
        return -(-self.threads // LANES)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def units(self) -> int:
        """The parts of the grid that run independently: CTAs, or clusters (`ClusterGrid.units`). Of a kernel
        with cluster launch control the slots of the GPU (`launch_grants`)."""
        return self.cancellable if self.grants is None else len(self.grants.queues)

    @property
    def cancellable(self) -> int:
        """The CTAs or clusters of the grid, of which cluster launch control can cancel each."""
        return self.ctas if self.clusters is None else self.clusters.units

    @property
    def unit_ctas(self) -> int:
        """The most CTAs of a part that run at once."""
        return 1 if self.clusters is None else self.clusters.largest

    def ctaid(self, index: int) -> Dim3:
        """The coordinates of the CTA with this index."""
        return coordinates(index, self.grid)


def coordinates(index: int, grid: Dim3) -> Dim3:
    """The coordinates of the CTA with this index in a grid; x varies fastest."""
    x, y, _ = grid
    return index % x, index // x % y, index // (x * y)


class Cta:
    """One CTA as engines and units use it."""

    def __init__(
        self,
        launch: Launch,
        index: int,
        cluster: Cluster | None = None,
        rank: int = 0,
        grants: ClusterGrants | None = None,
    ) -> None:
        self.launch = launch
        self.index = index
        self.cluster = cluster
        self.rank = rank
        self.grants = grants
        self.members: Sequence[Cta] = (self,)  # the CTAs of its cluster, by rank
        self.config = launch.config
        self.memory = launch.memory
        self.grid = launch.grid
        self.block = launch.block
        self.ctaid = launch.ctaid(index)
        self.param = launch.param
        skip = self.skip if launch.config.keep_going else None
        arrays = None if cluster is None else cluster.arrays
        self.shared = SharedMemory(
            launch.shared_size, track=launch.config.track, skip=skip, cluster=arrays, rank=rank
        )
        if launch.shadowed:
            self.shared.add_shadows()
        # What accesses to shared::cluster reach: the shared memory of every CTA of the cluster.
        self.cluster_shared = self.shared if arrays is None else ClusterMemory(self.shared, arrays)
        self._executed: tuple[Place, str] | None = None
        self.local = tuple(
            LocalMemory(launch.kernel.local_size, shadowed=launch.shadowed) for _ in range(launch.warps)
        )
        self._tmem: TensorMemory | None = None
        self._warpgroups: Warpgroups | None = None
        self.queue = AsyncQueue(launch.config.schedule, index)
        if cluster is not None:
            cluster.queues.append(self.queue)
        self.copies = CopyState()
        self.barriers = NamedBarriers(launch.warps)
        self.cluster_barrier = (
            ClusterBarrier(launch.warps, launch.warps) if cluster is None else cluster.barrier
        )
        self.pool = RegisterPool(launch.config.registers)
        self.counters = Counters()
        self.recorder = launch.recorder(index) if launch.recorder is not None else None
        if self.recorder is not None:
            self.queue.observer = self.recorder.asynchronous
        self.tensor_issuers: set[int] = set()  # warps that have issued products or copies of tensor memory
        self.checker = launch.checker(self) if launch.checker is not None else None
        self.queue.checker = self.checker

    @property
    def tmem(self) -> TensorMemory:
        """Tensor memory, created at first use."""
        if self._tmem is None:
            skip = self.skip if self.config.keep_going else None
            self._tmem = TensorMemory(track=self.config.track, skip=skip, shadowed=self.launch.shadowed)
        return self._tmem

    @property
    def warpgroups(self) -> Warpgroups:
        """The warpgroups' products in flight, created at the first wgmma."""
        if self._warpgroups is None:
            self._warpgroups = Warpgroups(self.launch.wgmma)
        return self._warpgroups

    def warp(self, index: int) -> Warp:
        """The warp with this index. Its lanes are those of the block's threads."""
        exists = np.arange(LANES) < self.launch.threads - index * LANES
        return Warp(index, exists, rank=self.rank, number=self.rank * self.launch.warps + index)

    def advance_signal(self, address: int) -> bool:
        """Land the oldest operation in flight, of this CTA or another of its cluster, that signals the
        mbarrier at `address`; False if there is none."""
        if self.cluster is not None:
            return self.cluster.advance_signal(address)
        return self.queue.advance_signal(address)

    def warp_exited(self, warp: Warp) -> None:
        """All lanes of a warp have exited."""
        if self.checker is not None:
            self.checker.on_warp_exit(warp.index)
        self.barriers.exited(warp.index)
        self.cluster_barrier.exited(warp.number)

    def issue(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None = None,
    ) -> Results | Wait:
        """Execute a machine instruction for `lanes` of `warp`. A fault carries the place and the thread."""
        self.execute(warp, ins, lanes)
        try:
            plan = self.launch.plans.get(id(ins)) or self.launch.plan(ins)
            if plan.aligned and lanes.tobytes() != warp.exists.tobytes():
                missing = np.nonzero(warp.exists & ~lanes)[0].tolist()
                raise KernelFault(FaultKind.DIVERGENCE, f"{ins.name} without lanes {missing} of the warp")
            if self.config.profile:
                self._count(warp, ins, previous)
            if self.checker is None:
                return self._counted(plan, plan.handler(self, warp, ins, lanes, sources, previous))
            self.checker.before_instruction(warp, ins, lanes, sources, previous)
            results = self._counted(plan, plan.handler(self, warp, ins, lanes, sources, previous))
            self.checker.after_instruction(warp, ins, lanes, sources, previous, results)
            return results
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = ins.place, self.thread(warp, lanes)
            raise
        except UnsupportedError as error:
            if error.place is None:
                raise UnsupportedError(error.what, ins.place) from error
            raise

    @staticmethod
    def _counted(plan: Plan, results: Results | Wait) -> Results | Wait:
        """The results of a handler. Raises UnsupportedError unless each destination has one."""
        if not plan.results or results is WRITTEN or isinstance(results, Wait):
            return results
        if len(results) != plan.results:
            raise UnsupportedError(f"{plan.ins.name} with {plan.results} destinations")
        return results

    def thread(self, warp: Warp, lanes: Lanes) -> str:
        """The executing thread, for messages."""
        active = np.nonzero(lanes)[0].tolist()
        some = f"lane {active[0]}" if len(active) == 1 else f"{len(active)} lanes"
        return f"CTA {self.ctaid}, warp {warp.index}, {some}"

    def note(self, message: str, ins: Instruction) -> None:
        """Record a legal act that the reader should know; equal notes are counted."""
        with self.launch.lock:
            self.launch.notes[Note(message, ins.place)] += 1

    def execute(self, warp: Warp, ins: Instruction, lanes: Lanes) -> None:
        """Name the instruction whose faults `skip` records from now on."""
        if self.config.keep_going:
            self._executed = ins.place, self.thread(warp, lanes)

    def land(self, warp: Warp, ins: Instruction, lanes: Lanes, operation: Callable[[], None]) -> None:
        """Run an operation that lands after its instruction, which a fault without a place is then at."""
        self.execute(warp, ins, lanes)
        try:
            operation()
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = ins.place, self.thread(warp, lanes)
            raise

    def skip(self, fault: KernelFault, count: int = 1) -> None:
        """Record a fault and return, if the launch can go on after it; else raise it."""
        if not self.config.keep_going or fault.kind not in GOES_ON:
            raise fault
        place, thread = fault.place, fault.thread
        if place is None and self._executed is not None:
            place, thread = self._executed
        with self.launch.lock:
            self.launch.skipped.add(Skipped(fault.kind, fault.message, place, thread), count)

    def finish(self) -> None:
        """All warps have exited: land the operations in flight."""
        if self.checker is not None:
            self.checker.on_cta_end()
        if self._warpgroups is not None:
            self._warpgroups.at_exit()
        self.queue.drain()
        if self._tmem is not None:
            self._tmem.at_exit()
        if self.cluster is not None:
            self.cluster.exited(self.rank)

    def _count(self, warp: Warp, ins: Instruction, previous: Wait | None) -> None:
        if previous is None:
            self.counters.instructions[counted_as(ins)] += 1
            if self.recorder is not None:
                self.recorder.issued(warp.index, ins)
        else:
            self.counters.waits[warp.index, ins.op] += 1


class Engine(Protocol):
    """A kernel ready to run."""

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        """The warps of one CTA, each at its first instruction."""
        ...
