"""Runs the CTAs of a grid: over the cores where they are independent, in turns where they talk to each other.

CTAs that use no global atomics and no ordered accesses to global memory cannot wait for one another, so
that each runs to its end alone and the result does not depend on how many run at once. They run over
processes, or over threads where memory is too large to be copied for each process. Others run in one thread,
in ascending order, a new one beginning only when all that began have had their turn and not ended: as many
at once as the GPU would hold, so that grid barriers and semaphores work and atomic updates come in one order.
"""

from __future__ import annotations

import os
import threading
import time

from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.cta import Cta, Engine, Launch
from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.processes import Progress, fits, run_in_processes
from gdnbench.sim.machine.scheduler import Scheduler
from gdnbench.sim.ptx.ir import Instruction, Kernel

# A B200 has 148 SMs, each with 2,048 threads, 32 CTAs and 228 KB of shared memory, of which a CTA takes 1
# KB more than it asked for (CUDA Programming Guide, "Compute Capability 10.x").
SMS = 148
SM_THREADS = 2048
SM_CTAS = 32
SM_SHARED = 228 * 1024
CTA_SHARED = 1024

# A grid that takes no longer than this is not worth a process.
ALONE_SECONDS = 0.2

# What CTAs in flight may take together, beyond one for each SM.
IN_FLIGHT_BYTES = 256 * 1024 * 1024

# Rounds that a CTA gets before the next one has its turn, and by how much its warps' quantum is shorter: it
# may do nothing but wait for another.
TURNS = 2
SHORTER = 8

_ORDERED = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_SHARED = ("shared", "shared::cta", "shared::cluster")


def _talks(ins: Instruction) -> bool:
    """True if `ins` may be how CTAs talk: an atomic or ordered access that is not to shared memory."""
    if ins.form.atomic:
        return not ins.has(*_SHARED)
    if ins.form.in_engine:
        return ins.has(*_ORDERED) and not ins.has(*_SHARED, "local", "param")
    return ins.form.reduces and ins.has("global")


def communicates(kernel: Kernel) -> bool:
    """True if CTAs of `kernel` may depend on one another."""
    return any(_talks(ins) for ins in kernel.instructions)


def resident(launch: Launch) -> int:
    """How many CTAs are in flight together: what the GPU holds, less if that takes too much memory here."""
    per_sm = min(
        SM_THREADS // (launch.warps * LANES), SM_SHARED // (launch.shared_size + CTA_SHARED), SM_CTAS
    )
    # Shared memory with its shadows, and roughly 64 KB of registers and objects.
    size = 4 * launch.shared_size + 64 * 1024
    return min(SMS * per_sm, max(SMS, IN_FLIGHT_BYTES // size))


class _Run:
    """One CTA under way."""

    def __init__(self, launch: Launch, engine: Engine, index: int, quantum: int) -> None:
        self.cta = Cta(launch, index)
        self.warps = engine.warps(self.cta)
        self.scheduler = Scheduler(self.cta, self.warps, quantum)

    def counters(self) -> Counters:
        """What it did, once it has ended."""
        self.cta.counters.warp_instructions = sum(warp.executed for warp in self.warps)
        return self.cta.counters


class _Threads:
    """Independent CTAs over threads. The fault reported is that of the lowest CTA that commits one: no CTA
    begins after one failed, and those before it run on. None begins when `seconds` are over."""

    def __init__(self, launch: Launch, engine: Engine, quantum: int, seconds: float | None = None) -> None:
        self.launch = launch
        self.engine = engine
        self.quantum = quantum
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.total = Counters()
        self.done = 0
        self.failures: dict[int, BaseException] = {}
        self.cancelled = False
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The next CTA to run."""
        with self._lock:
            if self._next >= self.launch.ctas or self.failures or self.cancelled:
                return None
            if self.deadline is not None and time.monotonic() > self.deadline:
                return None
            self._next += 1
            return self._next - 1

    def run_one(self, index: int) -> None:
        """Run a CTA to its end."""
        run = _Run(self.launch, self.engine, index, self.quantum)
        while run.scheduler.round():
            if self.cancelled:
                return
        with self._lock:
            self.total.merge(run.counters())
            self.done += 1

    def work(self) -> None:
        """What each thread does."""
        while (index := self.take()) is not None:
            try:
                self.run_one(index)
            except BaseException as error:  # handed to the thread that waits
                self.failures[index] = error

    def run(self, threads: int, progress: Progress | None) -> Counters:
        """All CTAs, on `threads` threads beside the one that waits, so that Ctrl-C reaches it."""
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
    """Independent CTAs: a few here, which tells whether the rest is worth other processes."""

    def run_cta(index: int) -> Counters:
        run = _Run(launch, engine, index, quantum)
        while run.scheduler.round():
            pass
        return run.counters()

    begun = _Threads(launch, engine, quantum, ALONE_SECONDS if workers > 1 else None)
    total = begun.run(1, progress)
    left = launch.ctas - begun.done
    if left:
        total.merge(run_in_processes(launch, run_cta, begun.done, min(workers, left), progress))
    return total


def _run_together(launch: Launch, engine: Engine, quantum: int, progress: Progress | None) -> Counters:
    """CTAs that may wait for one another, in turns."""
    total = Counters()
    limit = resident(launch)
    begun = done = 0
    active: list[_Run] = []
    while active or begun < launch.ctas:
        going: list[_Run] = []
        for run in active:
            if any(not run.scheduler.round() for _ in range(TURNS)):
                total.merge(run.counters())
                done += 1
                if progress is not None:
                    progress(done, launch.ctas)
            else:
                going.append(run)
        if len(going) == len(active) < limit and begun < launch.ctas:
            going.append(_Run(launch, engine, begun, quantum))
            begun += 1
        active = going
    return total


def run_grid(
    launch: Launch,
    engine: Engine,
    *,
    quantum: int,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Counters:
    """Run all CTAs on `threads` cores, None for all; the result is the same for any number."""
    if communicates(launch.kernel):
        return _run_together(launch, engine, max(1, quantum // SHORTER), progress)
    count = len(os.sched_getaffinity(0)) if threads is None else threads
    if launch.checker is not None and (launch.parts is None or not fits(launch)):
        count = 1
    if launch.recorder is None and fits(launch):
        return _run_apart(launch, engine, quantum, count, progress)
    return _Threads(launch, engine, quantum).run(min(count, launch.ctas), progress)
