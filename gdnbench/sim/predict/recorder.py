# SPDX-License-Identifier: Apache-2.0
"""Records the trace of one CTA while the simulator runs it; an observer in place of the race checker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.compiler.access_log_entry import BLOCK
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.barrier_state import BarrierWait, Round
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp, Words
from gdnbench.sim.machine.footprint import Chunks, Footprint, Span, Strided
from gdnbench.sim.machine.observer import Addresses, PathObserver, Pcs
from gdnbench.sim.machine.operands import distinct_operands, scalar_operand, shared_address, uniform_value
from gdnbench.sim.predict.accesses import accessed
from gdnbench.sim.predict.trace import (
    SECTOR,
    Arrived,
    CtaTrace,
    Entered,
    Executed,
    Finished,
    Issued,
    Kind,
    Operation,
    Shape,
    Step,
    Waited,
)
from gdnbench.sim.predict.warp_groups import group_names
from gdnbench.sim.profile.roles import issued_as, role
from gdnbench.sim.ptx.forms import Sync, Until
from gdnbench.sim.ptx.ir import Address, Instruction, Kernel, Vector

WARPS_OF_A_GROUP = 4
TOGETHER = 1 << 16
"""Events of which steps are made at a time."""
_GROUPED = (Until.COPY_GROUP, Until.BULK_GROUP, Until.WGMMA_GROUP)
_BARRIERS = (Sync.BARRIER_WAIT, Sync.BARRIER_REDUCE, Sync.BARRIER_ARRIVE)


@dataclass(frozen=True, slots=True)
class _Path:
    """The arguments of one call of `on_path`, of which steps are made later."""

    pcs: Pcs
    lanes: Words
    addresses: Addresses


class TraceRecorder(PathObserver):
    """Records a CTA that is alone in its cluster; `trace()` returns the trace once the CTA has ended. Raises
    UnsupportedError for a CTA of a cluster."""

    def __init__(self, cta: Cta) -> None:
        if cta.cluster is not None:
            raise UnsupportedError("the time of a launch with clusters")
        self._cta = cta
        self._steps: list[list[Step | _Path]] = [[] for _ in range(cta.launch.warps)]
        self._operations: list[Operation] = []
        self._indices: dict[int, int] = {}  # by id of the operation in flight
        self._flying: list[AsyncOperation] = []  # which keeps the ids
        self._arrivals: list[int] = []
        self._phases: dict[Hashable, int] = {}
        self._submitted: list[int] = []
        self._arriving: tuple[int, ...] = ()
        self._open: dict[int, Round | None] = {}
        self._groups: dict[tuple[int, Until], list[list[int]]] = defaultdict(lambda: [[]])
        self._memory: dict[tuple[int, Until], list[int]] = defaultdict(list)  # tcgen05.ld and .st of a warp
        self._products: dict[object, int] = {}
        self._issuing: Instruction | None = None
        self._ops: list[Counter[str]] = [Counter() for _ in self._steps]

    # What the machine reports

    def on_path(self, warp: Warp, pcs: Pcs, lanes: Words, addresses: Addresses) -> None:
        self._steps[warp.index].append(_Path(pcs, lanes, addresses))

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        self._issuing, self._submitted = ins, []
        if previous is not None:
            return
        if ins.form.sync in (Sync.ARRIVE, Sync.ARRIVE_EXPECT):
            phases = self._cta.shared.phase_cells
            self._arriving = tuple(
                self._phase((at, phases[at // 8])) for at in _mbarriers(ins, lanes, sources)
            )
        elif ins.form.sync in _BARRIERS:
            index = uniform_value(sources[0], lanes, "the barrier's number") & 0xFFFF_FFFF
            self._open[warp.index] = self._cta.barriers.rounds.get(index)

    def after_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        if previous is None:
            self._ops[warp.index][issued_as(ins)] += 1
        if ins.form.sync in _BARRIERS:
            self._barrier(warp, ins, previous, results)
        elif not isinstance(results, Wait):
            self._steps[warp.index].append(self._step(warp, ins, lanes, sources, results))

    def on_submit(self, operation: AsyncOperation) -> None:
        assert self._issuing is not None
        ins = self._issuing
        index = len(self._operations)
        if ins.form.until is Until.WGMMA_GROUP:  # made when the first of its warps issued it
            return
        self._operations.append(_operation(ins, operation))
        self._indices[id(operation)] = index
        self._flying.append(operation)
        self._submitted.append(index)

    def before_landing(self, operation: AsyncOperation) -> None:
        index = self._indices.get(id(operation))
        if index is None:
            return
        phases = self._cta.shared.phase_cells
        for address in operation.signals:
            phase = self._phase((address, phases[address // 8]))
            self._operations[index].phases.append(phase)
            self._arrivals[phase] += 1

    # Steps

    def _phase(self, key: Hashable) -> int:
        found = self._phases.setdefault(key, len(self._arrivals))
        if found == len(self._arrivals):
            self._arrivals.append(0)
        return found

    def _barrier(self, warp: Warp, ins: Instruction, previous: Wait | None, results: Results | Wait) -> None:
        steps = self._steps[warp.index]
        if isinstance(previous, BarrierWait):
            if not isinstance(results, Wait):
                steps.append(Waited(ins.pc, (self._phase(previous.use),)))
            return
        use = results.use if isinstance(results, BarrierWait) else self._open.pop(warp.index, None)
        if use is None:  # no other warp takes part
            steps.append(Executed(ins.pc))
            return
        phase = self._phase(use)
        self._arrivals[phase] += 1
        steps.append(Arrived(ins.pc, (phase,)))
        if ins.form.sync is not Sync.BARRIER_ARRIVE and not isinstance(results, Wait):
            steps.append(Waited(ins.pc, (phase,)))

    def _step(
        self, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], results: Results
    ) -> Step:
        form = ins.form
        if form.sync in (Sync.ARRIVE, Sync.ARRIVE_EXPECT):
            for phase in self._arriving:
                self._arrivals[phase] += 1
            return Arrived(ins.pc, self._arriving)
        if form.sync is Sync.POLL:
            passed = lanes & (results[0] != 0)
            if not passed.any():
                return Executed(ins.pc)
            phases = self._cta.shared.phase_cells
            over = [(at, phases[at // 8] - 1) for at in _mbarriers(ins, passed, sources)]
            return Waited(ins.pc, tuple(self._phase(key) for key in over if key[1] >= 0))
        if form.sync is Sync.COMMIT and form.commits in _GROUPED and not self._submitted:
            self._groups[warp.index, form.commits].append([])
            return Executed(ins.pc)
        if form.sync is Sync.WAIT_GROUP or (form.sync is Sync.WAIT and form.ends in _GROUPED):
            return self._wait_group(warp, ins, lanes, sources)
        if form.sync is Sync.WAIT:
            waiting = self._memory.pop((warp.index, form.ends), [])
            return Finished(ins.pc, tuple(waiting))
        if form.until in (Until.TENSOR_LOAD, Until.TENSOR_STORE):
            words = sum(1 for _ in ins.written()) or _words(ins)
            index = self._new(Operation(Kind.TENSOR_MEMORY, ins.pc, 4 * 32 * words))
            self._memory[warp.index, form.until].append(index)
            return Issued(ins.pc, (index,))
        if form.until is Until.WGMMA_GROUP:
            self._submitted = [self._wgmma(warp, ins)]
        if form.until is Until.MBARRIER and form.commits is Until.COPY_GROUP:
            before = tuple(index for group in self._groups[warp.index, form.commits] for index in group)
            for index in self._submitted:
                self._operations[index].after = before
        if not self._submitted:
            return Executed(ins.pc)
        if form.until in _GROUPED:
            self._groups[warp.index, form.until][-1] += self._submitted
        if ins.op.startswith("tcgen05.mma"):
            for index in self._submitted:
                self._operations[index].shape = _shape(ins, lanes, sources)
        return Issued(ins.pc, tuple(self._submitted))

    def _new(self, operation: Operation) -> int:
        self._operations.append(operation)
        return len(self._operations) - 1

    def _wgmma(self, warp: Warp, ins: Instruction) -> int:
        product = self._cta.warpgroups.state(warp).open[-1]
        index = self._products.get(product)
        if index is None:
            index = self._products[product] = self._new(
                Operation(
                    Kind.PRODUCT,
                    ins.pc,
                    shape=_wgmma_shape(ins),
                    stream=("wgmma", warp.index // WARPS_OF_A_GROUP),
                    issuers=WARPS_OF_A_GROUP,
                )
            )
        return index

    def _wait_group(
        self, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]
    ) -> Finished:
        groups = self._groups[warp.index, ins.form.ends]
        if ins.form.sync is Sync.WAIT_GROUP:
            allowed = uniform_value(sources[0], lanes, "the number of groups")
            groups = groups[: max(len(groups) - 1 - allowed, 0)]  # the last is not committed
        return Finished(ins.pc, tuple(index for group in groups for index in group))

    # The trace

    def trace(self) -> CtaTrace:
        """The CTA's steps. Call it once."""
        given = (part for parts in self._steps for part in parts if isinstance(part, _Path))
        made = _made(self._cta.launch.kernel, given)
        warps = [
            [step for part in parts for step in (next(made) if isinstance(part, _Path) else [part])]
            for parts in self._steps
        ]
        names = group_names([*map(role, self._ops)], warps)
        return CtaTrace(self._cta.index, warps, names, self._operations, self._arrivals)


