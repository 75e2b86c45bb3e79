# SPDX-License-Identifier: Apache-2.0
"""Records the synchronisation of a CTA's warps and asynchronous operations, or of all those of a cluster, as
events of a protocol.

    run_ptx(..., schedule="late", checker=begin, path=True)   # begin(cta) -> ProtocolRecorder(cta)
    check(recorder.protocol())

Under the schedule `late` an operation lands between two instructions, so that what an instruction and what a
landing do to an mbarrier can be told apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from gdnbench.sim.compiler.access_log_entry import BLOCK
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.barrier_state import BarrierWait
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.cta_pair import PairWait
from gdnbench.sim.machine.engine_interface import LANES, Argument, Lanes, Results, Wait, Warp, Words
from gdnbench.sim.machine.launch_grants import TRY_CANCEL
from gdnbench.sim.machine.mbarrier import BYTES, PARITY_SHIFT, unpack
from gdnbench.sim.machine.observer import Addresses, PathObserver, Pcs
from gdnbench.sim.machine.operands import (
    distinct_operands,
    same_in_all_lanes,
    scalar_operand,
    shared_address,
    uniform_value,
)
from gdnbench.sim.machine.shared_memory import rank_of
from gdnbench.sim.protocol.events import Act, Event, Kind, Protocol, Shared
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction, Kernel
from gdnbench.sim.ptx.polls import Answer, answers

_BARRIERS = (Sync.BARRIER_WAIT, Sync.BARRIER_REDUCE, Sync.BARRIER_ARRIVE)
_ARRIVALS = (Sync.ARRIVE, Sync.ARRIVE_EXPECT)
_CHANGES = {Sync.EXPECT: Kind.EXPECT, Sync.COMPLETE: Kind.COMPLETE}
_WORD = 0xFFFF_FFFF
CLUSTER = "barrier.cluster"
Word = tuple[int, int, int, int]  # phase, pending and expected arrivals, bytes


TENSOR_COLUMNS = 512
"""Columns of the tensor memory of an SM (PTX ISA, "Tensor Memory Addressing")."""


class ProtocolRecorder(PathObserver):
    """Of a CTA under the schedule `late`, or of a cluster: made for the CTA of rank 0, it observes all.
    `requests` counts its requests to cancel a cluster; `answered` has the answers of polls that no loop
    repeats, by place, and `ignored` the places of polls whose answers decide nothing. Raises UnsupportedError
    for what the check does not cover: warps of which some lanes arrive at a barrier, or that exit before a
    barrier of the whole CTA."""

    def __init__(self, cta: Cta) -> None:
        if cta.config.schedule.kind != "late":
            raise UnsupportedError(f"all orders under the schedule {cta.config.schedule.kind}, not late")
        self._ctas: list[Cta] = []
        self._size = 1 if cta.cluster is None else cta.cluster.size
        self._warps = cta.launch.warps
        self._events: list[Event] = []
        self._actors = self._size * self._warps
        self._busy: set[int] = set()  # events after which their warp did something
        self._newest: dict[int, int] = {}  # by warp, its latest event
        self._registers: dict[int, int] = {}  # by warp, those before setmaxnreg
        self._submitted: list[AsyncOperation] = []
        self._issued: dict[AsyncOperation, int] = {}
        self._latest: dict[Hashable, int] = {}  # by stream, mbarrier, warp and acts, the latest landing
        self._landing: tuple[AsyncOperation, dict[int, Word]] | None = None
        self.registers_known = True
        self.resizes = False  # whether a warp has executed setmaxnreg
        self.requests = 0
        self.answered: dict[str, set[bool]] = {}
        self.ignored: dict[str, None] = {}
        self.member(cta)

    def member(self, cta: Cta) -> ProtocolRecorder:
        """Observe the next CTA of the cluster too."""
        self._ctas.append(cta)
        self.registers_known &= cta.pool.initial is not None
        return self

    def on_path(self, warp: Warp, pcs: Pcs, lanes: Words, addresses: Addresses) -> None:
        """See `PathObserver`: only instructions of the machine synchronise warps, but what accesses memory
        makes a warp's latest wait matter."""
        if any(not pc & BLOCK and not self.kernel.instructions[pc].form.lanes_meet for pc in pcs.tolist()):
            self._acted(warp)

    def _acted(self, warp: Warp) -> None:
        if warp.number in self._newest:
            self._busy.add(self._newest[warp.number])

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """See `Checker`."""
        self._landed()
        self._submitted = []
        if ins.form.sync in _ARRIVALS:
            self._add(warp, ins, *self._arrivals(ins, lanes, sources))
        elif ins.op.startswith("setmaxnreg") and self.registers_known:
            self._registers[warp.number] = self._ctas[warp.rank].pool.registers_of(warp.index)
        elif previous is None and ins.has("cta_group::2") and ins.op in ("tcgen05.alloc", "tcgen05.dealloc"):
            self._add(warp, ins, Act(Kind.JOIN, _pair(warp, ins), LANES, 2 * LANES))

    def after_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        """See `Checker`."""
        self._landed()
        sync = ins.form.sync
        if sync in _BARRIERS:
            self._barrier(warp, ins, lanes, sources, previous, results)
        elif isinstance(results, Wait):
            if isinstance(previous, PairWait) and not isinstance(results, PairWait):
                self._add(warp, ins, Act(Kind.LEAVE, _pair(warp, ins)))  # and dealloc waits until it is last
        elif ins.op.startswith("setmaxnreg"):
            self._resized(warp, ins)
        elif ins.op in ("tcgen05.alloc", "tcgen05.dealloc"):
            self._allocated(warp, ins, lanes, sources, previous)
        elif ins.op == TRY_CANCEL:
            self.requests += int(lanes.sum())
            self._issue(warp, ins, Act(Kind.REQUEST, _launch_control(warp)))
        elif ins.has("is_canceled") and (lanes & (results[0] == 0)).any():
            self._add(warp, ins, Act(Kind.REFUSED, _launch_control(warp)))
        elif sync is Sync.INIT:
            self._add(warp, ins, *_acts(Kind.INIT, ins, lanes, sources))
        elif sync is Sync.INVALIDATE:
            self._add(warp, ins, *_acts(Kind.INVAL, ins, lanes, sources))
        elif sync in _CHANGES:
            self._add(warp, ins, *_acts(_CHANGES[sync], ins, lanes, sources))
        elif sync is Sync.POLL:
            self._polled(warp, ins, lanes, lanes & (results[0] != 0), sources)
        elif sync is Sync.CLUSTER_ARRIVE:
            size = self._size * self._all(warp, lanes)
            self._add(warp, ins, Act(Kind.JOIN, CLUSTER, LANES, size))
        elif sync is Sync.CLUSTER_WAIT:
            self._add(warp, ins, Act(Kind.LEAVE, CLUSTER))
        elif any(one.signals for one in self._submitted):
            extra = ins.op == "cp.async.mbarrier.arrive" and not ins.has("noinc")
            self._issue(warp, ins, *(_acts(Kind.INCREMENT, ins, lanes, sources) if extra else ()))
        elif sync not in _ARRIVALS:
            self._acted(warp)

    def _issue(self, warp: Warp, ins: Instruction, *acts: Act) -> None:
        self._add(warp, ins, *acts)
        for operation in self._submitted:
            self._issued[operation] = len(self._events) - 1
        self._acted(warp)

    def on_submit(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        self._submitted.append(operation)

    def before_landing(self, operation: AsyncOperation) -> None:
        """See `Checker`. The landing of a cp.async.mbarrier.arrive lands the copies before it first."""
        if operation.signals:
            self._landed()
            self._landing = operation, {at: self._word(at) for at in operation.signals}

    def on_cta_end(self) -> None:
        """See `Checker`."""
        self._landed()

    @property
    def kernel(self) -> Kernel:
        """The kernel of the launch."""
        return self._ctas[0].launch.kernel

    @property
    def cancelled(self) -> int:
        """How many of the requests have cancelled a cluster."""
        grants = self._ctas[0].grants
        return 0 if grants is None else grants.granted

    def protocol(self) -> Protocol:
        """The events of the CTA or cluster, which has ended."""
        self._landed()
        events = [replace(event, quiet=at not in self._busy) for at, event in enumerate(self._events)]
        return Protocol(events, {warp: warp // self._warps for warp in range(self._size * self._warps)})

    def _word(self, address: int) -> Word:
        shared = self._ctas[0].cluster_shared
        return (shared.phase_cells[address // BYTES], *unpack(shared.word_cells[address // BYTES]))

    def _landed(self) -> None:
        """Record the latest landing, from what it has changed."""
        if self._landing is None:
            return
        operation, words = self._landing
        self._landing = None
        acts: list[Act] = []
        for address, (phase, pending, _, tx) in words.items():
            now, left, _, bytes_left = self._word(address)
            if now > phase + 1:
                raise UnsupportedError(
                    f"all orders where one {operation.name} ends two phases of an mbarrier"
                )
            arrived = pending - (0 if now > phase else left)
            completed = tx - (0 if now > phase else bytes_left)
            acts += [Act(Kind.COMPLETE, _shared(address), completed)] if completed else []
            acts += [Act(Kind.ARRIVE, _shared(address), arrived)] if arrived else []
        issue = self._issued.pop(operation)
        text = f"{operation.name} lands ({self._events[issue].text})"
        after, chain = [issue], None
        if operation.stream is not None:
            # A commit tracks all that its warp's earlier ones do (PTX ISA, "tcgen05.commit"), and arrivals
            # of one count at one mbarrier can change places: the earlier commit arrives first.
            chain = operation.stream, self._events[issue].actor
            key = operation.stream, operation.signals, self._events[issue].actor, tuple(acts)
            after += [self._latest[key]] if key in self._latest else []
            self._latest[key] = len(self._events)
        self._events.append(Event(self._actors, tuple(acts), text, tuple(after), chain=chain))
        self._actors += 1

    def _add(self, warp: Warp, ins: Instruction, *acts: Act, note: str = "") -> None:
        who = f"warp {warp.index}" + (f" of the CTA of rank {warp.rank}" if self._size > 1 else "")
        self._newest[warp.number] = len(self._events)
        self._events.append(Event(warp.number, acts, f"{who}: {ins.name}{note}, {where(ins)}"))

    def _resized(self, warp: Warp, ins: Instruction) -> None:
        """setmaxnreg. Where the registers of the launch are not known, the machine lets none wait."""
        self._acted(warp)
        self.resizes = True
        if not self.registers_known:
            return
        before = self._registers[warp.number]
        more = self._ctas[warp.rank].pool.registers_of(warp.index) - before
        if more:
            kind = Kind.ACQUIRE if more > 0 else Kind.RELEASE
            self._add(warp, ins, Act(kind, ("registers", warp.rank), abs(more)))
            self._acted(warp)

    def _allocated(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """tcgen05.alloc and .dealloc. With cta_group::2 the warps of two CTAs meet."""
        if ins.has("cta_group::2") and (previous is None or isinstance(previous, PairWait)):
            self._add(warp, ins, Act(Kind.LEAVE, _pair(warp, ins)))
        columns = uniform_value(sources[1], lanes, "the number of columns") & _WORD
        kind = Kind.ACQUIRE if ins.op == "tcgen05.alloc" else Kind.RELEASE
        self._add(warp, ins, Act(kind, ("tensor memory", warp.rank), columns, TENSOR_COLUMNS))
        self._acted(warp)

    def _all(self, warp: Warp, lanes: Lanes) -> int:
        """The threads of a barrier of the whole CTA."""
        if len(self._ctas[warp.rank].barriers.live) < self._warps:
            raise UnsupportedError("all orders of a kernel whose warps exit before a barrier of the CTA")
        _check_whole(warp, lanes)
        return LANES * self._warps

    def _arrivals(self, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> list[Act]:
        """Of lanes that arrive together, one act, unless they end a phase and go on in the next."""
        expects, drops = ins.form.sync is Sync.ARRIVE_EXPECT, ins.op.startswith("mbarrier.arrive_drop")
        extra = scalar_operand(sources[1]) if len(sources) > 1 else same_in_all_lanes(0 if expects else 1)
        acts: list[Act] = []
        for members, (address, operand) in distinct_operands(lanes, scalar_operand(sources[0]), extra):
            at, value = shared_address(address, ins), operand & _WORD
            count, size = (1, value) if expects else (value, 0)
            times = len(members)
            parts = [times] if times * count <= self._word(at)[1] else [1] * times
            for part in parts:
                acts += [Act(Kind.EXPECT, _shared(at), part * size)] if size else []
                acts.append(Act(Kind.ARRIVE, _shared(at), part * count, part * count * drops))
        return acts

    def _polled(
        self, warp: Warp, ins: Instruction, lanes: Lanes, passed: Lanes, sources: tuple[Argument, ...]
    ) -> None:
        """A poll is a wait if its answer decides what follows (`gdnbench.sim.ptx.polls`)."""
        told = answers(self.kernel)[ins.pc]
        if told is Answer.IGNORED:
            self.ignored[where(ins)] = None
            self._acted(warp)
            return
        if told is Answer.READ:
            self.answered.setdefault(where(ins), set()).update((passed[lanes] != 0).tolist())
        self._waits(warp, ins, passed, sources)

    def _waits(self, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> None:
        if not lanes.any():
            return
        operands = scalar_operand(sources[0]), scalar_operand(sources[1])
        for _, (address, operand) in distinct_operands(lanes, *operands):
            parity = operand & 1 if ins.has("parity") else operand >> PARITY_SHIFT
            self._add(warp, ins, Act(Kind.WAIT, _shared(shared_address(address, ins)), parity))

    def _barrier(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        number = f"barrier {_number(sources, lanes)}" + (f", rank {warp.rank}" if self._size > 1 else "")
        if not isinstance(previous, BarrierWait):
            _check_whole(warp, lanes)
            given = sources[1:-1] if ins.form.sync is Sync.BARRIER_REDUCE else sources[1:]
            threads = uniform_value(given[0], lanes, "the threads") & _WORD if given else None
            size = self._all(warp, lanes) if threads is None else threads
            self._add(warp, ins, Act(Kind.JOIN, number, LANES, size), note=" (arrives)")
        if ins.form.sync is not Sync.BARRIER_ARRIVE and not isinstance(results, Wait):
            self._add(warp, ins, Act(Kind.LEAVE, number), note=" (goes on)")


def where(ins: Instruction) -> str:
    """The place of an instruction in its source, or in the PTX if that names none."""
    place = ins.place
    return f"PTX line {place.line}" if place.file is None else f"{place.file}:{place.file_line}"


def _check_whole(warp: Warp, lanes: Lanes) -> None:
    """Raises UnsupportedError unless all lanes of the warp arrive."""
    if (warp.exists & ~lanes).any():
        raise UnsupportedError("all orders of a kernel in which some lanes of a warp arrive at a barrier")


def _shared(address: int) -> Shared:
    return Shared(rank_of(address), address)


def _pair(warp: Warp, ins: Instruction) -> str:
    return f"{ins.op} of the pair {warp.rank // 2}"


def _launch_control(warp: Warp) -> str:
    return f"launch control of the CTA of rank {warp.rank}"


def _number(sources: tuple[Argument, ...], lanes: Lanes) -> int:
    return uniform_value(sources[0], lanes, "the barrier's number") & _WORD


def _acts(kind: Kind, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> list[Act]:
    """One act for each address, of as many lanes as name it."""
    count = kind not in (Kind.INCREMENT, Kind.INVAL)
    operands = [scalar_operand(sources[0])] + ([scalar_operand(sources[1])] if count else [])
    found: list[Act] = []
    for members, (address, *rest) in distinct_operands(lanes, *operands):
        times = 1 if kind is Kind.INIT else len(members)
        found.append(
            Act(kind, _shared(shared_address(address, ins)), times * (rest[0] & _WORD if rest else 1))
        )
    return found
