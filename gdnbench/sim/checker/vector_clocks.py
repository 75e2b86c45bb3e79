"""What is known to have happened: clocks of warps, and which asynchronous operations are over.

A warp's own accesses carry its clock, which advances whenever it releases what it did. An asynchronous
operation has tokens, bits of an integer: one for its reads and one for its writes. A *view* says, of every
warp, up to which clock its accesses are ordered before what comes now, and which tokens are. Where lanes of a
warp release apart, it says so of single lanes.

Six views differ in what they are good for (PTX ISA, "Memory Consistency Model", "Proxies"; 9.7.16.6):

    base       everything that synchronisation orders
    proxied    of the generic proxy's writes, by memory, those that a fence.proxy.async handed to the async
    proxy
    inits      of the mbarriers' initialisations, those that a fence made visible to the async proxy
    executed   waits at mbarriers, by their number: which ones are over, whatever memory looks like
    converged  what would be in base if lanes of a warp handed on what they know wherever they meet, be it
    only to execute a .sync or .aligned instruction together
    fenced     of tensor-memory operations, those that tcgen05.fence orders where synchronisation alone does
    not

Lanes of one warp know of each other what was done before they last met in a barrier: bar.warp.sync, or one of
the CTA. Of itself a lane knows all: that is program order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gdnbench.sim.checker.abroad import Abroad
from gdnbench.sim.checker.lanes import MANY, UNSURE, Part
from gdnbench.sim.machine.engine_interface import LANES

SPACES = ("shared", "global")

_NEXT = 2 * LANES  # from a warp's first thread to the next one's, with room for MANY and UNSURE


class Done(Protocol):
    """Something that a warp did: see `events.Event`."""

    @property
    def warp(self) -> int: ...
    @property
    def clock(self) -> int: ...
    @property
    def token(self) -> int | None: ...
    @property
    def lane(self) -> int: ...


class Met(Protocol):
    """Where two accesses met."""

    def itself(self) -> bool:
        """Whether it is one lane that did both, wherever they met."""
        ...

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Lanes of the one before and the one now, each pair once."""
        ...


@dataclass(slots=True)
class View:
    """`clocks[w]`: accesses of warp w up to this clock; `tokens`: a bit for each operation that is over.
    `threads`: the same as `clocks` of single lanes, by 64 warp + lane, where it is later."""

    clocks: list[int]
    tokens: int = 0
    threads: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, warps: int) -> View:
        return cls([0] * warps)

    def join(self, other: View) -> None:
        self.clocks = list(map(max, self.clocks, other.clocks))
        self.tokens |= other.tokens
        for thread, clock in other.threads.items():
            self._reach(thread, clock)

    def copy(self) -> View:
        return View(self.clocks.copy(), self.tokens, self.threads.copy())

    def reach(self, warp: int, part: Part, clock: int) -> None:
        """What these lanes did up to `clock`."""
        if part is None:
            self.clocks[warp] = max(self.clocks[warp], clock)
            return
        for lane in part:
            self._reach(_NEXT * warp + lane, clock)

    def _reach(self, thread: int, clock: int) -> None:
        if clock > max(self.clocks[thread // _NEXT], self.threads.get(thread, 0)):
            self.threads[thread] = clock

    def has(self, done: Done) -> bool:
        """Whether it has it whatever the lane."""
        if done.token is not None:
            return bool(self.tokens >> done.token & 1)
        return self.clocks[done.warp] >= done.clock

    def has_of(self, done: Done, lane: int) -> bool:
        """Whether it has what `lane` did of it."""
        if self.has(done):
            return True
        if done.token is not None or not self.threads:
            return False
        if lane != UNSURE:
            return self.threads.get(_NEXT * done.warp + lane, 0) >= done.clock
        return any(
            thread // _NEXT == done.warp and clock >= done.clock for thread, clock in self.threads.items()
        )


@dataclass(slots=True)
class Carried:
    """What passes from those that release to those that acquire. `fenced` are tokens that a
    tcgen05.fence::before_thread_sync or a tcgen05.commit released; `piped`, those that were issued before
    such a fence and may still be under way: what the tensor core takes up later follows them. `abroad` is
    what is known of other CTAs; `fence_sc`, what a fence.sc followed: one that comes after it follows that
    too."""

    base: View
    proxied: dict[str, View]
    inits: View
    executed: View
    converged: View
    fenced: int = 0
    piped: int = 0
    used: int = 0  # tcgen05.ld of which a register was used, waited for or not
    abroad: Abroad = field(default_factory=Abroad)
    fence_sc: Abroad = field(default_factory=Abroad)

    @classmethod
    def of(cls, warps: int) -> Carried:
        proxied = {space: View.of(warps) for space in SPACES}
        return cls(View.of(warps), proxied, View.of(warps), View.of(warps), View.of(warps))

    def order(self, other: Carried) -> None:
        """Join what is known of shared and global memory."""
        self.base.join(other.base)
        for space, view in self.proxied.items():
            view.join(other.proxied[space])
        self.inits.join(other.inits)
        self.executed.join(other.executed)
        self.converged.join(other.converged)
        self.order_elsewhere(other)

    def order_elsewhere(self, other: Carried) -> None:
        """The part of it that a warp's lanes know together."""
        self.used |= other.used
        self.abroad.join(other.abroad)
        self.fence_sc.join(other.fence_sc)

    def join(self, other: Carried) -> None:
        self.order(other)
        self.fenced |= other.fenced
        self.piped |= other.piped


@dataclass(slots=True)
class Own:
    """What each lane of a warp knows of what it did itself, and other lanes do not yet: clocks up to which
    its writes are handed to the async proxy, and its mbarriers' initialisations; what it waited for."""

    proxied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPACES, 0))
    inits: int = 0
    tokens: int = 0


