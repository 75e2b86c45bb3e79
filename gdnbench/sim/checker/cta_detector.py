"""Follows one CTA: every access goes to a shadow of its memory, every synchronisation to what warps know.

An asynchronous operation touches its memory at some time between its issue and its end, so that its accesses
are judged when it is issued and are known to be over when somebody has waited. What a run finds does
therefore not depend on when the simulator lands it, but for the phase that its mbarrier is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from gdnbench.sim.checker import cta_exit, load_store
from gdnbench.sim.checker.async_tokens import Tokens, WarpTokens
from gdnbench.sim.checker.events import Access, Event, Events, Proxy
from gdnbench.sim.checker.findings import Findings
from gdnbench.sim.checker.happens_before import USED_ALONE, Cause, Pair, Unordered, Verdict, unordered
from gdnbench.sim.checker.issued import Issued
from gdnbench.sim.checker.lane_shadow import By, LaneSets, LaneShadow
from gdnbench.sim.checker.lane_shadow import Met as MetAt
from gdnbench.sim.checker.lanes import MANY, lane_of, part_of
from gdnbench.sim.checker.launch_memory import Touch
from gdnbench.sim.checker.mbarriers import AS_DATA, Mbarrier
from gdnbench.sim.checker.named_barriers import Arrivals
from gdnbench.sim.checker.shadow import NOBODY, Cells, Prior, ReadSets
from gdnbench.sim.checker.sync_variables import Variables
from gdnbench.sim.checker.synchronisation import BEGINS, ENDS, MBARRIER_BYTES
from gdnbench.sim.checker.tensor_memory import TensorMemory
from gdnbench.sim.checker.vector_clocks import Carried, Met, WarpViews
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.barriers import Round
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import Footprint
from gdnbench.sim.machine.mbarrier import COUNT_MAX
from gdnbench.sim.machine.observer import Addresses, Masks, Writer
from gdnbench.sim.ptx.ir import Instruction, Register

if TYPE_CHECKING:
    from gdnbench.sim.checker.between import Between
    from gdnbench.sim.machine.cta import Cta

REGISTER = "register"
"""What findings have for a memory that are of a register; its index is their cell."""


@dataclass(frozen=True, slots=True)
class Flight:
    """An operation that will signal an mbarrier, which is in `phase` when it is set going: the bits of what
    is then over, what was known, and as how many lanes it arrives, 0 if that does not matter."""

    event: Event
    phase: int

    over: int
    known: Carried
    arrivals: int


class Follower:
    """One CTA; implements `machine.checking.Checker`. `findings` is what it has found; `ended` is told when
    the CTA has."""

    def __init__(
        self, cta: Cta, forms: load_store.Forms, between: Between, ended: Callable[[Follower], None]
    ) -> None:
        self.cta = cta
        self._ended = ended
        self.events = Events()
        self.findings = Findings(cta.index)
        self.count = cta.launch.warps
        self.views = [WarpViews(index, Carried.of(self.count)) for index in range(self.count)]
        self.tokens = [WarpTokens() for _ in range(self.count)]
        self.mbarriers: dict[int, Mbarrier] = {}
        self.rounds: WeakKeyDictionary[Round, Carried] = WeakKeyDictionary()
        self.arrivals: dict[int, Arrivals] = {}  # by barrier
        self.variables = Variables(self.count, cta.index, between.words)
        self.opened: dict[int, Round] = {}  # by warp, the round that it is arriving at
        self.sizes = forms.sizes
        cells = cta.shared.end // self.sizes["shared"] + 1
        sets = LaneSets(self.supersedes, self._known, self._same_warp, self._writes)
        self.shared = LaneShadow(cells, sets)
        self.objects = np.zeros(cells, np.bool_)  # the cells of shared memory that mbarriers have
        self.memory = between.begin(self)
        self.tmem = TensorMemory(self, ReadSets(self.supersedes))
        self.flights: dict[AsyncOperation, Flight] = {}  # of operations that will signal an mbarrier
        self.reading: dict[int, Event] = {}  # by token, copies that read shared memory
        self.issue: Issued | None = None
        self._forms = forms
        self._uses: set[tuple[int, int, int, int]] = set()  # warp, pc, register, pc of its writer or -1

    # What engines do by themselves

    def accessed(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """See `Checker`."""
        form = self._forms.by_pc[ins.pc]
        if form is None:
            return
        if form.access is Access.WRITE and len(masks) > 1 and load_store.meet(masks, addresses):
            for row in range(len(masks)):
                self.accessed(warp, ins, masks[row : row + 1], addresses[row : row + 1])
            return
        views = self.views[warp.index]
        if form.collective:
            views.converge(None)
        for space, starts, lanes in load_store.by_space(form, masks, addresses):
            cells = load_store.cells(starts, form.width, self.sizes[space])
            # Only shared memory is kept by lane, and these are as many as the cells.
            by = load_store.lanes_of_cells(lanes, len(cells)) if space == "shared" else None
            event = self.events.done(warp.index, views.clock, ins, form.access, lane=load_store.one_of(lanes))
            self.touch(space, cells, event, by)
            if form.strong:
                self.variables.accessed(form, space, cells, views)
        if form.collective:
            views.converge(None)

    def met(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        """See `Checker`."""
        views, part = self.views[warp.index], part_of(lanes, live)
        if ins.op == "bar.warp.sync":
            views.together(part)
        else:
            views.converge(part)

    def used(self, warp: Warp, ins: Instruction, register: Register, writer: Writer | None) -> None:
        """See `Checker`. Of each load the first use counts."""
        views, held = self.views[warp.index], self.tokens[warp.index]
        now = Event(NOBODY, warp.index, views.clock, ins, Access.READ, Proxy.GENERIC)
        if writer is not None and writer.ins.op == "tcgen05.ld":
            load = held.unused.pop(writer.number, None)
            if load is not None and load.token is not None:
                views.known.used |= 1 << load.token
                self.findings.pair(USED_ALONE, load, now, REGISTER, register.index)
            return
        key = (warp.index, ins.pc, register.index, -1 if writer is None else writer.ins.pc)
        if key in self._uses:
            return
        self._uses.add(key)
        if writer is None:
            missing = "a write before it"
            self.findings.alone("uninitialised read", Verdict.ERROR, missing, now, REGISTER, register.index)
        else:
            before = Event(NOBODY, warp.index, views.clock, writer.ins, Access.WRITE, Proxy.ASYNC, NOBODY)
            why = Unordered(Cause.IN_FLIGHT, Verdict.ERROR, "wgmma.wait_group")
            self.findings.pair(why, before, now, REGISTER, register.index)

    # What goes to the memories' shadows

    def touch(self, space: str, cells: Cells, event: Event, lanes: By | None = None) -> None:
        """`event` touches `cells` of shared or global memory; `lanes` if it is of several."""
        views = self.views[event.warp]

        def order(before: Event, met: Met) -> Unordered | None:
            return unordered(before, event, views, space, met)

        prior: Sequence[Prior | MetAt]
        if space == "shared":
            touches = self.shared.writes if event.access.writes else self.shared.reads
            prior = touches(cells, event.number, event.lane if lanes is None else lanes)
            used = cells[self.objects[cells]]
            if used.size:
                at = int(used[0]) * self.sizes["shared"]
                self.findings.alone(AS_DATA, Verdict.ERROR, "mbarrier.inval before it", event, "shared", at)
        else:
            numbers = np.full(len(cells), event.number, np.int32)
            prior = (
                self.memory.writes(cells, numbers)
                if event.access.writes
                else self.memory.reads(cells, numbers)
            )
        for one in prior:
            self.judge(one, event, order, space)
        if event.strong and event.access.writes:
            self._keep(prior, views)

    def _keep(self, prior: Sequence[Prior | MetAt], views: WarpViews) -> None:
        """Strong accesses to shared memory that a strong write does not follow and does not race with."""
        for one in prior:
            if isinstance(one, MetAt):
                before = self.events[one.number]
                if before.strong and not views.knows(before, one):
                    self.shared.keep(one)

    def judge(
        self,
        prior: Prior | MetAt,
        event: Event,
        order: Callable[[Event, Met], Unordered | None],
        space: str,
    ) -> None:
        """Hold `event` against one that touched some of its cells before."""
        if prior.number == NOBODY:
            if space != "global":
                at = self._at(prior, space)
                self.findings.alone(
                    "uninitialised read", Verdict.ERROR, "a write before it", event, space, at
                )
            return
        before = self.events[prior.number]
        if event.operation is not None and before.operation == event.operation:
            return
        why = order(before, prior if isinstance(prior, MetAt) else Pair.of(before, event))
        if why is not None:
            size = prior.extent() * self.sizes[space] if isinstance(prior, MetAt) else 0
            self.findings.pair(why, before, event, space, self._at(prior, space), size=size)

    def _at(self, prior: Prior | MetAt, space: str) -> int:
        cell = prior.cell if isinstance(prior, Prior) else prior.cell()
        return cell * self.sizes.get(space, 1)

    def footprint(self, where: Footprint, event: Event, lane: int) -> None:
        """`event`, an asynchronous operation's, touches the bytes or cells of `where`."""
        found = where.cells()
        if where.space == "tmem":
            self.tmem.touch(found, event)
            return
        if found.size:
            self.touch(where.space, load_store.cells_of_bytes(found, self.sizes[where.space]), event, lane)

    def supersedes(self, new: int, old: int) -> bool:
        """Whoever is ordered after the reader `new` is ordered after the reader `old`. Of one warp's readers
        the latest stands for all: codes tell whether they were several lanes."""
        later, earlier = self.events[new], self.events[old]
        if later.token is not None:
            return False
        if earlier.token is None and earlier.warp == later.warp:
            return True
        return self.views[later.warp].knows(earlier, Pair(earlier.lane, later.lane))

    def _writes(self, number: int) -> bool:
        return self.events[number].access.writes

    def _same_warp(self, new: int, old: int) -> bool:
        return self.events[new].warp == self.events[old].warp

    def _known(self, new: int, old: int) -> bool:
        """All lanes of the warp of `new` know of `old`."""
        return self.views[self.events[new].warp].known.base.has(self.events[old])

    def knows(self, new: Event, old: Touch) -> bool:
        """The same, where `old` is of another CTA."""
        known = self.views[new.warp].known.abroad.ctas.get(old.cta)
        return new.token is None and known is not None and known.has(old.event)

    # What the machine does

    def begins(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """See `Checker`."""
        self.issue = Issued(warp, ins, lanes, sources)
        if previous is None and ins.has("aligned"):
            self.views[warp.index].converge(None)
        begin = BEGINS.get(ins.op)
        if begin is not None and previous is None:
            begin(self, self.issue)

    def ends(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        """See `Checker`."""
        end = ENDS.get(ins.op)
        if end is not None:
            end(self, Issued(warp, ins, lanes, sources), previous, results)

    def submitted(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        assert self.issue is not None
        warp, ins, lanes, _ = self.issue
        if ins.op.startswith("wgmma"):
            return  # each warp has its part, see `synchronisation`
        held, arrivals = self.tokens[warp.index], 0
        if ins.op == "tcgen05.commit":
            over = held.tensor
        elif ins.op == "cp.async.mbarrier.arrive":
            over, arrivals = held.copies.pending(lanes), int(lanes.sum())
        else:
            over = self._set_going(warp, ins, lanes, operation).both
        if operation.signals:
            known = self.views[warp.index].handed_on(self.issue.part)
            named = operation.signals[0]
            phase = self.phase(named) if named in self.mbarriers else -1
            event = self._signals(operation, warp, ins)
            self.flights[operation] = Flight(event, phase, over, known, arrivals)

    def _set_going(self, warp: Warp, ins: Instruction, lanes: Lanes, operation: AsyncOperation) -> Tokens:
        """A copy or product: its accesses, and by which wait the warp will know of its end."""
        held = self.tokens[warp.index]
        if ins.op == "cp.async":
            tokens = self.begin(warp, ins, lanes, operation.reads, operation.writes, Proxy.GENERIC)
            held.copies.add(lanes, tokens)
        elif ins.op.startswith("tcgen05"):
            tokens = self.begin(warp, ins, lanes, operation.reads, operation.writes, Proxy.TENSOR)
            held.tensor |= tokens.both
            self.views[warp.index].known.piped |= tokens.both
        else:
            tokens = self.begin(warp, ins, lanes, operation.reads, operation.writes, Proxy.ASYNC)
            if ins.has("bulk_group"):
                held.bulk.add(lanes, tokens)
        return tokens

    def begin(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        reads: tuple[Footprint, ...],
        writes: tuple[Footprint, ...],
        proxy: Proxy,
    ) -> Tokens:
        """An operation that `warp` sets going."""
        read, write = self.events.token(), self.events.token()
        clock, lane, each = self.views[warp.index].clock, lane_of(lanes), lanes.nonzero()[0]
        # Bulk reductions are relaxed atomics, an element each (PTX ISA, "cp.reduce.async.bulk").
        done = Access.ATOMIC if ins.op.startswith("cp.reduce") else Access.WRITE
        for access, token, places in ((Access.READ, read, reads), (done, write, writes)):
            if not places:
                continue
            event = self.events.begun(warp.index, clock, ins, access, proxy, token, read, lane)
            for number, where in enumerate(places):
                self.footprint(where, event, int(each[number]) if ins.op == "cp.async" else lane)
            if any(where.space == "shared" for where in places):
                self.reading[token] = event
        return Tokens(1 << read, 1 << write)

    def _signals(self, operation: AsyncOperation, warp: Warp, ins: Instruction) -> Event:
        """The mbarriers that an operation will signal have to be ready for it."""
        clock = self.views[warp.index].clock
        token = self.events.token()
        # cp.async is no bulk copy: it and its arrival are the generic proxy's.
        proxy = Proxy.GENERIC if ins.op.startswith("cp.async.mbarrier") else Proxy.ASYNC
        lane = MANY if self.issue is None else self.issue.lane
        event = self.events.begun(warp.index, clock, ins, Access.ATOMIC, proxy, token, lane=lane)
        for address in operation.signals:
            self.uses(address, event)
        return event

    def uses(self, address: int, event: Event) -> Mbarrier | None:
        """`event` uses the mbarrier at `address`; None if there is none, which the machine will say."""
        barrier = self.mbarriers.get(address)
        if barrier is None:
            return None
        met = Pair(barrier.init.lane, event.lane)
        why = unordered(barrier.init, event, self.views[event.warp], "shared", met)
        if why is not None:
            self.findings.pair(why, barrier.init, event, "shared", address)
        if event.token is None:
            barrier.users[event.warp] = event
        return barrier

    def phase(self, address: int) -> int:
        """The phase that the mbarrier at `address` is in."""
        return int(self.cta.shared.phase_cells[address // MBARRIER_BYTES])

    def word(self, address: int) -> int:
        """The mbarrier at `address` as the machine keeps it."""
        return int(self.cta.shared.word_cells[address // MBARRIER_BYTES])

    def joined(self, address: int, arrivals: int) -> int:
        """The phase that a warp's `arrivals`, which come now, are all over in. Those that end a phase before
        all lanes have arrived end it without what the other lanes did: they count for the next."""
        pending = self.word(address) & COUNT_MAX
        return self.phase(address) + (arrivals > pending)

    def landing(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        flight = self.flights.pop(operation, None)
        if flight is None:
            return
        for address in operation.signals:
            barrier = self.mbarriers.get(address)
            if barrier is not None:
                cta_exit.check_in_phase(self, flight, address)
                barrier.signal, barrier.signalled = flight.event, self.joined(address, flight.arrivals)
                carried = barrier.at(barrier.signalled)
                carried.order(flight.known)
                carried.base.tokens |= flight.over
                carried.fenced |= flight.over

    def exited(self, warp: int) -> None:
        """See `Checker`."""

    def stuck(self) -> None:
        """See `Checker`."""
        cta_exit.check_hang(self)

    def finish(self) -> None:
        """See `Checker`."""
        cta_exit.check_end(self)
        self._ended(self)
