"""The fast engine: a kernel as native code, and a warp that runs it until it waits, exits or its turn ends.

Compiled code returns to Python for services, faults and the end of a turn. While it runs it holds no lock:
CTAs on several threads share only machine code and global memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler import faults, joins, mma
from gdnbench.sim.compiler import kernel as kernels
from gdnbench.sim.compiler.blocks import COLLECTIVES, is_service
from gdnbench.sim.compiler.kernel import NativeKernel
from gdnbench.sim.compiler.layout import ALIGN, HEADER, SCALARS
from gdnbench.sim.compiler.runtime import Status
from gdnbench.sim.compiler.service import Service, ServiceMaker, lanes_mask, mask_lanes
from gdnbench.sim.machine.cta import MachineConfig
from gdnbench.sim.machine.seam import (
    LANES,
    Blocked,
    Lanes,
    Results,
    Wait,
    Warp,
    WarpEngine,
    WarpState,
)
from gdnbench.sim.ptx.ir import Instruction, Kernel, Module

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta

_FULL = 0xFFFF_FFFF


def prepare(module: Module, kernel: Kernel, config: MachineConfig) -> CompiledEngine:
    """Make a kernel ready, compiled now or taken from the cache."""
    return CompiledEngine(kernels.make(module, kernel), config)


class CompiledEngine:
    """A kernel ready to run; shared by the threads that run its CTAs, and never written by them."""

    def __init__(self, native: NativeKernel, config: MachineConfig) -> None:
        self.native = native
        self.config = config
        self.run = native.loaded.run
        blocks = native.blocks
        maker = ServiceMaker(native.kernel, native.layout, native.symbols)
        instructions = native.kernel.instructions
        self.services: dict[int, Service] = {
            block.index: maker.make(instructions[block.start]) for block in blocks.blocks if block.service
        }
        self.next_block = [blocks.at.get(block.stop, -1) for block in blocks.blocks]
        self.starts = [block.start for block in blocks.blocks]
        self.masks = {
            block.index: maker.value(instructions[block.start], instructions[block.start].sources[-1])
            for block in blocks.blocks
            if instructions[block.start].op in COLLECTIVES
        }
        self.histograms = [
            Counter(ins.op for ins in instructions[b.start : b.stop] if not is_service(ins))
            for b in blocks.blocks
        ]
        self.template = np.zeros(native.layout.size, np.uint8)

    def instruction(self, block: int) -> Instruction:
        """The first instruction of a block, the only one if Python executes it."""
        return self.native.kernel.instructions[self.starts[block]]

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        return [CompiledWarp(self, cta.warp(index)) for index in range(cta.launch.warps)]


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start at a cache line."""
    room = np.zeros(size + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    return room[start : start + size]


class CompiledWarp:
    """One warp: its state in memory, and the groups of its lanes that wait at services."""

    def __init__(self, engine: CompiledEngine, warp: Warp) -> None:
        self.engine = engine
        self.warp = warp
        self.cta = warp.cta
        self.state = aligned_bytes(engine.native.layout.size)
        self.pointer = int(self.state.ctypes.data)
        self.counts = np.zeros((len(engine.native.blocks.blocks), 2), np.int64)
        self.traffic = np.zeros(max(len(engine.native.traffic), 1), np.int64)
        self._keep: list[object] = []
        self._waiting: list[tuple[int, Lanes, Wait]] = []  # (block, lanes, what for)
        self._words = {name: self.word(name) for name in ("live", "waiting", "joining", "active", "current")}
        self._executed = self.state[HEADER["executed"] : HEADER["executed"] + 8].view(np.int64)
        self.places = self.state[: 4 * LANES].view(np.int32)
        self._fill()

    def word(self, name: str) -> npt.NDArray[np.uint32]:
        at = HEADER[name]
        return self.state[at : at + 4].view(np.uint32)

    def _long(self, name: str, value: int) -> None:
        at = HEADER[name]
        self.state[at : at + 8].view(np.uint64)[0] = value

    def _fill(self) -> None:
        """The header: where the CTA's memories are and which thread each lane is."""
        cta, launch = self.cta, self.cta.launch
        shared, local = cta.shared, cta.local[self.warp.index]
        param = np.frombuffer(cta.param + bytes(ALIGN), np.uint8)
        bases, ends = cta.memory.bases, cta.memory.ends
        self._keep = [param, bases, ends, shared.bytes, local.bytes]
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
        }.items():
            self._long(name, value)
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
        for name, number in zip(SCALARS, self._scalars(launch), strict=True):
            self.word(name)[0] = number
        self._words["live"][0] = lanes_mask(self.warp.exists)

    def _scalars(self, launch: object) -> tuple[int, ...]:
        cta = self.cta
        sizes = cta.launch
        return (
            *cta.block,
            *cta.ctaid,
            *cta.grid,
            self.warp.index,
            sizes.warps,
            0,
            1,
            sizes.dynamic_shared,
            sizes.shared_size,
        )

    @property
    def executed(self) -> int:
        return int(self._executed[0])

    def run(self, quantum: int) -> WarpState:
        limit = self.executed + quantum
        self._retry()
        run, pointer, words = self.engine.run, self.pointer, self._words
        while True:
            left = limit - int(self._executed[0])
            if left <= 0:
                return WarpState.RUNNING
            status = run(pointer, left)
            if status == Status.SERVICE:
                self._service(int(words["current"][0]), mask_lanes(int(words["active"][0])), None)
            elif status == Status.QUANTUM:
                return WarpState.RUNNING
            elif status == Status.FAULT:
                raise faults.fault(self)
            elif status == Status.EXITS:
                self._left_behind()
            else:
                return self._idle()

    def _idle(self) -> WarpState:
        """No lane can go on: all have exited, or they wait."""
        live = self._see_exits()
        if live == 0:
            self._account()
            return WarpState.EXITED
        if int(self._words["joining"][0]):
            if joins.meet(self):
                return WarpState.RUNNING
            if not self._waiting:
                raise joins.diverged(self)
        return WarpState.BLOCKED

    def _left_behind(self) -> None:
        """Lanes exited while others stood at a collective: those look again, unless nobody is left to come
        to an instruction that all threads of the warp must execute."""
        self._see_exits()
        joins.check_left_alone(self)
        self._words["joining"][0] = 0

    def _see_exits(self) -> int:
        """Tell the machine which lanes have exited."""
        live = int(self._words["live"][0])
        np.copyto(self.warp.exists, mask_lanes(live))
        return live

    def _retry(self) -> None:
        """Issue again what waited, where the wait is over."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for block, lanes, wait in waiting:
            if wait.over():
                self._words["waiting"][0] &= _FULL ^ lanes_mask(lanes)
                self._service(block, lanes, wait)
            else:
                self._waiting.append((block, lanes, wait))

    def _service(self, block: int, lanes: Lanes, previous: Wait | None) -> None:
        """Execute the instruction at `block` for `lanes`, and let them go on or wait."""
        service = self.engine.services[block]
        state = self.state
        executing = lanes
        if service.guard is not None and previous is None:
            executing = lanes & service.guard(state).astype(np.bool_)
        self._see_exits()
        results = self._issue(service, executing, previous)
        if isinstance(results, Wait):
            self._words["waiting"][0] |= lanes_mask(executing)
            self._waiting.append((block, executing, results))
            self._move_on(block, lanes & ~executing)
            return
        if service.slots:
            service.write(state, executing, results)
        self.complete(block, lanes)

    def complete(self, block: int, lanes: Lanes) -> None:
        """The instruction at `block` was executed outside of compiled code."""
        self._executed[0] += 1
        self.counts[block, 0] += 1
        self.counts[block, 1] += int(lanes.sum())
        self._move_on(block, lanes)

    def _move_on(self, block: int, lanes: Lanes) -> None:
        """Lanes go to the instruction after the one at `block`."""
        following = self.engine.next_block[block]
        if following < 0:
            self._words["live"][0] &= _FULL ^ lanes_mask(lanes)
        else:
            self.places[lanes] = following

    def _issue(self, service: Service, lanes: Lanes, previous: Wait | None) -> Results | Wait:
        ins, sources = service.ins, service.sources(self.state)
        if ins.op == "mma":
            return mma.execute(self, ins, sources)
        return self.cta.issue(self.warp, ins, lanes, sources, previous)

    def blocked(self) -> tuple[Blocked, ...]:
        instructions = self.engine.native.kernel.instructions
        found = [
            Blocked(instructions[self.engine.starts[block]], lanes, wait)
            for block, lanes, wait in self._waiting
        ]
        found += [Blocked(group.ins, group.lanes, group.wait()) for group in joins.groups(self)]
        return tuple(found)

    def _account(self) -> None:
        """The warp has ended: what it did goes to the CTA's counters."""
        if not self.engine.config.profile:
            return
        counters = self.cta.counters
        for (executions, _), histogram in zip(self.counts.tolist(), self.engine.histograms, strict=True):
            for op, count in histogram.items():
                if executions:
                    counters.instructions[op] += executions * count
        for name, amount in zip(self.engine.native.traffic, self.traffic.tolist(), strict=False):
            counters.traffic[name] += amount
