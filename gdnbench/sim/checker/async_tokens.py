"""What a warp's threads have set going and by which wait they will know that it is over."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.machine.engine_interface import Lanes


@dataclass(frozen=True, slots=True)
class Tokens:
    """Bits of one operation: that its sources have been read, that it is over."""

    read: int
    write: int

    @property
    def both(self) -> int:
        return self.read | self.write


@dataclass(slots=True)
class Groups:
    """Groups of asynchronous operations of each lane, oldest first: cp.async, bulk copies, wgmma."""

    open: defaultdict[int, list[Tokens]] = field(default_factory=lambda: defaultdict(list))
    closed: defaultdict[int, list[list[Tokens]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, lanes: Lanes, tokens: Tokens) -> None:
        for lane in lanes.nonzero()[0].tolist():
            self.open[lane].append(tokens)

    def commit(self, lanes: Lanes) -> None:
        for lane in lanes.nonzero()[0].tolist():
            self.closed[lane].append(self.open.pop(lane, []))

    def wait(self, lanes: Lanes, allowed: int, *, only_read: bool = False) -> int:
        """The bits that are known once all but the `allowed` latest groups are done."""
        known = 0
        for lane in lanes.nonzero()[0].tolist():
            groups = self.closed[lane]
            done = groups[: max(len(groups) - allowed, 0)]
            for group in done:
                for tokens in group:
                    known |= tokens.read if only_read else tokens.both
            if not only_read:
                del groups[: len(done)]
        return known

    def wait_all(self, lanes: Lanes) -> int:
        """The same of every operation, in a group or not."""
        self.commit(lanes)
        return self.wait(lanes, 0)

    def pending(self, lanes: Lanes) -> int:
        """The bits of all that was set going and not waited for."""
        known = 0
        for lane in lanes.nonzero()[0].tolist():
            for group in (*self.closed[lane], self.open[lane]):
                for tokens in group:
                    known |= tokens.both
        return known


@dataclass(slots=True)
class WarpTokens:
    """One warp's: `tensor` are products and copies into tensor memory, `loads` and `stores` are tcgen05.ld
    and .st that no tcgen05.wait has covered. `unused` are loads of which no register was used,
    by their number among the warp's `loaded`."""

    copies: Groups = field(default_factory=Groups)
    bulk: Groups = field(default_factory=Groups)
    wgmma: Groups = field(default_factory=Groups)
    tensor: int = 0
    loads: int = 0
    stores: int = 0
    loaded: int = 0
    unused: dict[int, Event] = field(default_factory=dict)
