# SPDX-License-Identifier: Apache-2.0
"""The race detector of one CTA: it keeps the warps' vector clocks and the shadow memories up to date.

The CTAs of a cluster have one detector, which numbers their warps consecutively. A shared address says which
CTA it belongs to (`engine_interface.CLUSTER_STRIDE`). All that follows also holds for a cluster.

The detector checks every load and store against the shadow of its memory and then records it there. Every
instruction that synchronises changes vector clocks (`synchronisation.py`).

An asynchronous operation accesses its memory at some time between its issue and its completion. The detector
checks those accesses at the issue and gives them a token; a wait for the operation puts the token into the
waiting warp's clock (`async_operations.py`). The time at which the simulator lets an operation land changes
the findings in one way only: its mbarrier may be in another phase by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from gdnbench.sim.checker import cta_exit, load_store
from gdnbench.sim.checker.async_operations import record_submitted, release_landed
from gdnbench.sim.checker.async_tokens import ProductTokens, WarpAsyncState
from gdnbench.sim.checker.cluster_uses import ClusterMember, ClusterUses
from gdnbench.sim.checker.cross_cta import CrossCtaDetector
from gdnbench.sim.checker.cta_state import PendingSignal
from gdnbench.sim.checker.earlier_launches import DependencyUse
from gdnbench.sim.checker.events import (
    Access,
    Event,
    EventLog,
    IssuedInstruction,
    Proxy,
)
from gdnbench.sim.checker.findings import Findings, Members
from gdnbench.sim.checker.happens_before import USED_ALONE, Cause, LanePair, Unordered, Verdict, unordered
from gdnbench.sim.checker.lane_shadow import LaneNumbers, LaneSets, LaneShadow, PriorLaneAccess
from gdnbench.sim.checker.lanes import subset_of
from gdnbench.sim.checker.launch_memory import CtaAccess
from gdnbench.sim.checker.mbarriers import USED_AS_DATA, Mbarrier
from gdnbench.sim.checker.named_barriers import Arrivals
from gdnbench.sim.checker.shadow import NO_ACCESS, Cells, PriorAccess, ReadSets
from gdnbench.sim.checker.stored_values import STORES, StoredValues
from gdnbench.sim.checker.sync_variables import SyncVariables
from gdnbench.sim.checker.synchronisation import BEGINS, ENDS, MBARRIER_BYTES
from gdnbench.sim.checker.tensor_memory import TmemShadow
from gdnbench.sim.checker.vector_clocks import ClockSet, LanePairs, WarpClocks
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.barrier_state import Round
from gdnbench.sim.machine.cluster import ClusterRound
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE, Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import Footprint, TmemBlock
from gdnbench.sim.machine.mbarrier import COUNT_MAX
from gdnbench.sim.machine.observer import Addresses, Masks, Writer
from gdnbench.sim.machine.shared_memory import rank_of
from gdnbench.sim.machine.wgmma_state import GroupProduct
from gdnbench.sim.ptx.forms import Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Register

REGISTER = "register"
"""The `memory` of findings about a register; `cell` is then the register's index."""