def _made(kernel: Kernel, paths: Iterable[_Path]) -> Iterator[list[Step]]:
    """The steps of each path, made of about `TOGETHER` events at a time, since most paths have only a few."""
    batch, events = list[_Path](), 0
    for path in paths:
        batch.append(path)
        events += len(path.pcs)
        if events >= TOGETHER:
            yield from _steps(kernel, batch)
            batch, events = [], 0
    if batch:
        yield from _steps(kernel, batch)


def _steps(kernel: Kernel, paths: Sequence[_Path]) -> Iterator[list[Step]]:
    pcs = np.concatenate([path.pcs for path in paths])
    lanes = np.concatenate([path.lanes for path in paths])
    addresses = np.concatenate([path.addresses for path in paths])
    found: list[Step | None] = [None] * len(pcs)
    order = np.argsort(pcs, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(pcs[order])) + 1) if order.size else ():
        pc = int(pcs[at[0]])
        if pc & BLOCK:
            entered = Entered(pc & ~BLOCK)
            for index in at.tolist():
                found[index] = entered
        elif not (ins := kernel.instructions[pc]).form.lanes_meet:
            for index, step in zip(at.tolist(), accessed(ins, lanes[at], addresses[at]), strict=True):
                found[index] = step
    start = 0
    for path in paths:
        stop = start + len(path.pcs)
        yield [step for step in found[start:stop] if step is not None]
        start = stop