@dataclass(slots=True)
class WarpViews:
    """What one warp knows. `known` is what accesses of any lane are ordered after, `apart` what those of one
    lane are besides, `own` what each lane knows of itself.

    Of tensor memory, which warps use as one: `fenced` is what tcgen05 operations are ordered after, `piped`
    what its products and copies follow; `released` and `synced` hold both between the fences and the
    synchronisation."""

    index: int
    known: Carried
    clock: int = 1
    released: int = 0
    released_piped: int = 0
    synced: int = 0
    synced_piped: int = 0
    own: Own = field(default_factory=Own)
    apart: dict[int, Carried] = field(default_factory=dict)

    # What is ordered

    def knows(self, done: Done, met: Met) -> bool:
        """Whether what comes now is ordered after `done` wherever they met."""
        base = self.known.base
        if base.has(done):
            return True
        its = done.warp == self.index and (done.token is None or bool(self.own.tokens >> done.token & 1))
        return self._of_all(done, met, base, lambda apart: apart.base, its)

    def converged(self, done: Done, met: Met) -> bool:
        """Whether it would be if the meetings of lanes ordered memory."""
        view = self.known.converged
        return view.has(done) or self._of_all(done, met, view, lambda apart: apart.converged, False)

    def proxied(self, memory: str, done: Done, met: Met) -> bool:
        """Whether an access to `memory` that it is ordered after was handed to the async proxy."""
        view = self.known.proxied[memory]
        its = self._did(done, self.own.proxied[memory])
        return view.has(done) or self._of_all(done, met, view, lambda apart: apart.proxied[memory], its)

    def initialised(self, done: Done, met: Met) -> bool:
        """The same of an mbarrier.init."""
        view = self.known.inits
        its = self._did(done, self.own.inits)
        return view.has(done) or self._of_all(done, met, view, lambda apart: apart.inits, its)

    def _did(self, done: Done, until: int) -> bool:
        return done.warp == self.index and until >= done.clock

    def _of_all(self, done: Done, met: Met, view: View, of: Callable[[Carried], View], its: bool) -> bool:
        """Whether `view`, or that `of` a lane, has what each lane did of `done`; `its`: what a lane did
        itself counts too."""
        if its and met.itself():
            return True
        for before, now in met.pairs():
            if before == MANY and done.lane != MANY:
                before = done.lane
            if view.has_of(done, before):
                continue
            if its and (UNSURE in (before, now) or before == now != MANY):
                continue  # no finding rests on lanes that are not known
            apart = self.apart.get(now)
            if apart is None or not of(apart).has_of(done, before):
                return False
        return True

    def tokens(self) -> int:
        """Operations that some lane knows to be over."""
        known = self.known.base.tokens | self.own.tokens
        for apart in self.apart.values():
            known |= apart.base.tokens
        return known

    # What orders

    def release(self, into: Carried, part: Part = None, *, relaxed: bool = False) -> None:
        """Lanes hand on what they know, of memory unless `relaxed`; what comes after has a later clock. That
        they have waited before is program order, relaxed or not."""
        if relaxed:
            into.executed.reach(self.index, None, self.known.executed.clocks[self.index])
        else:
            self._hand_on(into, part, self.clock)
        into.fenced |= self.released
        into.piped |= self.released_piped
        self.tick()

    def acquire(self, carried: Carried, part: Part = None, *, relaxed: bool = False) -> None:
        """Lanes take over what others released."""
        if not relaxed:
            for known in self._of(part):
                known.order(carried)
            self.known.order_elsewhere(carried)
        self.synced |= carried.fenced
        self.synced_piped |= carried.piped

    def together(self, part: Part) -> None:
        """Lanes meet in a barrier that orders memory."""
        if part is not None:
            carried = Carried.of(len(self.known.base.clocks))
            self._hand_on(carried, part, self.clock)
            for known in self._of(part):
                known.order(carried)
        else:
            self._hand_on(self.known, None, self.clock)
            self.apart.clear()
            self.own.tokens = 0
        self.tick()

    def converge(self, part: Part) -> None:
        """Lanes meet, and the PTX ISA does not say that this orders memory."""
        if part is None and not self.apart:
            self.known.converged.reach(self.index, None, self.clock)
            self.tick()
            return
        met = View.of(len(self.known.base.clocks))
        met.reach(self.index, part, self.clock)
        for lane, apart in self.apart.items():
            if part is None or lane in part:
                met.join(apart.base)
        for known in self._of(part):
            known.converged.join(met)
        self.tick()

    def handed_on(self, part: Part) -> Carried:
        """What the end of an operation that lanes set going now will tell: what was known of others, and what
        these lanes have released. By then that is over, since the operation follows it; what they did since
        their last release need not be."""
        carried = Carried.of(len(self.known.base.clocks))
        self._hand_on(carried, part, self.clock - 1)
        return carried

    def handing_on(self) -> tuple[View, View]:
        """What a release hands on now, as it is in base and, of global memory, in proxied."""
        carried = Carried.of(len(self.known.base.clocks))
        self._hand_on(carried, None, self.clock)
        return carried.base, carried.proxied["global"]

    def _hand_on(self, into: Carried, part: Part, clock: int) -> None:
        """What these lanes know, of themselves up to `clock`."""
        if into is not self.known:
            into.order(self.known)
        for lane, apart in self.apart.items():
            if part is None or lane in part:
                into.order(apart)
        into.base.reach(self.index, part, clock)
        for space, fenced in self.own.proxied.items():
            into.proxied[space].reach(self.index, part, fenced)
        into.inits.reach(self.index, part, self.own.inits)
        if part is None:
            into.base.tokens |= self.own.tokens

    def _of(self, part: Part) -> list[Carried]:
        """Where it is kept what these lanes learn."""
        if part is None:
            return [self.known]
        for lane in part:
            if lane not in self.apart:
                self.apart[lane] = Carried.of(len(self.known.base.clocks))
        return [self.apart[lane] for lane in part]

    def waited(self) -> int:
        """The warp has waited for a phase: the number of this wait."""
        self.known.executed.clocks[self.index] += 1
        return self.known.executed.clocks[self.index]

    def over(self, tokens: int) -> None:
        """The warp has waited for these operations, as one."""
        self.known.base.tokens |= tokens
        self.known.fenced |= tokens

    def over_for(self, tokens: int, part: Part) -> None:
        """Lanes have waited for these operations, each for its own."""
        if part is None:
            self.own.tokens |= tokens
        else:
            for known in self._of(part):
                known.base.tokens |= tokens

    def tick(self) -> None:
        self.clock += 1

    def fence_proxy(self, spaces: Iterable[str], part: Part) -> None:
        """fence.proxy.async: the async proxy sees what is known of these memories."""
        base, spaces = self.known.base, tuple(spaces)
        if part is None:
            everyone = [self.known, *self.apart.values()]
            self.own.inits = self.clock
            for space in spaces:
                self.own.proxied[space] = self.clock
        else:
            everyone = self._of(part)
        for known in everyone:
            for space in spaces:
                known.proxied[space].join(known.base)
                known.proxied[space].join(base)
            known.inits.join(known.base)
            known.inits.join(base)
        if "global" in spaces:
            self.known.abroad.fence_proxy()
        self._fenced(part, spaces)
        self.tick()

    def _fenced(self, part: Part, spaces: Iterable[str]) -> None:
        """Lanes that fence apart have fenced their own."""
        for lane in part or ():
            for space in spaces:
                self.apart[lane].proxied[space].reach(self.index, (lane,), self.clock)
            self.apart[lane].inits.reach(self.index, (lane,), self.clock)

    def fence_init(self, part: Part) -> None:
        """fence.mbarrier_init: of those that these lanes have initialised (PTX ISA, "membar, fence")."""
        if part is None:
            self.own.inits = self.clock
        else:
            self._of(part)
            self._fenced(part, ())
        self.tick()

    def before_thread_sync(self) -> None:
        self.released |= self.known.fenced
        self.released_piped |= self.known.piped

    def after_thread_sync(self) -> None:
        self.known.fenced |= self.synced
        self.known.piped |= self.synced_piped
