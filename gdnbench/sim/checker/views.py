"""What is known to have happened: clocks of warps, and which asynchronous operations are over.

A warp's own accesses carry its clock, which advances whenever it releases what it did. An asynchronous
operation has tokens, bits of an integer: one for its reads and one for its writes. A *view* says, of every
warp, up to which clock its accesses are ordered before what comes now, and which tokens are.

Five views differ in what they are good for (PTX ISA, "Memory Consistency Model", "Proxies"; 9.7.16.6):

    base       everything that synchronisation orders
    proxied    of the generic proxy's writes, by memory, those that a fence.proxy.async handed to the async
    proxy
    inits      of the mbarriers' initialisations, those that a fence made visible to the async proxy
    executed   waits at mbarriers, by their number: which ones are over, whatever memory looks like
    fenced     of tensor-memory operations, those that tcgen05.fence orders where synchronisation alone does
    not
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gdnbench.sim.checker.abroad import Abroad

SPACES = ("shared", "global")


@dataclass(slots=True)
class View:
    """`clocks[w]`: accesses of warp w up to this clock; `tokens`: a bit for each operation that is over."""

    clocks: list[int]
    tokens: int = 0

    @classmethod
    def of(cls, warps: int) -> View:
        return cls([0] * warps)

    def join(self, other: View) -> None:
        self.clocks = [max(a, b) for a, b in zip(self.clocks, other.clocks, strict=True)]
        self.tokens |= other.tokens

    def copy(self) -> View:
        return View(self.clocks.copy(), self.tokens)


@dataclass(slots=True)
class Carried:
    """What passes from those that release to those that acquire. `fenced` are tokens that a
    tcgen05.fence::before_thread_sync or a tcgen05.commit released; `piped`, those that were issued before
    such a fence and may still be under way: what the tensor core takes up later follows them. `abroad` is
    what is known of other CTAs; `fence_sc`, what a fence.sc followed: one that comes after it follows that too."""

    base: View
    proxied: dict[str, View]
    inits: View
    executed: View
    fenced: int = 0
    piped: int = 0
    used: int = 0  # tcgen05.ld of which a register was used, waited for or not
    abroad: Abroad = field(default_factory=Abroad)
    fence_sc: Abroad = field(default_factory=Abroad)

    @classmethod
    def of(cls, warps: int) -> Carried:
        return cls(
            View.of(warps), {space: View.of(warps) for space in SPACES}, View.of(warps), View.of(warps)
        )

    def order(self, other: Carried) -> None:
        """Join what is known of shared and global memory."""
        self.base.join(other.base)
        for space, view in self.proxied.items():
            view.join(other.proxied[space])
        self.inits.join(other.inits)
        self.executed.join(other.executed)
        self.used |= other.used
        self.abroad.join(other.abroad)
        self.fence_sc.join(other.fence_sc)

    def join(self, other: Carried) -> None:
        self.order(other)
        self.fenced |= other.fenced
        self.piped |= other.piped


@dataclass(slots=True)
class WarpViews:
    """What one warp knows. `known` is what its accesses now are ordered after. Of tensor memory: `fenced` is
    what tcgen05 operations are ordered after, `piped` what its products and copies follow; `released` and
    `synced` hold both between the fences and the synchronisation."""

    index: int
    known: Carried
    clock: int = 1
    released: int = 0
    released_piped: int = 0
    synced: int = 0
    synced_piped: int = 0

    def __post_init__(self) -> None:
        self.known.base.clocks[self.index] = self.clock

    def release(self, into: Carried, *, relaxed: bool = False) -> None:
        """Hand on what is known, of memory unless `relaxed`; what comes after has a later clock."""
        if not relaxed:
            into.order(self.known)
        into.fenced |= self.released
        into.piped |= self.released_piped
        self.tick()

    def acquire(self, carried: Carried, *, relaxed: bool = False) -> None:
        """Take over what others released."""
        if not relaxed:
            self.known.order(carried)
        self.synced |= carried.fenced
        self.synced_piped |= carried.piped

    def handed_on(self) -> Carried:
        """What the end of an operation that is set going now will tell: what was known of others, and what
        this warp has released. By then that is over, since the operation follows it; what the warp did since
        its last release need not be."""
        carried = Carried.of(len(self.known.base.clocks))
        carried.order(self.known)
        carried.base.clocks[self.index] = self.clock - 1
        return carried

    def waited(self) -> int:
        """The warp has waited for a phase: the number of this wait."""
        self.known.executed.clocks[self.index] += 1
        return self.known.executed.clocks[self.index]

    def over(self, tokens: int) -> None:
        """The warp has waited for these operations."""
        self.known.base.tokens |= tokens
        self.known.fenced |= tokens

    def tick(self) -> None:
        self.clock += 1
        self.known.base.clocks[self.index] = self.clock

    def fence_proxy(self, spaces: Iterable[str]) -> None:
        """fence.proxy.async: the async proxy sees what is known of these memories."""
        for space in spaces:
            self.known.proxied[space].join(self.known.base)
            if space == "global":
                self.known.abroad.fence_proxy()
        self.known.inits.join(self.known.base)
        self.tick()

    def fence_init(self) -> None:
        """fence.mbarrier_init: of those that this warp has initialised (PTX ISA, "membar, fence")."""
        self.known.inits.clocks[self.index] = self.clock
        self.tick()

    def before_thread_sync(self) -> None:
        self.released |= self.known.fenced
        self.released_piped |= self.known.piped

    def after_thread_sync(self) -> None:
        self.known.fenced |= self.synced
        self.known.piped |= self.synced_piped