class CtaRaceDetector:
    """The race detector of one CTA; implements `machine.observer.Checker`. In a cluster it begins with the
    CTA of rank 0, and `member` adds each. `findings` are its findings so far. It calls `ended` with itself
    when all its CTAs have ended. `cross_cta` has what all CTAs of the launch share."""

    def __init__(
        self,
        cta: Cta,
        forms: load_store.KernelAccesses,
        cross_cta: CrossCtaDetector,
        ended: Callable[[CtaRaceDetector], None],
    ) -> None:
        self.ctas = [cta]
        self.index = cta.index
        self._ended = ended
        self.events = EventLog()
        of_cta = cta.launch.warps
        size = 1 if cta.cluster is None else cta.cluster.size
        members = (cta.index,) if cta.cluster is None else cta.cluster.place.ctas
        self.findings = Findings(Members(members, of_cta))
        self.warps = size * of_cta
        self.warp_clocks = [
            WarpClocks(index, ClockSet.zero(self.warps), of_cta) for index in range(self.warps)
        ]
        for clocks in self.warp_clocks:
            clocks.all_lanes.started = 1 << clocks.warp // of_cta
        self.cluster_uses = ClusterUses(self, cta.cluster) if cta.cluster is not None else None
        self.async_states = [WarpAsyncState() for _ in range(self.warps)]
        self.products: dict[GroupProduct, ProductTokens] = {}
        self.mbarriers: dict[int, Mbarrier] = {}
        self.barrier_clocks: WeakKeyDictionary[Round | ClusterRound, ClockSet] = WeakKeyDictionary()
        self.barrier_arrivals: dict[tuple[int, int], Arrivals] = {}  # by rank and barrier number
        self.cluster_waits: dict[tuple[int, bytes], list[ClusterRound]] = {}  # by warp and lanes
        self.sync_variables = SyncVariables(self.warps, cta.index, cross_cta.words, of_cta)
        self.open_rounds: dict[int, Round] = {}  # by warp, the round at which it arrives
        self.cell_bytes = forms.cell_bytes
        end = cta.shared.end if size == 1 else size * CLUSTER_STRIDE
        cells = end // self.cell_bytes["shared"] + 1
        sets = LaneSets(self.supersedes, self._known_to_all_lanes, self._same_warp, self._writes)
        self.shared = LaneShadow(cells, sets)
        self._stored = StoredValues(cta.shared.bytes, self.cell_bytes["shared"])
        self.mbarrier_cells = np.zeros(cells, np.bool_)  # cells of shared memory that mbarriers occupy
        self.memory = cross_cta.begin_cta(self)
        self.dependency = DependencyUse()
        self._earlier = cross_cta.earlier
        self._tmem = [TmemShadow(self, ReadSets(self.supersedes)) for _ in range(size)]
        self.pending_signals: dict[AsyncOperation, PendingSignal] = {}
        self.shared_reads: dict[int, Event] = {}  # by token, asynchronous accesses to shared memory
        self.issued: IssuedInstruction | None = None
        self._left = size  # CTAs that have not ended
        self._forms = forms
        self._uses: set[tuple[int, int, int, int]] = set()  # warp, pc, register, pc of its writer or below 0

    def member(self, cta: Cta) -> ClusterMember:
        """The checker of a CTA of the cluster."""
        if cta.rank:
            self.ctas.append(cta)
        return ClusterMember(self, cta.rank)

    def cta_of(self, warp: Warp) -> Cta:
        """The CTA of a warp."""
        return self.ctas[warp.rank]

    def tmem_of(self, rank: int) -> TmemShadow:
        """The shadow of the tensor memory of the CTA of this rank."""
        return self._tmem[rank]

    def has_shared(self, address: int, size: int) -> bool:
        """Whether these bytes are shared memory of the CTA, or of one of the cluster."""
        rank = rank_of(address)
        if rank >= len(self.ctas):
            return False
        shared = self.ctas[rank].shared
        return shared.first <= address <= shared.end - size

    # What engines report: loads, stores, warp collectives, uses of registers

    def on_accesses(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """See `Checker`."""
        form = self._forms.by_pc[ins.pc]
        if form is None:
            return
        if form.access is Access.WRITE and len(masks) > 1 and load_store.addresses_collide(masks, addresses):
            # Two executions may write one cell: record them one by one, in order.
            for row in range(len(masks)):
                self.on_accesses(warp, ins, masks[row : row + 1], addresses[row : row + 1])
            return
        clocks = self.warp_clocks[warp.number]
        if form.collective:
            clocks.converge_lanes(None)
        for space, starts, lanes in load_store.split_by_space(form, masks, addresses):
            cells = load_store.cells_of_accesses(starts, form.width, self.cell_bytes[space])
            # Only the shadow of shared memory records the lane of each cell.
            by = load_store.lanes_of_cells(lanes, len(cells)) if space == "shared" else None
            event = self.events.record(
                warp.number, clocks.own_clock, ins, form.access, lane=load_store.single_lane(lanes)
            )
            self.record_access(space, cells, event, by)
            if form.strong:
                self.sync_variables.strong_access(form, space, cells, clocks)
        if form.collective:
            clocks.converge_lanes(None)

    def on_warp_collective(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        """See `Checker`."""
        clocks, subset = self.warp_clocks[warp.number], subset_of(lanes, live)
        if ins.form.sync is Sync.WARP_BARRIER:
            clocks.synchronize_lanes(subset)
        else:
            clocks.converge_lanes(subset)

    def on_register_use(
        self,
        warp: Warp,
        ins: Instruction,
        register: Register,
        writer: Writer | None,
        *,
        computed: bool = False,
    ) -> None:
        """See `Checker`. Only the first use of each load counts. A choice is no finding, for compilers place
        moves before the wait. What follows it follows the load as after a use, whichever register it chose:
        the dependency is the same, and a mask may drop all that was loaded."""
        clocks, async_state = self.warp_clocks[warp.number], self.async_states[warp.number]
        now = Event(NO_ACCESS, warp.number, clocks.own_clock, ins, Access.READ, Proxy.GENERIC)
        if writer is not None and writer.ins.form.until is Until.TENSOR_LOAD:
            load = async_state.unused.get(writer.number)
            if load is None or load.token is None:
                return
            clocks.all_lanes.loads_used |= 1 << load.token
            if not ins.form.chooses:
                del async_state.unused[writer.number]
                self.findings.add_pair(USED_ALONE, load, now, REGISTER, register.index)
            return
        key = (warp.number, ins.pc, register.index, -1 - computed if writer is None else writer.ins.pc)
        if key in self._uses:
            return
        self._uses.add(key)
        if writer is None:
            missing = "a write of what it was computed from" if computed else "a write before it"
            self.findings.add_single(
                "uninitialised read", Verdict.ERROR, missing, now, REGISTER, register.index
            )
        else:
            before = Event(
                NO_ACCESS, warp.number, clocks.own_clock, writer.ins, Access.WRITE, Proxy.ASYNC, NO_ACCESS
            )
            why = Unordered(Cause.IN_FLIGHT, Verdict.ERROR, "wgmma.wait_group")
            self.findings.add_pair(why, before, now, REGISTER, register.index)

    # Shadow memory

    def record_access(self, space: str, cells: Cells, event: Event, lanes: LaneNumbers | None = None) -> None:
        """Check an access to `cells` of shared or global memory and record it in the shadow. `lanes` gives
        the lane of each cell, if there are several."""
        clocks = self.warp_clocks[event.warp]

        def order(before: Event, met: LanePairs) -> Unordered | None:
            return unordered(before, event, clocks, space, met)

        prior: Sequence[PriorAccess | PriorLaneAccess]
        if space == "shared":
            if self.cluster_uses is not None:
                self.cluster_uses.check_cells(cells, event, lanes)
            record = self.shared.record_writes if event.access.writes else self.shared.record_reads
            prior = record(cells, event.number, event.lane if lanes is None else lanes)
            of_mbarriers = cells[self.mbarrier_cells[cells]]
            if of_mbarriers.size:
                at = int(of_mbarriers[0]) * self.cell_bytes["shared"]
                self.findings.add_single(
                    USED_AS_DATA, Verdict.ERROR, "mbarrier.inval before it", event, "shared", at
                )
        else:
            numbers = np.full(len(cells), event.number, np.int32)
            prior = (
                self.memory.record_writes(cells, numbers)
                if event.access.writes
                else self.memory.record_reads(cells, numbers)
            )
        for one in prior:
            self.check_pair(one, event, order, space)
        if space == "shared" and event.ins.op in STORES:
            self._stored.record(cells)
        if event.strong and event.access.writes:
            self._keep_strong_accesses(prior, clocks)

    def _keep_strong_accesses(
        self, prior: Sequence[PriorAccess | PriorLaneAccess], clocks: WarpClocks
    ) -> None:
        """A strong write does not race with earlier strong accesses to shared memory, even where it is not
        ordered after them. Keep those in the shadow: a later access is checked against all of them."""
        for one in prior:
            if isinstance(one, PriorLaneAccess):
                before = self.events[one.number]
                if before.strong and not clocks.ordered_after(before, one):
                    self.shared.keep_unordered(one)

    def check_pair(
        self,
        prior: PriorAccess | PriorLaneAccess,
        event: Event,
        order: Callable[[Event, LanePairs], Unordered | None],
        space: str,
    ) -> None:
        """Report `event` if it is not ordered after `prior`, an access to some of the same cells; `order` is
        the rule of the memory `space`."""
        if prior.number == NO_ACCESS:
            if space != "global":
                at = self._address(prior, space)
                self.findings.add_single(
                    "uninitialised read", Verdict.ERROR, "a write before it", event, space, at
                )
            return
        before = self.events[prior.number]
        if event.operation is not None and before.operation == event.operation:
            return  # reads and writes of one operation do not race
        why = order(
            before, prior if isinstance(prior, PriorLaneAccess) else LanePair.of_events(before, event)
        )
        if why is None:
            return
        size = 0
        if isinstance(prior, PriorLaneAccess):
            size = prior.extent() * self.cell_bytes[space]
            if why.cause is Cause.RACE and self._stored.are_equal(before, event, prior.overlap()):
                why = Unordered(Cause.EQUAL_STORES, Verdict.REVIEW, why.missing)
                self.shared.keep_unordered(prior)  # a later access must be ordered after both
        self.findings.add_pair(why, before, event, space, self._address(prior, space), size=size)

    def _address(self, prior: PriorAccess | PriorLaneAccess, space: str) -> int:
        cell = prior.cell if isinstance(prior, PriorAccess) else prior.cell()
        return cell * self.cell_bytes.get(space, 1)

    def record_footprint(self, where: Footprint, event: Event, lane: int) -> None:
        """Check and record an asynchronous operation's access to the bytes or cells of `where`."""
        found = where.cells()
        if isinstance(where, TmemBlock):
            self.tmem_of(where.rank).record_access(found, event)
            return
        if found.size:
            self.record_access(
                where.space, load_store.cells_of_bytes(found, self.cell_bytes[where.space]), event, lane
            )

    def supersedes(self, new: int, old: int) -> bool:
        """Whether the shadow can forget the read `old` once it has the read `new`, because every access that
        is ordered after `new` is ordered after `old`. A warp's latest read supersedes its earlier ones."""
        later, earlier = self.events[new], self.events[old]
        if later.token is not None:
            return False
        if earlier.token is None and earlier.warp == later.warp:
            return True
        return self.warp_clocks[later.warp].ordered_after(earlier, LanePair(earlier.lane, later.lane))

    def _writes(self, number: int) -> bool:
        return self.events[number].access.writes

    def _same_warp(self, new: int, old: int) -> bool:
        return self.events[new].warp == self.events[old].warp

    def _known_to_all_lanes(self, new: int, old: int) -> bool:
        """Whether all lanes of the warp of `new` are ordered after `old`."""
        return self.warp_clocks[self.events[new].warp].all_lanes.base.contains(self.events[old])

    def ordered_after_remote(self, new: Event, old: CtaAccess) -> bool:
        """The same as `supersedes`, where `old` is an access of another CTA."""
        remote = self.warp_clocks[new.warp].all_lanes.remote
        if old.cta < 0:
            assert self._earlier is not None
            return new.token is None and self._earlier.unordered(old.cta, remote) is None
        clock = remote.by_cta.get(old.cta)
        return new.token is None and clock is not None and clock.contains(old.event)

    # What the machine reports: instructions, asynchronous operations, the CTA's end

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """See `Checker`."""
        self.issued = IssuedInstruction(warp, ins, lanes, sources)
        if previous is None and ins.has("aligned"):
            self.warp_clocks[warp.number].converge_lanes(None)
        handler = BEGINS.get(ins.op)
        if handler is not None and previous is None:
            handler(self, self.issued)

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
        handler = ENDS.get(ins.op)
        if handler is not None:
            handler(self, IssuedInstruction(warp, ins, lanes, sources), previous, results)

    def on_submit(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        assert self.issued is not None
        record_submitted(self, self.issued, operation)

    def use_mbarrier(self, address: int, event: Event) -> Mbarrier | None:
        """`event` uses the mbarrier at `address`. None if there is none there: the machine faults then."""
        if self.cluster_uses is not None:
            self.cluster_uses.check_mbarrier(address, event)
        barrier = self.mbarriers.get(address)
        if barrier is None:
            return None
        met = LanePair(barrier.init.lane, event.lane)
        why = unordered(barrier.init, event, self.warp_clocks[event.warp], "shared", met)
        if why is not None:
            self.findings.add_pair(why, barrier.init, event, "shared", address)
        if event.token is None:
            barrier.users[event.warp] = event
        return barrier

    def mbarrier_phase(self, address: int) -> int:
        """The phase that the mbarrier at `address` is in."""
        return int(self.ctas[0].shared.phase_cells[address // MBARRIER_BYTES])

    def mbarrier_word(self, address: int) -> int:
        """The 64-bit state of the mbarrier at `address`, as the machine keeps it."""
        return int(self.ctas[0].shared.word_cells[address // MBARRIER_BYTES])

    def arrival_phase(self, address: int, arrivals: int) -> int:
        """The phase whose completion covers all of a warp's `arrivals`, which come now. This is the current
        phase, unless more lanes arrive than the phase still needs: then some arrive in the next phase, and
        the next phase covers them all."""
        pending = self.mbarrier_word(address) & COUNT_MAX
        return self.mbarrier_phase(address) + (arrivals > pending)

    def before_landing(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        release_landed(self, operation)

    def on_warp_exit(self, warp: int) -> None:
        """See `Checker`."""

    def on_hang(self) -> None:
        """See `Checker`."""
        cta_exit.check_hang(self)

    def on_cta_end(self) -> None:
        """See `Checker`."""
        cta_exit.check_end(self)
        self._ended(self)

    def end_member(self, rank: int) -> None:
        """A CTA of the cluster has ended."""
        assert self.cluster_uses is not None
        self.cluster_uses.end_cta(rank)
        self._left -= 1
        if not self._left:
            self.on_cta_end()
