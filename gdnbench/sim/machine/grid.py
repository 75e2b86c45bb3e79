# SPDX-License-Identifier: Apache-2.0
"""Runs the CTAs of a grid: in parallel if they are independent, in turns if they synchronise.

CTAs without global atomics and ordered accesses to global memory cannot wait for one another. Each runs to
its end alone, so the result does not depend on how many run at once. They run in processes, or in threads if
memory is too large to copy for each process. Other CTAs run in one thread, in ascending order. A new CTA
begins when all running ones have had their turn and none has ended, up to as many as the GPU would hold. So
grid barriers and semaphores work, and atomic updates come in one fixed order.

A *part* of the grid is what runs independently of the rest: a CTA; in a launch with clusters, a cluster,
whose CTAs share a `ClusterScheduler`; with cluster launch control, a slot, which runs clusters one after the
other (`launch_grants`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.budget import MAX_REGISTERS, allocated_registers
from gdnbench.sim.machine.cluster import Cluster
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.cta import Cta, Engine, Launch
from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.launch_grants import ClusterGrants, LaunchGrants
from gdnbench.sim.machine.processes import Progress, can_fork, run_in_processes
from gdnbench.sim.machine.scheduler import ClusterScheduler, Scheduler
from gdnbench.sim.ptx.ir import Instruction, Kernel

# An SM of a B200 or an H200 has 2,048 threads, 64 K registers, 32 CTAs and 228 KB of shared memory; each CTA
# takes 1 KB more than it requests (CUDA Programming Guide, "Compute Capability 10.x" and "9.0").
SM_THREADS = 2048
SM_CTAS = 32
SM_SHARED = 228 * 1024
CTA_SHARED = 1024

# A grid that takes no longer than this does not start processes.
ALONE_SECONDS = 0.2

# The local memory of all threads that run at once. Kernels that are served have up to some hundred bytes for
# each thread, where they spill registers or index an array: 1 KB for 1,024 threads of 148 CTAs is 155 MB.
MAX_LOCAL_BYTES = 1 << 30

# The memory of all CTAs in flight beyond one per SM, at most.
IN_FLIGHT_BYTES = 256 * 1024 * 1024

# Rounds that a CTA runs before the next CTA, and the divisor of its warps' quantum: it may only be waiting
# for another CTA.
TURNS = 2
SHORTER = 8

_ORDERED = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_SHARED = ("shared", "shared::cta", "shared::cluster")


def _may_synchronise(ins: Instruction) -> bool:
    """True if `ins` can synchronise CTAs: an atomic or ordered access, except to shared memory."""
    if ins.form.atomic:
        return not ins.has(*_SHARED)
    if ins.form.in_engine:
        return ins.has(*_ORDERED) and not ins.has(*_SHARED, "local", "param")
    return ins.form.reduces and ins.has("global")


def ctas_communicate(kernel: Kernel) -> bool:
    """True if CTAs of `kernel` may depend on one another."""
    return any(_may_synchronise(ins) for ins in kernel.instructions)


def ctas_of_sm(warps: int, shared: int, registers: int | None) -> int:
    """CTAs of so many warps, bytes of shared memory and registers a thread, if those are known, that an SM
    holds at once."""
    threads = warps * LANES
    count = min(SM_THREADS // threads, SM_SHARED // (shared + CTA_SHARED), SM_CTAS)
    return min(count, MAX_REGISTERS // (allocated_registers(registers) * threads)) if registers else count


def resident_ctas(launch: Launch) -> int:
    """The number of CTAs in flight: what the GPU holds, or fewer if that takes too much memory here."""
    per_sm = ctas_of_sm(launch.warps, launch.shared_size, launch.config.registers)
    # Shared memory with its shadows, and roughly 64 KB of registers and objects.
    size = 4 * launch.shared_size + 64 * 1024
    sms = launch.config.multiprocessors
    return min(sms * per_sm, max(sms, IN_FLIGHT_BYTES // size))


def check_local_memory(launch: Launch, ctas: int) -> None:
    """Raises KernelFault if `ctas` CTAs at once have more local memory than there may be."""
    size, threads = launch.kernel.local_size, launch.warps * LANES
    total = size * threads * ctas
    if total > MAX_LOCAL_BYTES:
        raise KernelFault(
            FaultKind.LIMIT,
            f"{size:,} bytes of .local memory for {threads:,} threads of {ctas:,} CTAs at once are {total:,}"
            f" bytes; the limit is {MAX_LOCAL_BYTES:,}, and a smaller block or fewer threads (gdnbench sim"
            " --threads) need less",
        )


class _CtaRun:
    """One running CTA."""

    def __init__(self, engine: Engine, cta: Cta, quantum: int) -> None:
        self.cta = cta
        self.warps = engine.warps(self.cta)
        self.scheduler = Scheduler(self.cta, self.warps, quantum)

    def counters(self) -> Counters:
        """Its counters, once it has ended."""
        self.cta.counters.warp_instructions = sum(warp.executed for warp in self.warps)
        self.cta.counters.count_phases(self.cta.shared.own_phase)
        steps, grants = self.cta.launch.tile_steps, self.cta.grants
        if grants is not None:
            self.cta.counters.count_tiles(1 + grants.granted)
        elif steps:
            self.cta.counters.count_tiles(
                max(sum(map(warp.executions, pcs)) for pcs in steps for warp in self.warps)
            )
        return self.cta.counters


def _clusters_run(
    launch: Launch, engine: Engine, unit: int, quantum: int
) -> Iterator[tuple[list[_CtaRun], Scheduler | ClusterScheduler]]:
    """The CTAs of each cluster of a part of the grid, with their scheduler: one CTA unless the launch has
    clusters. The clusters run one after the other."""
    for started, grants in _started(launch, unit):
        if launch.clusters is None:
            alone = _CtaRun(engine, Cta(launch, started, grants=grants), quantum)
            yield [alone], alone.scheduler
            continue
        for place in launch.clusters.clusters(started):
            cluster = Cluster(place, launch.warps, launch.shared_size)
            ctas = [Cta(launch, index, cluster, rank, grants) for rank, index in enumerate(place.ctas)]
            for cta in ctas:
                cta.members = ctas
            runs = [_CtaRun(engine, cta, quantum) for cta in ctas]
            yield runs, ClusterScheduler([run.scheduler for run in runs])


def _started(launch: Launch, unit: int) -> Iterator[tuple[int, ClusterGrants | None]]:
    """The parts of the grid that the hardware starts: this one itself, or, with cluster launch control, those
    of this slot that no running cluster cancels."""
    if launch.grants is None:
        yield unit, None
        return
    slot = launch.grants.slot(unit)
    while (started := slot.start()) is not None:
        yield started


class _Run:
    """A part of the grid that runs: a CTA, or clusters one after the other (`Launch.units`)."""

    def __init__(self, launch: Launch, engine: Engine, unit: int, quantum: int) -> None:
        self._next = _clusters_run(launch, engine, unit, quantum)
        self._runs, self._scheduler = next(self._next)
        self.total = Counters()
        self.ctas = 0  # that have ended, or that those have cancelled

    def round(self) -> bool:
        """Run one round of its scheduler; False once all CTAs have ended."""
        if self._scheduler.round():
            return True
        for run in self._runs:
            self.total.merge(run.counters())
        grants = self._runs[0].cta.grants
        self.ctas += len(self._runs) * (1 if grants is None else 1 + grants.granted)
        following = next(self._next, None)
        if following is None:
            return False
        self._runs, self._scheduler = following
        return True


class _Threads:
    """Independent parts of the grid in threads. Of several faults the one of the lowest part is reported:
    after a fault no part begins, and those before it finish. None begins after `seconds`. The part that runs
    at that time ends, or, if others are left and no checker follows it, stops between two rounds as
    `unfinished`."""

    def __init__(self, launch: Launch, engine: Engine, quantum: int, seconds: float | None = None) -> None:
        self.launch = launch
        self.engine = engine
        self.quantum = quantum
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.total = Counters()
        self.done = 0  # CTAs
        self.units_done = 0
        self.failures: dict[int, BaseException] = {}
        self.unfinished: _Run | None = None
        self.cancelled = False
        self._next = 0
        self._lock = threading.Lock()

    def next_unit(self) -> int | None:
        """The index of the next part to run."""
        with self._lock:
            if self._next >= self.launch.units or self.failures or self.cancelled:
                return None
            if self._late():
                return None
            self._next += 1
            return self._next - 1

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def run_one(self, index: int) -> None:
        """Run a part to its end."""
        run = _Run(self.launch, self.engine, index, self.quantum)
        may_stop = self.launch.checker is None and index + 1 < self.launch.units
        while run.round():
            if self.cancelled:
                return
            if may_stop and self._late():
                self.unfinished = run
                return
        with self._lock:
            self.total.merge(run.total)
            self.done += run.ctas
            self.units_done += 1

    def work(self) -> None:
        """The loop of each thread."""
        while (index := self.next_unit()) is not None:
            try:
                self.run_one(index)
            except BaseException as error:  # raised again in the waiting thread
                self.failures[index] = error

    def run(self, threads: int, progress: Progress | None) -> Counters:
        """Run all CTAs on `threads` threads besides this one, which waits, so that Ctrl-C reaches it."""
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.1)
                    if progress is not None:
                        progress(self.done, self.launch.ctas)
        finally:
            self.cancelled = True
            for worker in workers:
                worker.join()
        if self.failures:
            raise self.failures[min(self.failures)]
        if progress is not None:
            progress(self.done, self.launch.ctas)
        return self.total


def _run_apart(
    launch: Launch, engine: Engine, quantum: int, workers: int, progress: Progress | None
) -> Counters:
    """Independent parts. A few run here first, to measure whether the rest is worth other processes. A part
    that is then unfinished goes on in one of them, which has inherited its state."""
    begun = _Threads(launch, engine, quantum, ALONE_SECONDS if workers > 1 else None)
    total = begun.run(1, progress)
    left = launch.units - begun.units_done

    def run_unit(index: int) -> Counters:
        unfinished = begun.unfinished if index == begun.units_done else None
        run = unfinished or _Run(launch, engine, index, quantum)
        while run.round():
            pass
        return run.total

    if left:
        total.merge(run_in_processes(launch, run_unit, begun.units_done, min(workers, left), progress))
    return total


def _run_together(launch: Launch, engine: Engine, quantum: int, progress: Progress | None) -> Counters:
    """Parts that may wait for one another, in turns."""
    total = Counters()
    limit = max(resident_ctas(launch) // launch.unit_ctas, 1)
    begun = done = 0
    active: list[_Run] = []
    while active or begun < launch.units:
        going: list[_Run] = []
        for run in active:
            if any(not run.round() for _ in range(TURNS)):
                total.merge(run.total)
                done += run.ctas
                if progress is not None:
                    progress(done, launch.ctas)
            else:
                going.append(run)
        if len(going) == len(active) < limit and begun < launch.units:
            going.append(_Run(launch, engine, begun, quantum))
            begun += 1
        active = going
    return total


def _run_some(launch: Launch, engine: Engine, quantum: int, units: Sequence[int]) -> Counters:
    """These parts, in this order."""
    total = Counters()
    for unit in units:
        run = _Run(launch, engine, unit, quantum)
        while run.round():
            pass
        total.merge(run.total)
    return total


def run_grid(
    launch: Launch,
    engine: Engine,
    *,
    quantum: int,
    threads: int | None = None,
    progress: Progress | None = None,
    only: Sequence[int] | None = None,
) -> Counters:
    """Run all CTAs on `threads` cores, None for all. The result does not depend on the number. `only`: these
    parts alone, one after the other; they must not wait for others."""
    if only is not None:
        return _run_some(launch, engine, quantum, only)
    if launch.launch_control:
        slots = max(resident_ctas(launch) // launch.unit_ctas, 1)
        launch.grants = LaunchGrants.plan(launch.cancellable, slots, launch.config.schedule)
    if ctas_communicate(launch.kernel):
        check_local_memory(launch, min(max(resident_ctas(launch), launch.unit_ctas), launch.ctas))
        return _run_together(launch, engine, max(1, quantum // SHORTER), progress)
    count = len(os.sched_getaffinity(0)) if threads is None else threads
    if launch.checker is not None and (launch.parts is None or not can_fork(launch)):
        count = 1
    check_local_memory(launch, min(count * launch.unit_ctas, launch.ctas))
    if launch.recorder is None and can_fork(launch):
        return _run_apart(launch, engine, quantum, count, progress)
    return _Threads(launch, engine, quantum).run(min(count, launch.units), progress)