def _mbarriers(ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> list[int]:
    named = distinct_operands(lanes, scalar_operand(sources[0]))
    return [shared_address(address, ins) for _, (address,) in named]


def _words(ins: Instruction) -> int:
    """Registers that tcgen05.st stores."""
    stored = ins.sources[-1]
    return len(stored.elements) if isinstance(stored, Vector) else 1


def _size(places: tuple[Footprint, ...], space: str) -> int:
    size = 0
    for place in places:
        if place.space != space:
            continue
        if isinstance(place, Span):
            size += place.size
        elif isinstance(place, Strided):
            size += int(np.prod([max(count, 0) for count in place.counts]))
        elif isinstance(place, Chunks):
            size += place.units.size * place.size
    return size


def _sectors(places: tuple[Footprint, ...]) -> tuple[int, ...]:
    """The sectors of global memory."""
    found: set[int] = set()
    for place in places:
        if place.space != "global":
            continue
        if isinstance(place, Span):
            end = place.address + max(place.size, 1) - 1
            found.update(range(place.address // SECTOR, end // SECTOR + 1))
        else:
            found.update(np.unique(place.cells() // SECTOR).tolist())
    return tuple(sorted(found))


def _operation(ins: Instruction, operation: AsyncOperation) -> Operation:
    stream = operation.stream
    if ins.op.startswith("tcgen05.mma"):
        return Operation(Kind.PRODUCT, ins.pc, stream=stream)
    if ins.op.startswith("tcgen05.cp") or ins.op.startswith("tcgen05.shift"):
        return Operation(Kind.TENSOR_COPY, ins.pc, _size(operation.reads, "shared"), stream=stream)
    if ins.form.sync is Sync.COMMIT:
        return Operation(Kind.SIGNAL, ins.pc, stream=stream)
    read, written = _size(operation.reads, "global"), _size(operation.writes, "global")
    if written:
        return Operation(Kind.COPY_OUT, ins.pc, written, _sectors(operation.writes))
    return Operation(Kind.COPY_IN, ins.pc, read, _sectors(operation.reads))


def _wgmma_shape(ins: Instruction) -> Shape:
    name = next(mod for mod in ins.mods if mod.startswith("m64n"))
    return Shape(64, int(name[4:].partition("k")[0]), a_in_shared=not isinstance(ins.sources[0], Vector))


def _shape(ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> Shape:
    """From the instruction descriptor (PTX ISA, "tcgen05.mma", tables of instruction descriptors): N / 8 in
    bits 17 to 22, M / 16 in bits 24 to 28, of block-scaled kinds M / 128 in bits 27 and 28."""
    word = uniform_value(scalar_operand(sources[3]), lanes, "idesc") & 0xFFFF_FFFF
    m = (word >> 27 & 3) * 128 if ins.has("block_scale") else (word >> 24 & 31) * 16
    return Shape(m, (word >> 17 & 63) * 8, a_in_shared=not isinstance(ins.sources[1], Address))
