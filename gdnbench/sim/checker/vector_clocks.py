# SPDX-License-Identifier: Apache-2.0
"""Vector clocks: which accesses a warp, barrier round or mbarrier phase is ordered after.

As in FastTrack and ThreadSanitizer (cited in the package's docstring), every actor (there: a thread) has a
clock of its own, and an access is stamped with its *epoch*, the actor and the value of the actor's clock. An
actor's *vector clock* has a component for every actor: the last clock value that it is ordered after. An
access with epoch c of warp w happens before what warp v does now if VC(v)[w] >= c.

Three things differ from a CPU's threads:

- The actor is a warp, or a lane if lanes of a warp release or acquire separately. A `VectorClock` has a
  component for each warp, and components for single lanes that are later than their warp's.
- An asynchronous operation (TMA, cp.async, wgmma, tcgen05) is an actor that acts once. In place of an epoch
  its reads have a *token*, a bit, and its writes another. A vector clock contains a token if it is ordered
  after the completion of those reads or writes.
- Order depends on the proxy by which memory is reached (PTX ISA, "Memory Consistency Model", "Proxies";
  9.7.16.6 for tcgen05). So a warp has one vector clock for each kind of order, a `ClockSet`:

    base           base causality order: releases and acquires, barriers, completed operations
    async_proxy    generic accesses that a fence.proxy.async has handed to the async proxy, by memory
    mbarrier_inits each mbarrier.init that a fence made visible to the async proxy
    waits          how many mbarrier waits of each warp have returned, for the cause "two phases behind"
    converged      what base would be if lanes also released and acquired wherever they execute a .sync or
                   .aligned instruction together
    tcgen05_fenced tokens of tensor-memory operations that tcgen05.fence::before_thread_sync, .commit or .wait
                   orders
    tensor_pipe    tokens of products and copies that later ones run after; they need not be complete
    loads_used     tokens of each tcgen05.ld of which an instruction has used a register, with or without a
                   tcgen05.wait::ld
    parts_waited   tokens of the parts of a wgmma, of all its warps, for which one of them has waited
    remote         clocks of other CTAs, a `RemoteClocks`; the CTAs of a cluster share their clocks
    fence_sc       clocks at earlier fence.sc, which a later fence.sc acquires, a `RemoteClocks`
    started        a bit for each CTA of the cluster that has started
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gdnbench.sim.checker.lanes import MANY, UNSURE, LaneSubset
from gdnbench.sim.checker.remote_clocks import RemoteClocks
from gdnbench.sim.machine.engine_interface import LANES

SPACES = ("shared", "global")

_LANE_STRIDE = (
    2 * LANES
)  # lane components are numbered _LANE_STRIDE * warp + lane, with room for MANY, UNSURE


class Epoch(Protocol):
    """When an access happened: at `clock` of `warp`, by `lane`; for an asynchronous operation, when the
    operation `token` completes. An `events.Event` has an epoch."""

    @property
    def warp(self) -> int: ...
    @property
    def clock(self) -> int: ...
    @property
    def token(self) -> int | None: ...
    @property
    def lane(self) -> int: ...


class LanePairs(Protocol):
    """Which lanes made two accesses to the same cells."""

    def same_lane(self) -> bool:
        """Whether at every common cell one lane made both accesses."""
        ...

    def lane_pairs(self) -> Iterable[tuple[int, int]]:
        """The distinct pairs (lane of the earlier access, lane of the later one)."""
        ...


@dataclass(slots=True)
class VectorClock:
    """`by_warp[w]`: ordered after accesses of warp w up to this clock. `tokens`: the bits of completed
    asynchronous operations. `by_lane`: components of single lanes that are later than their warp's,
    with the key 64 * warp + lane."""

    by_warp: list[int]
    tokens: int = 0
    by_lane: dict[int, int] = field(default_factory=dict)

    @classmethod
    def zero(cls, warps: int) -> VectorClock:
        """The clock that is ordered after nothing."""
        return cls([0] * warps)

    def join(self, other: VectorClock) -> None:
        """The componentwise maximum, in place."""
        self.by_warp = list(map(max, self.by_warp, other.by_warp))
        self.tokens |= other.tokens
        for component, clock in other.by_lane.items():
            self._advance_lane(component, clock)

    def advance(self, warp: int, subset: LaneSubset, clock: int) -> None:
        """Raise the component of a warp, or of some of its lanes, to `clock`."""
        if subset is None:
            self.by_warp[warp] = max(self.by_warp[warp], clock)
            return
        for lane in subset:
            self._advance_lane(_LANE_STRIDE * warp + lane, clock)

    def _advance_lane(self, component: int, clock: int) -> None:
        if clock > max(self.by_warp[component // _LANE_STRIDE], self.by_lane.get(component, 0)):
            self.by_lane[component] = clock

    def contains(self, epoch: Epoch) -> bool:
        """Whether it is ordered after the epoch, whichever lane of the warp made the access."""
        if epoch.token is not None:
            return bool(self.tokens >> epoch.token & 1)
        return self.by_warp[epoch.warp] >= epoch.clock

    def contains_lane(self, epoch: Epoch, lane: int) -> bool:
        """Whether it is ordered after the part of the access that `lane` made."""
        if self.contains(epoch):
            return True
        if epoch.token is not None or not self.by_lane:
            return False
        if lane != UNSURE:
            return self.by_lane.get(_LANE_STRIDE * epoch.warp + lane, 0) >= epoch.clock
        return any(
            component // _LANE_STRIDE == epoch.warp and clock >= epoch.clock
            for component, clock in self.by_lane.items()
        )


@dataclass(slots=True)
class ClockSet:
    """A vector clock for each kind of order (see the module's docstring). A warp has such a set, and so has
    each barrier round, mbarrier phase and synchronisation variable to which a warp has released."""

    base: VectorClock
    async_proxy: dict[str, VectorClock]
    mbarrier_inits: VectorClock
    waits: VectorClock
    converged: VectorClock
    tcgen05_fenced: int = 0
    tensor_pipe: int = 0
    loads_used: int = 0
    parts_waited: int = 0
    remote: RemoteClocks = field(default_factory=RemoteClocks)
    fence_sc: RemoteClocks = field(default_factory=RemoteClocks)
    started: int = 0

    @classmethod
    def zero(cls, warps: int) -> ClockSet:
        """The set that is ordered after nothing, in a CTA of `warps` warps."""
        async_proxy = {space: VectorClock.zero(warps) for space in SPACES}
        base, inits, waits, converged = (VectorClock.zero(warps) for _ in range(4))
        return cls(base, async_proxy, inits, waits, converged)

    def join_memory(self, other: ClockSet) -> None:
        """Join what orders shared and global memory."""
        self.base.join(other.base)
        for space, clock in self.async_proxy.items():
            clock.join(other.async_proxy[space])
        self.mbarrier_inits.join(other.mbarrier_inits)
        self.waits.join(other.waits)
        self.converged.join(other.converged)
        self.join_warp_wide(other)

    def join_warp_wide(self, other: ClockSet) -> None:
        """Join the part that is kept for a whole warp and never for single lanes."""
        self.loads_used |= other.loads_used
        self.parts_waited |= other.parts_waited
        self.remote.join(other.remote)
        self.fence_sc.join(other.fence_sc)
        self.started |= other.started

    def join(self, other: ClockSet) -> None:
        """Join everything, tensor memory included."""
        self.join_memory(other)
        self.tcgen05_fenced |= other.tcgen05_fenced
        self.tensor_pipe |= other.tensor_pipe


@dataclass(slots=True)
class OwnClocks:
    """Program order: what each lane is ordered after among its own accesses, and the other lanes are not.
    `async_proxy`: the clock up to which its accesses are handed to the async proxy, by memory.
    `mbarrier_inits`: the same of its mbarrier.init. `tokens`: the operations that it has waited for."""

    async_proxy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPACES, 0))
    mbarrier_inits: int = 0
    tokens: int = 0


@dataclass(slots=True)
class WarpClocks:
    """The clocks of one warp. `own_clock` is its own component: the clock of its next access, raised by every
    release. `all_lanes` is what every lane is ordered after, `per_lane` what single lanes are also ordered
    after, `own` what each lane is ordered after among its own accesses.

    For tensor memory, which a warp uses as a whole, `all_lanes.tcgen05_fenced` is what its tcgen05 operations
    are ordered after and `all_lanes.tensor_pipe` what its products and copies follow. The `released_` tokens
    have passed a tcgen05.fence::before_thread_sync: every later release passes them on. The `acquired_`
    tokens have been acquired: the next tcgen05.fence::after_thread_sync adds them to `all_lanes`."""

    warp: int
    all_lanes: ClockSet
    cta_warps: int = 1 << 30  # warps of each CTA of a cluster, whose warps are numbered through
    own_clock: int = 1
    released_fenced: int = 0
    released_pipe: int = 0
    acquired_fenced: int = 0
    acquired_pipe: int = 0
    own: OwnClocks = field(default_factory=OwnClocks)
    per_lane: dict[int, ClockSet] = field(default_factory=dict)

    # Queries

    def same_cta(self, epoch: Epoch) -> bool:
        """Whether the warp that made an access is of the same CTA, not of another one of the cluster."""
        return epoch.warp // self.cta_warps == self.warp // self.cta_warps

    def ordered_after(self, epoch: Epoch, lanes: LanePairs) -> bool:
        """Whether the warp's next access is ordered after `epoch`, for all of `lanes`."""
        base = self.all_lanes.base
        if base.contains(epoch):
            return True
        own = epoch.warp == self.warp and (epoch.token is None or bool(self.own.tokens >> epoch.token & 1))
        return self._contains_lanes(epoch, lanes, base, lambda of_lane: of_lane.base, own)

    def ordered_by_convergence(self, epoch: Epoch, lanes: LanePairs) -> bool:
        """Whether it would be, if .sync and .aligned instructions of a warp's lanes ordered memory."""
        clock = self.all_lanes.converged
        return clock.contains(epoch) or self._contains_lanes(
            epoch, lanes, clock, lambda of_lane: of_lane.converged, False
        )

    def visible_to_async_proxy(self, memory: str, epoch: Epoch, lanes: LanePairs) -> bool:
        """Whether a generic access to `memory` was handed to the async proxy, given `ordered_after`."""
        clock = self.all_lanes.async_proxy[memory]
        own = self._is_own(epoch, self.own.async_proxy[memory])
        return clock.contains(epoch) or self._contains_lanes(
            epoch, lanes, clock, lambda of_lane: of_lane.async_proxy[memory], own
        )

    def init_visible(self, epoch: Epoch, lanes: LanePairs) -> bool:
        """The same for an mbarrier.init."""
        clock = self.all_lanes.mbarrier_inits
        own = self._is_own(epoch, self.own.mbarrier_inits)
        return clock.contains(epoch) or self._contains_lanes(
            epoch, lanes, clock, lambda of_lane: of_lane.mbarrier_inits, own
        )

    def _is_own(self, epoch: Epoch, until: int) -> bool:
        return epoch.warp == self.warp and until >= epoch.clock

    def _contains_lanes(
        self,
        epoch: Epoch,
        lanes: LanePairs,
        clock: VectorClock,
        lane_clock: Callable[[ClockSet], VectorClock],
        own: bool,
    ) -> bool:
        """Whether, for each pair of lanes, `clock` or the later lane's `lane_clock` contains the earlier
        lane's access. `own`: a lane is also ordered after its own access (program order)."""
        if own and lanes.same_lane():
            return True
        for before, now in lanes.lane_pairs():
            if before == MANY and epoch.lane != MANY:
                before = epoch.lane
            if clock.contains_lane(epoch, before):
                continue
            if own and (UNSURE in (before, now) or before == now != MANY):
                continue  # program order of one lane; lanes that may be one get no finding
            of_lane = self.per_lane.get(now)
            if of_lane is None or not lane_clock(of_lane).contains_lane(epoch, before):
                return False
        return True

    def completed_tokens(self) -> int:
        """The tokens of operations that some lane is ordered after."""
        tokens = self.all_lanes.base.tokens | self.own.tokens
        for of_lane in self.per_lane.values():
            tokens |= of_lane.base.tokens
        return tokens

    # Release and acquire

    def release(self, into: ClockSet, subset: LaneSubset = None, *, relaxed: bool = False) -> None:
        """Join the clocks of these lanes into a synchronisation object's, then raise the warp's own clock. A
        `relaxed` release orders no memory. It still passes on `waits`, since waits that precede the arrival
        in causality order cannot see it (PTX ISA, "Causality Order"), which CTAs have started, and what a
        fence.mbarrier_init has released (PTX ISA, "membar, fence")."""
        if relaxed:
            into.waits.join(self.all_lanes.waits)
            for lane, of_lane in self.per_lane.items():
                if subset is None or lane in subset:
                    into.waits.join(of_lane.waits)
            into.started |= self.all_lanes.started
            self._release_inits(into, subset)
        else:
            self._release_into(into, subset, self.own_clock)
        into.tcgen05_fenced |= self.released_fenced
        into.tensor_pipe |= self.released_pipe
        self.tick()

    def _release_inits(self, into: ClockSet, subset: LaneSubset) -> None:
        into.mbarrier_inits.join(self.all_lanes.mbarrier_inits)
        for lane, of_lane in self.per_lane.items():
            if subset is None or lane in subset:
                into.mbarrier_inits.join(of_lane.mbarrier_inits)
        into.mbarrier_inits.advance(self.warp, subset, self.own.mbarrier_inits)

    def acquire(self, released: ClockSet, subset: LaneSubset = None, *, relaxed: bool = False) -> None:
        """Join a synchronisation object's clocks into those of these lanes. A `relaxed` acquire joins only
        the tokens of tensor memory."""
        if not relaxed:
            for clocks in self._clocks_of(subset):
                clocks.join_memory(released)
            self.all_lanes.join_warp_wide(released)
        self.acquired_fenced |= released.tcgen05_fenced
        self.acquired_pipe |= released.tensor_pipe

    def synchronize_lanes(self, subset: LaneSubset) -> None:
        """bar.warp.sync or a barrier of the CTA: these lanes release and acquire among themselves."""
        if subset is not None:
            released = ClockSet.zero(len(self.all_lanes.base.by_warp))
            self._release_into(released, subset, self.own_clock)
            for clocks in self._clocks_of(subset):
                clocks.join_memory(released)
        else:
            self._release_into(self.all_lanes, None, self.own_clock)
            self.per_lane.clear()
            self.own.tokens = 0
        self.tick()

    def converge_lanes(self, subset: LaneSubset) -> None:
        """These lanes execute a .sync or .aligned instruction together. The PTX ISA does not say that this
        orders memory, so only `converged` changes."""
        if subset is None and not self.per_lane:
            self.all_lanes.converged.advance(self.warp, None, self.own_clock)
            self.tick()
            return
        met = VectorClock.zero(len(self.all_lanes.base.by_warp))
        met.advance(self.warp, subset, self.own_clock)
        for lane, of_lane in self.per_lane.items():
            if subset is None or lane in subset:
                met.join(of_lane.base)
        for clocks in self._clocks_of(subset):
            clocks.converged.join(met)
        self.tick()

    def clocks_at_issue(self, subset: LaneSubset) -> ClockSet:
        """The clocks that an asynchronous operation, issued now by these lanes, releases when it completes.
        They contain what the lanes are ordered after, and the lanes' own accesses up to their last release.
        Accesses since that release need not be ordered before the operation."""
        released = ClockSet.zero(len(self.all_lanes.base.by_warp))
        self._release_into(released, subset, self.own_clock - 1)
        return released

    def released_clocks(self) -> tuple[VectorClock, VectorClock]:
        """(`base`, `async_proxy` of global memory) that a release of the whole warp would pass on now."""
        released = ClockSet.zero(len(self.all_lanes.base.by_warp))
        self._release_into(released, None, self.own_clock)
        return released.base, released.async_proxy["global"]

    def _release_into(self, into: ClockSet, subset: LaneSubset, clock: int) -> None:
        """Join the clocks of these lanes, and their own accesses up to `clock`, into a set."""
        if into is not self.all_lanes:
            into.join_memory(self.all_lanes)
        for lane, of_lane in self.per_lane.items():
            if subset is None or lane in subset:
                into.join_memory(of_lane)
        into.base.advance(self.warp, subset, clock)
        for space, fenced in self.own.async_proxy.items():
            into.async_proxy[space].advance(self.warp, subset, fenced)
        into.mbarrier_inits.advance(self.warp, subset, self.own.mbarrier_inits)
        if subset is None:
            into.base.tokens |= self.own.tokens

    def _clocks_of(self, subset: LaneSubset) -> list[ClockSet]:
        """The clock sets that an acquire of these lanes changes."""
        if subset is None:
            return [self.all_lanes]
        for lane in subset:
            if lane not in self.per_lane:
                self.per_lane[lane] = ClockSet.zero(len(self.all_lanes.base.by_warp))
        return [self.per_lane[lane] for lane in subset]

    def count_wait(self) -> int:
        """The warp has waited for an mbarrier's phase. Returns the number of this wait."""
        self.all_lanes.waits.by_warp[self.warp] += 1
        return self.all_lanes.waits.by_warp[self.warp]

    def complete(self, tokens: int) -> None:
        """The warp has waited as a whole for these operations (wgmma.wait_group, tcgen05.wait)."""
        self.all_lanes.base.tokens |= tokens
        self.all_lanes.tcgen05_fenced |= tokens

    def complete_for_lanes(self, tokens: int, subset: LaneSubset) -> None:
        """Lanes have waited for these operations, each for its own (cp.async and bulk groups)."""
        if subset is None:
            self.own.tokens |= tokens
        else:
            for clocks in self._clocks_of(subset):
                clocks.base.tokens |= tokens

    def tick(self) -> None:
        """Raise the warp's own clock: what it does next is not covered by its releases so far."""
        self.own_clock += 1

    # Fences

    def fence_proxy(self, spaces: Iterable[str], subset: LaneSubset) -> None:
        """fence.proxy.async: hand what these lanes are ordered after to the async proxy, for `spaces`."""
        base, spaces = self.all_lanes.base, tuple(spaces)
        if subset is None:
            fenced = [self.all_lanes, *self.per_lane.values()]
            self.own.mbarrier_inits = self.own_clock
            for space in spaces:
                self.own.async_proxy[space] = self.own_clock
        else:
            fenced = self._clocks_of(subset)
        for clocks in fenced:
            for space in spaces:
                clocks.async_proxy[space].join(clocks.base)
                clocks.async_proxy[space].join(base)
            clocks.mbarrier_inits.join(clocks.base)
            clocks.mbarrier_inits.join(base)
        if "global" in spaces:
            self.all_lanes.remote.fence_proxy()
        self._fence_own(subset, spaces)
        self.tick()

    def _fence_own(self, subset: LaneSubset, spaces: Iterable[str]) -> None:
        """Single lanes that fence hand over their own accesses."""
        for lane in subset or ():
            for space in spaces:
                self.per_lane[lane].async_proxy[space].advance(self.warp, (lane,), self.own_clock)
            self.per_lane[lane].mbarrier_inits.advance(self.warp, (lane,), self.own_clock)

    def fence_mbarrier_init(self, subset: LaneSubset) -> None:
        """fence.mbarrier_init: hand the mbarrier.init of these lanes to the async proxy (PTX ISA, "membar,
        fence")."""
        if subset is None:
            self.own.mbarrier_inits = self.own_clock
        else:
            self._clocks_of(subset)
            self._fence_own(subset, ())
        self.tick()

    def tcgen05_fence_before(self) -> None:
        """tcgen05.fence::before_thread_sync: later releases pass on the tensor-memory tokens too."""
        self.released_fenced |= self.all_lanes.tcgen05_fenced
        self.released_pipe |= self.all_lanes.tensor_pipe

    def tcgen05_fence_after(self) -> None:
        """tcgen05.fence::after_thread_sync: later tcgen05 operations follow the tokens acquired so far."""
        self.all_lanes.tcgen05_fenced |= self.acquired_fenced
        self.all_lanes.tensor_pipe |= self.acquired_pipe
