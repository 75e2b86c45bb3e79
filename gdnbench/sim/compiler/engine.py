# SPDX-License-Identifier: Apache-2.0
"""The fast engine: a kernel as native code, and a warp that runs it until it waits or exits or its turn ends.

Compiled code returns to Python for runtime calls, faults and the end of a turn. It runs without a lock: CTAs
on several threads share only machine code and global memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from gdnbench.sim.compiler import faults, matrix, mma, reconvergence
from gdnbench.sim.compiler import kernel as kernels
from gdnbench.sim.compiler.access_log import AccessLog
from gdnbench.sim.compiler.dispatch import Status
from gdnbench.sim.compiler.fragments import Direct, direct
from gdnbench.sim.compiler.kernel import NativeKernel
from gdnbench.sim.compiler.layout import ALIGN, HEADER, SCALARS, aligned_bytes
from gdnbench.sim.compiler.native import Loaded
from gdnbench.sim.compiler.register_watch import RegisterWatch
from gdnbench.sim.compiler.runtime_calls import Service, ServiceMaker, lanes_mask, mask_lanes
from gdnbench.sim.compiler.translator import TRAFFIC
from gdnbench.sim.compiler.warpgroup import CompiledRegisters
from gdnbench.sim.machine.counters import counted_as
from gdnbench.sim.machine.cta import Cta, MachineConfig
from gdnbench.sim.machine.engine_interface import (
    LANES,
    WRITTEN,
    Argument,
    Blocked,
    Lanes,
    Results,
    Wait,
    Warp,
    WarpEngine,
    WarpState,
)
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction, Kernel, Module

_FULL = 0xFFFF_FFFF
LIVE, WAITING, JOINING, ACTIVE, CURRENT = (
    HEADER[name] // 4 for name in ("live", "waiting", "joining", "active", "current")
)
SKIPPED = HEADER["skipped"] // 4
EXECUTED = HEADER["executed"] // 8
SERVICE = int(Status.SERVICE)


def prepare(module: Module, kernel: Kernel, config: MachineConfig) -> CompiledEngine:
    """Compile a kernel or load it from the cache."""
    return CompiledEngine(
        kernels.compile_kernel(
            module,
            kernel,
            logged=config.check and not config.path,
            keep_going=config.keep_going,
            clustered=config.clustered,
            path=config.path,
        ),
        config,
    )


class CompiledEngine:
    """A compiled kernel. The threads that run its CTAs share it and never modify it."""

    def __init__(self, native: NativeKernel, config: MachineConfig) -> None:
        self.native = native
        self.config = config
        self.run = native.loaded.run
        self.optimise_at = math.inf if native.optimiser is None else native.optimiser.first_look()
        self._replaced: list[Loaded] = []  # other threads may still run the old code
        blocks = native.blocks
        maker = ServiceMaker(native.kernel, native.layout, native.symbols, clustered=config.clustered)
        instructions = native.kernel.instructions
        self.services: dict[int, Service] = {
            block.index: maker.make(instructions[block.start]) for block in blocks.blocks if block.service
        }
        self.next_block = [blocks.at.get(block.stop, -1) for block in blocks.blocks]
        self.starts = [block.start for block in blocks.blocks]
        # If anything observes the launch, all machine instructions must go through the machine.
        self.watched = config.profile or config.check
        self.direct: dict[int, Direct] = {
            block: found
            for block, service in self.services.items()
            if not config.profile
            and (not service.ins.form.by_machine or not config.check)
            and (found := direct(service))
        }
        # Compiled code itself tests whether these waits are over: their lanes return to it.
        self.repeatable = {
            block
            for block, service in self.services.items()
            if service.ins.form.sync is Sync.POLL and not self.watched
        }
        self.masks = {
            block.index: maker.value(instructions[block.start], instructions[block.start].sources[-1])
            for block in blocks.blocks
            if instructions[block.start].form.lanes_meet
        }
        self.histograms = [
            Counter(counted_as(ins) for ins in instructions[b.start : b.stop] if not ins.form.by_machine)
            for b in blocks.blocks
        ]
        self.macs = [
            sum(matrix.double_macs(ins) for ins in instructions[b.start : b.stop]) for b in blocks.blocks
        ]
        self.template = np.zeros(native.layout.size, np.uint8)

    def optimise(self) -> None:
        """Run better code from now on, if there is any yet."""
        assert self.native.optimiser is not None
        self.optimise_at = math.inf  # for the other threads
        loaded, self.optimise_at = self.native.optimiser.look()
        if loaded is not None:
            self._replaced.append(loaded)
            self.run = loaded.run

    def instruction(self, block: int) -> Instruction:
        """The first instruction of a block, the only one if Python executes it."""
        return self.native.kernel.instructions[self.starts[block]]

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        log = None
        if cta.checker is not None:
            field = self.native.layout.log
            assert field is not None, "a checker, and a kernel that was made ready without config.check"
            log = AccessLog(cta.checker, field, path=self.config.path)
        return [CompiledWarp(self, cta, cta.warp(index), log) for index in range(cta.launch.warps)]


class CompiledWarp:
    """One warp: its state in memory, and the groups of its lanes that wait at runtime calls."""

    def __init__(self, engine: CompiledEngine, cta: Cta, warp: Warp, log: AccessLog | None = None) -> None:
        self.engine = engine
        self.warp = warp
        self.cta = cta
        self.kernel = engine.native.kernel
        self.layout = engine.native.layout
        self.state = aligned_bytes(engine.native.layout.size)
        self.pointer = int(self.state.ctypes.data)
        self.counts = np.zeros((len(engine.native.blocks.blocks), 2), np.int64)
        self._counts = self.counts.data.cast("B").cast("q")
        self.traffic = np.zeros(len(TRAFFIC), np.int64)
        self._keep: list[object] = []
        self._waiting: list[tuple[int, int, Wait]] = []  # (block, lanes, wait)
        self.cells = self.state.data.cast("B").cast("I")  # reads and writes plain integers
        self.longs = self.state.data.cast("B").cast("q")
        self.places = self.state[: 4 * LANES].view(np.int32)
        self._fill()
        self._log = log
        if log is not None:
            log.open(self)
        shadows, checker = engine.native.shadows, self.cta.checker
        self._watch = (
            RegisterWatch(shadows, self, checker) if shadows is not None and checker is not None else None
        )
        warp.registers = CompiledRegisters(self.state, engine.native.layout, self._watch)

    def _fill(self) -> None:
        """Write the header: pointers to the CTA's memories, and the thread of each lane."""
        cta = self.cta
        shared, local = cta.shared, cta.local[self.warp.index]
        param = np.frombuffer(cta.param + bytes(ALIGN), np.uint8)
        bases, ends = cta.memory.bases, cta.memory.ends
        self._keep = [param, bases, ends, shared.bytes, local.bytes, cta.cluster]
        for name, value in {
            "shared": shared.bytes.ctypes.data,
            "shared_end": shared.end,
            "param": param.ctypes.data,
            "param_size": len(cta.param),
            "local": local.bytes.ctypes.data,
            "local_size": local.size,
            "bases": bases.ctypes.data,
            "ends": ends.ctypes.data,
            "allocations": len(bases),
            "counts": self.counts.ctypes.data,
            "phases": shared.phase.ctypes.data,
            "traffic": self.traffic.ctypes.data,
            "shared_first": shared.first,
            "alive": 0 if cta.cluster is None else cta.cluster.arrays.alive.ctypes.data,
        }.items():
            self.longs[HEADER[name] // 8] = value
        for name, address in cta.memory.symbols.items():
            slot = self.engine.native.symbols.get(name)
            if slot is not None:
                self.state[slot : slot + 8].view(np.uint64)[0] = address
        thread = self.warp.index * LANES + np.arange(LANES, dtype=np.uint32)
        width, height = cta.block[0], cta.block[1]
        for name, row in (
            ("tid.x", thread % width),
            ("tid.y", thread // width % height),
            ("tid.z", thread // (width * height)),
        ):
            self.state[HEADER[name] : HEADER[name] + 128].view(np.uint32)[:] = row
        for name, number in zip(SCALARS, self._scalars(), strict=True):
            self.cells[HEADER[name] // 4] = number
        self.cells[HEADER["inline"] // 4] = not self.engine.watched
        self.cells[LIVE] = self._seen_live = lanes_mask(self.warp.exists)

    def _scalars(self) -> tuple[int, ...]:
        """The values of `layout.SCALARS`."""
        cta, sizes = self.cta, self.cta.launch
        cluster = cta.cluster
        of_cluster = (
            (*cta.ctaid, *cta.grid, 0, 0, 0, 1, 1, 1, 0, 1)
            if cluster is None
            else (
                *(*cluster.place.position, *cluster.place.clusters),
                *(*cluster.position(cta.rank), *cluster.place.shape),
                *(cta.rank, cluster.size),
            )
        )
        return (
            *cta.block,
            *cta.ctaid,
            *cta.grid,
            self.warp.index,
            sizes.warps,
            cta.index % cta.config.multiprocessors,
            cta.config.multiprocessors,
            sizes.dynamic_shared,
            sizes.shared_size,
            *of_cluster,
            cta.config.explicit_clusters,
        )

    @property
    def executed(self) -> int:
        return self.longs[EXECUTED]

    def executions(self, pc: int) -> int:
        blocks = self.engine.native.blocks.blocks
        block = next(block for block in blocks if block.start <= pc < block.stop)
        return int(self.counts[block.index, 0])

    def position(self) -> Instruction:
        live = self.places[mask_lanes(self.cells[LIVE])]
        return self.engine.instruction(int(live.min()) if live.size else 0)

    def run_turn(self, quantum: int) -> WarpState:
        executed, cells, log, watch = self.longs, self.cells, self._log, self._watch
        limit = executed[EXECUTED] + quantum
        if self._waiting:
            self._retry()
        engine = self.engine
        if perf_counter() > engine.optimise_at:
            engine.optimise()
        run, pointer = engine.run, self.pointer
        while True:
            left = limit - executed[EXECUTED]
            if left <= 0:
                return WarpState.RUNNING
            status = run(pointer, left)
            if cells[SKIPPED]:
                faults.report_skipped(self, self.engine.native.skips)
            if watch is not None:
                watch.report_uses()
            if log is not None:
                log.drain(self)
            if status == SERVICE:
                self._service(cells[CURRENT], cells[ACTIVE], None)
            elif status == Status.QUANTUM:
                return WarpState.RUNNING
            elif status == Status.FAULT:
                raise faults.fault(self)
            elif status == Status.EXITS:
                self._left_behind()
            elif status != Status.FULL:
                return self._idle()

    def report_collective(self, ins: Instruction, lanes: Lanes) -> None:
        """Report to the checker, if there is one, lanes that arrived at a collective while no compiled code
        ran."""
        if self._log is not None:
            self._log.log_collective(self, ins, lanes, mask_lanes(self.cells[LIVE]))

    def _idle(self) -> WarpState:
        """No lane can continue: all have exited, or they wait."""
        self._see_exits()
        if not self.cells[LIVE]:
            self._account()
            return WarpState.EXITED
        if self.cells[JOINING]:
            if reconvergence.merge_groups(self):
                return WarpState.RUNNING
            if not self._waiting:
                raise reconvergence.divergence_fault(self)
        return WarpState.BLOCKED

    def _left_behind(self) -> None:
        """Lanes exited while others waited at a collective: the others try again, unless they wait at an
        instruction that all threads of the warp must execute and no lane is left to arrive."""
        self._see_exits()
        reconvergence.check_left_alone(self)
        self.cells[JOINING] = 0

    def _see_exits(self) -> None:
        """Tell the machine which lanes have exited."""
        live = self.cells[LIVE]
        if live != self._seen_live:
            self._seen_live = live
            np.copyto(self.warp.exists, mask_lanes(live))

    def _retry(self) -> None:
        """Issue again the instructions whose wait is over."""
        waiting, self._waiting = self._waiting, []
        for block, mask, wait in waiting:
            if wait.over():
                self.cells[WAITING] &= _FULL ^ mask
                if wait.timed_out or block not in self.engine.repeatable:
                    self._service(block, mask, wait)
            else:
                self._waiting.append((block, mask, wait))

    def _service(self, block: int, mask: int, previous: Wait | None) -> None:
        """Execute the instruction at `block` for the lanes of `mask`; they then continue or wait."""
        service = self.engine.services[block]
        executing = mask
        if service.guard is not None and previous is None:
            executing &= lanes_mask(service.guard(self.state) != 0)
        self._see_exits()
        watch = self._watch
        if watch is not None and previous is None:
            watch.check_sources(service.ins, mask_lanes(executing))
        direct = self.engine.direct.get(block)
        if direct is not None and executing == self._seen_live:
            self.cta.execute(self.warp, service.ins, mask_lanes(executing))
            direct.execute(self, mask_lanes(executing))
            self._executed_here(service.ins, executing)
            if watch is not None:
                watch.mark_results(service.ins, mask_lanes(executing))
            self.complete(block, mask)
            return
        lanes = mask_lanes(executing)
        if executing.bit_count() == 1:
            sources = service.sources_of_lane(self.state, self.cells, executing.bit_length() - 1)
        else:
            sources = service.sources(self.state)
        results = self._issue(service, lanes, sources, previous)
        if isinstance(results, Wait):
            self.cells[WAITING] |= executing
            self._waiting.append((block, executing, results))
            if executing != mask:
                self._move_on(block, mask ^ executing)
            return
        if service.slots and results is not WRITTEN:
            service.write(self.state, lanes, results)
        self._executed_here(service.ins, executing)
        if watch is not None:
            watch.mark_results(service.ins, lanes)
        seen = self.engine.native.seen.get(block)
        if seen is not None:
            self.cells[seen // 4] = 1
        self.complete(block, mask)

    def _executed_here(self, ins: Instruction, lanes: int) -> None:
        """Report an instruction that Python executed in place of compiled code, not the machine."""
        if self._log is not None and not ins.form.by_machine:
            self._log.report_block(self, ins, lanes)

    def complete(self, block: int, mask: int) -> None:
        """The lanes of `mask` have executed the instruction at `block` outside of compiled code."""
        self.longs[EXECUTED] += 1
        counts = self._counts
        counts[2 * block] += 1
        counts[2 * block + 1] += mask.bit_count()
        self._move_on(block, mask)

    def _move_on(self, block: int, mask: int) -> None:
        """Set the lanes' block to the instruction after the one at `block`."""
        following = self.engine.next_block[block]
        if following < 0:
            self.cells[LIVE] &= _FULL ^ mask
        elif mask == _FULL:
            self.places.fill(following)
        else:
            self.places[mask_lanes(mask)] = following

    def _issue(
        self, service: Service, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
    ) -> Results | Wait:
        ins = service.ins
        if not ins.form.by_machine:
            return mma.execute(self.cta, ins, sources)
        return self.cta.issue(self.warp, ins, lanes, sources, previous)

    def blocked(self) -> tuple[Blocked, ...]:
        instructions = self.engine.native.kernel.instructions
        found = [
            Blocked(instructions[self.engine.starts[block]], mask_lanes(mask), wait)
            for block, mask, wait in self._waiting
        ]
        if self.cells[JOINING]:
            found += [
                Blocked(group.ins, group.lanes, group.wait()) for group in reconvergence.waiting_groups(self)
            ]
        return tuple(found)

    def _account(self) -> None:
        """Add the finished warp's counts to the CTA's counters."""
        if not self.engine.config.profile:
            return
        counters = self.cta.counters
        for (executions, _), macs in zip(self.counts.tolist(), self.engine.macs, strict=True):
            counters.mma_macs += executions * macs
        for (executions, _), histogram in zip(self.counts.tolist(), self.engine.histograms, strict=True):
            for op, count in histogram.items():
                if executions:
                    counters.instructions[op] += executions * count
        for name, amount in zip(TRAFFIC, self.traffic.tolist(), strict=True):
            if amount:
                counters.traffic[name] += amount
        for block, moved in self.engine.native.moved.items():
            lanes = int(self.counts[block, 1])
            for name, size in moved.items():
                if lanes:
                    counters.traffic[name] += lanes * size
