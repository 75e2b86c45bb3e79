# SPDX-License-Identifier: Apache-2.0
"""The asynchronous operations that a warp's threads have issued, and which wait completes them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from gdnbench.sim.checker.events import Event
from gdnbench.sim.machine.engine_interface import Lanes


@dataclass(slots=True)
class ProductTokens:
    """The bits of those parts of a wgmma that its warps have issued."""

    parts: int = 0


@dataclass(frozen=True, slots=True)
class OperationTokens:
    """The two bits of one operation: `read`, its sources have been read; `write`, it is complete. `product`
    is the wgmma of which it is the part of a warp."""

    read: int
    write: int
    product: ProductTokens | None = None

    @property
    def both(self) -> int:
        return self.read | self.write


@dataclass(slots=True)
class AsyncGroups:
    """The groups of asynchronous operations of each lane, oldest first, of one kind: cp.async, bulk copies or
    wgmma. `closed` are the committed groups; `open` operations are in no committed group yet."""

    open: defaultdict[int, list[OperationTokens]] = field(default_factory=lambda: defaultdict(list))
    closed: defaultdict[int, list[list[OperationTokens]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, lanes: Lanes, tokens: OperationTokens) -> None:
        for lane in lanes.nonzero()[0].tolist():
            self.open[lane].append(tokens)

    def commit(self, lanes: Lanes) -> None:
        for lane in lanes.nonzero()[0].tolist():
            self.closed[lane].append(self.open.pop(lane, []))

    def wait_group(self, lanes: Lanes, allowed: int, *, only_read: bool = False) -> int:
        """The tokens that a wait_group of these lanes completes: those of all committed groups except the
        `allowed` latest ones. If `only_read` (.read), only the tokens of the groups' reads."""
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

    def products(self, lanes: Lanes, allowed: int) -> int:
        """The tokens of all warps' parts of the wgmma that a wait_group of these lanes completes."""
        groups = self.closed[int(lanes.argmax())]
        parts = 0
        for group in groups[: max(len(groups) - allowed, 0)]:
            for tokens in group:
                assert tokens.product is not None
                parts |= tokens.product.parts
        return parts

    def wait_all(self, lanes: Lanes) -> int:
        """The tokens of every operation of these lanes, committed or not (cp.async.wait_all)."""
        self.commit(lanes)
        return self.wait_group(lanes, 0)

    def pending(self, lanes: Lanes) -> int:
        """The bits of all operations of these lanes that no wait has covered."""
        known = 0
        for lane in lanes.nonzero()[0].tolist():
            for group in (*self.closed[lane], self.open[lane]):
                for tokens in group:
                    known |= tokens.both
        return known


@dataclass(slots=True)
class WarpAsyncState:
    """The asynchronous operations of one warp. `tensor`: tokens of products and of copies into tensor memory;
    `loads`, `stores`: tokens of tcgen05.ld and .st that no tcgen05.wait has covered. `loaded` counts the
    warp's tcgen05.ld; `unused` are those of which no register was used yet, by their number."""

    copies: AsyncGroups = field(default_factory=AsyncGroups)
    bulk: AsyncGroups = field(default_factory=AsyncGroups)
    wgmma: AsyncGroups = field(default_factory=AsyncGroups)
    tensor: int = 0
    loads: int = 0
    stores: int = 0
    loaded: int = 0
    unused: dict[int, Event] = field(default_factory=dict)
