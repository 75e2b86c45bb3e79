"""Runs the CTAs of a grid: in parallel if they are independent, in turns if they synchronise.

CTAs without global atomics and ordered accesses to global memory cannot wait for one another. Each runs to
its end alone, so the result does not depend on how many run at once. They run in processes, or in threads if
memory is too large to copy for each process. Other CTAs run in one thread, in ascending order. A new CTA
begins when all running ones have had their turn and none has ended, up to as many as the GPU would hold. So
grid barriers and semaphores work, and atomic updates come in one fixed order.
"""

from __future__ import annotations

import os
import threading
import time

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.cta import Cta, Engine, Launch
from gdnbench.sim.machine.engine_interface import LANES
from gdnbench.sim.machine.processes import Progress, can_fork, run_in_processes
from gdnbench.sim.machine.scheduler import Scheduler
from gdnbench.sim.ptx.ir import Instruction, Kernel

# An SM of a B200 has 2,048 threads, 32 CTAs and 228 KB of shared memory; each CTA takes 1 KB more than it
# requests (CUDA Programming Guide, "Compute Capability 10.x").
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


def _talks(ins: Instruction) -> bool:
    """True if `ins` can synchronise CTAs: an atomic or ordered access, except to shared memory."""
    if ins.form.atomic:
        return not ins.has(*_SHARED)
    if ins.form.in_engine:
        return ins.has(*_ORDERED) and not ins.has(*_SHARED, "local", "param")
    return ins.form.reduces and ins.has("global")


def ctas_communicate(kernel: Kernel) -> bool:
    """True if CTAs of `kernel` may depend on one another."""
    return any(_talks(ins) for ins in kernel.instructions)


def resident_ctas(launch: Launch) -> int:
    """The number of CTAs in flight: what the GPU holds, or fewer if that takes too much memory here."""
    per_sm = min(
        SM_THREADS // (launch.warps * LANES), SM_SHARED // (launch.shared_size + CTA_SHARED), SM_CTAS
    )
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


class _Run:
    """One running CTA."""

    def __init__(self, launch: Launch, engine: Engine, index: int, quantum: int) -> None:
        self.cta = Cta(launch, index)
        self.warps = engine.warps(self.cta)
        self.scheduler = Scheduler(self.cta, self.warps, quantum)

    def counters(self) -> Counters:
        """Its counters, once it has ended."""
        self.cta.counters.warp_instructions = sum(warp.executed for warp in self.warps)
        self.cta.counters.count_phases(self.cta.shared.phase)
        steps = self.cta.launch.tile_steps
        if steps:
            self.cta.counters.count_tiles(
                max(sum(map(warp.executions, pcs)) for pcs in steps for warp in self.warps)
            )
        return self.cta.counters


class _Threads:
    """Independent CTAs in threads. Of several faults the one of the lowest CTA is reported: after a fault no
    CTA begins, and those before it finish. None begins after `seconds`."""

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

    def next_cta(self) -> int | None:
        """The index of the next CTA to run."""
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
        """The loop of each thread."""
        while (index := self.next_cta()) is not None:
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
    """Independent CTAs. A few run here first, to measure whether the rest is worth other processes."""

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
    limit = resident_ctas(launch)
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
    """Run all CTAs on `threads` cores, None for all. The result does not depend on the number."""
    if ctas_communicate(launch.kernel):
        check_local_memory(launch, min(resident_ctas(launch), launch.ctas))
        return _run_together(launch, engine, max(1, quantum // SHORTER), progress)
    count = len(os.sched_getaffinity(0)) if threads is None else threads
    if launch.checker is not None and (launch.parts is None or not can_fork(launch)):
        count = 1
    check_local_memory(launch, min(count, launch.ctas))
    if launch.recorder is None and can_fork(launch):
        return _run_apart(launch, engine, quantum, count, progress)
    return _Threads(launch, engine, quantum).run(min(count, launch.ctas), progress)
